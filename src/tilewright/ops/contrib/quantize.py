"""Conversion to and from 8- and 16-bit integers: the forms of `com.microsoft`, older than the standard ones."""

from tilewright.ops.contrib import CONTRIB
from tilewright.ops.definition import Definition, OpValue, operator
from tilewright.ops.quantize import dequantize_linear, quantize_linear


@operator("QuantizeLinear", domain=CONTRIB, ignores=("axis",))
def contrib_quantize_linear(d: Definition) -> OpValue:
    """saturate(round(x / y_scale) + y_zero_point)"""
    return quantize_linear(d)


@operator("DequantizeLinear", domain=CONTRIB, ignores=("axis",))
def contrib_dequantize_linear(d: Definition) -> OpValue:
    """(x - x_zero_point) * x_scale"""
    return dequantize_linear(d)
