"""Normalization of images: BatchNormalization, InstanceNormalization, GroupNormalization, LpNormalization, LRN.

Normalizations over the last dimensions are in `layernorm.py`.
"""

from collections.abc import Callable, Sequence

from tilewright.errors import ShapeError
from tilewright.expr.computation import Reducer
from tilewright.expr.dtype import DType, float32, float64
from tilewright.expr.nodes import Expr, const
from tilewright.expr.operations import binary, cast, select, unary
from tilewright.ops.axes import num_elements
from tilewright.ops.checks import expect_rank, expect_size
from tilewright.ops.contraction import accumulator_dtype, sum_over
from tilewright.ops.definition import Definition, OpValue, broadcast_element, operator
from tilewright.ops.pool import power, root
from tilewright.ops.reduce import reduce_dims


def _num_channels(d: Definition, x: OpValue) -> Expr:
    if x.rank < 2:
        raise ShapeError(f"X: expected at least 2 dimensions, got {x.rank}", where=f"node {d.label}")
    return x.shape[1]


def _channel_operand(d: Definition, position: int, size: Expr, what: str) -> OpValue:
    return _statistics_operand(d, position, (size,), what)


def _statistics_operand(d: Definition, position: int, shape: Sequence[Expr], what: str) -> OpValue:
    operand = d.input(position)
    expect_rank(d, operand, len(shape), what)
    for actual, expected in zip(operand.shape, shape, strict=True):
        expect_size(d, actual, expected, what)
    return operand


def _statistics_dtype(*dtypes: DType) -> DType:
    return float64 if float64 in dtypes else float32


@operator("BatchNormalization", ignores=("momentum",))
def batch_normalization(d: Definition) -> OpValue | tuple[OpValue, ...]:
    """Y = X * factor[c] + shift[c], factor = scale / sqrt(var + epsilon), shift = B - mean * factor

    Before opset 9, `spatial=0` means statistics per element of an image instead of per channel. Factor and shift are
    separate stages, so they are folded where the statistics are constant. The momentum only affects training.
    """
    x = d.input(0)
    channels = _num_channels(d, x)
    if d.attr_int("training_mode", 0):
        return _batch_normalization_in_training(d, x, channels)
    if d.num_outputs > 1:
        raise d.unsupported("training mode before opset 14 is not supported")
    size = (channels,) if d.attr_int("spatial", 1) else x.shape[1:]
    scale, bias, mean, var = (
        _statistics_operand(d, k + 1, size, name) for k, name in enumerate(("scale", "B", "input_mean", "input_var"))
    )
    wide = _statistics_dtype(x.dtype, scale.dtype, mean.dtype)
    epsilon = d.attr_float("epsilon", 1e-5)
    # The statistics are few, so float64 costs little and loses nothing.
    exact = d.compute(size, lambda *c: cast(float64, scale[c]) / unary("sqrt", cast(float64, var[c]) + epsilon))
    shift = d.compute(size, lambda *c: cast(wide, cast(float64, bias[c]) - cast(float64, mean[c]) * exact[c]))
    factor = d.compute(size, lambda *c: cast(wide, exact[c]))
    end = 1 + len(size)
    return d.compute(x.shape, lambda *i: cast(x.dtype, cast(wide, x[i]) * factor[i[1:end]] + shift[i[1:end]]), x.dtype)


def _batch_normalization_in_training(d: Definition, x: OpValue, channels: Expr) -> tuple[OpValue, ...]:
    """Y with the batch's own statistics per channel; running mean and variance: the given ones, moved towards them."""
    scale, bias, mean, var = (
        _channel_operand(d, k + 1, channels, name) for k, name in enumerate(("scale", "B", "input_mean", "input_var"))
    )
    wide, momentum = _statistics_dtype(x.dtype, scale.dtype, mean.dtype), d.attr_float("momentum", 0.9)
    axes = (0, *range(2, x.rank))
    count = cast(wide, num_elements([x.shape[k] for k in axes]))
    total = reduce_dims(d, x, axes, Reducer.SUM, lambda i: cast(wide, x[i]))
    batch_mean = d.compute((channels,), lambda *c: total[c] / count)

    def square(i: tuple[Expr, ...]) -> Expr:
        deviation = cast(wide, x[i]) - batch_mean[i[1]]
        return deviation * deviation

    squares = reduce_dims(d, x, axes, Reducer.SUM, square)
    batch_var = d.compute((channels,), lambda *c: squares[c] / count)
    epsilon = d.attr_float("epsilon", 1e-5)
    factor = d.compute((channels,), lambda *c: cast(wide, scale[c]) / unary("sqrt", batch_var[c] + epsilon))

    def normalized(*i: Expr) -> Expr:
        c = i[1]
        return cast(x.dtype, (cast(wide, x[i]) - batch_mean[c]) * factor[c] + cast(wide, bias[c]))

    def running(old: OpValue, new: OpValue) -> OpValue:
        return d.compute(
            (channels,), lambda *c: cast(old.dtype, cast(wide, old[c]) * momentum + new[c] * (1.0 - momentum))
        )

    results = (d.compute(x.shape, normalized, x.dtype), running(mean, batch_mean), running(var, batch_var))
    return results[: d.num_outputs]


