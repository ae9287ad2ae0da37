"""Convolution of quantized tensors whose channels may be the last dimension."""

from tilewright.ops.contrib import CONTRIB
from tilewright.ops.definition import Definition, OpValue, operator
from tilewright.ops.quantize import requantized_convolution


@operator("QLinearConv", domain=CONTRIB)
def qlinear_conv(d: Definition) -> OpValue:
    """QLinearConv; with `channels_last`, channels are the last dimension of input and result, and the weights are
    [outputs, inputs / group, *kernel] as otherwise."""
    return requantized_convolution(d, bool(d.attr_int("channels_last", 0)))
