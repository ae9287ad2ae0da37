"""Convolutions and pools: window sizes, strides, dilations, groups, borders, one to three spatial dimensions."""

from collections.abc import Sequence
from typing import Any

import onnx

from benchmarks.replay.models.build import Graph, Model, Models


def models() -> Models:
    """All of them."""
    yield from _convolutions()
    yield from _transposed()
    yield from _pools()


def _convolutions() -> Models:
    yield Model("conv/1x1", lambda: _conv((1, 16, 14, 14), 24, 1))
    yield Model("conv/1x1_stride2", lambda: _conv((1, 16, 15, 15), 24, 1, strides=[2, 2]))
    yield Model("conv/1x1_relu", lambda: _conv((2, 32, 7, 7), 40, 1, after="Relu"))
    yield Model("conv/3x3_few_channels", lambda: _conv((1, 3, 32, 32), 16, 3, pads=[1] * 4))
    yield Model("conv/3x3_winograd", lambda: _conv((1, 32, 28, 28), 32, 3, pads=[1] * 4))
    yield Model("conv/3x3_winograd_relu", lambda: _conv((1, 64, 14, 14), 64, 3, pads=[1] * 4, after="Relu"))
    yield Model(
        "conv/3x3_winograd_fast", lambda: _conv((1, 64, 26, 26), 64, 3, pads=[1] * 4), options=("--winograd", "fast")
    )
    yield Model("conv/3x3_exact", lambda: _conv((1, 32, 28, 28), 32, 3, pads=[1] * 4), options=("--exact",))
    yield Model("conv/3x3_stride2", lambda: _conv((1, 16, 17, 17), 32, 3, pads=[1] * 4, strides=[2, 2]))
    yield Model("conv/3x3_no_border", lambda: _conv((1, 12, 13, 19), 20, 3, bias=False))
    yield Model("conv/3x3_uneven_border", lambda: _conv((1, 8, 10, 11), 12, 3, pads=[0, 1, 2, 1]))
    yield Model("conv/3x3_same_upper", lambda: _conv((1, 8, 10, 11), 12, 3, auto_pad="SAME_UPPER", strides=[2, 2]))
    yield Model("conv/5x5", lambda: _conv((1, 8, 12, 12), 16, 5, pads=[2] * 4))
    yield Model("conv/7x7_stride2", lambda: _conv((1, 3, 40, 40), 16, 7, pads=[3] * 4, strides=[2, 2], after="Relu"))
    yield Model("conv/3x1_1x3", _separate)
    yield Model("conv/depthwise3", lambda: _conv((1, 24, 14, 14), 24, 3, pads=[1] * 4, group=24))
    yield Model(
        "conv/depthwise3_stride2", lambda: _conv((1, 24, 15, 15), 24, 3, pads=[1] * 4, strides=[2, 2], group=24)
    )
    yield Model(
        "conv/depthwise5_clip", lambda: _conv((1, 16, 12, 12), 16, 5, pads=[2] * 4, group=16, after="HardSwish")
    )
    yield Model("conv/depthwise_multiplier", lambda: _conv((1, 8, 12, 12), 16, 3, pads=[1] * 4, group=8))
    yield Model("conv/grouped", lambda: _conv((1, 32, 10, 10), 32, 3, pads=[1] * 4, group=4))
    yield Model("conv/grouped_1x1", lambda: _conv((1, 32, 10, 10), 48, 1, group=2))
    yield Model("conv/dilated", lambda: _conv((1, 8, 16, 16), 16, 3, pads=[2] * 4, dilations=[2, 2]))
    yield Model("conv/1d", lambda: _conv((2, 8, 50), 16, 3, pads=[1, 1]))
    yield Model("conv/1d_dilated", lambda: _conv((1, 12, 64), 12, 5, pads=[8, 8], dilations=[4]))
    yield Model("conv/1d_stride4", lambda: _conv((1, 4, 200), 8, 8, strides=[4]))
    yield Model("conv/3d", lambda: _conv((1, 4, 6, 10, 10), 8, 3, pads=[1] * 6))
    yield Model("conv/3d_1x1x1", lambda: _conv((1, 8, 4, 6, 6), 12, 1))
    yield Model("conv/batch_dynamic", lambda: _conv(("n", 16, 14, 14), 24, 3, pads=[1] * 4), ("n:1..16",))
    yield Model("conv/picture_dynamic", lambda: _conv((1, 8, "h", "w"), 16, 3, pads=[1] * 4), ("h:8..256", "w:8..256"))
    yield Model(
        "conv/all_dynamic",
        lambda: _conv(("n", 4, "h", "w"), 8, 3, pads=[1] * 4, strides=[2, 2]),
        ("n:1..4", "h:3..100", "w:3..100"),
    )
    yield Model("conv/1x1_dynamic", lambda: _conv((1, 16, "h", "w"), 24, 1), ("h:1..128", "w:1..128"))
    yield Model("conv/depthwise_dynamic", lambda: _conv((1, 8, "h", "w"), 8, 3, pads=[1] * 4, group=8))
    yield Model("conv/float16", lambda: _conv((1, 8, 10, 10), 12, 3, pads=[1] * 4, dtype="float16"))
    yield Model("conv/float64", lambda: _conv((1, 4, 9, 9), 6, 3, dtype="float64"))
    yield Model("conv/batch_normalization", _batch_normalization)
    yield Model("conv/two_inputs", _two_inputs)
    yield Model("quantised/conv_integer", _conv_integer)
    yield Model("quantised/qlinear_conv", _qlinear_conv)


