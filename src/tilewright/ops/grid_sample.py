"""GridSample: interpolation of images at data-dependent positions.

A position is one coordinate per spatial dimension. Per dimension, one stage computes the first tap of each coordinate
and another one the weights of the taps; the result is the weighted sum over all taps.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.errors import ShapeError
from tilewright.expr.dtype import DType, int64
from tilewright.expr.nodes import TRUE, Expr, as_expr, const
from tilewright.expr.operations import binary, cast, conjunction, maximum, minimum, select, unary
from tilewright.ops.checks import expect_rank, expect_size
from tilewright.ops.clamp import clamp_index, zero_if_empty
from tilewright.ops.contraction import accumulator_dtype, epilogue, sum_over
from tilewright.ops.definition import Definition, OpValue, operator
from tilewright.ops.resize import cubic_weights

_MODES = {"nearest": "nearest", "linear": "linear", "cubic": "cubic", "bilinear": "linear", "bicubic": "cubic"}
"""Interpolation by mode name; opsets before 20 have the names for two dimensions."""

_PADDINGS = ("zeros", "border", "reflection")

_CUBIC = -0.75
"""The free parameter of the cubic weights, as in ONNX's reference and PyTorch."""


@dataclass(frozen=True, slots=True)
class _Sampling:
    """The attributes.

    Attributes:
        mode: "nearest", "linear" or "cubic".
        padding: the value outside of the image: zeros, border or reflection.
        align_corners: whether -1 and 1 are the middles of the outermost elements, not their outer edges.
    """

    mode: str
    padding: str
    align_corners: bool

    @property
    def taps(self) -> tuple[int, int]:
        """(number of taps per dimension, offset of the first tap from the floor of the coordinate)."""
        return {"nearest": (1, 0), "linear": (2, 0), "cubic": (4, -1)}[self.mode]


