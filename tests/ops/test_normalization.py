"""Normalisations against ONNX's reference and ONNX Runtime."""

from math import prod

import numpy as np
import pytest
from tests.ops.harness import NodeCase, Tolerance, check, define

from tilewright.errors import ShapeError, UnsupportedError
from tilewright.expr.computation import Computation

RNG = np.random.default_rng(19)


def normal(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


def positive(*shape, dtype=np.float32):
    return (RNG.random(shape) + 0.1).astype(dtype)


def statistics(channels, dtype=np.float32):
    return [normal(channels, dtype=dtype) for _ in range(3)] + [positive(channels, dtype=dtype)]


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 7), (2, 3, 4, 5), (1, 70, 2, 3), (2, 3, 2, 3, 4)])
@pytest.mark.parametrize("opset", [7, 9, 14, 15, 24])
def test_batch_normalization(shape, opset):
    inputs = [normal(*shape), *statistics(shape[1])]
    reference = "ort" if opset < 15 else "onnx"
    check(
        NodeCase("BatchNormalization", inputs, {"epsilon": 1e-3}, opset=opset),
        constants=(),
        reference=reference,
        tolerance=Tolerance(1e-5, 1e-5),
    )


def test_batch_normalization_of_other_types():
    double = [normal(2, 3, 4, dtype=np.float64), *statistics(3, np.float64)]
    check(NodeCase("BatchNormalization", double, {"epsilon": 0.01}, opset=15), constants=())
    x, parameters = normal(2, 3, 4, dtype=np.float16), statistics(3)
    scale, bias, mean, var = (p.astype(np.float64).reshape(3, 1) for p in parameters)
    expected = ((x.astype(np.float64) - mean) / np.sqrt(var + 1e-5) * scale + bias).astype(np.float16)
    check(
        NodeCase("BatchNormalization", [x, *parameters]),
        constants=(),
        reference=lambda *_: expected,
        tolerance=Tolerance(1e-3, 1e-3),
    )


def test_batch_normalization_is_one_multiplication_and_one_addition():
    d, _ = define(NodeCase("BatchNormalization", [normal(2, 3, 4, 5), *statistics(3)]), constants=())
    last = d.stages[-1]
    assert isinstance(last, Computation)
    assert str(last.body) == "x0[i0, i1, i2, i3] * y_2[i1] + y_1[i1]"
    assert all(s.output.rank == 1 for s in d.stages[:-1])


@pytest.mark.parametrize(
    ("lengths", "message"),
    [((4, 3, 3, 3), "scale: expected 3, got 4"), ((3, 3, 2, 3), "input_mean: expected 3, got 2")],
)
def test_batch_normalization_rejects(lengths, message):
    with pytest.raises(ShapeError, match=rf"node \(BatchNormalization\): {message}$"):
        define(NodeCase("BatchNormalization", [normal(2, 3, 4), *(normal(n) for n in lengths)]), constants=())


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 4), (5, 3, 4, 2), (1, 3, 7)])
@pytest.mark.parametrize("attributes", [{}, {"momentum": 0.75, "epsilon": 1e-3}])
def test_batch_normalization_in_training_mode(shape, attributes):
    inputs = [normal(*shape), *statistics(3)]
    for outputs in (1, 3):
        case = NodeCase("BatchNormalization", inputs, {"training_mode": 1, **attributes}, outputs=outputs)
        check(case, tolerance=Tolerance(1e-5, 1e-6))


def test_batch_normalization_in_training_mode_of_old_models_falls_back():
    with pytest.raises(UnsupportedError, match="training mode before opset 14 is not supported"):
        define(NodeCase("BatchNormalization", [normal(2, 3, 4), *statistics(3)], outputs=5, opset=9))


def test_batch_normalization_with_statistics_per_element():
    """`spatial=0`, which neither ONNX Runtime nor ONNX's reference computes."""
    x, shape = normal(2, 3, 4, 5), (3, 4, 5)
    scale, bias, mean, var = normal(*shape), normal(*shape), normal(*shape), positive(*shape)
    inputs = [x, scale, bias, mean, var]
    expected = scale * (x - mean) / np.sqrt(var + 1e-5) + bias
    check(
        NodeCase("BatchNormalization", inputs, {"spatial": 0}, opset=7),
        constants=(),
        reference=lambda *_: expected,
        tolerance=Tolerance(1e-4, 1e-5),
    )
    with pytest.raises(ShapeError, match="scale: expected 3 dimensions, got 1"):
        define(NodeCase("BatchNormalization", [x, *statistics(3)], {"spatial": 0}, opset=7), constants=())


