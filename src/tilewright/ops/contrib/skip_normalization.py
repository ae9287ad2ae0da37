"""Normalizations of the sum of two tensors: a residual connection and the layer norm behind it."""

from tilewright.ops.contraction import accumulator_dtype
from tilewright.ops.contrib import CONTRIB
from tilewright.ops.definition import Definition, OpValue, operator
from tilewright.ops.elementwise import elementwise, two_inputs_of_one_type
from tilewright.ops.layernorm import inverse_stddev, normalize
from tilewright.ops.reduce import keep_dims, mean_over


@operator("SkipSimplifiedLayerNormalization", domain=CONTRIB)
def skip_simplified_layer_normalization(d: Definition) -> OpValue | tuple[OpValue, ...]:
    """RMSNormalization of x + skip (+ bias) over the last dimension: inputs x, skip, gamma, bias; optional results: an
    unused one, 1 / root mean square, and the sum."""
    total = _sum_with_skip(d, d.optional(3))
    axes = (total.rank - 1,)
    inverse = inverse_stddev(d, total, None, axes, d.attr_float("epsilon", 1e-12))
    result = normalize(d, total, None, inverse, axes, d.input(2), None)
    if d.num_outputs == 1:
        return result
    statistics = keep_dims(d, inverse, total, axes)
    return (result, statistics, statistics, total)[: d.num_outputs]


def _sum_with_skip(d: Definition, bias: OpValue | None) -> OpValue:
    """x + skip (+ bias)."""
    x, skip = two_inputs_of_one_type(d)
    if bias is None:
        return elementwise(d, lambda a, b: a + b, x, skip)
    return elementwise(d, lambda a, b, c: a + b + c, x, skip, bias)


@operator("SkipLayerNormalization", domain=CONTRIB)
def skip_layer_normalization(d: Definition) -> OpValue | tuple[OpValue, ...]:
    """LayerNormalization of x + skip (+ bias) over the last dimension: inputs x, skip, gamma, beta, bias; optional
    results: mean, 1 / standard deviation, and the sum."""
    total = _sum_with_skip(d, d.optional(4))
    axes = (total.rank - 1,)
    mean = mean_over(d, total, axes, accumulator_dtype(total.dtype))
    inverse = inverse_stddev(d, total, mean, axes, d.attr_float("epsilon", 1e-12))
    result = normalize(d, total, mean, inverse, axes, d.input(2), d.optional(3))
    if d.num_outputs == 1:
        return result
    statistics = (keep_dims(d, s, total, axes) for s in (mean, inverse))
    return (result, *statistics, total)[: d.num_outputs]
