"""Resize and Upsample: nearest, linear and cubic, with all of ONNX's coordinate transformations."""

from collections.abc import Sequence

from tilewright.errors import ShapeError, pluralize
from tilewright.expr.dtype import DType
from tilewright.expr.nodes import FALSE, Expr, const
from tilewright.expr.operations import binary, cast, select
from tilewright.ops.contraction import accumulator_dtype
from tilewright.ops.definition import Definition, OpValue, operator
from tilewright.ops.resize_by_tables import Sampling, TableInputs, has_data, needs_tables, resize_by_tables
from tilewright.ops.resize_scale import Ratio, Scale, clamp_in_loop, coordinate, scales_of, short_fraction

_NEAREST_MODES = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


@operator("Resize")
def resize(d: Definition) -> OpValue:
    """Y[y] = X at the source coordinate of y, interpolated

    Raises:
        ShapeError: an attribute is unknown, an input has another length than there are axes, or both or neither of
            scales and sizes are given.
        UnsupportedError: interpolation of integers.
    """
    x = d.input(0)
    if d.opset < 11:
        return _resample_legacy(d, x)
    sampling = Sampling(
        d.attr_str("mode", "nearest"),
        d.attr_str("coordinate_transformation_mode", "half_pixel"),
        d.attr_str("nearest_mode", "round_prefer_floor"),
        d.attr_float("cubic_coeff_a", -0.75),
        bool(d.attr_int("exclude_outside", 0)),
        d.attr_float("extrapolation_value", 0.0),
        bool(d.attr_int("antialias", 0)),
    )
    if sampling.mode == "nearest" and sampling.nearest not in _NEAREST_MODES:
        what = f"nearest_mode: expected one of {', '.join(_NEAREST_MODES)}, got {sampling.nearest!r}"
        raise ShapeError(what, where=f"node {d.label}")
    if needs_tables(d, x, sampling):
        return resize_by_tables(d, x, sampling, TableInputs(roi=1, scales=2, sizes=3))
    return _resample(d, x, scales_of(d, x, roi=1, scales=2, sizes=3), sampling)