@pytest.mark.parametrize("shape", [(2, 3, 7), (2, 3, 4, 5), (2, 3, 2, 3, 4)])
def test_instance_normalization(shape):
    inputs = [normal(*shape) + 3, normal(3), normal(3)]
    check(NodeCase("InstanceNormalization", inputs, {"epsilon": 1e-3}), constants=(), tolerance=Tolerance(1e-4, 1e-5))


@pytest.mark.parametrize("shape", [(2, 6, 7), (2, 6, 4, 5), (2, 6)])
@pytest.mark.parametrize("groups", [1, 2, 3, 6])
@pytest.mark.parametrize("opset", [18, 21])
def test_group_normalization(shape, groups, opset):
    """Judged by float64: ONNX's reference subtracts squares, which loses the variance of nearly equal numbers.

    Scale and bias have one value per group before opset 21. No two numbers of a group are nearly equal, as the rounding
    of their mean would count up to 1 / sqrt(1e-5) times.
    """
    x = RNG.permutation(np.linspace(-3, 5, prod(shape), dtype=np.float32)).reshape(shape)
    count = 6 if opset == 21 else groups
    scale, bias = normal(count), normal(count)

    def expected(*_):
        y = x.astype(np.float64).reshape(x.shape[0], groups, -1)
        y = ((y - y.mean(-1, keepdims=True)) / np.sqrt(y.var(-1, keepdims=True) + 1e-5)).reshape(x.shape)
        per_channel = [np.repeat(p, 6 // count).reshape(6, *[1] * (x.ndim - 2)) for p in (scale, bias)]
        return (y * per_channel[0] + per_channel[1]).astype(np.float32)

    check(
        NodeCase("GroupNormalization", [x, scale, bias], {"num_groups": groups}, opset=opset),
        constants=(),
        reference=expected,
        tolerance=Tolerance(1e-5, 1e-5),
    )


def test_group_normalization_rejects():
    with pytest.raises(ShapeError, match="channels of X: expected a multiple of 4, got 6"):
        define(NodeCase("GroupNormalization", [normal(2, 6, 3), normal(6), normal(6)], {"num_groups": 4}))
    with pytest.raises(ShapeError, match="scale: expected 6, got 2"):
        define(NodeCase("GroupNormalization", [normal(2, 6, 3), normal(2), normal(2)], {"num_groups": 2}), constants=())
    with pytest.raises(ShapeError, match="num_groups: expected a positive number, got 0"):
        define(NodeCase("GroupNormalization", [normal(2, 6, 3), normal(2), normal(2)]))


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_lp_normalization(p, axis):
    x = normal(2, 3, 4)
    x[:, 1, :] = 0
    check(
        NodeCase("LpNormalization", [x], {"axis": axis, "p": p}, opset=22),
        reference="ort",
        tolerance=Tolerance(1e-5, 1e-6),
    )


def test_lp_normalization_rejects_other_norms():
    with pytest.raises(ShapeError, match="p: expected 1 or 2, got 3"):
        define(NodeCase("LpNormalization", [normal(2, 3)], {"p": 3}))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("shape", [(2, 6, 4), (1, 5, 3, 4)])
def test_lrn(shape, size):
    attributes = {"size": size, "alpha": 0.3, "beta": 0.6, "bias": 1.5}
    x = normal(*shape)

    def reference(x):
        y = np.zeros(x.shape)
        for c in range(x.shape[1]):
            window = x[:, max(0, c - (size - 1) // 2) : c + size // 2 + 1].astype(np.float64)
            y[:, c] = x[:, c] / (1.5 + 0.3 / size * (window**2).sum(1)) ** 0.6
        return y.astype(np.float32)

    check(NodeCase("LRN", [x], attributes), reference=reference, tolerance=Tolerance(1e-5))


def test_lrn_rejects_an_empty_window():
    with pytest.raises(ShapeError, match="size: expected a positive number, got 0"):
        define(NodeCase("LRN", [normal(1, 3, 4)]))
