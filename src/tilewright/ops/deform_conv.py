"""DeformConv: convolution whose taps are moved by offsets that are data.

The taps are sampled once for all output channels, with linear interpolation; then the convolution is a contraction.
"""

from itertools import product

from tilewright.errors import ShapeError
from tilewright.expr.dtype import int64
from tilewright.expr.nodes import TRUE, Expr, const
from tilewright.expr.operations import cast, conjunction, select, unary
from tilewright.ops.axes import num_elements
from tilewright.ops.checks import expect_dtype, expect_rank, expect_shape, expect_size
from tilewright.ops.clamp import clamp_index, zero_if_empty
from tilewright.ops.contraction import accumulator_dtype, epilogue, sum_over
from tilewright.ops.conv import check_bias, check_kernel, groups_of
from tilewright.ops.definition import Definition, OpValue, operator
from tilewright.ops.window import Window, window_of


@operator("DeformConv")
def deform_conv(d: Definition) -> OpValue:
    """Conv whose tap k at place y reads X at y*stride + k*dilation + offset[k, y], weighted by mask[k, y]

    Elements outside of X are 0; a tap whose offset is NaN counts 0.

    Raises:
        ShapeError: operands do not fit.
    """
    x, w, bias = d.input(0), d.input(1), d.optional(3)
    rank = x.rank - 2
    if rank < 1:
        raise ShapeError(f"X: expected at least 3 dimensions, got {x.rank}", where=f"node {d.label}")
    expect_rank(d, w, x.rank, "W")
    expect_dtype(d, w, x.dtype, "W")
    channels, kernel = x.shape[1], w.shape[2:]
    check_kernel(d, kernel)
    groups = groups_of(d, w.shape[0], "dimension 0 of W")
    depth = w.shape[1]
    expect_size(d, channels, depth * groups, "channels of X")
    window, wide = window_of(d, x.shape[2:], kernel), accumulator_dtype(x.dtype)
    samples = _samples(d, x, window)
    outputs = w.shape[0] // groups

    def term(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> Expr:
        tap: Expr = const(0)
        for n, k in zip(kernel, r[1:], strict=True):
            tap = tap * n + k
        sample = samples[(i[0], i[1] // outputs * depth + r[0], tap, *i[2:])]
        return sample * cast(wide, w[(i[1], *r)])

    total = sum_over(d, (x.shape[0], w.shape[0], *window.output), (depth, *kernel), term)
    if bias is None:
        return epilogue(d, total, x.dtype)
    check_bias(d, bias, w.shape[0], x.dtype)
    return epilogue(d, total, x.dtype, lambda i: cast(wide, bias[i[1]]))


def _samples(d: Definition, x: OpValue, window: Window) -> OpValue:
    """What each tap reads: [batch, channels, taps, *outputs], in the accumulator type."""
    offset, mask, parts = d.input(2), d.optional(4), d.attr_int("offset_group", 1)
    rank, taps, wide = len(window.kernel), num_elements(window.kernel), accumulator_dtype(x.dtype)
    if parts < 1:
        raise ShapeError(f"offset_group: expected a positive number, got {parts}", where=f"node {d.label}")
    batch, channels, sizes = x.shape[0], x.shape[1], x.shape[2:]
    d.require((channels % parts).equals(0), f"X: expected a multiple of offset_group {parts}, got {channels} channels")
    expect_shape(d, offset, (batch, taps * (parts * rank), *window.output), "offset")
    if mask is not None:
        expect_shape(d, mask, (batch, taps * parts, *window.output), "mask")
    places = [_tap_coordinates(d, offset, window, k, parts) for k in range(rank)]
    first = [_floor(d, p) for p in places]
    per_part = channels // parts

    def body(*i: Expr) -> Expr:
        n, c, tap, *y = i
        row = (n, c // per_part * taps + tap, *y)
        at = [p[row] for p in places]
        low = [p[row] for p in first]
        part = [p - unary("floor", p) for p in at]
        total: Expr = const(0, wide)
        for corner in product((0, 1), repeat=rank):
            position = [p + k for p, k in zip(low, corner, strict=True)]
            is_inside = conjunction(*(conjunction(p >= 0, p < s) for p, s in zip(position, sizes, strict=True)))
            clamped = [clamp_index(p, s) for p, s in zip(position, sizes, strict=True)]
            value = cast(wide, zero_if_empty(x[(n, c, *clamped)], *zip(clamped, sizes, strict=True)))
            for f, k in zip(part, corner, strict=True):
                value = value * (f if k else 1.0 - f)
            total = total + select(is_inside, value, const(0, wide))
        near: Expr = TRUE
        for p, s in zip(at, sizes, strict=True):
            near = conjunction(near, p > -1.0, p < cast(wide, s))
        sample = select(near, total, const(0, wide))
        return sample if mask is None else sample * cast(wide, mask[row])

    return d.compute((batch, channels, taps, *window.output), body)


def _floor(d: Definition, coordinates: OpValue) -> OpValue:
    return d.compute(coordinates.shape, lambda *i: cast(int64, unary("floor", coordinates[i])))


def _tap_coordinates(d: Definition, offset: OpValue, window: Window, k: int, parts: int) -> OpValue:
    """Coordinates of the taps along spatial dimension k: [batch, offset groups * taps, *outputs]."""
    rank, wide = len(window.kernel), accumulator_dtype(offset.dtype)
    taps, inner = num_elements(window.kernel), num_elements(window.kernel[k + 1 :])

    def body(n: Expr, row: Expr, *y: Expr) -> Expr:
        tap = row % taps // inner % window.kernel[k]
        start = window.before[k] - y[k] * window.strides[k] - tap * window.dilations[k]
        # A difference: the operands of a sum may be in another order in an index than in the test that guards it.
        return cast(wide, offset[(n, row * rank + k, *y)]) - cast(wide, start)

    return d.compute((offset.shape[0], taps * parts, *window.output), body)
