"""Quantisation and operators on quantised tensors against ONNX Runtime and ONNX's reference."""

import numpy as np
import pytest
from tests.ops.harness import NodeCase, check, define

from tilewright.errors import ShapeError, UnsupportedError

RNG = np.random.default_rng(23)


def normal(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


def whole(dtype, *shape):
    info = np.iinfo(dtype)
    return RNG.integers(info.min, info.max + 1, shape).astype(dtype)


def scalar(value, dtype=np.float32):
    return np.asarray(value, dtype)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16, np.int16])
def test_quantize_per_tensor(dtype):
    x = normal(3, 4, 5) * 100
    zero = scalar(0 if np.iinfo(dtype).min else 7, dtype)
    check(NodeCase("QuantizeLinear", [x, scalar(0.37), zero], opset=21))
    check(NodeCase("QuantizeLinear", [x, scalar(0.37), zero], opset=21), constants=(), reference="ort")


def test_quantize_rounds_halves_to_even():
    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 300.0, -300.0, 126.5, 127.5], np.float32)
    y = check(NodeCase("QuantizeLinear", [x, scalar(1.0), scalar(0, np.int8)], opset=13))
    assert y[0].tolist() == [0, 2, 2, 0, -2, 127, -128, 126, 127]
    y = check(NodeCase("QuantizeLinear", [x, scalar(1.0)], opset=13))
    assert y[0].tolist() == [0, 2, 2, 0, 0, 255, 0, 126, 128]


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_quantize_and_dequantize_per_axis(axis):
    x = normal(3, 4, 5) * 50
    n = x.shape[axis]
    scale, zero = (RNG.random(n) + 0.2).astype(np.float32), whole(np.int8, n)
    check(NodeCase("QuantizeLinear", [x, scale, zero], {"axis": axis}, opset=19), constants=())
    check(NodeCase("DequantizeLinear", [whole(np.int8, 3, 4, 5), scale, zero], {"axis": axis}, opset=19), constants=())


def test_blocked_scales():
    x = normal(2, 7, 3) * 20
    scale, zero = (RNG.random((2, 3, 3)) + 0.2).astype(np.float32), whole(np.uint8, 2, 3, 3)

    def spread(v):
        return np.repeat(v, 3, axis=1)[:, :7].astype(np.float64)

    def quantized(x, s, z):
        return np.clip(np.rint((x / spread(s)).astype(np.float32)) + spread(z), 0, 255).astype(np.uint8)

    attributes = {"axis": 1, "block_size": 3}
    check(
        NodeCase("QuantizeLinear", [x, scale, zero], attributes, opset=21),
        constants=(),
        symbolic=False,
        reference=quantized,
    )
    check(
        NodeCase("DequantizeLinear", [whole(np.uint8, 2, 7, 3), scale, zero], attributes, opset=21),
        constants=(),
        symbolic=False,
        reference=lambda q, s, z: ((q - spread(z)) * spread(s)).astype(np.float32),
    )


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int16, np.int32])
def test_dequantize(dtype):
    x = whole(dtype, 3, 4) if dtype != np.int32 else RNG.integers(-9999, 9999, (3, 4)).astype(dtype)
    check(NodeCase("DequantizeLinear", [x, scalar(0.013)], opset=21))
    if dtype != np.int32:
        for constants in ((), (1, 2)):
            check(NodeCase("DequantizeLinear", [x, scalar(0.013), scalar(5, dtype)], opset=21), constants=constants)


def test_half_precision_scales():
    check(NodeCase("DequantizeLinear", [whole(np.int8, 3, 4), scalar(0.25, np.float16), scalar(3, np.int8)], opset=19))
    check(
        NodeCase(
            "QuantizeLinear", [normal(3, 4, dtype=np.float16), scalar(0.25, np.float16), scalar(3, np.int8)], opset=19
        )
    )


@pytest.mark.parametrize(("precision", "dtype"), [(1, np.float32), (10, np.float16), (11, np.float64)])
def test_quotient_is_computed_in_the_given_precision(precision, dtype):
    """1/3 of a half-precision scale is another number in half, single and double precision."""
    scale = scalar(1 / 3, np.float16)
    x = (np.arange(-90, 90) / np.float32(6)).astype(np.float32) * np.float32(scale)
    check(
        NodeCase("QuantizeLinear", [x, scale, scalar(3, np.int8)], {"precision": precision}, opset=23),
        reference=lambda x, s, z: (np.rint(x.astype(dtype) / s.astype(dtype)) + z).astype(np.int8),
    )
    with pytest.raises(UnsupportedError, match="precision 17 is not a floating-point type"):
        define(NodeCase("QuantizeLinear", [x, scale], {"precision": 17}, opset=23))


@pytest.mark.parametrize("shift", [0.0, 5.0, -5.0])
def test_dynamic_quantize(shift):
    x = normal(3, 4, 5) + np.float32(shift)
    check(NodeCase("DynamicQuantizeLinear", [x], opset=11, outputs=3), constants=(), reference="ort")


def test_dynamic_quantize_of_zeros():
    y, scale, zero = check(
        NodeCase("DynamicQuantizeLinear", [np.zeros((2, 3), np.float32)], opset=11, outputs=3), reference="ort"
    )
    assert (y == 0).all()
    assert scale == 1
    assert zero == 0


