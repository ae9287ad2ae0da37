"""Pooling against ONNX Runtime and, where that deviates from the specification, ONNX's reference."""

import numpy as np
import pytest
from tests.ops.harness import EXACT, LATEST, NodeCase, Tolerance, check, define

from tilewright.errors import ShapeError
from tilewright.expr.computation import Computation
from tilewright.expr.nodes import Select, Symbol
from tilewright.expr.traversal import post_order

RNG = np.random.default_rng(13)


def normal(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


GEOMETRIES = [
    ((2, 3, 9, 8), {"kernel_shape": [3, 3]}),
    ((2, 3, 9, 8), {"kernel_shape": [3, 2], "strides": [3, 2]}),
    ((2, 3, 9, 8), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ((2, 3, 9, 8), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 0, 0, 2]}),
    ((2, 3, 9, 10), {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}),
    ((2, 3, 10, 7), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], "ceil_mode": 1}),
    ((2, 3, 7, 8), {"kernel_shape": [2, 2], "strides": [3, 3], "pads": [0, 0, 1, 1], "ceil_mode": 1}),
    ((2, 3, 7, 8), {"kernel_shape": [2, 3], "strides": [1, 2], "auto_pad": "SAME_UPPER"}),
    ((2, 3, 7, 8), {"kernel_shape": [2, 3], "strides": [2, 3], "auto_pad": "SAME_LOWER"}),
    ((2, 3, 7, 8), {"kernel_shape": [2, 3], "strides": [2, 2], "auto_pad": "VALID"}),
    ((2, 3, 11), {"kernel_shape": [3], "strides": [2], "pads": [1, 1]}),
    ((1, 2, 5, 6, 7), {"kernel_shape": [2, 3, 2], "strides": [2, 1, 2], "pads": [0, 1, 1, 1, 1, 0]}),
    ((1, 2, 9, 9), {"kernel_shape": [1, 1], "strides": [2, 2]}),
]
DILATED = [
    ((2, 3, 9, 10), {"kernel_shape": [3, 2], "dilations": [2, 3]}),
    ((2, 3, 9, 10), {"kernel_shape": [3, 2], "dilations": [2, 3], "strides": [2, 2], "pads": [1, 1, 2, 0]}),
    ((2, 3, 9, 10), {"kernel_shape": [2, 2], "dilations": [2, 2], "strides": [2, 3], "ceil_mode": 1}),
]


def compare(op, x, attributes, opset=LATEST, outputs=1, **options):
    case = NodeCase(op, [x], attributes, opset=opset, outputs=outputs)
    check(case, **options)
    sizes = {(0, k): Symbol(f"s{k}", 1, 99) for k in (0, *range(2, x.ndim))}
    check(case, symbolic=False, sizes=sizes, **options)


@pytest.mark.parametrize(("shape", "attributes"), GEOMETRIES + DILATED)
def test_max_pool(shape, attributes):
    compare("MaxPool", normal(*shape), attributes, opset=12, reference="ort")


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_max_pool_of_integers(dtype):
    info = np.iinfo(dtype)
    x = RNG.integers(info.min, info.max + 1, (1, 3, 7, 8)).astype(dtype)
    compare("MaxPool", x, {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]}, opset=12, reference="ort")


def test_max_pool_of_half_precision():
    compare(
        "MaxPool", normal(1, 2, 5, 5, dtype=np.float16), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}, tolerance=EXACT
    )


