"""Reductions over dimensions: sums, products, extrema, norms. 16-bit floats are accumulated in float32, products of all
floats in float64."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright.expr.computation import Reducer
from tilewright.expr.dtype import DType, float64
from tilewright.expr.nodes import Expr, as_expr, const
from tilewright.expr.operations import binary, cast, select, unary
from tilewright.ops.axes import axes_of, num_elements
from tilewright.ops.contraction import accumulator_dtype
from tilewright.ops.data_dependent import separate_reduced
from tilewright.ops.definition import Definition, OpValue, operator
from tilewright.ops.integer_division import truncated_quotient


def reduce_dims(
    d: Definition,
    x: OpValue,
    axes: Sequence[int],
    reducer: Reducer,
    element: Callable[[tuple[Expr, ...]], Expr],
) -> OpValue:
    """`element(index)` reduced over the given dimensions of the index space of `x`, which the result lacks.

    Args:
        d: the node.
        x: the operand whose shape is the index space.
        axes: the dimensions, counted from the front.
        reducer: how values are combined.
        element: the value at an index of `x`.
    """
    outer = [k for k in range(x.rank) if k not in axes]
    reduced = sorted(axes)

    def body(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> Expr:
        index = dict(zip((*outer, *reduced), (*i, *r), strict=True))
        return element(tuple(index[k] for k in range(x.rank)))

    return d.reduce([x.shape[k] for k in outer], [x.shape[k] for k in reduced], body, reducer)


def broadcast_reduced(x: OpValue, index: Sequence[Expr], axes: Sequence[int]) -> Expr:
    """The element of a reduced tensor for an index of the original tensor."""
    return x[tuple(i for k, i in enumerate(index) if k not in axes)]


def keep_dims(d: Definition, x: OpValue, whole: OpValue, axes: Sequence[int]) -> OpValue:
    """A reduced tensor with the reduced dimensions kept with size 1."""
    return d.view(x, tuple(as_expr(1) if k in axes else n for k, n in enumerate(whole.shape)))


@dataclass(frozen=True, slots=True)
class ReductionKind:
    """A reduction operator.

    Attributes:
        reducer: how values are combined.
        before: function of each element.
        after: function of the result.
        fractional: whether `after` gives fractions, so that integers are reduced in float64.
    """

    reducer: Reducer
    before: Callable[[Expr], Expr] | None = None
    after: Callable[[Expr], Expr] | None = None
    fractional: bool = False


_REDUCTIONS = {
    "ReduceSum": ReductionKind(Reducer.SUM),
    "ReduceProd": ReductionKind(Reducer.PROD),
    "ReduceMax": ReductionKind(Reducer.MAX),
    "ReduceMin": ReductionKind(Reducer.MIN),
    "ReduceL1": ReductionKind(Reducer.SUM, lambda x: unary("abs", x)),
    "ReduceL2": ReductionKind(Reducer.SUM, lambda x: x * x, lambda s: unary("sqrt", s), fractional=True),
    "ReduceSumSquare": ReductionKind(Reducer.SUM, lambda x: x * x),
    "ReduceLogSum": ReductionKind(Reducer.SUM, None, lambda s: unary("log", s), fractional=True),
}


@operator(*_REDUCTIONS)
def reduction(d: Definition) -> OpValue:
    """The sum, product, maximum, minimum, norm, ... of each slice."""
    norm = _REDUCTIONS[d.op_type]
    x, axes, shape = _operand_and_axes(d)
    # the first factors of a product may overflow where all of them do not, and infinity times zero is NaN
    is_float_product = norm.reducer is Reducer.PROD and x.dtype.is_float
    wide = float64 if is_float_product else _compute_dtype(x.dtype, norm.fractional)
    if norm.reducer in (Reducer.MAX, Reducer.MIN):
        return _apply_keepdims(d, reduce_dims(d, x, axes, norm.reducer, lambda i: x[i]), x, axes, shape)

    def element(i: tuple[Expr, ...]) -> Expr:
        value = cast(wide, x[i])
        return value if norm.before is None else norm.before(value)

    total = reduce_dims(d, x, axes, norm.reducer, element)
    return _apply_keepdims(d, _finalize(d, total, x.dtype, norm.after), x, axes, shape)


@operator("ReduceMean")
def reduce_mean(d: Definition) -> OpValue:
    """The mean of each slice; integers round towards zero."""
    x, axes, shape = _operand_and_axes(d)
    return _apply_keepdims(d, mean_over(d, x, axes, x.dtype), x, axes, shape)


def mean_over(d: Definition, x: OpValue, axes: Sequence[int], dtype: DType) -> OpValue:
    """The mean over dimensions, which the result lacks: the sum divided by the number of elements."""
    wide = accumulator_dtype(x.dtype)
    total = reduce_dims(d, x, axes, Reducer.SUM, lambda i: cast(wide, x[i]))
    count = cast(wide, num_elements([x.shape[k] for k in axes]))
    return _finalize(d, total, dtype, lambda s: s / count if wide.is_float else truncated_quotient(s, count))


@operator("ReduceLogSumExp")
def reduce_log_sum_exp(d: Definition) -> OpValue:
    """log(sum(exp(x))), computed as max + log(sum(exp(x - max))), which can't overflow."""
    x, axes, shape = _operand_and_axes(d)
    wide = _compute_dtype(x.dtype, fractional=True)
    maxima = reduce_dims(d, x, axes, Reducer.MAX, lambda i: cast(wide, x[i]))

    def finite(value: Expr) -> Expr:
        # An infinite maximum would give inf - inf; without a shift the exponentials are 0 or inf, as required.
        return select(unary("isinf", value), const(0, wide), value)

    total = reduce_dims(
        d,
        x,
        axes,
        Reducer.SUM,
        lambda i: unary("exp", cast(wide, x[i]) - finite(broadcast_reduced(maxima, i, axes))),
    )
    result = d.compute(total.shape, lambda *i: cast(x.dtype, unary("log", total[i]) + finite(maxima[i])))
    return _apply_keepdims(d, result, x, axes, shape)


