"""The cost model of trees with online sums: terms, rescaling and what is done after the last chunk."""

from dataclasses import replace

import numpy as np
import pytest
from benchmarks.paper_mcfuser.candidates import Candidates
from benchmarks.paper_mcfuser.workloads import WORKLOADS
from tests.cost.test_tree import model_of
from tests.tile import trees
from tests.tile.trees import func_of

import tilewright as tw
from tilewright.cost.breakdown import CostBreakdown
from tilewright.cost.trees.surroundings import with_surroundings
from tilewright.cost.trees.tree_model import TreeModel
from tilewright.loops.ir import Func, LoopKind
from tilewright.optimize.chains.chain_tree import chain_tree
from tilewright.tile.operation_cost import DIVISION
from tilewright.tile.tree import Compute, Loop, TileTree, nest
from tilewright.tile.tree_sizes import tree_sizes


def breakdown_of(tree: TileTree, func: Func) -> CostBreakdown:
    """The terms of a tree."""
    return model_of(tree, func).breakdown(np.array([tree_sizes(tree)]))


def rescaling_of(tree: TileTree, func: Func) -> float:
    """Nanoseconds of rescaling the weighted sums."""
    return float(next(x.total for x in breakdown_of(tree, func).parts if x.name == "O.sums")[0])


def test_online_sums_are_rescaled_per_chunk() -> None:
    func = func_of(trees.attention(512, 512, 64))
    times = [rescaling_of(trees.tree_of_attention(func, 16, chunk, 8, 16), func) for chunk in (16, 64, 256)]
    assert times[0] > times[1] > times[2] > 0
    assert times[0] == pytest.approx(16 * times[2], rel=0.3)


def test_what_is_done_after_the_last_chunk_is_counted_once_per_element() -> None:
    parts = [
        {p.name: p for p in breakdown_of(trees.tree_of_attention(x, 16, 64, 8, 16), x).parts}
        for x in (func_of(trees.attention(512, 512, 64, divided)) for divided in (True, False))
    ]
    assert parts[0]["O"].total[0] == pytest.approx(parts[1]["O"].total[0], rel=1e-6)
    divisions, copies = (float(x["O.store"].contained["multiply_adds"][0]) for x in parts)
    assert divisions == pytest.approx((1 + DIVISION.throughput) * copies)
    assert parts[0]["O.store"].total[0] > parts[1]["O.store"].total[0]


def test_statements_after_an_online_sum_read_its_result() -> None:
    sums = trees.attention(64, 64, 16)
    func = func_of(tw.compute((64, 16), lambda i, h: sums[i, h] * 2.0, "Y"))
    i, h = trees.axes_of(func, "Y")
    attended = trees.tree_of_attention(func, 16, 32, 8, 16)
    (rows,) = attended.body
    assert isinstance(rows, Loop)
    scaled = nest(trees.loops((h, 1), (i, 1, LoopKind.VECTORIZED)), Compute("Y"))
    tree = TileTree((replace(rows, body=(*rows.body, *scaled)),), attended.staging)
    nests = {x.statement.name: x for x in model_of(tree, func).nests}
    assert [(o.buffer, o.private) for o in nests["Y"].accesses] == [("O", False), ("Y", False)]


def test_values_that_online_sums_read_are_not_rescaled() -> None:
    candidates = Candidates(WORKLOADS["S7"])
    func, machine = candidates.task.func, candidates.machine
    tiling = next(t for t, _, _ in candidates.sample(1000) if candidates.text(t) == "mn, m 32, n 64")
    model = TreeModel.of(chain_tree(candidates.task, tiling, machine), func, machine)
    assert model is not None
    names = {x.statement.name for x in model.nests}
    assert {"P", "total.sums", "E.sums", "E.store"} <= names
    assert "P.sums" not in names


def test_an_online_sum_is_on_the_stack_until_the_last_chunk() -> None:
    func = func_of(trees.attention(512, 512, 64))
    tree = trees.tree_of_attention(func, 16, 64, 8, 16)
    batches = model_of(tree, func).nest_batches(np.array([tree_sizes(tree)]))
    nests = {x.shape.nest.statement.name: (x, f) for x, f in zip(batches, with_surroundings(batches), strict=True)}
    sums, around = nests["O"]
    assert sums.shape.nest.accesses[-1].private
    assert [o.buffer for o in nests["O.store"][0].shape.nest.accesses if not o.private] == ["O"]
    # rescaling happens before, in loops of its own: in those of the sum nothing else takes room
    own = [k for k, depth in enumerate(sums.depths) if depth > 2]
    assert own
    beside = np.asarray(around.beside)
    assert all(beside[k, 0] == 0 for k in own)
    rescaling = nests["O.sums"][0]
    assert {o.buffer for o in rescaling.shape.nest.accesses} == {sums.shape.nest.accesses[-1].buffer}
    assert "S.sums" not in nests