def mean(x, attributes):
    """The mean of the taps that count, straight from the specification."""
    rank = x.ndim - 2
    kernel = attributes["kernel_shape"]
    strides = attributes.get("strides", [1] * rank)
    steps = attributes.get("dilations", [1] * rank)
    pads = attributes.get("pads", [0] * 2 * rank)
    spans = [(k - 1) * s + 1 for k, s in zip(kernel, steps, strict=True)]
    auto = attributes.get("auto_pad", "NOTSET")
    if auto.startswith("SAME"):
        totals = [max((-(-n // s) - 1) * s + w - n, 0) for n, s, w in zip(x.shape[2:], strides, spans, strict=True)]
        small, large = [t // 2 for t in totals], [t - t // 2 for t in totals]
        pads = small + large if auto == "SAME_UPPER" else large + small
    rounded = [
        -(-(n + pads[k] + pads[k + rank] - spans[k]) // strides[k]) if attributes.get("ceil_mode") else
        (n + pads[k] + pads[k + rank] - spans[k]) // strides[k] for k, n in enumerate(x.shape[2:])
    ]  # fmt: skip
    out = [c + 1 - ((c * strides[k]) >= x.shape[2 + k] + pads[k]) for k, c in enumerate(rounded)]
    y = np.zeros((*x.shape[:2], *out))
    for place in np.ndindex(*out):
        total, count = 0.0, 0
        for tap in np.ndindex(*kernel):
            at = [place[k] * strides[k] + tap[k] * steps[k] - pads[k] for k in range(rank)]
            if all(0 <= a < n for a, n in zip(at, x.shape[2:], strict=True)):
                total, count = total + x[(slice(None), slice(None), *at)].astype(np.float64), count + 1
            elif attributes.get("count_include_pad") and all(
                -pads[k] <= a < x.shape[2 + k] + pads[k + rank] for k, a in enumerate(at)
            ):
                count += 1
        y[(slice(None), slice(None), *place)] = total / count
    return y.astype(x.dtype)


@pytest.mark.parametrize("include", [0, 1])
@pytest.mark.parametrize(("shape", "attributes"), GEOMETRIES + DILATED)
def test_average_pool(shape, attributes, include):
    x = normal(*shape)
    attributes = attributes | {"count_include_pad": include}
    compare("AveragePool", x, attributes, reference=lambda x: mean(x, attributes))
    if not attributes.get("ceil_mode"):
        compare("AveragePool", x, attributes, opset=19, reference="ort", tolerance=Tolerance(1e-5))


def test_average_pool_of_half_precision_accumulates_in_float32():
    x = normal(1, 2, 32, 32, dtype=np.float16) + np.float16(4)
    attributes = {"kernel_shape": [32, 32]}
    compare("AveragePool", x, attributes, reference=lambda x: mean(x, attributes), tolerance=Tolerance(1e-3))


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize(("shape", "attributes"), [g for g in GEOMETRIES if not g[1].get("ceil_mode")])
def test_lp_pool(shape, attributes, p):
    compare("LpPool", normal(*shape), attributes | {"p": p}, opset=11, reference="ort", tolerance=Tolerance(1e-5))


@pytest.mark.parametrize("shape", [(2, 3, 7), (2, 3, 7, 5), (1, 2, 3, 4, 5), (2, 3, 1, 1)])
@pytest.mark.parametrize("op", ["GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"])
def test_global_pools(op, shape):
    compare(
        op,
        normal(*shape),
        {"p": 3} if op == "GlobalLpPool" else {},
        opset=20,
        reference="ort",
        tolerance=Tolerance(1e-5, 1e-6),
    )


def test_global_average_pool_of_half_precision_accumulates_in_float32():
    x = normal(1, 2, 64, 64, dtype=np.float16) + np.float16(5)
    expected = x.astype(np.float64).mean((2, 3), keepdims=True).astype(np.float16)
    compare("GlobalAveragePool", x, {}, reference=lambda x: expected, tolerance=Tolerance(1e-3))


def test_pool_without_padding_has_no_padded_copy():
    for attributes in ({}, {"strides": [2, 2], "ceil_mode": 1}):
        d, _ = define(NodeCase("MaxPool", [normal(1, 2, 8, 8)], {"kernel_shape": [2, 2], **attributes}))
        assert len(d.stages) == 1


def test_window_loads_are_unconditional():
    d, _ = define(
        NodeCase("AveragePool", [normal(1, 2, 8, 8)], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}), symbolic=True
    )
    windows = next(s for s in d.stages if isinstance(s, Computation) and s.is_reduction)
    assert not any(isinstance(n, Select) for n in post_order(windows.body))


def test_average_over_full_windows_divides_by_a_literal():
    d, _ = define(NodeCase("AveragePool", [normal(1, 2, 9, 8)], {"kernel_shape": [3, 2], "strides": [3, 2]}))
    assert str(d.stages[-1]).startswith("y_1[i0, i1, i2, i3] = y[i0, i1, i2, i3] / 6.0")


def test_average_over_clipped_windows_divides_by_a_product_of_counts():
    """Not by the number of a product, which is expanded into one of many terms."""
    d, _ = define(NodeCase("AveragePool", [normal(1, 2, 9, 8)], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}))
    assert str(d.stages[-1]).count("cast(float32, min(") == 2


@pytest.mark.parametrize(
    ("shape", "attributes", "message"),
    [
        ((1, 3, 8, 8), {}, "attribute kernel_shape is missing"),
        ((1, 3, 8, 8), {"kernel_shape": [3]}, "kernel_shape: expected 2 values, got 1"),
        ((1, 3, 8, 8), {"kernel_shape": [3, 0]}, "kernel_shape: expected values of at least 1, got 0"),
        ((1, 3, 8, 8), {"kernel_shape": [3, 9]}, "dimension 1: a window of 9 does not fit the padded size 8"),
        (
            (1, 3, 8, 8),
            {"kernel_shape": [3, 3], "dilations": [1, -1]},
            "dilations: expected values of at least 1, got -1",
        ),
        ((3, 8), {"kernel_shape": [3]}, "X: expected at least 3 dimensions, got 2"),
    ],
)
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
def test_pools_reject(op, shape, attributes, message):
    with pytest.raises(ShapeError, match=rf"^\[shape\] node node \({op}\): {message}$"):
        define(NodeCase(op, [normal(*shape)], attributes))


def test_global_pool_rejects_a_matrix():
    with pytest.raises(ShapeError, match="X: expected at least 3 dimensions, got 2"):
        define(NodeCase("GlobalMaxPool", [normal(3, 4)]))


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(("shape", "attributes"), GEOMETRIES + DILATED)
def test_indices_of_max_pool(shape, attributes, ties, order):
    x = RNG.integers(-2, 3, shape).astype(np.float32) if ties else normal(*shape)
    compare("MaxPool", x, attributes | {"storage_order": order}, opset=12, outputs=2, reference="ort")


@pytest.mark.parametrize("value", [-np.inf, np.nan])
def test_indices_where_padding_equals_the_maximum(value):
    """Padding counts as -inf; a NaN is the maximum, the first of several."""
    x = normal(1, 2, 6, 5)
    x[:, :, 2:5, 1:4] = value
    attributes = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    y, indices = check(NodeCase("MaxPool", [x], attributes, outputs=2), symbolic=False, reference=lambda x: ())
    rows = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
    for c, h, w in np.ndindex(2, 6, 5):
        window = [(h + k // 3 - 1, w + k % 3 - 1) for k in range(9)]
        window = [p for p in window if 0 <= p[0] < 6 and 0 <= p[1] < 5]
        values = [x[0, c, *p] for p in window]
        first = next((k for k, v in enumerate(values) if np.isnan(v)), int(np.argmax(values)))
        assert indices[0, c, h, w] == c * 30 + window[first][0] * 5 + window[first][1]
        np.testing.assert_array_equal(y[0, c, h, w], rows[0, c, h : h + 3, w : w + 3].max())


def test_indices_of_windows_of_padding_alone():
    for order in (0, 1):
        attributes = {"kernel_shape": [2, 1], "dilations": [2, 1], "pads": [1, 0, 1, 0], "storage_order": order}
        _, indices = check(NodeCase("MaxPool", [normal(1, 2, 1, 3)], attributes, outputs=2), reference=lambda x: ())
        assert (indices == -1).all()
    with pytest.raises(ShapeError, match="storage_order: expected 0 or 1, got 2"):
        define(NodeCase("MaxPool", [normal(1, 3, 8, 8)], {"kernel_shape": [2, 2], "storage_order": 2}, outputs=2))


LARGE = [
    ((2, 3, 5), {"kernel_shape": [9], "strides": [5]}),
    ((2, 3, 5), {"kernel_shape": [7], "strides": [3], "pads": [0, 1]}),
    ((2, 3, 5), {"kernel_shape": [9], "strides": [6], "pads": [2, 1]}),
    ((2, 3, 5, 9), {"kernel_shape": [7, 3], "strides": [4, 4], "pads": [1, 1, 0, 1]}),
    ((2, 3, 3, 2), {"kernel_shape": [3, 2], "strides": [5, 2], "dilations": [2, 2]}),
    ((1, 2, 2, 3, 4), {"kernel_shape": [3, 4, 4], "strides": [2, 3, 1]}),
]


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize(("shape", "attributes"), LARGE)
def test_ceil_mode_window_larger_than_the_input(op, shape, attributes):
    compare(op, normal(*shape), attributes | {"ceil_mode": 1}, opset=22, reference="ort", tolerance=Tolerance(1e-5))


def test_window_that_starts_outside_of_the_input_is_rejected():
    message = r"dimension 0: a window of 9 does not fit the padded size 5"
    with pytest.raises(ShapeError, match=message):
        define(NodeCase("MaxPool", [normal(2, 3, 5)], {"kernel_shape": [9], "strides": [4], "ceil_mode": 1}))


def test_ceil_mode_relaxes_the_constraint_on_symbolic_sizes():
    x = [normal(1, 1, 9)]
    narrow = {"kernel_shape": [7], "strides": [4]}
    least = {}
    for ceil in (0, 1):
        d, _ = define(NodeCase("MaxPool", x, narrow | {"ceil_mode": ceil}), sizes={(0, 2): Symbol("n", 1, 99)})
        least[ceil] = [str(condition) for condition, _ in d.constraints]
    assert least == {0: ["7 <= n"], 1: ["7 < n + 4"]}


@pytest.mark.parametrize("counts_padding", [0, 1])
def test_quantized_mean_of_incomplete_windows(counts_padding):
    """The last window of 8 columns ends beyond the padding; ONNX Runtime divides by the whole kernel there."""
    x = RNG.integers(0, 256, (2, 3, 9, 8)).astype(np.uint8)
    parameters = [np.float32(1), np.uint8(7), np.float32(2.25), np.uint8(3)]  # no mean lies between two steps
    attributes = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], "ceil_mode": 1}
    attributes["count_include_pad"] = counts_padding
    inputs = [x, *map(np.asarray, parameters)]
    case = NodeCase("QLinearAveragePool", inputs, attributes, opset=17, domain="com.microsoft")
    check(case, constants=(1, 2, 3, 4), reference="ort")