def _transposed() -> Models:
    yield Model("conv_transpose/2x2_stride2", lambda: _transpose((1, 8, 7, 7), 6, [2, 2], strides=[2, 2]))
    yield Model("conv_transpose/3x3", lambda: _transpose((1, 8, 9, 9), 6, [3, 3], pads=[1] * 4))
    yield Model(
        "conv_transpose/output_padding",
        lambda: _transpose((1, 4, 6, 6), 6, [3, 3], strides=[2, 2], pads=[1] * 4, output_padding=[1, 1]),
    )
    yield Model("conv_transpose/grouped", lambda: _transpose((1, 8, 6, 6), 3, [3, 3], strides=[2, 2], group=4))
    yield Model("conv_transpose/1d", lambda: _transpose((1, 8, 20), 6, [4], strides=[2]))


def _pools() -> Models:
    yield Model("pool/max2", lambda: _pool("MaxPool", (1, 8, 16, 16), kernel_shape=[2, 2], strides=[2, 2]))
    yield Model(
        "pool/max3_stride2", lambda: _pool("MaxPool", (1, 8, 15, 15), kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    )
    yield Model(
        "pool/max3_ceil", lambda: _pool("MaxPool", (1, 8, 14, 14), kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)
    )
    yield Model("pool/max_dilated", lambda: _pool("MaxPool", (1, 4, 14, 14), kernel_shape=[3, 3], dilations=[2, 2]))
    yield Model("pool/max_1d", lambda: _pool("MaxPool", (2, 4, 40), kernel_shape=[4], strides=[3]))
    yield Model("pool/max_dynamic", lambda: _pool("MaxPool", ("n", 8, "h", "w"), kernel_shape=[2, 2], strides=[2, 2]))
    yield Model("pool/average3", lambda: _pool("AveragePool", (1, 8, 14, 14), kernel_shape=[3, 3], pads=[1] * 4))
    yield Model(
        "pool/average_with_border",
        lambda: _pool("AveragePool", (1, 8, 14, 14), kernel_shape=[3, 3], pads=[1] * 4, count_include_pad=1),
    )
    yield Model(
        "pool/average_3d", lambda: _pool("AveragePool", (1, 4, 6, 8, 8), kernel_shape=[2, 2, 2], strides=[2, 2, 2])
    )
    yield Model("pool/lp", lambda: _pool("LpPool", (1, 4, 12, 12), kernel_shape=[2, 2], p=2))
    yield Model("pool/global_average", lambda: _pool("GlobalAveragePool", (2, 32, 7, 7)))
    yield Model("pool/global_average_dynamic", lambda: _pool("GlobalAveragePool", (1, 16, "h", "w")))
    yield Model("pool/global_max", lambda: _pool("GlobalMaxPool", (1, 16, 9, 9)))


def _conv(
    shape: Sequence[int | str],
    channels: int,
    size: int,
    bias: bool = True,
    after: str = "",
    dtype: str = "float32",
    **attributes: Any,
) -> onnx.ModelProto:
    g = Graph()
    group = attributes.get("group", 1)
    assert isinstance(group, int)
    inner = int(shape[1]) // group
    x = g.input(*shape, dtype=dtype)
    operands = [g.weight(channels, inner, *[size] * (len(shape) - 2), dtype=dtype)]
    operands += [g.weight(channels, dtype=dtype)] if bias else []
    y = g.op("Conv", x, *operands, **attributes)
    return g.done(g.op(after, y) if after else y, dtype=dtype)


def _separate() -> onnx.ModelProto:
    g = Graph()
    y = g.op("Conv", g.input(1, 8, 12, 12), g.weight(12, 8, 3, 1), pads=[1, 0, 1, 0])
    return g.done(g.op("Conv", y, g.weight(8, 12, 1, 3), pads=[0, 1, 0, 1]))


def _batch_normalization() -> onnx.ModelProto:
    g = Graph()
    y = g.op("Conv", g.input(1, 8, 12, 12), g.weight(16, 8, 3, 3), pads=[1] * 4)
    scale, shift, mean = g.weight(16), g.weight(16), g.weight(16)
    variance = g.constant([0.5 + 0.1 * k for k in range(16)])
    return g.done(g.op("Relu", g.op("BatchNormalization", y, scale, shift, mean, variance, epsilon=1e-5)))


def _two_inputs() -> onnx.ModelProto:
    g = Graph()
    return g.done(g.op("Conv", g.input(1, 4, 10, 10), g.input(6, 4, 3, 3), pads=[1] * 4))


def _conv_integer() -> onnx.ModelProto:
    g = Graph()
    x, w = g.input(1, 4, 10, 10, dtype="uint8"), g.weight(8, 4, 3, 3, dtype="uint8")
    return g.done(g.op("ConvInteger", x, w, g.constant(128, "uint8"), pads=[1] * 4), dtype="int32")


def _qlinear_conv() -> onnx.ModelProto:
    g = Graph()
    x, w = g.input(1, 4, 10, 10, dtype="uint8"), g.weight(8, 4, 3, 3, dtype="int8")
    scales = [g.constant(s) for s in (0.02, 0.01, 0.05)]
    zero_x, zero_w, zero_y = g.constant(120, "uint8"), g.constant(0, "int8"), g.constant(100, "uint8")
    operands = (x, scales[0], zero_x, w, scales[1], zero_w, scales[2], zero_y, g.weight(8, dtype="int32"))
    return g.done(g.op("QLinearConv", *operands, pads=[1] * 4), dtype="uint8")


def _transpose(shape: Sequence[int], channels: int, size: Sequence[int], **attributes: Any) -> onnx.ModelProto:
    g = Graph()
    x, w = g.input(*shape), g.weight(shape[1], channels, *size)
    return g.done(g.op("ConvTranspose", x, w, **attributes))


def _pool(kind: str, shape: Sequence[int | str], **attributes: Any) -> onnx.ModelProto:
    g = Graph()
    return g.done(g.op(kind, g.input(*shape), **attributes))