@operator("GridSample")
def grid_sample(d: Definition) -> OpValue:
    """Y[n, c, y] = X[n, c] at the position grid[n, y], whose coordinates -1 to 1 span the image, innermost first

    Raises:
        ShapeError: an attribute value is unknown, or ranks and sizes do not match.
        UnsupportedError: interpolation of integers.
    """
    x, grid, sampling = d.input(0), d.input(1), _sampling(d)
    if x.rank < 3:
        raise ShapeError(f"X: expected at least 3 dimensions, got {x.rank}", where=f"node {d.label}")
    rank = x.rank - 2
    expect_rank(d, grid, x.rank, "grid")
    expect_size(d, grid.shape[0], x.shape[0], "batch of grid")
    expect_size(d, grid.shape[-1], const(rank), "last dimension of grid")
    if not grid.dtype.is_float:
        raise ShapeError(f"grid: expected a floating-point type, got {grid.dtype}", where=f"node {d.label}")
    if sampling.mode != "nearest" and not x.dtype.is_float:
        raise d.unsupported(f"mode {sampling.mode} on {x.dtype}")
    coordinates = [_source_coordinate(d, grid, k, x.shape[2 + k], sampling) for k in range(rank)]
    first = [_floor(d, c) for c in coordinates]
    shape = (*x.shape[:2], *grid.shape[1:-1])
    if sampling.mode == "nearest":
        return d.compute(shape, lambda *i: _element(x, sampling, i[:2], [f[(i[0], *i[2:])] for f in first]))
    wide = accumulator_dtype(x.dtype)
    weights = [_weights(d, c, sampling, wide) for c in coordinates]
    taps, start = sampling.taps

    def term(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> Expr:
        point = (i[0], *i[2:])
        value = cast(wide, _element(x, sampling, i[:2], [f[point] + t + start for f, t in zip(first, r, strict=True)]))
        for w, t in zip(weights, r, strict=True):
            value = value * w[(*point, t)]
        return value

    return epilogue(d, sum_over(d, shape, [const(taps)] * rank, term), x.dtype)


def _sampling(d: Definition) -> _Sampling:
    mode, padding = d.attr_str("mode", "linear"), d.attr_str("padding_mode", "zeros")
    if mode not in _MODES:
        raise ShapeError(f"mode: expected one of {', '.join(_MODES)}, got {mode!r}", where=f"node {d.label}")
    if padding not in _PADDINGS:
        what = f"padding_mode: expected one of {', '.join(_PADDINGS)}, got {padding!r}"
        raise ShapeError(what, where=f"node {d.label}")
    return _Sampling(_MODES[mode], padding, bool(d.attr_int("align_corners", 0)))


def _source_coordinate(d: Definition, grid: OpValue, k: int, size: Expr, sampling: _Sampling) -> OpValue:
    """Coordinates along spatial dimension `k`, in elements, with padding border or reflection applied."""
    wide = accumulator_dtype(grid.dtype)
    entry = grid.rank - 3 - k
    length = cast(wide, size)
    # The extreme points of the image, between which coordinates are unchanged.
    low = const(0.0 if sampling.align_corners else -0.5, wide)
    high = length - 1.0 if sampling.align_corners else length - 0.5

    def body(*i: Expr) -> Expr:
        relative = cast(wide, grid[(*i, as_expr(entry))]) + 1.0
        at = relative / 2.0 * (length - 1.0) if sampling.align_corners else (relative * length - 1.0) / 2.0
        at = unary("round", at) if sampling.mode == "nearest" else at
        is_outside = binary("or", at < low, at > high)
        if sampling.padding == "border":
            # The cubic taps of a coordinate up to 2 outside still differ: ONNX's reference clamps it to the edge,
            # ONNX Runtime and PyTorch do not.
            margin = 2.0 if sampling.mode == "cubic" else 0.0
            return select(is_outside, minimum(maximum(at, const(-margin, wide)), length + (margin - 1.0)), at)
        if sampling.padding == "reflection":
            return select(is_outside, _reflect_coordinate(at, low, high, size, sampling.align_corners), at)
        return at

    return d.compute(grid.shape[:-1], body)


def _floor(d: Definition, coordinate: OpValue) -> OpValue:
    return d.compute(coordinate.shape, lambda *i: cast(int64, unary("floor", coordinate[i])))


def _reflect_coordinate(coordinate: Expr, low: Expr, high: Expr, size: Expr, align_corners: bool) -> Expr:
    """A coordinate reflected at the image's edges until it is inside."""
    span = high - low
    distance = binary("fmod", unary("abs", coordinate - low), span * 2.0)
    reflected = low + select(distance <= span, distance, span * 2.0 - distance)
    # With a single element, the corners coincide.
    return select(size <= 1, low, reflected) if align_corners else reflected


def _weights(d: Definition, coordinate: OpValue, sampling: _Sampling, wide: DType) -> OpValue:
    """The weights of all taps of a dimension, along an additional last dimension."""

    def body(*i: Expr) -> Expr:
        position = coordinate[i[:-1]]
        fraction = cast(wide, position - unary("floor", position))
        weights = cubic_weights(fraction, _CUBIC) if sampling.mode == "cubic" else [1.0 - fraction, fraction]
        value = weights[-1]
        for k, weight in reversed(list(enumerate(weights[:-1]))):
            value = select(i[-1].equals(k), weight, value)
        return value

    return d.compute((*coordinate.shape, sampling.taps[0]), body)


def _element(x: OpValue, sampling: _Sampling, plane: tuple[Expr, ...], position: Sequence[Expr]) -> Expr:
    """The element at a position of a plane, which may be outside of it."""
    sizes = x.shape[2:]
    in_bounds: Expr = TRUE
    if sampling.padding == "zeros":
        in_bounds = conjunction(*(conjunction(p >= 0, p < n) for p, n in zip(position, sizes, strict=True)))
    elif sampling.padding == "reflection":
        position = [_reflect_index(p, n, sampling.align_corners) for p, n in zip(position, sizes, strict=True)]
    # Coordinates are data: clamping keeps every load in bounds.
    clamped = [clamp_index(p, n) for p, n in zip(position, sizes, strict=True)]
    value = zero_if_empty(x[(*plane, *clamped)], *zip(clamped, sizes, strict=True))
    return select(in_bounds, value, const(0, x.dtype))


def _reflect_index(position: Expr, size: Expr, align_corners: bool) -> Expr:
    """The index that reflection maps a position to: at the centres of the outermost elements, or at their edges."""
    period = maximum((size - 1) * 2, 1) if align_corners else maximum(size * 2, 1)
    phase = position % period
    return minimum(phase, period - phase - (0 if align_corners else 1))