def test_quantize_rejects():
    with pytest.raises(ShapeError, match="y_scale: expected 4, got 3"):
        define(NodeCase("QuantizeLinear", [normal(2, 4), normal(3)]), constants=())
    with pytest.raises(ShapeError, match="dimension 1 of y_scale: expected 2, got 3"):
        define(NodeCase("QuantizeLinear", [normal(2, 4), normal(2, 3)], {"block_size": 2}), constants=())
    with pytest.raises(ShapeError, match="x_zero_point: expected type int8, got uint8"):
        define(NodeCase("DequantizeLinear", [whole(np.int8, 2, 4), scalar(1), scalar(1, np.uint8)]), constants=())
    with pytest.raises(ShapeError, match="X: expected type float32, got float64"):
        define(NodeCase("DynamicQuantizeLinear", [normal(2, dtype=np.float64)]))
    with pytest.raises(UnsupportedError, match="output type 17 is not an 8- or 16-bit integer"):
        define(NodeCase("QuantizeLinear", [normal(2, 4), scalar(1)], {"output_dtype": 17}))


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("attributes", [{}, {"pads": [1, 1, 1, 1], "strides": [2, 2]}, {"group": 2}])
@pytest.mark.parametrize("with_bias", [False, True])
def test_qlinear_conv(per_channel, attributes, with_bias):
    x, w = whole(np.uint8, 1, 4, 6, 6), whole(np.int8, 6, 4 // attributes.get("group", 1), 3, 3)
    scale_w = (RNG.random(6) * 0.01 + 0.001).astype(np.float32) if per_channel else scalar(0.004)
    zero_w = np.zeros(6, np.int8) if per_channel else scalar(0, np.int8)
    bias = [RNG.integers(-2000, 2000, 6).astype(np.int32)] if with_bias else []
    inputs = [x, scalar(0.02), scalar(120, np.uint8), w, scale_w, zero_w, scalar(0.05), scalar(128, np.uint8), *bias]
    # The runtime may round a value that lies on a half to the other side.
    for constants in ((), tuple(range(1, 9))):
        check(
            NodeCase("QLinearConv", inputs, attributes, opset=10),
            constants=constants,
            symbolic=False,
            reference=near(inputs, attributes),
        )
    check(NodeCase("QLinearConv", inputs, attributes, opset=10), constants=(), reference=near(inputs, attributes))


def near(inputs, attributes):
    from tests.ops.harness import reference_outputs

    x, sx, zx, w, sw, zw, sy, zy = inputs[:8]
    wide = [x.astype(np.float64) - zx, w.astype(np.float64) - np.reshape(zw, (-1, 1, 1, 1))]
    total = reference_outputs("onnx", NodeCase("Conv", wide, attributes, opset=22))[0]
    total = total + (inputs[8].reshape(1, -1, 1, 1) if len(inputs) > 8 else 0)
    factor = (sx * np.reshape(sw, (1, -1, 1, 1)) / sy).astype(np.float32)
    y = np.rint(total.astype(np.float32) * factor) + zy
    return lambda *_: np.clip(y, 0, 255).astype(np.uint8)


@pytest.mark.parametrize("types", [(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)])
@pytest.mark.parametrize("per_column", [False, True])
def test_qlinear_matmul(types, per_column):
    a, b = whole(types[0], 3, 4), whole(types[1], 4, 5)
    scale_b = (RNG.random(5) * 0.02 + 0.001).astype(np.float32) if per_column else scalar(0.01)
    zero_b = whole(types[1], 5) if per_column else scalar(3, types[1])
    inputs = [a, scalar(0.03), scalar(2, types[0]), b, scale_b, zero_b, scalar(0.07), scalar(9, types[0])]

    def reference(*operands):
        a, sa, za, b, sb, zb, sy, zy = operands
        total = (a.astype(np.int32) - za) @ (b.astype(np.int32) - zb.astype(np.int32))
        y = np.rint(total.astype(np.float32) * (sa * sb / sy).astype(np.float32)) + zy
        return np.clip(y, np.iinfo(types[0]).min, np.iinfo(types[0]).max).astype(types[0])

    check(NodeCase("QLinearMatMul", inputs, opset=10), constants=(), reference=reference)
    if types[0] == np.uint8 and not per_column:
        check(NodeCase("QLinearMatMul", inputs, opset=10), constants=(), reference="ort")


def test_qlinear_operators_reject():
    x, w, one = whole(np.uint8, 1, 3, 5, 5), whole(np.uint8, 4, 2, 3, 3), scalar(1)
    zero = scalar(0, np.uint8)
    with pytest.raises(ShapeError, match="channels of X: expected 2, got 3"):
        define(NodeCase("QLinearConv", [x, one, zero, w, one, zero, one, zero]))
    with pytest.raises(ShapeError, match="x_scale: expected 1, got 3"):
        define(NodeCase("QLinearConv", [x, normal(3), zero, w, one, zero, one, zero]), constants=())
    with pytest.raises(UnsupportedError, match="a_scale is not one value"):
        define(
            NodeCase(
                "QLinearMatMul", [whole(np.uint8, 3, 4), normal(3), zero, whole(np.uint8, 4, 2), one, zero, one, zero]
            ),
            constants=(),
        )
