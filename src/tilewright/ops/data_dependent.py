"""Data-dependent shapes, axes, ranges and borders: operators whose arguments are not known before run time."""

from collections.abc import Sequence

from tilewright.errors import ShapeError
from tilewright.expr.dtype import DType, int64
from tilewright.expr.nodes import TRUE, Const, Expr, const
from tilewright.expr.operations import cast, conjunction, select
from tilewright.expr.traversal import is_one
from tilewright.ops.axes import num_elements
from tilewright.ops.checks import expect_one_element, expect_rank
from tilewright.ops.clamp import clamp_index, zero_if_empty
from tilewright.ops.definition import Definition, OpValue
from tilewright.ops.routine_call import (
    MAX_DATA_DEPENDENT_SIZE,
    call_routine,
    data_sizes,
    known_length,
    shape_tensor,
    upper_bound,
)
from tilewright.ops.routines import shapes as routines
from tilewright.routine.routine import Routine
from tilewright.routine.stages import DataSize


def is_data_dependent(d: Definition, position: int) -> bool:
    """Whether the elements of an input are known at run time only, but their number before."""
    x = d.optional(position)
    return x is not None and x.known_elements is None and known_length(x) is not None


def elements_or_symbols(d: Definition, position: int, first: int = 0) -> tuple[Expr, ...]:
    """The elements of an input, which are sizes: as they are known, else as symbols of data-dependent sizes.

    Args:
        d: the definition.
        position: of the input.
        first: distinguishes the symbols from those of other inputs.

    Raises:
        UnsupportedError: not even their number is known.
    """
    if not is_data_dependent(d, position):
        return d.known_elements(position)
    x = d.input(position)
    count = known_length(x) or 0
    (sizes,) = call_routine(d, routines.checked_sizes, [x], [((count,), int64)])
    return _symbols(d, sizes, [MAX_DATA_DEPENDENT_SIZE] * count, first)


def _symbols(d: Definition, sizes: OpValue, bounds: Sequence[int], first: int = 0) -> tuple[Expr, ...]:
    made = data_sizes(d, sizes, [DataSize(first + k, n) for k, n in enumerate(bounds)])
    return tuple(size for _, size in made)


def data_dependent_view(
    d: Definition, x: OpValue, routine: Routine, position: int, rank: int, *scalars: int
) -> OpValue:
    """The elements of an operand in a shape of known rank that a routine computes from an input and the sizes.

    Args:
        d: the definition.
        x: the operand.
        routine: its buffers are the input, the sizes, the new sizes, and marks of axes where it has as many.
        position: of the input.
        rank: of the result.
        scalars: of the routine.
    """
    marks = max(rank, x.rank)
    scratch = [(marks, int64)] if len(routine.buffers) > 3 else []
    operands = [d.input(position), _shape_of(d, x)]
    (sizes,) = call_routine(d, routine, operands, [((rank,), int64)], scalars, scratch)
    total = upper_bound(*x.shape)
    return d.view(x, _symbols(d, sizes, [max(total, 1)] * rank))


def _shape_of(d: Definition, x: OpValue) -> OpValue:
    return shape_tensor(d, x.shape)


def data_dependent_expand(d: Definition, x: OpValue) -> OpValue:
    """An operand broadcast with the shape in input 1."""
    shape = d.input(1)
    rank = max(x.rank, known_length(shape) or 0)
    (sizes,) = call_routine(d, routines.resolve_expand, [shape, _shape_of(d, x)], [((rank,), int64)])
    symbols = _symbols(d, sizes, [MAX_DATA_DEPENDENT_SIZE] * rank)
    old = (const(1),) * (rank - x.rank) + x.shape
    # a literal size other than 1 stays, which the routine checks
    shape_of_result = [n if isinstance(n, Const) and not is_one(n) else s for n, s in zip(old, symbols, strict=True)]

    def body(*i: Expr) -> Expr:
        source = [
            const(0) if is_one(n) else k if isinstance(n, Const) else clamp_index(select(n.equals(1), const(0), k), n)
            for k, n in zip(i[rank - x.rank :], x.shape, strict=True)
        ]
        return zero_if_empty(x[tuple(source)], *zip(source, x.shape, strict=True))

    return d.compute(shape_of_result, body)


def data_dependent_slice(d: Definition, x: OpValue) -> OpValue:
    """Ranges along some dimensions, of which starts, ends, axes or steps are data."""
    starts, ends, axes, steps = d.input(1), d.input(2), d.optional(3), d.optional(4)
    count = known_length(starts)
    if count is None or any(known_length(o) != count for o in (ends, axes, steps) if o is not None):
        raise d.unsupported("the number of ranges is not known")
    axes = shape_tensor(d, range(count)) if axes is None else axes
    steps = shape_tensor(d, [1] * count) if steps is None else steps
    rank = x.rank
    ranges, sizes = call_routine(
        d, routines.resolve_slice, [starts, ends, axes, steps, _shape_of(d, x)],
        [((2 * rank,), int64), ((rank,), int64)], (), [(rank, int64)],
    )  # fmt: skip
    shape = _symbols(d, sizes, [upper_bound(n) for n in x.shape])
    length = sum(shape[1:], shape[0]) if shape else const(0)
    (positions,) = call_routine(d, routines.range_positions, [ranges, sizes], [((length,), int64)])
    return _take_positions(d, x, shape, positions, None)


