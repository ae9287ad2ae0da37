"""Convolution in any number of spatial dimensions, with groups, dilations and padding; float and integer."""

from collections.abc import Sequence

from tilewright.errors import ShapeError, pluralize
from tilewright.expr.dtype import DType, int32
from tilewright.expr.nodes import Expr, const
from tilewright.expr.operations import cast
from tilewright.expr.traversal import is_one
from tilewright.ops.checks import expect_dtype, expect_rank, expect_size
from tilewright.ops.contraction import accumulator_dtype, epilogue, sum_over, widening_product
from tilewright.ops.definition import Definition, OpValue, operator
from tilewright.ops.matmul import subtract_zero_point
from tilewright.ops.window import pad_input, window_of


@operator("Conv")
def conv(d: Definition) -> OpValue:
    """Y[n, o, y] = sum over i, k of X[n, i, y*stride + k*dilation] * W[o, i, k] + B[o], on padded X"""
    x, w, bias = d.input(0), d.input(1), d.optional(2)
    expect_dtype(d, w, x.dtype, "W")
    wide = accumulator_dtype(x.dtype)
    total = convolve(d, x, w, wide)
    if bias is None:
        return epilogue(d, total, x.dtype)
    check_bias(d, bias, w.shape[0], x.dtype)
    return epilogue(d, total, x.dtype, lambda i: cast(wide, bias[i[1]]))


@operator("ConvInteger")
def conv_integer(d: Definition) -> OpValue:
    """Conv of (X - x_zero_point) and (W - w_zero_point) in int32"""
    return convolve(d, *integer_operands(d, (0, 2), (1, 3)), int32)


def integer_operands(d: Definition, x: tuple[int, int], w: tuple[int, int]) -> tuple[OpValue, OpValue]:
    """Input and weights of an integer convolution with their zero points subtracted.

    Args:
        d: the operator.
        x: positions of the input and of its zero point, a scalar.
        w: positions of the weights and of their zero point, a scalar or one value per output channel.
    """
    zero = d.optional(x[1])
    if zero is not None and zero.rank == 1 and not is_one(zero.shape[0]):
        expect_size(d, zero.shape[0], const(1), "x_zero_point")
    return (
        subtract_zero_point(d, d.input(x[0]), zero, 1, "x_zero_point"),
        subtract_zero_point(d, d.input(w[0]), d.optional(w[1]), 0, "w_zero_point"),
    )


def check_bias(d: Definition, bias: OpValue, channels: Expr, dtype: DType) -> None:
    """Requires one bias value per output channel.

    Raises:
        ShapeError: it has another shape or type.
    """
    expect_rank(d, bias, 1, "B")
    expect_dtype(d, bias, dtype, "B")
    expect_size(d, bias.shape[0], channels, "B")


def groups_of(d: Definition, channels: Expr, what: str) -> int:
    """The attribute group, required to divide `channels`.

    Raises:
        ShapeError: it is not positive or does not divide them.
    """
    groups = d.attr_int("group", 1)
    if groups < 1:
        raise ShapeError(f"group: expected a positive number, got {groups}", where=f"node {d.label}")
    d.require((channels % groups).equals(0), f"{what}: expected a multiple of group {groups}, got {channels}")
    return groups


def check_kernel(d: Definition, kernel: Sequence[Expr]) -> None:
    """Requires that the attribute kernel_shape, where given, is the shape of the weights.

    Raises:
        ShapeError: it differs.
    """
    stated = d.attr_ints("kernel_shape")
    if not stated:
        return
    if len(stated) != len(kernel):
        what = f"kernel_shape: expected {pluralize(len(kernel), 'value')}, got {len(stated)}"
        raise ShapeError(what, where=f"node {d.label}")
    for k, (size, expected) in enumerate(zip(kernel, stated, strict=True)):
        expect_size(d, size, const(expected), f"dimension {k + 2} of W")


def convolve(d: Definition, x: OpValue, w: OpValue, dtype: DType, channels_last: bool = False) -> OpValue:
    """A convolution accumulated in `dtype`, without bias.

    Args:
        d: the operator, for group, kernel_shape and the attributes of the window.
        x: [N, I, *sizes].
        w: [O, I / group, *kernel].
        dtype: of the accumulator.
        channels_last: whether the input is [N, *sizes, I] and the result [N, *sizes, O].

    Raises:
        ShapeError: ranks, channels, groups or the window do not match.
    """
    if x.rank < 3:
        raise ShapeError(f"X: expected at least 3 dimensions, got {x.rank}", where=f"node {d.label}")
    expect_rank(d, w, x.rank, "W")
    groups = groups_of(d, w.shape[0], "dimension 0 of W")
    depth, kernel = w.shape[1], w.shape[2:]
    channels, sizes = (x.shape[-1], x.shape[1:-1]) if channels_last else (x.shape[1], x.shape[2:])
    check_kernel(d, kernel)
    expect_size(d, channels, depth * groups, "channels of X")
    window = window_of(d, sizes, kernel)
    source = pad_input(d, x, window, const(0, x.dtype), channels_last)
    outputs = w.shape[0] // groups

    def body(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> Expr:
        (n, *y, o), (c, *k) = (i if channels_last else (i[0], *i[2:], i[1])), r
        channel = c if groups == 1 else (o // outputs) * depth + c
        at = window.at(y, k)
        element = source[(n, *at, channel) if channels_last else (n, channel, *at)]
        return widening_product(element, w[(o, c, *k)], dtype)

    result = (*window.output, w.shape[0]) if channels_last else (w.shape[0], *window.output)
    return sum_over(d, (x.shape[0], *result), (depth, *kernel), body)
