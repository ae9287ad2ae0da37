"""Concat and Split along a dimension."""

from collections.abc import Sequence
from itertools import pairwise

from tilewright.errors import ShapeError, pluralize
from tilewright.expr.nodes import Expr, const
from tilewright.expr.operations import minimum, select
from tilewright.ops.axes import replace_axis
from tilewright.ops.clamp import clamp_index, is_in_bounds, zero_if_empty
from tilewright.ops.data_dependent import elements_or_symbols
from tilewright.ops.definition import Definition, OpValue, operator
from tilewright.ops.elementwise import inputs_of_one_type


@operator("Concat")
def concat(d: Definition) -> OpValue:
    """The inputs one after the other along `axis`.

    Raises:
        ShapeError: types or the other sizes differ.
    """
    parts = inputs_of_one_type(d)
    if parts[0].rank == 0:
        raise ShapeError("input 0: expected 1 dimension or more, got 0", where=f"node {d.label}")
    return concatenate(d, parts, d.axis(d.attr_int("axis", 1), parts[0].rank))


def concatenate(d: Definition, parts: Sequence[OpValue], axis: int) -> OpValue:
    """Tensors of one type and of one rank above 0, one after the other along an axis counted from the front.

    Raises:
        ShapeError: ranks or the other sizes differ.
    """
    rank = parts[0].rank
    sizes = list(parts[0].shape)
    for position, part in enumerate(parts[1:], 1):
        if part.rank != rank:
            what = f"input {position}: expected {pluralize(rank, 'dimension')}, got {part.rank}"
            raise ShapeError(what, where=f"node {d.label}")
        for k in range(rank):
            if k != axis:
                sizes[k] = d.require_equal(sizes[k], part.shape[k], f"input {position}, dimension {k}")
    nonempty = [p for p in parts if p.shape[axis] is not const(0)] or [parts[0]]
    if len(nonempty) == 1:
        return d.view(nonempty[0], nonempty[0].shape)
    starts = _offsets([p.shape[axis] for p in nonempty])
    sizes[axis] = starts.pop()
    return d.compute(sizes, lambda *i: _select_part(nonempty, starts, axis, i))


def _offsets(sizes: Sequence[Expr]) -> list[Expr]:
    """The offset of each part, and the total size."""
    offsets: list[Expr] = [const(0)]
    for n in sizes:
        offsets.append(offsets[-1] + n)
    return offsets


def _select_part(parts: Sequence[OpValue], offsets: Sequence[Expr], axis: int, i: tuple[Expr, ...]) -> Expr:
    """The element at `i` of the concatenation, selected by bisection: few comparisons for many parts."""
    if len(parts) == 1:
        return parts[0][replace_axis(i, axis, i[axis] - offsets[0])]
    half = len(parts) // 2
    first = _select_part(parts[:half], offsets[:half], axis, i)
    return select(i[axis] < offsets[half], first, _select_part(parts[half:], offsets[half:], axis, i))


@operator("Split")
def split(d: Definition) -> tuple[OpValue, ...]:
    """The input split along `axis`: into given sizes, or into `num_outputs` equal parts (the last may be smaller).

    Raises:
        ShapeError: the sizes do not add up, or there are fewer parts than outputs.
    """
    x = d.input(0)
    axis = d.axis(d.attr_int("axis", 0), x.rank)
    offsets = _split_offsets(d, x.shape[axis])

    def part(start: Expr, end: Expr) -> OpValue:
        size = x.shape[axis]

        def body(*i: Expr) -> Expr:
            at = i[axis] + start
            if is_in_bounds(at, size, i[axis], end - start):
                return x[replace_axis(i, axis, at)]
            # that sizes which are data add up is checked only at a call
            clamped = clamp_index(at, size)
            return zero_if_empty(x[replace_axis(i, axis, clamped)], (clamped, size))

        return d.compute(replace_axis(x.shape, axis, end - start), body)

    if len(offsets) == 2:
        return (d.view(x, x.shape),)
    # Parts after the last output of the node are not computed.
    return tuple(part(a, b) for a, b in pairwise(offsets[: d.num_outputs + 1]))


def _split_offsets(d: Definition, size: Expr) -> list[Expr]:
    attribute = d.attr_ints("split")
    sizes = [const(n) for n in attribute] if attribute is not None else None
    if sizes is None and d.optional(1) is not None:
        sizes = list(elements_or_symbols(d, 1))
    count = d.attr_int("num_outputs", d.num_outputs)
    if sizes is not None:
        if len(sizes) < d.num_outputs:
            what = f"split: expected {pluralize(d.num_outputs, 'size')}, got {len(sizes)}"
            raise ShapeError(what, where=f"node {d.label}")
        offsets = _offsets(sizes)
        d.require(offsets[-1].equals(size), f"split: expected sizes that add up to {size}, got {offsets[-1]}")
        return offsets
    if count < d.num_outputs:
        raise ShapeError(f"num_outputs: expected {d.num_outputs} or more, got {count}", where=f"node {d.label}")
    if "num_outputs" not in d.attributes:
        d.require((size % count).equals(0), f"dimension to split: expected a multiple of {count}, got {size}")
        return [size // count * k for k in range(count)] + [size]
    chunk = (size + (count - 1)) // count
    return [const(0), *(minimum(chunk * k, size) for k in range(1, min(count, d.num_outputs + 1))), size]
