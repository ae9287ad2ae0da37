"""Gelu and its relatives: with an error function, a tanh or a sigmoid, after the sum with a bias."""

from tilewright.expr.operations import cast, unary
from tilewright.ops.activation import gelu_erf, gelu_tanh
from tilewright.ops.contraction import accumulator_dtype
from tilewright.ops.contrib import CONTRIB
from tilewright.ops.definition import Definition, OpValue, operator
from tilewright.ops.elementwise import elementwise, float_function, two_inputs_of_one_type


@operator("Gelu", domain=CONTRIB)
def gelu(d: Definition) -> OpValue:
    """Gelu with the error function."""
    return float_function(d, gelu_erf)


@operator("QuickGelu", domain=CONTRIB)
def quick_gelu(d: Definition) -> OpValue:
    """x * sigmoid(alpha * x)"""
    alpha = d.attr_float("alpha", 1.702)
    return float_function(d, lambda x: x * unary("sigmoid", x * alpha))


@operator("BiasGelu", "FastGelu", domain=CONTRIB)
def bias_gelu(d: Definition) -> OpValue:
    """Gelu of x + bias: with the error function, or (FastGelu, whose bias is optional) with tanh."""
    function = gelu_erf if d.op_type == "BiasGelu" else gelu_tanh
    if d.op_type == "FastGelu" and d.optional(1) is None:
        return float_function(d, function)
    x, bias = two_inputs_of_one_type(d)
    wide = accumulator_dtype(x.dtype)
    return elementwise(d, lambda a, b: cast(x.dtype, function(cast(wide, a) + cast(wide, b))), x, bias)
