"""Reductions over dimensions: sums, products, extremes, norms. 16-bit values are combined in float32."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright.expr.computation import Reducer
from tilewright.expr.dtype import DType, float64
from tilewright.expr.nodes import Expr, as_expr, const
from tilewright.expr.operations import binary, cast, select, unary
from tilewright.ops.axes import axes_of, num_elements
from tilewright.ops.contraction import accumulator_dtype
from tilewright.ops.definition import Definition, Operand, operator
from tilewright.ops.integer_division import truncated_quotient


def reduce_dims(
    d: Definition,
    x: Operand,
    axes: Sequence[int],
    reducer: Reducer,
    element: Callable[[tuple[Expr, ...]], Expr],
) -> Operand:
    """`element(index)` combined over the given dimensions of the index space of `x`, which the result does not have.

    Args:
        d: the node.
        x: gives the sizes.
        axes: the dimensions, counted from the front.
        reducer: how values are combined.
        element: the value at an index of `x`.
    """
    kept = [k for k in range(x.rank) if k not in axes]
    inner = sorted(axes)

    def body(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> Expr:
        place = dict(zip((*kept, *inner), (*i, *r), strict=True))
        return element(tuple(place[k] for k in range(x.rank)))

    return d.reduce([x.shape[k] for k in kept], [x.shape[k] for k in inner], body, reducer)


def broadcast_reduced(x: Operand, index: Sequence[Expr], axes: Sequence[int]) -> Expr:
    """The element of a reduced tensor that belongs to an index of the whole one."""
    return x[tuple(i for k, i in enumerate(index) if k not in axes)]


def keep_dims(d: Definition, x: Operand, whole: Operand, axes: Sequence[int]) -> Operand:
    """A reduced tensor with the reduced dimensions as sizes of 1."""
    return d.view(x, tuple(as_expr(1) if k in axes else n for k, n in enumerate(whole.shape)))


@dataclass(frozen=True, slots=True)
class ReductionKind:
    """A reduction: what becomes of each element, how they are combined, and what becomes of the result.

    `fractional` marks those whose last step leaves the integers.
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
def reduction(d: Definition) -> Operand:
    """One number per slice: its sum, product, largest, smallest, norm, ..."""
    x = d.input(0)
    norm = _REDUCTIONS[d.op_type]
    axes = reduced_axes(d, x)
    wide = _compute_dtype(x.dtype, norm.fractional)
    if norm.reducer in (Reducer.MAX, Reducer.MIN):
        return _apply_keepdims(d, reduce_dims(d, x, axes, norm.reducer, lambda i: x[i]), x, axes)

    def element(i: tuple[Expr, ...]) -> Expr:
        value = cast(wide, x[i])
        return value if norm.before is None else norm.before(value)

    total = reduce_dims(d, x, axes, norm.reducer, element)
    return _apply_keepdims(d, _finalize(d, total, x.dtype, norm.after), x, axes)


@operator("ReduceMean")
def reduce_mean(d: Definition) -> Operand:
    """The mean of each slice; integers round towards zero."""
    x = d.input(0)
    axes = reduced_axes(d, x)
    return _apply_keepdims(d, mean_over(d, x, axes, x.dtype), x, axes)


def mean_over(d: Definition, x: Operand, axes: Sequence[int], dtype: DType) -> Operand:
    """The mean over dimensions, which the result does not have: the sum divided by the number of elements."""
    wide = accumulator_dtype(x.dtype)
    total = reduce_dims(d, x, axes, Reducer.SUM, lambda i: cast(wide, x[i]))
    count = cast(wide, num_elements([x.shape[k] for k in axes]))
    return _finalize(d, total, dtype, lambda s: s / count if wide.is_float else truncated_quotient(s, count))


@operator("ReduceLogSumExp")
def reduce_log_sum_exp(d: Definition) -> Operand:
    """log(sum(exp(x))), computed around the largest element so that nothing overflows."""
    x = d.input(0)
    axes = reduced_axes(d, x)
    wide = _compute_dtype(x.dtype, fractional=True)
    top = reduce_dims(d, x, axes, Reducer.MAX, lambda i: cast(wide, x[i]))

    def around(value: Expr) -> Expr:
        # An infinite maximum would give inf - inf; around zero the exponentials are 0 or inf, as they should be.
        return select(unary("isinf", value), const(0, wide), value)

    total = reduce_dims(
        d, x, axes, Reducer.SUM, lambda i: unary("exp", cast(wide, x[i]) - around(broadcast_reduced(top, i, axes)))
    )
    result = d.compute(total.shape, lambda *i: cast(x.dtype, unary("log", total[i]) + around(top[i])))
    return _apply_keepdims(d, result, x, axes)


def reduced_axes(d: Definition, x: Operand) -> tuple[int, ...]:
    """The dimensions that a node reduces: those it names, else all, else (`noop_with_empty_axes`) none."""
    axes, noop = axes_of(d, x.rank), d.attr_int("noop_with_empty_axes", 0)
    if axes is not None:
        return axes
    return () if noop else tuple(range(x.rank))


def _compute_dtype(dtype: DType, fractional: bool) -> DType:
    return float64 if fractional and not dtype.is_float else accumulator_dtype(dtype)


def _finalize(d: Definition, total: Operand, dtype: DType, after: Callable[[Expr], Expr] | None) -> Operand:
    """The last step and the conversion to the type of the result; no stage where there is neither."""
    if after is None and total.dtype == dtype:
        return total
    return d.compute(total.shape, lambda *i: cast(dtype, total[i] if after is None else after(total[i])))


def _apply_keepdims(d: Definition, x: Operand, whole: Operand, axes: Sequence[int]) -> Operand:
    """With the reduced dimensions as sizes of 1 where the node keeps them."""
    return keep_dims(d, x, whole, axes) if d.attr_int("keepdims", 1) else x


@operator("ArgMax", "ArgMin")
def arg_extremum(d: Definition) -> Operand:
    """The position of the largest (smallest) element along `axis`, the first or the last of equal ones.

    Two reductions: the extreme, then the smallest (largest) position that holds it. A NaN counts as the extreme.
    """
    x = d.input(0)
    axis = d.axis(d.attr_int("axis", 0), x.rank)
    last = bool(d.attr_int("select_last_index", 0))
    d.require(x.shape[axis] >= 1, f"dimension {axis} has no elements, and so no extreme")
    best = reduce_dims(d, x, (axis,), Reducer.MAX if d.op_type == "ArgMax" else Reducer.MIN, lambda i: x[i])

    def position(i: tuple[Expr, ...]) -> Expr:
        value = x[i]
        hit = value.equals(broadcast_reduced(best, i, (axis,)))
        if x.dtype.is_float:
            hit = binary("or", hit, unary("isnan", value))
        return select(hit, i[axis], -1 if last else x.shape[axis])

    result = reduce_dims(d, x, (axis,), Reducer.MAX if last else Reducer.MIN, position)
    return _apply_keepdims(d, result, x, (axis,))
