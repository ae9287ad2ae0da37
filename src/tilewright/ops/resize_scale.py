"""Sizes, scales and source coordinates of Resize, in exact rational arithmetic over int64 expressions.

ONNX specifies coordinates in floating point. All of them are ratios of integers (sizes, and scales that are simple
fractions), so an index is a quotient such as `y // 2`, and an interpolation weight needs one division.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import gcd

import numpy as np

from tilewright.errors import ShapeError, pluralize
from tilewright.expr.algebra.bounds import Bounds
from tilewright.expr.algebra.polynomial import expression, polynomial
from tilewright.expr.algebra.prover import can_prove
from tilewright.expr.nodes import Const, Expr, Var, const
from tilewright.expr.operations import maximum, minimum, select
from tilewright.ops.definition import Definition, KnownElements, OpValue

_MAX_DENOMINATOR = 4096
_FULL_REGION = (Fraction(0), Fraction(1))


@dataclass(frozen=True, slots=True)
class Scale:
    """Resizing of one dimension: size -> output, with the scale numerator / denominator."""

    size: Expr
    output: Expr
    numerator: Expr
    denominator: Expr
    region: tuple[Fraction, Fraction] = _FULL_REGION

    @property
    def is_identity(self) -> bool:
        """Whether the dimension is unchanged."""
        return self.size is self.output and self.numerator is self.denominator and self.region == _FULL_REGION


@dataclass(frozen=True, slots=True)
class Ratio:
    """A coordinate: numerator / denominator, the denominator positive."""

    numerator: Expr
    denominator: Expr

    @property
    def floor(self) -> Expr:
        """The coordinate rounded down."""
        return self.numerator // self.denominator

    def rounded(self, mode: str) -> Expr:
        """The coordinate rounded by a nearest_mode."""
        n, m = self.numerator, self.denominator
        match mode:
            case "floor":
                return n // m
            case "ceil":
                return (n + m - 1) // m
            case "round_prefer_ceil":
                return (n * 2 + m) // (m * 2)
            case _:
                return (n * 2 + m - 1) // (m * 2)


def short_fraction(value: float) -> Fraction:
    """The simplest fraction that rounds to a float32, else the exact value."""
    fraction = Fraction(value).limit_denominator(_MAX_DENOMINATOR)
    return fraction if np.float32(float(fraction)) == np.float32(value) else Fraction(value)


def scales_of(d: Definition, x: OpValue, *, roi: int | None, scales: int, sizes: int | None) -> list[Scale]:
    """One `Scale` per dimension of `x`, from the inputs at the given positions.

    Raises:
        ShapeError: neither or both of scales and sizes are given, or a length does not match.
        UnsupportedError: their values depend on data.
    """
    axes = [d.axis(a, x.rank) for a in d.attr_ints("axes") or range(x.rank)]
    regions = _regions(d, roi, axes)
    policy = d.attr_str("keep_aspect_ratio_policy", "stretch")
    by_scale = is_present(d, scales)
    by_size = sizes is not None and is_present(d, sizes)
    if by_scale == by_size:
        got = "both" if by_scale else "neither"
        raise ShapeError(f"expected either scales or sizes, got {got}", where=f"node {d.label}")
    values = _expect_elements(d, scales if by_scale else sizes or 0, len(axes), "scales" if by_scale else "sizes")
    result = [Scale(n, n, const(1), const(1)) for n in x.shape]
    if by_scale:
        for axis, value in zip(axes, values, strict=True):
            if not isinstance(value, Const):
                raise d.unsupported("scales are not constant")
            result[axis] = _from_scale(d, x.shape[axis], float(value.value), regions.get(axis))
        return result
    common_scale: Fraction | None = None
    if policy != "stretch":
        values, common_scale = _keep_aspect(d, [x.shape[a] for a in axes], values, policy)
    for axis, value in zip(axes, values, strict=True):
        size = x.shape[axis]
        top, bottom = (const(1), const(1)) if size is value else (value, size)
        if common_scale is not None:
            top, bottom = const(common_scale.numerator), const(common_scale.denominator)
        result[axis] = Scale(size, value, top, bottom, regions.get(axis, _FULL_REGION))
    return result


def is_present(d: Definition, position: int) -> bool:
    """Whether an input is there, and not empty as early operator sets have one that is not used."""
    operand = d.optional(position)
    return operand is not None and not any(isinstance(n, Const) and n.value == 0 for n in operand.shape)


def _expect_elements(d: Definition, position: int, count: int, what: str) -> KnownElements:
    values = d.known_elements(position)
    if len(values) != count:
        raise ShapeError(f"{what}: expected {pluralize(count, 'value')}, got {len(values)}", where=f"node {d.label}")
    return values


def _regions(d: Definition, position: int | None, axes: Sequence[int]) -> Mapping[int, tuple[Fraction, Fraction]]:
    """(start, end) of the region per axis for tf_crop_and_resize; empty for other modes."""
    if d.attr_str("coordinate_transformation_mode", "half_pixel") != "tf_crop_and_resize":
        return {}
    if position is None or not is_present(d, position):
        raise ShapeError("tf_crop_and_resize needs input roi", where=f"node {d.label}")
    values = _expect_elements(d, position, 2 * len(axes), "roi")
    if not all(isinstance(v, Const) for v in values):
        raise d.unsupported("roi is not constant")
    ends = [short_fraction(float(v.value)) for v in values if isinstance(v, Const)]
    return {axis: (ends[k], ends[len(axes) + k]) for k, axis in enumerate(axes)}


def _from_scale(d: Definition, size: Expr, value: float, region: tuple[Fraction, Fraction] | None) -> Scale:
    if not value > 0:
        raise ShapeError(f"scales: expected positive values, got {value}", where=f"node {d.label}")
    scale = short_fraction(value)
    start, end = region or _FULL_REGION
    # With a region the output covers it: floor(size * (end - start) * scale).
    factor = scale * (end - start)
    output = (size * factor.numerator) // factor.denominator
    return Scale(size, output, const(scale.numerator), const(scale.denominator), (start, end))


def _keep_aspect(
    d: Definition, sizes: Sequence[Expr], output_sizes: Sequence[Expr], policy: str
) -> tuple[tuple[Expr, ...], Fraction]:
    """Output sizes that keep the aspect ratio, and their common scale."""
    if policy not in ("not_larger", "not_smaller"):
        expected = "stretch, not_larger or not_smaller"
        raise ShapeError(f"keep_aspect_ratio_policy: expected {expected}, got {policy!r}", where=f"node {d.label}")
    input_ints = [int(n.value) for n in sizes if isinstance(n, Const)]
    output_ints = [int(n.value) for n in output_sizes if isinstance(n, Const)]
    if len(input_ints) != len(sizes) or len(output_ints) != len(output_sizes):
        raise d.unsupported(f"keep_aspect_ratio_policy {policy} with symbolic sizes")
    factors = [Fraction(w, h) for w, h in zip(output_ints, input_ints, strict=True)]
    common_scale = min(factors) if policy == "not_larger" else max(factors)
    return tuple(const(int(common_scale * h + Fraction(1, 2))) for h in input_ints), common_scale


def coordinate(d: Definition, mode: str, s: Scale, i: Expr) -> Ratio:
    """The source coordinate of output index `i` along a dimension.

    Raises:
        ShapeError: unknown mode.
        UnsupportedError: tf_crop_and_resize to a symbolic size.
    """
    a, b = s.numerator, s.denominator
    match mode:
        case "asymmetric":
            return _reduce_ratio(i * b, a)
        case "half_pixel":
            return _reduce_ratio((i * 2 + 1) * b - a, a * 2)
        case "pytorch_half_pixel":
            is_single = s.output.equals(1)
            n = select(is_single, const(0), (i * 2 + 1) * b - a)
            return _reduce_ratio(n, a * 2)
        case "align_corners":
            if s.numerator is s.output:
                return _reduce_ratio(i * (s.size - 1), maximum(s.output - 1, 1))
            # ONNX's length is size * scale, before it is rounded.
            return _reduce_ratio(i * (s.size - 1) * b, maximum(s.size * a - b, 1))
        case "half_pixel_symmetric":
            return _reduce_ratio((s.size - 1) * a + (i * 2 + 1 - s.output) * b, a * 2)
        case "tf_crop_and_resize":
            return _crop_and_resize_coordinate(d, s, i)
        case _:
            raise ShapeError(f"coordinate_transformation_mode: {mode!r} is unknown", where=f"node {d.label}")


def _crop_and_resize_coordinate(d: Definition, s: Scale, i: Expr) -> Ratio:
    """start*(size - 1) + i*(end - start)*(size - 1)/(output - 1), or the middle of the region for one output."""
    if not isinstance(s.output, Const):
        raise d.unsupported("tf_crop_and_resize to a symbolic size")
    start, end = s.region
    unit = start.denominator * end.denominator // gcd(start.denominator, end.denominator)
    first, last = int(start * unit), int(end * unit)
    steps = int(s.output.value) - 1
    if steps < 1:
        return _reduce_ratio((s.size - 1) * (first + last), const(2 * unit))
    return _reduce_ratio((i * (last - first) + first * steps) * (s.size - 1), const(unit * steps))


def _reduce_ratio(numerator: Expr, denominator: Expr) -> Ratio:
    """The ratio without common constant factors, so that their quotients vanish."""
    top, bottom = polynomial(numerator), polynomial(denominator)
    factor = gcd(*top.values(), *bottom.values()) or 1
    if factor == 1:
        return Ratio(numerator, denominator)
    return Ratio(
        expression({m: c // factor for m, c in top.items()}),
        expression({m: c // factor for m, c in bottom.items()}),
    )


def clamp_in_loop(index: Expr, size: Expr, i: Expr, extent: Expr) -> Expr:
    """`index`, an expression of `i` in [0, extent), clamped to [0, size); bounds that are proved are not clamped."""
    bounds = Bounds().with_loop(i, extent) if isinstance(i, Var) else Bounds()
    non_negative = index if can_prove(index >= 0, bounds) else maximum(index, 0)
    return non_negative if can_prove(index < size, bounds) else minimum(non_negative, size - 1)