def data_dependent_pad(d: Definition, x: OpValue, mode: str, fill: Expr) -> OpValue:
    """An operand with borders whose widths, or whose axes, are data."""
    pads, axes = d.input(1), d.optional(3)
    axes = shape_tensor(d, range(x.rank)) if axes is None else axes
    if known_length(pads) is None or known_length(pads) != 2 * (known_length(axes) or 0):
        raise ShapeError(f"pads: expected two numbers per dimension, got {pads.buffer}", where=f"node {d.label}")
    number, rank = ("constant", "edge", "reflect", "wrap").index(mode), x.rank
    borders, sizes = call_routine(
        d, routines.resolve_pad, [pads, axes, _shape_of(d, x)], [((2 * rank,), int64), ((rank,), int64)],
        [number], [(rank, int64)],
    )  # fmt: skip
    shape = _symbols(d, sizes, [MAX_DATA_DEPENDENT_SIZE] * rank)
    length = sum(shape[1:], shape[0]) if shape else const(0)
    operands = [borders, _shape_of(d, x), sizes]
    (positions,) = call_routine(d, routines.pad_positions, operands, [((length,), int64)], [number])
    return _take_positions(d, x, shape, positions, fill if mode == "constant" else None)


def _take_positions(d: Definition, x: OpValue, shape: Sequence[Expr], positions: OpValue, fill: Expr | None) -> OpValue:
    """The elements at positions along each dimension, which are one after the other in a vector; a negative position
    stands for `fill`."""
    starts = _partial_sums(shape)

    def body(*i: Expr) -> Expr:
        length = positions.shape[0]
        places = [clamp_index(start + k, length) for start, k in zip(starts, i, strict=True)]
        at = [zero_if_empty(positions[p], (p, length)) for p in places]
        source = [clamp_index(p, n) for p, n in zip(at, x.shape, strict=True)]
        value = zero_if_empty(x[tuple(source)], *zip(source, x.shape, strict=True))
        inside = TRUE if fill is None else conjunction(*(p >= 0 for p in at))
        return value if fill is None else select(inside, value, fill)

    return d.compute(shape, body)


def _partial_sums(sizes: Sequence[Expr]) -> list[Expr]:
    sums: list[Expr] = []
    total: Expr = const(0)
    for n in sizes:
        sums.append(total)
        total = total + n
    return sums


def data_dependent_range(d: Definition, wide: DType) -> OpValue:
    """start, start + delta, ... below limit, computed in a type; all three may be data."""
    operands = [d.input(k) for k in range(3)]
    first, _, step = (expect_one_element(d, x, f"input {k}") for k, x in enumerate(operands))
    dtype = first.dtype
    routine = routines.range_length if dtype.is_float else routines.integer_range_length
    (count,) = call_routine(d, routine, operands, [((1,), int64)])
    (length,) = _symbols(d, count, [MAX_DATA_DEPENDENT_SIZE])

    def body(i: Expr) -> Expr:
        return cast(dtype, cast(wide, first) + cast(wide, i) * cast(wide, step))

    return d.compute((length,), body)


def separate_reduced(d: Definition, x: OpValue, position: int) -> tuple[OpValue, tuple[Expr, ...]]:
    """An operand as a matrix with the dimensions that an input names as its columns, and the shape of the result.

    Args:
        d: a reduction.
        x: the operand.
        position: of the input with the axes.
    """
    axes = d.input(position)
    expect_rank(d, axes, 1, "axes")
    count, keeps, is_noop = known_length(axes), d.attr_int("keepdims", 1), d.attr_int("noop_with_empty_axes", 0)
    if count is None and not keeps:
        raise d.unsupported("the number of axes, and so that of the result's dimensions, depends on data")
    rank = x.rank if keeps or count is None else 0 if not count and not is_noop else x.rank - count
    if rank < 0:
        raise ShapeError(f"axes: expected at most {x.rank} axes, got {count}", where=f"node {d.label}")
    length = (x.rank, int64)
    moved, sizes = call_routine(
        d, routines.separate_reduced, [x, axes, _shape_of(d, x)],
        [((num_elements(x.shape),), x.dtype), ((2 + rank,), int64)], [keeps, is_noop], [length, length, length],
    )  # fmt: skip
    total = max(upper_bound(*x.shape), 1)
    outer, inner, *shape = _symbols(d, sizes, [total] * (2 + rank))
    return d.view(moved, (outer, inner)), tuple(shape)