def _operand_and_axes(d: Definition) -> tuple[OpValue, tuple[int, ...], tuple[Expr, ...] | None]:
    """The operand of a reduction, the dimensions that it reduces, and the shape of the result, None where that follows
    from both: axes that are data come behind the others."""
    axes = d.optional(1)
    if d.attr_ints("axes") is None and axes is not None and axes.known_elements is None:
        matrix, shape = separate_reduced(d, d.input(0), 1)
        return matrix, (1,), shape
    return d.input(0), reduced_axes(d, d.input(0)), None


def reduced_axes(d: Definition, x: OpValue) -> tuple[int, ...]:
    """The dimensions that a node reduces: its axes; without axes all, or none with `noop_with_empty_axes`."""
    axes, is_noop = axes_of(d, x.rank), d.attr_int("noop_with_empty_axes", 0)
    if axes is not None:
        return axes
    return () if is_noop else tuple(range(x.rank))


def _compute_dtype(dtype: DType, fractional: bool) -> DType:
    return float64 if fractional and not dtype.is_float else accumulator_dtype(dtype)


def _finalize(d: Definition, total: OpValue, dtype: DType, after: Callable[[Expr], Expr] | None) -> OpValue:
    """`after` and the conversion to the type of the result; no stage where neither is needed."""
    if after is None and total.dtype == dtype:
        return total
    return d.compute(total.shape, lambda *i: cast(dtype, total[i] if after is None else after(total[i])))


def _apply_keepdims(
    d: Definition, x: OpValue, whole: OpValue, axes: Sequence[int], shape: Sequence[Expr] | None = None
) -> OpValue:
    """The result with the reduced dimensions kept with size 1 where `keepdims` is set, or in the given shape."""
    if shape is not None:
        return d.view(x, shape)
    return keep_dims(d, x, whole, axes) if d.attr_int("keepdims", 1) else x


@operator("ArgMax", "ArgMin")
def arg_extremum(d: Definition) -> OpValue:
    """The position of the maximum (minimum) along `axis`, the first or last of equal ones.

    Two reductions: the extremum, then the smallest (largest) position with that value. NaN counts as the extremum.
    """
    x = d.input(0)
    axis = d.axis(d.attr_int("axis", 0), x.rank)
    select_last = bool(d.attr_int("select_last_index", 0))
    d.require(x.shape[axis] >= 1, f"dimension {axis} is empty and has no extremum")
    extremum = reduce_dims(d, x, (axis,), Reducer.MAX if d.op_type == "ArgMax" else Reducer.MIN, lambda i: x[i])

    def position(i: tuple[Expr, ...]) -> Expr:
        value = x[i]
        is_extremum = value.equals(broadcast_reduced(extremum, i, (axis,)))
        if x.dtype.is_float:
            is_extremum = binary("or", is_extremum, unary("isnan", value))
        return select(is_extremum, i[axis], -1 if select_last else x.shape[axis])

    result = reduce_dims(d, x, (axis,), Reducer.MAX if select_last else Reducer.MIN, position)
    return _apply_keepdims(d, result, x, (axis,))
