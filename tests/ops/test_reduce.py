"""Reductions, softmax and normalisations."""

import numpy as np
import pytest
from tests.ops.harness import NodeCase, Tolerance, check, define

from tilewright.errors import ShapeError, UnsupportedError
from tilewright.expr.computation import Computation, View

rng = np.random.default_rng(13)


def floats(*shape, dtype=np.float32, low=-3.0, high=3.0):
    return rng.uniform(low, high, shape).astype(dtype)


REDUCTIONS = ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum",
              "ReduceLogSumExp", "ReduceSumSquare"]  # fmt: skip


def reduce_inputs(op, x, axes, opset):
    """Axes are an input since version 18, for ReduceSum since 13."""
    if axes is None:
        return [x], {}
    if opset >= (13 if op == "ReduceSum" else 18):
        return [x, np.array(axes, np.int64)], {}
    return [x], {"axes": list(axes)}


@pytest.mark.parametrize("op", REDUCTIONS)
@pytest.mark.parametrize("axes", [None, (0,), (1, -1), (-3, 1, 2)])
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("opset", [11, 13, 18])
def test_reductions(op, axes, keepdims, opset):
    inputs, attributes = reduce_inputs(op, floats(3, 4, 5, low=0.3), axes, opset)
    check(NodeCase(op, inputs, {**attributes, "keepdims": keepdims}, opset=opset), tolerance=Tolerance(2e-5))


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceSumSquare"])
def test_reductions_of_integers(op):
    check(NodeCase(op, [rng.integers(-4, 5, (3, 4)), np.array([1])]))


def test_fractional_reductions_of_integers():
    x = rng.integers(1, 9, (3, 4)).astype(np.int32)
    axes = np.array([1])
    check(NodeCase("ReduceMean", [x, axes]), reference=lambda x, a: np.trunc(x.mean(1, keepdims=True)).astype(np.int32))
    check(
        NodeCase("ReduceL2", [x, axes]), reference=lambda x, a: np.sqrt((x * x).sum(1, keepdims=True)).astype(np.int32)
    )
    check(NodeCase("ReduceLogSum", [x, axes]), reference=lambda x, a: np.log(x.sum(1, keepdims=True)).astype(np.int32))


def test_extrema_of_bools():
    x = rng.integers(0, 2, (5, 3)).astype(bool)
    for op, function in (("ReduceMax", np.any), ("ReduceMin", np.all)):
        check(
            NodeCase(op, [x, np.array([1])]),
            reference=lambda x, a, function=function: function(x, axis=1, keepdims=True),
        )


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMean", "ReduceSumSquare", "ReduceL1", "ReduceLogSumExp"])
def test_no_axes_and_noop(op):
    for opset in (13, 18) if op == "ReduceSum" else (18,):
        x = floats(2, 3, low=0.5)
        check(
            NodeCase(op, [x, np.zeros(0, np.int64)], {"noop_with_empty_axes": 1}, opset=opset),
            reference="ort",
            tolerance=Tolerance(1e-6),
        )
        check(NodeCase(op, [x], {"noop_with_empty_axes": 1}, opset=opset), reference="ort", tolerance=Tolerance(1e-6))
        check(NodeCase(op, [x, np.zeros(0, np.int64)], {}, opset=opset), tolerance=Tolerance(1e-6))


def test_half_precision_accumulates_in_float32():
    x = np.full((1, 4096), 1.0, np.float16)
    assert (
        check(NodeCase("ReduceSum", [x, np.array([1])]), reference=lambda x, a: np.array([[4096]], np.float16))[0]
        == 4096
    )
    d, _ = define(NodeCase("ReduceSum", [x, np.array([1])]))
    sums = [s for s in d.stages if isinstance(s, Computation) and s.is_reduction]
    assert [s.output.dtype.name for s in sums] == ["float32"]
    check(NodeCase("ReduceMean", [floats(3, 50, dtype=np.float16), np.array([1])]), tolerance=Tolerance(2e-3))


def test_log_sum_exp_of_extreme_values():
    x = np.array([[1000.0, 1001.0], [-np.inf, -np.inf], [np.inf, 1.0], [-1000.0, -1001.0], [-np.inf, 2.0]], np.float32)
    expected = np.logaddexp(x[:, 0].astype(np.float64), x[:, 1])[:, None].astype(np.float32)
    check(NodeCase("ReduceLogSumExp", [x, np.array([1])]), reference=lambda *_: expected)


def test_reduction_stages_have_no_unit_dimensions():
    d, _ = define(NodeCase("ReduceSum", [floats(2, 3, 4), np.array([1])]))
    assert [type(s) for s in d.stages] == [Computation, View]
    assert len(d.stages[0].axes) == 2


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_arg_extrema(op, last, axis):
    x = rng.integers(0, 3, (4, 5, 6))
    for values in (x, x.astype(np.float32)):
        for keepdims in (0, 1):
            check(NodeCase(op, [values], {"axis": axis, "select_last_index": last, "keepdims": keepdims}, opset=13))


