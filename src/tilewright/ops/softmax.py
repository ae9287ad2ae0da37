"""Softmax, LogSoftmax and Hardmax."""

from collections.abc import Sequence

from tilewright.expr.computation import Reducer
from tilewright.expr.nodes import Expr, const
from tilewright.expr.operations import cast, select, unary
from tilewright.ops.axes import num_elements
from tilewright.ops.contraction import accumulator_dtype
from tilewright.ops.definition import Definition, OpValue, operator
from tilewright.ops.reduce import broadcast_reduced, reduce_dims


def _axes(d: Definition, x: OpValue) -> tuple[int, ...]:
    """The reduced dimensions: `axis` since opset 13; before, `axis` and all dimensions after it."""
    if d.opset >= 13:
        return (d.axis(d.attr_int("axis", -1), x.rank),)
    axis = d.attr_int("axis", 1)
    first = x.rank if axis == x.rank else d.axis(axis, x.rank)
    return tuple(range(first, x.rank))


@operator("Softmax")
def softmax(d: Definition) -> OpValue:
    """exp(x - max) / sum(exp(x - max)); the largest exponential is 1, so nothing overflows.

    Each sum is inverted once, and the elements are multiplied by the inverse.
    """
    x = d.input(0)
    axes = _axes(d, x)
    powers, inverse = softmax_parts(d, x, axes)
    return d.compute(x.shape, lambda *i: cast(x.dtype, powers[i] * broadcast_reduced(inverse, i, axes)))


def softmax_parts(d: Definition, x: OpValue, axes: Sequence[int]) -> tuple[OpValue, OpValue]:
    """The exponentials of x - max, and the inverse of their sum over the axes, which it lacks."""
    wide = accumulator_dtype(x.dtype)
    maxima = reduce_dims(d, x, axes, Reducer.MAX, lambda i: x[i])
    powers = d.compute(
        x.shape, lambda *i: unary("exp", cast(wide, x[i]) - cast(wide, broadcast_reduced(maxima, i, axes)))
    )
    total = reduce_dims(d, x, axes, Reducer.SUM, lambda i: powers[i])
    return powers, d.compute(total.shape, lambda *i: const(1, wide) / total[i])


@operator("LogSoftmax")
def log_softmax(d: Definition) -> OpValue:
    """x - max - log(sum(exp(x - max)))"""
    x = d.input(0)
    axes, wide = _axes(d, x), accumulator_dtype(x.dtype)
    maxima = reduce_dims(d, x, axes, Reducer.MAX, lambda i: x[i])

    def shifted(i: tuple[Expr, ...]) -> Expr:
        return cast(wide, x[i]) - cast(wide, broadcast_reduced(maxima, i, axes))

    total = reduce_dims(d, x, axes, Reducer.SUM, lambda i: unary("exp", shifted(i)))
    return d.compute(x.shape, lambda *i: cast(x.dtype, shifted(i) - unary("log", broadcast_reduced(total, i, axes))))


@operator("Hardmax")
def hardmax(d: Definition) -> OpValue:
    """1 at the first largest element, 0 elsewhere."""
    source = d.input(0)
    axes = _axes(d, source)
    # Several dimensions are merged into one: elements are ordered row-major.
    rows, columns = source.shape[: len(source.shape) - len(axes)], num_elements([source.shape[k] for k in axes])
    x = source if len(axes) == 1 else d.view(source, (*rows, columns))
    axis = axes[0] if len(axes) == 1 else x.rank - 1
    maxima = reduce_dims(d, x, (axis,), Reducer.MAX, lambda i: x[i])
    first = reduce_dims(
        d, x, (axis,), Reducer.MIN,
        lambda i: select(x[i].equals(broadcast_reduced(maxima, i, (axis,))), i[axis], x.shape[axis]),
    )  # fmt: skip
    result = d.compute(
        x.shape, lambda *i: select(broadcast_reduced(first, i, (axis,)).equals(i[axis]), const(1, x.dtype), 0)
    )
    return d.view(result, source.shape)
