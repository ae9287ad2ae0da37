"""DeformConv: convolution whose taps are moved by offsets that are data.

Where the taps read is computed once for all channels, what they read once for all output channels; then the convolution
is a contraction.
"""

from collections.abc import Sequence

from tilewright.errors import ShapeError
from tilewright.expr.dtype import DType, int64
from tilewright.expr.nodes import Expr, const
from tilewright.expr.operations import cast, select
from tilewright.ops.axes import num_elements
from tilewright.ops.cast import convert
from tilewright.ops.checks import expect_dtype, expect_rank, expect_shape, expect_size
from tilewright.ops.clamp import clamp_index, zero_if_empty
from tilewright.ops.contraction import accumulator_dtype, epilogue, sum_over
from tilewright.ops.conv import check_bias, check_kernel, groups_of
from tilewright.ops.definition import Definition, OpValue, operator
from tilewright.ops.routine_call import call_routine, shape_tensor
from tilewright.ops.routines.deform_conv import corner_table
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
    corners, per_part, area = 2**rank, channels // parts, num_elements(sizes)
    factors = d.compute((const(1),), lambda *_: const(1, wide)) if mask is None else convert(d, mask, wide)
    places, weights = _corner_tables(d, [convert(d, offset, wide), factors], window, taps * parts, wide)
    planes = d.view(x, (batch, channels, area))

    def body(*i: Expr) -> Expr:
        n, c, tap, *y = i
        row = c // per_part * taps + tap
        total: Expr = const(0, wide)
        for k in range(corners):
            at = (n, row, const(k), *y)
            place, weight = clamp_index(places[at], area), weights[at]
            value = cast(wide, zero_if_empty(planes[n, c, place], (place, area))) * weight
            # elements outside of the picture count nothing, even where what is read instead is infinite
            total = total + select(weight.equals(0.0), const(0, wide), value)
        return total

    return d.compute((batch, channels, taps, *window.output), body)


def _corner_tables(
    d: Definition, moved: Sequence[OpValue], window: Window, rows: Expr, wide: DType
) -> tuple[OpValue, ...]:
    """Positions and weights of the elements around each tap, [batch, rows, corners, *outputs], for all channels.

    `moved` are the offsets and the mask, which is one element where there is none.
    """
    rank, batch = len(window.kernel), moved[0].shape[0]
    numbers = [shape_tensor(d, n) for n in (window.sizes, window.kernel, window.output)]
    steps = shape_tensor(d, [*window.strides, *window.dilations, *window.before])
    shape = (batch, rows, const(2**rank), *window.output)
    outputs = [(shape, int64), (shape, wide)]
    scalars = [batch * rows, rank, 2**rank, int(moved[1].rank > 1)]
    windows = num_elements(window.output)
    scratch = [(windows * rank, int64), (windows, int64), (windows * 2, wide)]
    return call_routine(d, corner_table, [*moved, *numbers, steps], outputs, scalars, scratch)
