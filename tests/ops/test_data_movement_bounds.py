"""Every element that a data-moving operator reads is proved to exist, for all sizes and all index values."""

from collections.abc import Iterator

import numpy as np
import pytest
from tests.ops.harness import NodeCase, define

from tilewright.expr.algebra.bounds import Bounds
from tilewright.expr.algebra.prover import can_prove
from tilewright.expr.computation import Computation
from tilewright.expr.nodes import Expr, Load, Select, Symbol
from tilewright.loops.access import negation

N, M = Symbol("n", 1, 64), Symbol("m", 1, 4096)


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


def index(*values):
    return np.array(values, np.int64)


ROWS = {(0, 0): N, (0, 1): M}
WHOLE = index(0, 1)
CASES = {
    "concat": (
        "Concat",
        [zeros(2, 3), zeros(2, 4), zeros(2, 5)],
        {"axis": 1},
        {(0, 0): N, (1, 0): N, (2, 0): N, (1, 1): M},
    ),
    "split": ("Split", [zeros(8, 4)], {"num_outputs": 3}, ROWS),
    "slice": ("Slice", [zeros(8, 9), index(1, -5), index(100, -1), WHOLE, index(1, 2)], {}, ROWS),
    "slice backwards": ("Slice", [zeros(8, 9), index(-1, 4), index(-1000, 0), WHOLE, index(-1, -2)], {}, ROWS),
    "gather": ("Gather", [zeros(8, 9), zeros(3, 3, dtype=np.int64)], {"axis": 1}, {**ROWS, (1, 0): N}),
    "gather one": ("Gather", [zeros(8, 9), index(-1)], {"axis": 1}, ROWS),
    "gather elements": ("GatherElements", [zeros(8, 9), zeros(3, 3, dtype=np.int64)], {}, {**ROWS, (1, 1): N}),
    "gather tuples": ("GatherND", [zeros(8, 9), zeros(3, 2, dtype=np.int32)], {}, ROWS),
    "pad": ("Pad", [zeros(8, 9), index(1, 0, 2, 3)], {}, ROWS),
    "pad and cut": ("Pad", [zeros(8, 9), index(-1, 2, 1, -1)], {}, ROWS),
    "pad edge": ("Pad", [zeros(8, 9), index(1, 0, 2, 3)], {"mode": "edge"}, ROWS),
    "pad reflect": ("Pad", [zeros(8, 9), index(1, 0, 2, 3)], {"mode": "reflect"}, ROWS),
    "pad reflect literal": ("Pad", [zeros(8, 9), index(1, 0, 2, 3)], {"mode": "reflect"}, {}),
    "pad wrap": ("Pad", [zeros(8, 9), index(1, 0, 2, 3)], {"mode": "wrap"}, ROWS),
    "tile": ("Tile", [zeros(8, 9), index(2, 3)], {}, ROWS),
    "expand": ("Expand", [zeros(8, 1, 9), index(2, 8, 3, 9)], {}, {}),
    "transpose": ("Transpose", [zeros(8, 9, 4)], {"perm": [2, 0, 1]}, ROWS),
    "depth to space": ("DepthToSpace", [zeros(1, 8, 3, 5)], {"blocksize": 2}, {(0, 2): N, (0, 3): M}),
    "trilu": ("Trilu", [zeros(8, 9)], {}, ROWS),
    "softmax": ("Softmax", [zeros(8, 9)], {}, ROWS),
    "layer normalization": ("LayerNormalization", [zeros(8, 9, 4), zeros(4), zeros(4)], {}, ROWS),
    "last index": ("ArgMax", [zeros(8, 9)], {"axis": 1, "select_last_index": 1}, ROWS),
    "rotary": (
        "RotaryEmbedding",
        [zeros(2, 3, 5, 8), zeros(50, 4), zeros(50, 4), zeros(2, 5, dtype=np.int64)],
        {},
        {(0, 0): N, (3, 0): N, (0, 2): M, (3, 1): M},
    ),
    "rotary neighbours": (
        "RotaryEmbedding",
        [zeros(2, 3, 5, 8), zeros(2, 5, 2), zeros(2, 5, 2)],
        {"interleaved": 1, "rotary_embedding_dim": 4},
        {(0, 0): N, (1, 0): N, (2, 0): N, (0, 2): M, (1, 1): M, (2, 1): M},
    ),
}  # fmt: skip


def reads(e: Expr, bounds: Bounds) -> Iterator[tuple[Load, Bounds]]:
    """Loads of an expression with what is known where they are evaluated."""
    if isinstance(e, Select):
        yield from reads(e.cond, bounds)
        yield from reads(e.a, bounds.assuming(e.cond))
        yield from reads(e.b, bounds.assuming(negation(e.cond)))
        return
    if isinstance(e, Load):
        yield e, bounds
    for child in e.children():
        yield from reads(child, bounds)


@pytest.mark.parametrize("case", CASES)
def test_loads_are_proved_in_bounds(case):
    op, inputs, attributes, sizes = CASES[case]
    data = op in ("GatherElements", "GatherND", "RotaryEmbedding") or case == "gather"
    d, _ = define(
        NodeCase(op, inputs, attributes, outputs=3 if op == "Split" else 1), constants=() if data else None, sizes=sizes
    )
    count = 0
    for stage in d.stages:
        if not isinstance(stage, Computation):
            continue
        bounds = Bounds()
        for axis in (*stage.axes, *stage.reduce_axes):
            bounds = bounds.with_loop(axis.var, axis.extent)
        for load, inside in reads(stage.body, bounds):
            for place, size in zip(load.indices, load.buffer.shape, strict=True):
                count += 1
                assert can_prove(place >= 0, inside), f"{place} may be negative in {stage}"
                assert can_prove(place < size, inside), f"{place} < {size} is not proved in {stage}"
    assert count