def test_arg_extrema_of_nan():
    x = np.array([[1, np.nan, 3, np.nan], [4, 2, 8, 8]], np.float32)
    check(NodeCase("ArgMax", [x], {"axis": 1}), reference=lambda x: np.argmax(x, 1)[:, None])
    check(NodeCase("ArgMin", [x], {"axis": 1}), reference=lambda x: np.argmin(x, 1)[:, None])


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize("axis", [0, 1, -1, None])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_softmax(op, axis, dtype):
    attributes = {} if axis is None else {"axis": axis}
    check(NodeCase(op, [floats(3, 4, 5, dtype=dtype)], attributes, opset=13), tolerance=Tolerance(1e-6))
    if dtype == np.float32:
        check(NodeCase(op, [floats(3, 4, 5)], attributes, opset=11), reference="ort", tolerance=Tolerance(2e-6, 1e-6))


def test_softmax_of_large_and_masked_values():
    x = np.array([[1e4, 1e4 - 1, -np.inf], [-np.inf, -np.inf, -np.inf], [-1e30, 0, 1]], np.float32)
    result = check(NodeCase("Softmax", [x], opset=13), reference="ort", tolerance=Tolerance(1e-5))[0]
    assert np.isnan(result[1]).all()
    assert np.isfinite(result[[0, 2]]).all()


def test_softmax_in_half_precision():
    x = floats(4, 300, dtype=np.float16)
    wide = np.exp(x.astype(np.float64))
    check(
        NodeCase("Softmax", [x]),
        reference=lambda _: (wide / wide.sum(1, keepdims=True)).astype(np.float16),
        tolerance=Tolerance(2e-3, 1e-6),
    )


@pytest.mark.parametrize("axis", [-1, 1, 0])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("outputs", [1, 3])
def test_layer_normalization(axis, bias, outputs):
    x = floats(3, 4, 5)
    tail = x.shape[axis:]
    inputs = [x, floats(*tail), *([floats(*tail)] if bias else [])]
    check(
        NodeCase("LayerNormalization", inputs, {"axis": axis, "epsilon": 1e-3}, opset=17, outputs=outputs),
        tolerance=Tolerance(2e-5, 2e-6),
    )


def test_layer_normalization_with_a_large_mean():
    """The variance of 1e4 + noise would vanish in the difference of squares; the two-pass form keeps it."""
    x = (1e4 + rng.standard_normal((2, 256))).astype(np.float32)
    wide = x.astype(np.float64)
    expected = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
    check(
        NodeCase("LayerNormalization", [x, np.ones(256, np.float32)]),
        reference=lambda *_: expected.astype(np.float32),
        tolerance=Tolerance(atol=2e-3),
    )


def test_layer_normalization_in_half_precision():
    x, scale = floats(3, 40, dtype=np.float16), floats(40, dtype=np.float16)
    y, mean, _ = check(
        NodeCase("LayerNormalization", [x, scale], outputs=3),
        reference=lambda x, s: _layer_norm(x, s),
        tolerance=Tolerance(1e-2, 5e-3),
    )
    assert (y.dtype, mean.dtype) == (np.float16, np.float32)


def _layer_norm(x, scale):
    wide = x.astype(np.float64)
    mean, inverse = wide.mean(1, keepdims=True), 1 / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
    return ((wide - mean) * inverse * scale).astype(np.float16), mean.astype(np.float32), inverse.astype(np.float32)


def test_statistics_have_the_stash_type():
    """Single precision by default, also of doubles; in double precision the mean of 1e6 + noise has all its digits."""
    x, scale = floats(3, 40, dtype=np.float64), floats(40, dtype=np.float64)
    y, mean, inverse = check(NodeCase("LayerNormalization", [x, scale], outputs=3), reference=lambda *_: ())
    assert (y.dtype, mean.dtype, inverse.dtype) == (np.float64, np.float32, np.float32)
    x = (1e6 + rng.standard_normal((2, 999))).astype(np.float32)
    wide = x.astype(np.float64)
    expected = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
    check(
        NodeCase("LayerNormalization", [x, np.ones(999, np.float32)], {"stash_type": 11}),
        reference=lambda *_: expected.astype(np.float32),
        tolerance=Tolerance(1e-6, 1e-6),
    )
    for op in ("LayerNormalization", "RMSNormalization"):
        with pytest.raises(UnsupportedError, match="stash_type 10 is not float32 or float64"):
            define(NodeCase(op, [x, np.ones(999, np.float32)], {"stash_type": 10}))


