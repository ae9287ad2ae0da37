"""Every element that a window, contraction or resampling operator reads is proved to exist, for all sizes."""

from collections.abc import Iterator

import numpy as np
import pytest
from tests.ops.harness import NodeCase, define

from tilewright.expr.algebra.bounds import Bounds
from tilewright.expr.algebra.prover import can_prove
from tilewright.expr.computation import Computation
from tilewright.expr.nodes import Expr, Load, Select, Symbol
from tilewright.expr.operations import conjunction


def reads(e: Expr, bounds: Bounds) -> Iterator[tuple[Load, Bounds]]:
    """Loads of an expression with what is known where they are evaluated."""
    if isinstance(e, Select):
        yield from reads(e.cond, bounds)
        yield from reads(e.a, bounds.assuming(e.cond))
        yield from reads(e.b, bounds)
        return
    if isinstance(e, Load):
        yield e, bounds
    for child in e.children():
        yield from reads(child, bounds)


N, H, W = Symbol("n", 1, 64), Symbol("h", 1, 4096), Symbol("w", 1, 4096)
IMAGE = {(0, 0): N, (0, 2): H, (0, 3): W}


def zeros(*shape):
    return np.zeros(shape, np.float32)


CASES = {
    "matmul": ("MatMul", [zeros(2, 3, 4), zeros(4, 5)], {}, {(0, 0): N, (0, 1): H}),
    "gemm": ("Gemm", [zeros(3, 4), zeros(5, 4), zeros(5)], {"transB": 1}, {(0, 0): N}),
    "einsum": (
        "Einsum",
        [zeros(2, 3, 4), zeros(2, 5, 4)],
        {"equation": "bik,bjk->bij"},
        {(0, 0): N, (1, 0): N, (0, 1): H},
    ),
    "conv": ("Conv", [zeros(1, 3, 8, 8), zeros(4, 3, 3, 3)], {"pads": [1] * 4}, IMAGE),
    "conv strided": ("Conv", [zeros(1, 3, 8, 8), zeros(4, 3, 3, 3)], {"pads": [1] * 4, "strides": [2, 2]}, IMAGE),
    "conv strided 1x1": ("Conv", [zeros(1, 3, 8, 8), zeros(4, 3, 1, 1)], {"strides": [2, 1]}, IMAGE),
    "conv dilated": ("Conv", [zeros(1, 3, 8, 8), zeros(4, 3, 3, 3)], {"pads": [2] * 4, "dilations": [2, 2]}, IMAGE),
    "conv depthwise": (
        "Conv",
        [zeros(1, 3, 8, 8), zeros(3, 1, 5, 5)],
        {"pads": [2] * 4, "strides": [2, 1], "group": 3},
        IMAGE,
    ),
    "conv grouped": ("Conv", [zeros(1, 6, 8, 8), zeros(4, 3, 3, 3)], {"pads": [1] * 4, "group": 2}, IMAGE),
    "conv same": ("Conv", [zeros(1, 3, 8, 8), zeros(4, 3, 3, 3)], {"auto_pad": "SAME_UPPER"}, IMAGE),
    "conv same strided": (
        "Conv",
        [zeros(1, 3, 8, 8), zeros(4, 3, 3, 3)],
        {"auto_pad": "SAME_LOWER", "strides": [2, 2]},
        IMAGE,
    ),
    "transpose direct": ("ConvTranspose", [zeros(1, 3, 8, 8), zeros(3, 4, 2, 2)], {"strides": [2, 2]}, IMAGE),
    "transpose spread": (
        "ConvTranspose",
        [zeros(1, 3, 8, 8), zeros(3, 4, 3, 3)],
        {"strides": [2, 2], "pads": [1] * 4},
        IMAGE,
    ),
    "transpose past the last tap": (
        "ConvTranspose",
        [zeros(1, 3, 8, 8), zeros(3, 4, 3, 2)],
        {"strides": [3, 2], "pads": [1, 0, 1, 1], "output_padding": [2, 1]},
        IMAGE,
    ),
    "transpose same": (
        "ConvTranspose",
        [zeros(1, 3, 8, 8), zeros(3, 4, 3, 1)],
        {"auto_pad": "SAME_LOWER", "strides": [2, 3]},
        IMAGE,
    ),
    "transpose declared": (
        "ConvTranspose",
        [zeros(1, 3, 8, 8), zeros(3, 4, 2, 3)],
        {"strides": [2, 2], "output_shape": [14, 20]},
        IMAGE,
    ),
    "max pool": ("MaxPool", [zeros(1, 3, 8, 8)], {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4}, IMAGE),
    "max pool ceil": (
        "MaxPool",
        [zeros(1, 3, 8, 8)],
        {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1},
        IMAGE,
    ),
    "average pool": ("AveragePool", [zeros(1, 3, 8, 8)], {"kernel_shape": [3, 2], "strides": [3, 2]}, IMAGE),
    "global pool": ("GlobalAveragePool", [zeros(1, 3, 8, 8)], {}, IMAGE),
    "group norm": ("GroupNormalization", [zeros(1, 6, 8, 8), zeros(6), zeros(6)], {"num_groups": 2}, IMAGE),
    "lrn": ("LRN", [zeros(1, 6, 8, 8)], {"size": 5}, IMAGE),
}
for mode, scale in (
    ("nearest", 2.0),
    ("nearest", 0.5),
    ("nearest", 1.7),
    ("linear", 2.0),
    ("linear", 0.6),
    ("cubic", 3.0),
):
    for transformation in ("asymmetric", "half_pixel", "align_corners"):
        CASES[f"resize {mode} {transformation} {scale}"] = (
            "Resize",
            [zeros(1, 3, 8, 8), None, np.array([1, 1, scale, scale], np.float32)],
            {"mode": mode, "coordinate_transformation_mode": transformation},
            IMAGE,
        )


@pytest.mark.parametrize("case", CASES)
def test_loads_are_proved_in_bounds(case):
    op, inputs, attributes, sizes = CASES[case]
    d, _ = define(NodeCase(op, inputs, attributes), constants=(2,) if op == "Resize" else (), sizes=sizes)
    facts = Bounds().assuming(conjunction(*(c for c, _ in d.constraints)))
    for stage in d.stages:
        if not isinstance(stage, Computation):
            continue
        bounds = facts
        for axis in (*stage.axes, *stage.reduce_axes):
            bounds = bounds.with_loop(axis.var, axis.extent)
        for load, inside in reads(stage.body, bounds):
            for index, size in zip(load.indices, load.buffer.shape, strict=True):
                assert can_prove(index >= 0, inside), f"{index} may be negative in {stage}"
                assert can_prove(index < size, inside), f"{index} < {size} is not proved in {stage}"
