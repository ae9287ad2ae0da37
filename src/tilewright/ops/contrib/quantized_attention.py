"""Attention whose input and projection weights are quantized."""

from tilewright.expr.dtype import float32, int32
from tilewright.ops.checks import expect_dtype, expect_rank
from tilewright.ops.contraction import batched_matmul
from tilewright.ops.contrib import CONTRIB
from tilewright.ops.contrib.attention import self_attention
from tilewright.ops.contrib.integer_matmul import scaled_product
from tilewright.ops.contrib.parameters import single_element
from tilewright.ops.definition import Definition, OpValue, operator
from tilewright.ops.matmul import subtract_zero_point


@operator("QAttention", domain=CONTRIB)
def quantized_attention(d: Definition) -> OpValue | tuple[OpValue, ...]:
    """Attention whose projections are products of 8-bit integers: inputs x, weights [hidden, 3 * hidden], bias, scales
    of the two, mask, zero points of the two, past keys and values; optional result: past and new keys and values.

    Raises:
        UnsupportedError: rotary embedding, or a cache that is shared with the past.
    """
    x, weights = d.input(0), d.input(1)
    expect_rank(d, x, 3, "input")
    expect_rank(d, weights, 2, "weight")
    for position, what in ((3, "input_scale"), (4, "weight_scale")):
        expect_dtype(d, d.input(position), float32, what)
    left = subtract_zero_point(d, x, d.optional(6), 1, "input_zero_point")
    right = subtract_zero_point(d, weights, d.optional(7), 1, "weight_zero_point")
    total = batched_matmul(d, left, right, int32)
    scale = single_element(d, d.input(3), "input_scale")
    projected = scaled_product(d, total, scale, d.input(4), d.input(2))
    return self_attention(d, projected, d.optional(8), d.optional(5), None)
