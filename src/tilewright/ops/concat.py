"""Joining tensors along a dimension, and cutting them apart."""

from collections.abc import Sequence
from itertools import pairwise

from tilewright.errors import ShapeError
from tilewright.expr.nodes import Expr, const
from tilewright.expr.operations import minimum, select
from tilewright.ops.axes import replace_axis
from tilewright.ops.definition import Definition, Operand, operator
from tilewright.ops.elementwise import inputs_of_one_type


@operator("Concat")
def concat(d: Definition) -> Operand:
    """The inputs one after the other along `axis`.

    Raises:
        ShapeError: types or the other sizes differ.
    """
    parts = inputs_of_one_type(d)
    rank = parts[0].rank
    if rank == 0:
        raise ShapeError("input 0: expected 1 dimension or more, got 0", where=f"node {d.label}")
    axis = d.axis(d.attr_int("axis", 1), rank)
    sizes = list(parts[0].shape)
    for number, part in enumerate(parts[1:], 1):
        if part.rank != rank:
            raise ShapeError(f"input {number}: expected {rank} dimensions, got {part.rank}", where=f"node {d.label}")
        for k in range(rank):
            if k != axis:
                sizes[k] = d.require_equal(sizes[k], part.shape[k], f"input {number}, dimension {k}")
    filled = [p for p in parts if p.shape[axis] is not const(0)] or [parts[0]]
    if len(filled) == 1:
        return d.view(filled[0], filled[0].shape)
    starts = _offsets([p.shape[axis] for p in filled])
    sizes[axis] = starts.pop()
    return d.compute(sizes, lambda *i: _select_part(filled, starts, axis, i))


def _offsets(sizes: Sequence[Expr]) -> list[Expr]:
    """Where each part starts, and the total."""
    starts: list[Expr] = [const(0)]
    for n in sizes:
        starts.append(starts[-1] + n)
    return starts


def _select_part(parts: Sequence[Operand], offsets: Sequence[Expr], axis: int, i: tuple[Expr, ...]) -> Expr:
    """The element at `i` of the joined parts, chosen by halving: few comparisons for many parts."""
    if len(parts) == 1:
        return parts[0][replace_axis(i, axis, i[axis] - offsets[0])]
    half = len(parts) // 2
    first = _select_part(parts[:half], offsets[:half], axis, i)
    return select(i[axis] < offsets[half], first, _select_part(parts[half:], offsets[half:], axis, i))


@operator("Split")
def split(d: Definition) -> tuple[Operand, ...]:
    """The input cut along `axis`: into given sizes, or into `num_outputs` equal parts (the last may be smaller).

    Raises:
        ShapeError: the sizes do not add up, or the parts are not as many as the outputs.
    """
    x = d.input(0)
    axis = d.axis(d.attr_int("axis", 0), x.rank)
    starts = _split_offsets(d, x.shape[axis])

    def part(start: Expr, end: Expr) -> Operand:
        sizes = replace_axis(x.shape, axis, end - start)
        return d.compute(sizes, lambda *i: x[replace_axis(i, axis, i[axis] + start)])

    if len(starts) == 2:
        return (d.view(x, x.shape),)
    # what comes after the last output that the node names is nobody's
    return tuple(part(a, b) for a, b in pairwise(starts[: d.num_outputs + 1]))


def _split_offsets(d: Definition, size: Expr) -> list[Expr]:
    listed = d.attr_ints("split")
    given = [const(n) for n in listed] if listed is not None else None
    if given is None and d.optional(1) is not None:
        given = list(d.known_elements(1))
    count = d.attr_int("num_outputs", d.num_outputs)
    if given is not None:
        if len(given) < d.num_outputs:
            raise ShapeError(f"split: expected {d.num_outputs} sizes, got {len(given)}", where=f"node {d.label}")
        starts = _offsets(given)
        d.require(starts[-1].equals(size), f"split: expected sizes that add up to {size}, got {starts[-1]}")
        return starts
    if count < d.num_outputs:
        raise ShapeError(f"num_outputs: expected {d.num_outputs} or more, got {count}", where=f"node {d.label}")
    if "num_outputs" not in d.attributes:
        d.require((size % count).equals(0), f"dimension to split: expected a multiple of {count}, got {size}")
        return [size // count * k for k in range(count)] + [size]
    chunk = (size + (count - 1)) // count
    return [const(0), *(minimum(chunk * k, size) for k in range(1, min(count, d.num_outputs + 1))), size]
