"""Elements of images at positions that are data, interpolated.

A position is one coordinate per spatial dimension. A stage per dimension turns coordinates into the first element that
counts, another one into the weights of the elements from there on; the result sums over the elements.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.errors import ShapeError
from tilewright.expr.dtype import DType, int64
from tilewright.expr.nodes import TRUE, Expr, as_expr, const
from tilewright.expr.operations import binary, cast, conjunction, maximum, minimum, select, unary
from tilewright.ops.clamp import clamp_index, zero_if_empty
from tilewright.ops.contraction import accumulator_dtype, epilogue, expect_rank, expect_size, sum_over
from tilewright.ops.definition import Definition, Operand, operator
from tilewright.ops.resize import cubic_weights

_MODES = {"nearest": "nearest", "linear": "linear", "cubic": "cubic", "bilinear": "linear", "bicubic": "cubic"}
"""Modes by name; versions before 20 have those of the plane."""

_PADDINGS = ("zeros", "border", "reflection")

_CUBIC = -0.75
"""The free parameter of the cubic weights, as in ONNX's reference and PyTorch."""


@dataclass(frozen=True, slots=True)
class _Sampling:
    """The attributes.

    Attributes:
        mode: "nearest", "linear" or "cubic".
        padding: what is read outside of the image.
        corners: whether -1 and 1 are the middles of the outermost elements, not their outer edges.
    """

    mode: str
    padding: str
    align_corners: bool

    @property
    def taps(self) -> tuple[int, int]:
        """How many elements count per dimension, and where they begin from the coordinate rounded down."""
        return {"nearest": (1, 0), "linear": (2, 0), "cubic": (4, -1)}[self.mode]


@operator("GridSample")
def grid_sample(d: Definition) -> Operand:
    """Y[n, c, y] = X[n, c] at the position grid[n, y], whose coordinates -1 to 1 span the image, innermost first

    Raises:
        ShapeError: an attribute is unknown, or ranks and sizes do not fit.
        UnsupportedError: integers are to be interpolated.
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

    def part(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> Expr:
        here = (i[0], *i[2:])
        value = cast(wide, _element(x, sampling, i[:2], [f[here] + t + start for f, t in zip(first, r, strict=True)]))
        for w, t in zip(weights, r, strict=True):
            value = value * w[(*here, t)]
        return value

    return epilogue(d, sum_over(d, shape, [const(taps)] * rank, part), x.dtype)


def _sampling(d: Definition) -> _Sampling:
    mode, padding = d.attr_str("mode", "linear"), d.attr_str("padding_mode", "zeros")
    if mode not in _MODES:
        raise ShapeError(f"mode: expected one of {', '.join(_MODES)}, got {mode!r}", where=f"node {d.label}")
    if padding not in _PADDINGS:
        what = f"padding_mode: expected one of {', '.join(_PADDINGS)}, got {padding!r}"
        raise ShapeError(what, where=f"node {d.label}")
    return _Sampling(_MODES[mode], padding, bool(d.attr_int("align_corners", 0)))


def _source_coordinate(d: Definition, grid: Operand, k: int, size: Expr, sampling: _Sampling) -> Operand:
    """Where positions lie along spatial dimension `k`, in elements; those outside of the image are moved into it."""
    wide = accumulator_dtype(grid.dtype)
    entry = grid.rank - 3 - k
    length = cast(wide, size)
    # The image's outermost points, between which positions are left as they are.
    low = const(0.0 if sampling.align_corners else -0.5, wide)
    high = length - 1.0 if sampling.align_corners else length - 0.5

    def body(*i: Expr) -> Expr:
        relative = cast(wide, grid[(*i, as_expr(entry))]) + 1.0
        at = relative / 2.0 * (length - 1.0) if sampling.align_corners else (relative * length - 1.0) / 2.0
        at = unary("round", at) if sampling.mode == "nearest" else at
        outside = binary("or", at < low, at > high)
        if sampling.padding == "border":
            # Cubic weights tell positions outside apart as long as they reach an element inside; ONNX's reference
            # moves these to the edge too, ONNX Runtime and PyTorch do not.
            reach = 2.0 if sampling.mode == "cubic" else 0.0
            return select(outside, minimum(maximum(at, const(-reach, wide)), length + (reach - 1.0)), at)
        if sampling.padding == "reflection":
            return select(outside, _reflect_coordinate(at, low, high, size, sampling.align_corners), at)
        return at

    return d.compute(grid.shape[:-1], body)


def _floor(d: Definition, coordinate: Operand) -> Operand:
    return d.compute(coordinate.shape, lambda *i: cast(int64, unary("floor", coordinate[i])))


def _reflect_coordinate(at: Expr, low: Expr, high: Expr, size: Expr, align_corners: bool) -> Expr:
    """A coordinate reflected at the image's edges until it lies inside."""
    span = high - low
    distance = binary("fmod", unary("abs", at - low), span * 2.0)
    inside = low + select(distance <= span, distance, span * 2.0 - distance)
    # Between the corners of a single element there is but one point.
    return select(size <= 1, low, inside) if align_corners else inside


def _weights(d: Definition, coordinate: Operand, sampling: _Sampling, wide: DType) -> Operand:
    """The weights of all elements that count along a dimension, in a last dimension."""

    def body(*i: Expr) -> Expr:
        at = coordinate[i[:-1]]
        rest = cast(wide, at - unary("floor", at))
        listed = cubic_weights(rest, _CUBIC) if sampling.mode == "cubic" else [1.0 - rest, rest]
        value = listed[-1]
        for k, weight in reversed(list(enumerate(listed[:-1]))):
            value = select(i[-1].equals(k), weight, value)
        return value

    return d.compute((*coordinate.shape, sampling.taps[0]), body)


def _element(x: Operand, sampling: _Sampling, plane: tuple[Expr, ...], position: Sequence[Expr]) -> Expr:
    """The element at a position of a plane, which may lie outside."""
    sizes = x.shape[2:]
    inside: Expr = TRUE
    if sampling.padding == "zeros":
        inside = conjunction(*(conjunction(p >= 0, p < n) for p, n in zip(position, sizes, strict=True)))
    elif sampling.padding == "reflection":
        position = [_reflect_index(p, n, sampling.align_corners) for p, n in zip(position, sizes, strict=True)]
    # Coordinates are data: only the limits keep every read inside.
    places = [clamp_index(p, n) for p, n in zip(position, sizes, strict=True)]
    value = zero_if_empty(x[(*plane, *places)], *zip(places, sizes, strict=True))
    return select(inside, value, const(0, x.dtype))


def _reflect_index(position: Expr, size: Expr, align_corners: bool) -> Expr:
    """The element that reflection puts at a position outside: at the middles of the outermost ones, or their edges."""
    period = maximum((size - 1) * 2, 1) if align_corners else maximum(size * 2, 1)
    around = position % period
    return minimum(around, period - around - (0 if align_corners else 1))