@pytest.mark.parametrize("op", ["RMSNormalization", "SimplifiedLayerNormalization"])
@pytest.mark.parametrize("axis", [-1, 1])
def test_rms_normalization(op, axis):
    x, scale = floats(3, 4, 5), floats(*((5,) if axis == -1 else (4, 5)))
    axes = tuple(range(axis % 3, 3))

    def reference(x, s):
        wide = x.astype(np.float64)
        return (wide / np.sqrt((wide**2).mean(axes, keepdims=True) + 1e-5) * s).astype(np.float32)

    check(NodeCase(op, [x, scale], {"axis": axis}), reference=reference, tolerance=Tolerance(1e-5))


@pytest.mark.parametrize("axes", [None, [0, 2, 3], [2, 3]])
def test_mean_variance_normalization(axes):
    x = floats(2, 3, 4, 5)
    over = tuple(axes or (0, 2, 3))
    expected = (x - x.mean(over, keepdims=True)) / (x.std(over, keepdims=True) + np.float32(1e-9))
    attributes = {} if axes is None else {"axes": axes}
    check(
        NodeCase("MeanVarianceNormalization", [x], attributes),
        reference=lambda _: expected,
        tolerance=Tolerance(1e-4, 1e-5),
    )


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("rotated", [0, 4])
@pytest.mark.parametrize("positions", [True, False])
@pytest.mark.parametrize("flat", [True, False])
def test_rotary_embedding(interleaved, rotated, positions, flat):
    batch, heads, length, size = 2, 3, 5, 8
    x = floats(batch, length, heads * size) if flat else floats(batch, heads, length, size)
    half = (rotated or size) // 2
    tables = [floats(*((50, half) if positions else (batch, length, half))) for _ in range(2)]
    inputs = [x, *tables, *([rng.integers(0, 50, (batch, length))] if positions else [])]
    attributes = {"interleaved": interleaved, "rotary_embedding_dim": rotated, **({"num_heads": heads} if flat else {})}
    check(
        NodeCase("RotaryEmbedding", inputs, attributes, opset=23),
        constants=(),
        symbolic=False,
        tolerance=Tolerance(1e-5, 1e-6),
    )


def test_contrib_compositions():
    x, bias = floats(3, 4), floats(4)
    for op, inputs in (
        ("Gelu", [x]),
        ("QuickGelu", [x]),
        ("FastGelu", [x]),
        ("FastGelu", [x, bias]),
        ("BiasGelu", [x, bias]),
    ):
        check(NodeCase(op, inputs, opset=17, domain="com.microsoft"), reference="ort", tolerance=Tolerance(2e-5, 2e-6))
    rows = [floats(2, 3, 8), floats(2, 3, 8), floats(8), floats(8), floats(8)]
    for count in (4, 5):
        for outputs, reference in ((1, "ort"), (4, skip_layer_normalization)):
            check(
                NodeCase(
                    "SkipLayerNormalization",
                    rows[:count],
                    {"epsilon": 1e-5},
                    opset=17,
                    domain="com.microsoft",
                    outputs=outputs,
                ),
                reference=reference,
                tolerance=Tolerance(2e-5, 5e-6),
            )


def skip_layer_normalization(x, skip, gamma, beta, bias=0.0):
    """All four results; ONNX Runtime does not compute the statistics."""
    total = (x + skip + bias).astype(np.float64)
    mean, var = total.mean(-1, keepdims=True), total.var(-1, keepdims=True)
    inverse = 1 / np.sqrt(var + 1e-5)
    result = (total - mean) * inverse * gamma + beta
    return [a.astype(np.float32) for a in (result, mean, inverse, total)]


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "message"),
    [
        ("ReduceSum", [floats(2, 3), np.array([2])], {}, "axis 2 is out of range for 2 dimensions"),
        ("ReduceMax", [floats(2, 3), np.array([1, -1])], {}, "axes [1, -1] name a dimension twice"),
        ("ArgMax", [floats(2, 3)], {"axis": -3}, "axis -3 is out of range for 2 dimensions"),
        ("Softmax", [floats(2, 3)], {"axis": 2}, "axis 2 is out of range for 2 dimensions"),
        ("LayerNormalization", [floats(2, 3), floats(2)], {}, "input 1 (scale): expected 3, got 2"),
        ("LayerNormalization", [floats(2, 3), floats(3, dtype=np.float64)], {},
         "input 1 (scale): expected type float32, got float64"),
        ("LayerNormalization", [floats(2, 3)], {}, "input 1 is missing"),
        ("RotaryEmbedding", [floats(2, 3, 8), floats(2, 3, 4), floats(2, 3, 4)], {},
         "input 0: expected 4 dimensions, or 3 with num_heads, got 3 with num_heads=0"),
        ("RotaryEmbedding", [floats(2, 2, 3, 8), floats(3, 4), floats(3, 4)], {},
         "input 1: expected shape [2, 3, 4], got [3, 4]"),
    ],
)  # fmt: skip
def test_reductions_reject(op, inputs, attributes, message):
    with pytest.raises(ShapeError) as error:
        define(NodeCase(op, inputs, attributes))
    assert str(error.value) == f"[shape] node node ({op}): {message}"