def _standardize(d: Definition, x: OpValue, leading: int, epsilon: float, dtype: DType) -> OpValue:
    """(x - mean) / sqrt(var + epsilon) in `dtype`, with statistics over all dimensions but the first `leading`."""
    outer, inner = x.shape[:leading], x.shape[leading:]
    count = cast(dtype, num_elements(inner))
    total = sum_over(d, outer, inner, lambda i, r: cast(dtype, x[(*i, *r)]))
    mean = d.compute(outer, lambda *i: total[i] / count)

    def square(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> Expr:
        deviation = cast(dtype, x[(*i, *r)]) - mean[i]
        return deviation * deviation

    squares = sum_over(d, outer, inner, square)
    factor = d.compute(outer, lambda *i: 1.0 / unary("sqrt", squares[i] / count + epsilon))
    return d.compute(x.shape, lambda *i: (cast(dtype, x[i]) - mean[i[:leading]]) * factor[i[:leading]])


@operator("InstanceNormalization")
def instance_normalization(d: Definition) -> OpValue:
    """Y = scale[c] * (X - mean) / sqrt(var + epsilon) + B[c], statistics per image and channel"""
    x = d.input(0)
    channels = _num_channels(d, x)
    scale, bias = _channel_operand(d, 1, channels, "scale"), _channel_operand(d, 2, channels, "B")
    wide = accumulator_dtype(x.dtype)
    standardized = _standardize(d, x, 2, d.attr_float("epsilon", 1e-5), wide)
    return d.compute(
        x.shape, lambda *i: cast(x.dtype, standardized[i] * cast(wide, scale[i[1]]) + cast(wide, bias[i[1]])), x.dtype
    )


@operator("GroupNormalization")
def group_normalization(d: Definition) -> OpValue:
    """Y = scale * (X - mean) / sqrt(var + epsilon) + B, statistics per image and group of channels

    Scale and bias have one value per group before opset 21 and one per channel since.
    """
    x = d.input(0)
    channels = _num_channels(d, x)
    groups = d.attr_int("num_groups", 0)
    if groups < 1:
        raise ShapeError(f"num_groups: expected a positive number, got {groups}", where=f"node {d.label}")
    d.require((channels % groups).equals(0), f"channels of X: expected a multiple of {groups}, got {channels}")
    group_size = channels // groups
    is_per_group = d.opset < 21
    expected = const(groups) if is_per_group else channels
    scale, bias = _channel_operand(d, 1, expected, "scale"), _channel_operand(d, 2, expected, "bias")
    wide = accumulator_dtype(x.dtype)
    grouped = d.view(x, (x.shape[0], const(groups), group_size, *x.shape[2:]))
    standardized = _standardize(d, grouped, 2, d.attr_float("epsilon", 1e-5), wide)

    def body(*i: Expr) -> Expr:
        c = i[1] if is_per_group else i[1] * group_size + i[2]
        return cast(x.dtype, standardized[i] * cast(wide, scale[c]) + cast(wide, bias[c]))

    return d.view(d.compute(grouped.shape, body, x.dtype), x.shape)


def _sum_along(
    d: Definition,
    x: OpValue,
    axes: Sequence[int],
    reduced_shape: Sequence[Expr],
    value: Callable[[tuple[Expr, ...]], Expr],
) -> OpValue:
    """The sum of `value` at the indices of `x` along `axes`, which are kept with size 1."""

    def body(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> Expr:
        index = list(i)
        for k, position in zip(axes, r, strict=True):
            index[k] = position
        return value(tuple(index))

    return sum_over(d, reduced_shape, [x.shape[k] for k in axes], body)


@operator("LpNormalization")
def lp_normalization(d: Definition) -> OpValue:
    """Y = X / (p-norm along `axis`); 0 where the norm is 0"""
    x = d.input(0)
    axis, p = d.axis(d.attr_int("axis", -1), x.rank), d.attr_int("p", 2)
    if p not in (1, 2):
        raise ShapeError(f"p: expected 1 or 2, got {p}", where=f"node {d.label}")
    wide = accumulator_dtype(x.dtype)
    norm_shape = [const(1) if k == axis else n for k, n in enumerate(x.shape)]
    total = _sum_along(d, x, [axis], norm_shape, lambda i: power(cast(wide, x[i]), p))
    norm = d.compute(norm_shape, lambda *i: root(total[i], p))

    def body(*i: Expr) -> Expr:
        divisor = broadcast_element(norm, i)
        return cast(x.dtype, select(divisor.equals(0.0), const(0, wide), cast(wide, x[i]) / divisor))

    return d.compute(x.shape, body, x.dtype)


@operator("LRN")
def lrn(d: Definition) -> OpValue:
    """Y = X / (bias + alpha/size * sum of squares over `size` neighbouring channels) ** beta"""
    x = d.input(0)
    channels = _num_channels(d, x)
    size = d.attr_int("size", 0)
    if size < 1:
        raise ShapeError(f"size: expected a positive number, got {size}", where=f"node {d.label}")
    alpha, beta, bias = d.attr_float("alpha", 1e-4), d.attr_float("beta", 0.75), d.attr_float("bias", 1.0)
    wide = accumulator_dtype(x.dtype)
    before = (size - 1) // 2

    def padded_square(*i: Expr) -> Expr:
        c = i[1] - before
        value = cast(wide, x[(i[0], c, *i[2:])])
        return select(binary("and", c >= 0, c < channels), value * value, const(0, wide))

    squares = d.compute((x.shape[0], channels + (size - 1), *x.shape[2:]), padded_square)
    total = sum_over(d, x.shape, (const(size),), lambda i, r: squares[(i[0], i[1] + r[0], *i[2:])])
    return d.compute(
        x.shape, lambda *i: cast(x.dtype, cast(wide, x[i]) / binary("pow", total[i] * (alpha / size) + bias, beta))
    )
