"""The cost model of partitions in a loop over tiles of the same axis: each part has the points that it computes."""

import numpy as np
import pytest
from tests.cost.test_tree import model_of, time_of
from tests.tile import trees
from tests.tile.trees import func_of

from tilewright.expr.nodes import MemoryScope
from tilewright.loops.ir import Func, LoopKind
from tilewright.tile.tree import CacheWrite, Compute, Loop, LoopPart, Node, Partition, TileTree, nest
from tilewright.tile.tree_sizes import tree_sizes

ROWS, COLUMNS, TERMS = 256, 128, 64
UNROLLED, VECTORIZED = LoopKind.UNROLLED, LoopKind.VECTORIZED


def _tile(func: Func, height: int) -> tuple[Node, ...]:
    m, n, k = trees.axes_of(func, "C")
    sums = nest(trees.loops((k, 1), (m, 1, UNROLLED), (n, 1, VECTORIZED)), Compute("C", MemoryScope.REGISTER))
    stored = nest(trees.loops((m, 1, UNROLLED), (n, 1, VECTORIZED)), Compute("C.store"))
    return nest([Loop(m, height, ())], *sums, *stored)


def _tree(func: Func, rows: int, heights: tuple[int, ...]) -> TileTree:
    """A product in tiles of rows; register tiles of several heights cover them."""
    m, n, _ = trees.axes_of(func, "C")
    parts = tuple(LoopPart(h, _tile(func, h)) for h in heights)
    inner = _tile(func, heights[0]) if len(heights) == 1 else (Partition(m, parts),)
    return TileTree(nest(trees.loops((m, rows), (n, 32)), *inner), (CacheWrite("C", "C.store"),))


def _func() -> Func:
    return func_of(trees.product(ROWS, COLUMNS, TERMS))


def _multiply_adds(tree: TileTree, func: Func) -> list[float]:
    """Nanoseconds of multiply-adds by part."""
    features = model_of(tree, func).breakdown(np.array([tree_sizes(tree)])).features()
    return [float(x[0]) for name, x in features.items() if name.endswith(".core.multiply_adds")]


def test_parts_compute_their_points_alone() -> None:
    """64 rows are 60 in tiles of 6 and 4 in one: multiply-adds of both together are those of all points."""
    func = _func()
    large, small = _multiply_adds(_tree(func, 64, (6, 4)), func)
    (together,) = _multiply_adds(_tree(func, 64, (8,)), func)
    assert large + small == pytest.approx(together)
    assert large == pytest.approx(15 * small)


def test_a_small_part_takes_little_time() -> None:
    func = _func()
    assert time_of(_tree(func, 64, (6, 4)), func) < 1.3 * time_of(_tree(func, 64, (8,)), func)
