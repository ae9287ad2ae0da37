"""Convolutions of `com.microsoft`: followed by a sum and an activation, or with padding as an input."""

from tilewright.errors import ShapeError
from tilewright.expr.dtype import int64
from tilewright.expr.nodes import Expr, const
from tilewright.expr.operations import cast
from tilewright.ops.checks import expect_dtype, expect_shape
from tilewright.ops.contraction import accumulator_dtype
from tilewright.ops.contrib import CONTRIB
from tilewright.ops.contrib.fused_activation import conv_activation
from tilewright.ops.conv import check_bias, convolve
from tilewright.ops.conv_transpose import transposed_convolution
from tilewright.ops.definition import Definition, OpValue, operator


@operator("FusedConv", domain=CONTRIB)
def fused_conv(d: Definition) -> OpValue:
    """activation(Conv(X, W) + B + Z); Z has the shape of the result.

    Raises:
        UnsupportedError: an activation that is not known.
    """
    x, w, bias, addend = d.input(0), d.input(1), d.optional(2), d.optional(3)
    expect_dtype(d, w, x.dtype, "W")
    function, wide = conv_activation(d), accumulator_dtype(x.dtype)
    total = convolve(d, x, w, wide)
    if bias is not None:
        check_bias(d, bias, w.shape[0], x.dtype)
    if addend is not None:
        expect_dtype(d, addend, x.dtype, "Z")
        expect_shape(d, addend, total.shape, "Z")
    if bias is None and addend is None and function is None and wide == x.dtype:
        return total

    def body(*i: Expr) -> Expr:
        value = total[i] if bias is None else total[i] + cast(wide, bias[i[1]])
        value = value if addend is None else value + cast(wide, addend[i])
        return cast(x.dtype, value if function is None else function(value))

    return d.compute(total.shape, body)


@operator("ConvTransposeWithDynamicPads", domain=CONTRIB)
def conv_transpose_with_dynamic_pads(d: Definition) -> OpValue:
    """ConvTranspose whose pads are input 2 and whose bias is input 3.

    Raises:
        UnsupportedError: pads that depend on data.
    """
    pads, rank = d.optional(2), d.input(0).rank - 2
    if pads is None:
        return transposed_convolution(d, d.optional(3), (const(0),) * (2 * rank))
    widths = tuple(cast(int64, n) for n in d.known_elements(2))
    if len(widths) != 2 * rank:
        raise ShapeError(f"Pads: expected {2 * rank} numbers, got {len(widths)}", where=f"node {d.label}")
    return transposed_convolution(d, d.optional(3), widths)
