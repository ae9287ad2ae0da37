"""Normalisation of every row by its own mean and variance; variances are sums of squared deviations (two passes)."""

from collections.abc import Sequence

from tilewright.expr.computation import Reducer
from tilewright.expr.dtype import DType, float32, float64
from tilewright.expr.nodes import Expr, cast, const, unary
from tilewright.ops.axes import product
from tilewright.ops.cast import converted
from tilewright.ops.contraction import accumulator, expect_broadcastable
from tilewright.ops.definition import Definition, Operand, at, operator
from tilewright.ops.pointwise import expect_type
from tilewright.ops.reduce import kept_dimensions, mean_over, reduced, spread


def _rows(d: Definition, x: Operand) -> tuple[int, ...]:
    """The dimensions that are normalised: `axis` (default the last) and all after it."""
    return tuple(range(d.axis(d.attr_int("axis", -1), x.rank), x.rank))


def _stash_type(d: Definition) -> DType:
    """The type that `stash_type` names for statistics.

    Raises:
        UnsupportedError: it is less precise than float32, in which they are computed at least.
    """
    stated = d.attr_int("stash_type", 1)
    if stated not in (1, 11):
        raise d.unsupported(f"stash_type {stated} is not float32 or float64")
    return float32 if stated == 1 else float64


def _exact(d: Definition, x: Operand, stash: DType) -> Operand:
    """`x` in the type that `stash_type` names, if that is more precise than statistics of `x` are."""
    return converted(d, x, stash) if stash.bits > accumulator(x.dtype).bits else x


def inverse_deviation(d: Definition, x: Operand, mean: Operand | None, axes: Sequence[int], epsilon: float) -> Operand:
    """1 / sqrt(variance + epsilon) over dimensions, which the result does not have; around zero without a mean."""
    wide = accumulator(x.dtype)

    def square(i: tuple[Expr, ...]) -> Expr:
        value = cast(wide, x[i])
        value = value if mean is None else value - spread(mean, i, axes)
        return value * value

    total = reduced(d, x, axes, Reducer.SUM, square)
    count = cast(wide, product([x.shape[k] for k in axes]))
    return d.compute(total.shape, lambda *i: const(1, wide) / unary("sqrt", total[i] / count + epsilon))


def normalised(
    d: Definition, x: Operand, mean: Operand | None, inverse: Operand, axes: Sequence[int],
    scale: Operand | None, bias: Operand | None,
) -> Operand:  # fmt: skip
    """(x - mean) * inverse * scale + bias, computed in the type of `inverse`."""
    wide = inverse.dtype
    for what, operand in (("input 1 (scale)", scale), ("input 2 (bias)", bias)):
        if operand is not None:
            expect_type(d, operand, x.dtype, what)
            expect_broadcastable(d, operand, x.shape, what)

    def body(*i: Expr) -> Expr:
        value = cast(wide, x[i])
        value = value if mean is None else value - spread(mean, i, axes)
        value = value * spread(inverse, i, axes)
        value = value if scale is None else value * cast(wide, at(scale, i))
        value = value if bias is None else value + cast(wide, at(bias, i))
        return cast(x.dtype, value)

    return d.compute(x.shape, body)


@operator("LayerNormalization")
def layer_normalization(d: Definition) -> tuple[Operand, ...]:
    """Each row less its mean, over its standard deviation, scaled and shifted; then the mean and 1 / deviation."""
    x = d.input(0)
    axes, stash = _rows(d, x), _stash_type(d)
    exact = _exact(d, x, stash)
    mean = mean_over(d, exact, axes, accumulator(exact.dtype))
    inverse = inverse_deviation(d, exact, mean, axes, d.attr_float("epsilon", 1e-5))
    result = normalised(d, x, mean, inverse, axes, d.input(1), d.optional(2))
    if d.wanted == 1:
        return (result,)
    statistics = (kept_dimensions(d, converted(d, s, stash), x, axes) for s in (mean, inverse))
    return (result, *statistics)[: d.wanted]


@operator("RMSNormalization")
def rms_normalization(d: Definition) -> Operand:
    """Each row over the root of its mean square, scaled."""
    return _root_mean_square(d)[0]


@operator("SimplifiedLayerNormalization")
def simplified_layer_normalization(d: Definition) -> tuple[Operand, ...]:
    """onnxruntime's name for RMSNormalization, with 1 / deviation as an optional second result."""
    result, inverse = _root_mean_square(d)
    if d.wanted == 1:
        return (result,)
    return result, kept_dimensions(d, inverse, d.input(0), _rows(d, d.input(0)))


def _root_mean_square(d: Definition) -> tuple[Operand, Operand]:
    x = d.input(0)
    axes = _rows(d, x)
    exact = _exact(d, x, _stash_type(d))
    inverse = inverse_deviation(d, exact, None, axes, d.attr_float("epsilon", 1e-5))
    return normalised(d, x, None, inverse, axes, d.input(1), None), inverse


@operator("MeanVarianceNormalization")
def mean_variance_normalization(d: Definition) -> Operand:
    """(x - mean) / (standard deviation + 1e-9) over `axes`, by default all but the channels."""
    x = d.input(0)
    axes = tuple(d.axis(a, x.rank) for a in d.attr_ints("axes", (0, 2, 3)) or ())
    wide = accumulator(x.dtype)
    mean = mean_over(d, x, axes, wide)

    def centred(i: tuple[Expr, ...]) -> Expr:
        return cast(wide, x[i]) - spread(mean, i, axes)

    total = reduced(d, x, axes, Reducer.SUM, lambda i: centred(i) * centred(i))
    count = cast(wide, product([x.shape[k] for k in axes]))
    deviation = d.compute(total.shape, lambda *i: unary("sqrt", total[i] / count) + 1e-9)
    return d.compute(x.shape, lambda *i: cast(x.dtype, centred(i) / spread(deviation, i, axes)))
