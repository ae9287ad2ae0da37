"""LayerNormalization and its relatives; variances are means of squared deviations (two passes)."""

from collections.abc import Sequence

from tilewright.expr.computation import Reducer
from tilewright.expr.dtype import DType, float32, float64
from tilewright.expr.nodes import Expr, const
from tilewright.expr.operations import cast, unary
from tilewright.ops.axes import num_elements
from tilewright.ops.cast import convert
from tilewright.ops.checks import expect_broadcastable, expect_dtype
from tilewright.ops.contraction import accumulator_dtype
from tilewright.ops.definition import Definition, OpValue, broadcast_element, operator
from tilewright.ops.reduce import broadcast_reduced, keep_dims, mean_over, reduce_dims


def _normalized_axes(d: Definition, x: OpValue) -> tuple[int, ...]:
    """The normalized dimensions: `axis` (default the last) and all after it."""
    return tuple(range(d.axis(d.attr_int("axis", -1), x.rank), x.rank))


def _stash_type(d: Definition) -> DType:
    """The type of statistics, from `stash_type`.

    Raises:
        UnsupportedError: it is neither float32 nor float64.
    """
    number = d.attr_int("stash_type", 1)
    if number not in (1, 11):
        raise d.unsupported(f"stash_type {number} is not float32 or float64")
    return float32 if number == 1 else float64


def _convert_to_stash(d: Definition, x: OpValue, stash: DType) -> OpValue:
    """`x` converted to the type of `stash_type` where that is more precise than the accumulator of `x`."""
    return convert(d, x, stash) if stash.bits > accumulator_dtype(x.dtype).bits else x


def inverse_stddev(d: Definition, x: OpValue, mean: OpValue | None, axes: Sequence[int], epsilon: float) -> OpValue:
    """1 / sqrt(variance + epsilon) over `axes`, which the result lacks; without a mean, of the mean square."""
    wide = accumulator_dtype(x.dtype)

    def square(i: tuple[Expr, ...]) -> Expr:
        value = cast(wide, x[i])
        value = value if mean is None else value - broadcast_reduced(mean, i, axes)
        return value * value

    total = reduce_dims(d, x, axes, Reducer.SUM, square)
    count = cast(wide, num_elements([x.shape[k] for k in axes]))
    return d.compute(total.shape, lambda *i: const(1, wide) / unary("sqrt", total[i] / count + epsilon))


def normalize(
    d: Definition, x: OpValue, mean: OpValue | None, inverse: OpValue, axes: Sequence[int],
    scale: OpValue | None, bias: OpValue | None,
) -> OpValue:  # fmt: skip
    """(x - mean) * inverse * scale + bias, computed in the type of `inverse`."""
    wide = inverse.dtype
    for what, operand in (("input 1 (scale)", scale), ("input 2 (bias)", bias)):
        if operand is not None:
            expect_dtype(d, operand, x.dtype, what)
            expect_broadcastable(d, operand, x.shape, what)

    def body(*i: Expr) -> Expr:
        value = cast(wide, x[i])
        value = value if mean is None else value - broadcast_reduced(mean, i, axes)
        value = value * broadcast_reduced(inverse, i, axes)
        value = value if scale is None else value * cast(wide, broadcast_element(scale, i))
        value = value if bias is None else value + cast(wide, broadcast_element(bias, i))
        return cast(x.dtype, value)

    return d.compute(x.shape, body)


@operator("LayerNormalization")
def layer_normalization(d: Definition) -> tuple[OpValue, ...]:
    """(row - mean) / standard deviation, scaled and shifted; optional results: mean and 1 / standard deviation."""
    x = d.input(0)
    axes, stash = _normalized_axes(d, x), _stash_type(d)
    converted = _convert_to_stash(d, x, stash)
    mean = mean_over(d, converted, axes, accumulator_dtype(converted.dtype))
    inverse = inverse_stddev(d, converted, mean, axes, d.attr_float("epsilon", 1e-5))
    result = normalize(d, x, mean, inverse, axes, d.input(1), d.optional(2))
    if d.num_outputs == 1:
        return (result,)
    statistics = (keep_dims(d, convert(d, s, stash), x, axes) for s in (mean, inverse))
    return (result, *statistics)[: d.num_outputs]


@operator("RMSNormalization")
def rms_normalization(d: Definition) -> OpValue:
    """Each row divided by its root mean square, scaled."""
    return _rms_normalize(d)[0]


@operator("SimplifiedLayerNormalization")
def simplified_layer_normalization(d: Definition) -> tuple[OpValue, ...]:
    """ONNX Runtime's name of RMSNormalization; optional second result: 1 / root mean square."""
    result, inverse = _rms_normalize(d)
    if d.num_outputs == 1:
        return (result,)
    return result, keep_dims(d, inverse, d.input(0), _normalized_axes(d, d.input(0)))


def _rms_normalize(d: Definition) -> tuple[OpValue, OpValue]:
    x = d.input(0)
    axes = _normalized_axes(d, x)
    converted = _convert_to_stash(d, x, _stash_type(d))
    inverse = inverse_stddev(d, converted, None, axes, d.attr_float("epsilon", 1e-5))
    return normalize(d, x, None, inverse, axes, d.input(1), None), inverse


@operator("MeanVarianceNormalization")
def mean_variance_normalization(d: Definition) -> OpValue:
    """(x - mean) / (standard deviation + 1e-9) over `axes`, by default all but the channels."""
    x = d.input(0)
    axes = tuple(d.axis(a, x.rank) for a in d.attr_ints("axes", (0, 2, 3)) or ())
    wide = accumulator_dtype(x.dtype)
    mean = mean_over(d, x, axes, wide)

    def centred(i: tuple[Expr, ...]) -> Expr:
        return cast(wide, x[i]) - broadcast_reduced(mean, i, axes)

    total = reduce_dims(d, x, axes, Reducer.SUM, lambda i: centred(i) * centred(i))
    count = cast(wide, num_elements([x.shape[k] for k in axes]))
    deviation = d.compute(total.shape, lambda *i: unary("sqrt", total[i] / count) + 1e-9)
    return d.compute(x.shape, lambda *i: cast(x.dtype, centred(i) / broadcast_reduced(deviation, i, axes)))
