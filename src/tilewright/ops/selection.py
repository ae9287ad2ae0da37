"""Operators that select elements by their values."""

from tilewright.errors import ShapeError
from tilewright.expr.algebra.bounds import interval
from tilewright.expr.dtype import boolean, int64
from tilewright.expr.nodes import Const, Expr, const
from tilewright.ops.axes import num_elements
from tilewright.ops.checks import expect_dtype, expect_one_element, expect_rank
from tilewright.ops.clamp import clamp_index, zero_if_empty
from tilewright.ops.definition import Definition, OpValue, operator
from tilewright.ops.routine_call import call_routine, data_sizes, shape_tensor, upper_bound
from tilewright.ops.routines.count import count_nonzero, count_selected, nonzero_coordinates, selected_positions
from tilewright.ops.routines.order import top_k_by_heap, top_k_by_sorting
from tilewright.ops.routines.unique import first_elements, unique_slices
from tilewright.routine.stages import DataSize

_SORTED_PART = 4
"""A row is sorted where k is more than its size divided by this."""


@operator("TopK", ignores=("sorted",))
def top_k(d: Definition) -> tuple[OpValue, ...]:
    """The k largest or smallest elements along `axis` in order, and their positions.

    Equal elements are in the order of their positions; NaN counts as larger than all numbers.

    Raises:
        ShapeError: k is negative or larger than the axis.
    """
    x = d.input(0)
    axis = d.axis(d.attr_int("axis", -1), x.rank)
    size, descending = x.shape[axis], d.attr_int("largest", 1)
    count, symbol = _top_k_count(d, size)
    d.require(count <= size, f"k: expected at most the {size} elements of dimension {axis}, got {count}")
    outer, inner = num_elements(x.shape[:axis]), num_elements(x.shape[axis + 1 :])
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    scalars = (outer, size, inner, symbol, descending)
    is_sorted = isinstance(count, Const) and isinstance(size, Const) and count.value * _SORTED_PART > size.value
    routine = top_k_by_sorting if is_sorted else top_k_by_heap
    scratch = [(size, int64), (size, int64)] if is_sorted else [(count, x.dtype), (count, int64)]
    return call_routine(d, routine, [x], [(shape, x.dtype), (shape, int64)], scalars, scratch)


def _top_k_count(d: Definition, size: Expr) -> tuple[Expr, Expr]:
    """k, an attribute before version 10 and an input since: as it stands in shapes, and as data say it."""
    if d.opset < 10:
        count: Expr = const(d.attr_int("k", 0))
        return count, count
    k = d.input(1)
    expect_one_element(d, k, "k")
    if k.known_elements is None:
        pairs = data_sizes(d, k, [DataSize(d.axis(d.attr_int("axis", -1), d.input(0).rank), upper_bound(size))])
        return pairs[0][1], pairs[0][0]
    count = k.known_elements[0]
    low = interval(count)[0]
    if low is None or low < 0:
        raise ShapeError(f"k: expected a number of elements, got {count}", where=f"node {d.label}")
    return count, count


@operator("NonZero")
def nonzero(d: Definition) -> OpValue:
    """The coordinates of the elements other than 0 in row-major order, a column each: int64 [rank, count].

    Raises:
        UnsupportedError: the operand is a scalar.
    """
    x = d.input(0)
    if not x.rank:
        raise d.unsupported("a scalar has no coordinates")
    (count,) = call_routine(d, count_nonzero, [x], [((1,), int64)])
    ((symbol, size),) = data_sizes(d, count, [DataSize(1, upper_bound(*x.shape))])
    dims = shape_tensor(d, x.shape)
    shape = (const(x.rank), size)
    (result,) = call_routine(d, nonzero_coordinates, [x, dims], [(shape, int64)], [symbol], [(x.rank, int64)])
    return result


@operator("Compress")
def compress(d: Definition) -> OpValue:
    """The slices along `axis`, or the elements without one, where a condition holds; it may be shorter than the axis.

    Raises:
        ShapeError: the condition is no vector of bools.
    """
    x, condition = d.input(0), d.input(1)
    expect_dtype(d, condition, boolean, "condition")
    expect_rank(d, condition, 1, "condition")
    axis = d.axis(d.attr_int("axis", 0), x.rank) if "axis" in d.attributes else None
    if axis is None:
        x = d.view(x, (num_elements(x.shape),))
        axis = 0
    size = x.shape[axis]
    (counted,) = call_routine(d, count_selected, [condition], [((1,), int64)], [size])
    # the data along the axis and the condition may differ in length; the shorter one limits the count
    limit = min(upper_bound(size), upper_bound(*condition.shape))
    origin = ("Compress", condition.buffer, size)
    ((symbol, count),) = data_sizes(d, counted, [DataSize(axis, limit, origin)])
    (positions,) = call_routine(d, selected_positions, [condition], [((count,), int64)], [size, symbol])
    return take(d, x, axis, positions)


def take(d: Definition, x: OpValue, axis: int, positions: OpValue) -> OpValue:
    """The slices of an operand at positions along an axis, which are in bounds."""
    size, source = x.shape[axis], positions

    def body(*i: Expr) -> Expr:
        at = clamp_index(source[i[axis]], size)
        return zero_if_empty(x[(*i[:axis], at, *i[axis + 1 :])], (at, size))

    return d.compute((*x.shape[:axis], positions.shape[0], *x.shape[axis + 1 :]), body)


@operator("Unique")
def unique(d: Definition) -> tuple[OpValue, ...]:
    """The different elements, or slices along `axis`: in ascending order, or in the order in which they occur first.

    Further results: the position at which each occurs first, which of them each element is, and how often each occurs.
    NaN counts as equal to NaN and as larger than all numbers.
    """
    axis = d.axis(d.attr_int("axis", 0), d.input(0).rank) if "axis" in d.attributes else None
    return unique_elements(d, axis, d.attr_int("sorted", 1))


def unique_elements(d: Definition, axis: int | None, is_sorted: int) -> tuple[OpValue, ...]:
    """The four results of Unique of input 0, along an axis or of the whole tensor."""
    x = d.input(0)
    if axis is None:
        x = d.view(x, (num_elements(x.shape),))
        axis = 0
    size = x.shape[axis]
    outer, inner = num_elements(x.shape[:axis]), num_elements(x.shape[axis + 1 :])
    whole = ((size,), int64)
    first, inverse, counts, number = call_routine(
        d, unique_slices, [x], [whole, whole, whole, ((1,), int64)], [outer, size, inner, is_sorted],
        [(size, int64), (size, int64)],
    )  # fmt: skip
    ((symbol, count),) = data_sizes(d, number, [DataSize(axis, upper_bound(size))])
    positions, times = call_routine(
        d, first_elements, [first, counts], [((count,), int64), ((count,), int64)], [symbol]
    )
    return take(d, x, axis, positions), positions, inverse, times
