"""Operators of the domain com.microsoft that are compositions of standard ones."""

from tilewright.expr.operations import cast, unary
from tilewright.ops.activation import gelu_erf, gelu_tanh
from tilewright.ops.contraction import accumulator_dtype
from tilewright.ops.definition import Definition, OpValue, operator
from tilewright.ops.elementwise import elementwise, float_function, two_inputs_of_one_type
from tilewright.ops.layernorm import inverse_stddev, normalize
from tilewright.ops.reduce import keep_dims, mean_over

_DOMAIN = "com.microsoft"


@operator("Gelu", domain=_DOMAIN)
def gelu(d: Definition) -> OpValue:
    """Gelu with the error function."""
    return float_function(d, gelu_erf)


@operator("QuickGelu", domain=_DOMAIN)
def quick_gelu(d: Definition) -> OpValue:
    """x * sigmoid(alpha * x)"""
    alpha = d.attr_float("alpha", 1.702)
    return float_function(d, lambda x: x * unary("sigmoid", x * alpha))


@operator("BiasGelu", "FastGelu", domain=_DOMAIN)
def bias_gelu(d: Definition) -> OpValue:
    """Gelu of x + bias: with the error function, or (FastGelu, whose bias is optional) with tanh."""
    function = gelu_erf if d.op_type == "BiasGelu" else gelu_tanh
    if d.op_type == "FastGelu" and d.optional(1) is None:
        return float_function(d, function)
    x, bias = two_inputs_of_one_type(d)
    wide = accumulator_dtype(x.dtype)
    return elementwise(d, lambda a, b: cast(x.dtype, function(cast(wide, a) + cast(wide, b))), x, bias)


@operator("SkipLayerNormalization", domain=_DOMAIN)
def skip_layer_normalization(d: Definition) -> OpValue | tuple[OpValue, ...]:
    """LayerNormalization of x + skip (+ bias) over the last dimension: inputs x, skip, gamma, beta, bias; optional
    results: mean, 1 / standard deviation, and the sum."""
    x, skip = two_inputs_of_one_type(d)
    bias = d.optional(4)
    if bias is None:
        total = elementwise(d, lambda a, b: a + b, x, skip)
    else:
        total = elementwise(d, lambda a, b, c: a + b + c, x, skip, bias)
    axes = (total.rank - 1,)
    mean = mean_over(d, total, axes, accumulator_dtype(x.dtype))
    inverse = inverse_stddev(d, total, mean, axes, d.attr_float("epsilon", 1e-12))
    result = normalize(d, total, mean, inverse, axes, d.input(2), d.optional(3))
    if d.num_outputs == 1:
        return result
    statistics = (keep_dims(d, s, total, axes) for s in (mean, inverse))
    return (result, *statistics, total)[: d.num_outputs]