@operator("Upsample")
def upsample(d: Definition) -> OpValue:
    """Resize with the semantics before opset 11: asymmetric coordinates"""
    x = d.input(0)
    if d.opset >= 9:
        return _resample_legacy(d, x)
    factors = [short_fraction(float(v)) for v in d.attributes.get("scales", ())]
    if len(factors) != x.rank:
        raise ShapeError(f"scales: expected {pluralize(x.rank, 'value')}, got {len(factors)}", where=f"node {d.label}")
    scales = [
        Scale(n, (n * f.numerator) // f.denominator, const(f.numerator), const(f.denominator))
        for n, f in zip(x.shape, factors, strict=True)
    ]
    return _resample(d, x, scales, _legacy_sampling(d))


def _legacy_sampling(d: Definition) -> Sampling:
    # Before opset 11, nearest is the floor where a dimension grows and the ceiling where it shrinks.
    return Sampling(d.attr_str("mode", "nearest"), "asymmetric", "simple", -0.75, False, 0.0, False)


def _resample_legacy(d: Definition, x: OpValue) -> OpValue:
    sampling = _legacy_sampling(d)
    if has_data(d, 1):
        return resize_by_tables(d, x, sampling, TableInputs(roi=None, scales=1, sizes=None))
    return _resample(d, x, scales_of(d, x, roi=None, scales=1, sizes=None), sampling)


def _resample(d: Definition, x: OpValue, scales: Sequence[Scale], sampling: Sampling) -> OpValue:
    axes = [k for k, s in enumerate(scales) if not s.is_identity]
    if not axes:
        return x
    if sampling.mode == "nearest":
        return _nearest(d, x, scales, axes, sampling)
    if sampling.mode not in ("linear", "cubic", "bilinear", "trilinear"):
        raise ShapeError(f"mode: expected nearest, linear or cubic, got {sampling.mode!r}", where=f"node {d.label}")
    if not x.dtype.is_float:
        raise d.unsupported(f"mode {sampling.mode} on {x.dtype}")
    if sampling.mode != "cubic":
        return _interpolate(d, x, scales, axes, sampling, x.dtype)
    # Cubic is separable: one pass per dimension reads 4 elements instead of 4 to the power of the dimensions.
    value = x
    for k in axes[:-1]:
        value = _interpolate(d, value, scales, [k], sampling, accumulator_dtype(x.dtype))
    return _interpolate(d, value, scales, axes[-1:], sampling, x.dtype)


def _shape(x: OpValue, scales: Sequence[Scale], axes: Sequence[int]) -> list[Expr]:
    return [scales[k].output if k in axes else n for k, n in enumerate(x.shape)]


def _nearest(d: Definition, x: OpValue, scales: Sequence[Scale], axes: Sequence[int], sampling: Sampling) -> OpValue:
    def body(*i: Expr) -> Expr:
        index = list(i)
        is_outside: Expr = FALSE
        for k in axes:
            s = scales[k]
            source = coordinate(d, sampling.transformation, s, i[k])
            mode = sampling.nearest
            if mode == "simple":
                mode = "ceil" if _shrinks(s) else "floor"
            index[k] = clamp_in_loop(source.rounded(mode), s.size, i[k], s.output)
            is_outside = binary("or", is_outside, _out_of_range(source, s.size))
        value = x[tuple(index)]
        return select(is_outside, const(sampling.extrapolation, x.dtype), value) if sampling.crops else value

    return d.compute(_shape(x, scales, axes), body)


def _shrinks(s: Scale) -> bool:
    condition = s.numerator < s.denominator
    return bool(getattr(condition, "value", False))


def _out_of_range(at: Ratio, size: Expr) -> Expr:
    return binary("or", at.numerator < 0, at.numerator > at.denominator * (size - 1))


def _interpolate(
    d: Definition, x: OpValue, scales: Sequence[Scale], axes: Sequence[int], sampling: Sampling, dtype: DType
) -> OpValue:
    """The weighted sum over the taps of all `axes` at once."""
    wide = accumulator_dtype(x.dtype)

    def body(*i: Expr) -> Expr:
        coordinates = {k: coordinate(d, sampling.transformation, scales[k], i[k]) for k in axes}
        taps = {k: _taps(coordinates[k], scales[k], i[k], sampling, wide) for k in axes}

        def value(remaining: Sequence[int], index: tuple[Expr, ...]) -> Expr:
            if not remaining:
                return cast(wide, x[index])
            k = remaining[0]
            terms = [value(remaining[1:], (*index[:k], t, *index[k + 1 :])) * weight for t, weight in taps[k]]
            total = terms[0]
            for term in terms[1:]:
                total = total + term
            return total

        result = cast(dtype, value(axes, i))
        if not sampling.crops:
            return result
        is_outside: Expr = FALSE
        for k in axes:
            is_outside = binary("or", is_outside, _out_of_range(coordinates[k], scales[k].size))
        return select(is_outside, const(sampling.extrapolation, dtype), result)

    return d.compute(_shape(x, scales, axes), body)


def _taps(at: Ratio, s: Scale, i: Expr, sampling: Sampling, dtype: DType) -> list[tuple[Expr, Expr]]:
    """(index, weight) of every tap along one dimension; indices are clamped to the border."""
    base = at.floor
    fraction = cast(dtype, at.numerator % at.denominator) / cast(dtype, at.denominator)
    if sampling.mode == "cubic":
        first, weights = -1, cubic_weights(fraction, sampling.cubic)
    else:
        first, weights = 0, [1.0 - fraction, fraction]
    positions = [base + (first + k) for k in range(len(weights))]
    if sampling.exclude_outside:
        zero = const(0, dtype)
        weights = [select(binary("and", p >= 0, p < s.size), w, zero) for p, w in zip(positions, weights, strict=True)]
        total = weights[0]
        for w in weights[1:]:
            total = total + w
        weights = [w / total for w in weights]
    return [(clamp_in_loop(p, s.size, i, s.output), w) for p, w in zip(positions, weights, strict=True)]


def cubic_weights(t: Expr, a: float) -> list[Expr]:
    """Weights of the elements at -1, 0, 1, 2 for a coordinate `t` in [0, 1).

    Source: R. Keys, "Cubic convolution interpolation for digital image processing", 1981, eq. 4 for free parameter `a`.
    """

    def inner_weight(x: Expr) -> Expr:
        return (x * (a + 2.0) - (a + 3.0)) * x * x + 1.0

    def outer_weight(x: Expr) -> Expr:
        return ((x * a - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a

    return [outer_weight(t + 1.0), inner_weight(t), inner_weight(1.0 - t), outer_weight(2.0 - t)]
