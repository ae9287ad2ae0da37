"""How much of an operand a box of points touches: closed formulas over arrays of boxes."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tilewright.cost.shape_family import IntPerCandidate, OperandView
from tilewright.tile.program import Mask

Numbers = npt.NDArray[np.float64]
"""One number per candidate."""

IndexTerms = tuple[tuple[int, int], ...]
"""An index as (c_a, a), by rising c_a; see `Operand.steps`."""


def index_count_and_span(terms: IndexTerms, box: Sequence[Numbers]) -> tuple[Numbers, Numbers]:
    """How many values the index sum(c_a * x_a), 0 <= x_a < box_a, takes, and how far they reach from first to last.

    Taken by rising coefficients: an axis whose step is longer than what the axes before it reach leaves gaps, so that
    numbers multiply; else the runs overlap and join. Exact where runs that overlap have no gaps.
    """
    if len(terms) == 1:
        ((c, axis),) = terms
        return box[axis], box[axis] if c == 1 else c * (box[axis] - 1.0) + 1.0
    if not terms:
        one = np.ones_like(box[0]) if box else np.ones(1)
        return one, one
    (c, axis), *others = terms
    count, reach = box[axis], c * (box[axis] - 1.0) + 1.0
    for c, axis in others:
        grown = c * (box[axis] - 1.0) + reach
        count = np.where(c >= reach, count * box[axis], np.minimum(count * box[axis], grown))
        reach = grown
    return count, reach


def touched_elements(operand: OperandView, box: Sequence[Numbers]) -> Numbers:
    """How many elements of an operand the points of a box touch."""
    return _index_combinations(operand.index_terms, operand.dim_sizes, box)


def _index_combinations(
    index: Sequence[IndexTerms], dim_sizes: Sequence[IntPerCandidate], box: Sequence[Numbers]
) -> Numbers:
    """How many combinations the indices of some dimensions take."""
    total: Numbers | None = None
    for steps, size in zip(index, dim_sizes, strict=True):
        if steps:
            part = np.minimum(index_count_and_span(steps, box)[0], size)
            total = part if total is None else total * part
    if total is None:
        return np.ones_like(box[0]) if box else np.ones(1)
    return total


def contiguous_dims(operand: OperandView, line: int) -> list[bool | Mask]:
    """Per dimension whether it goes on with the row of those behind it: the last one does, and others as long as rows
    are shorter than a line, as these follow each other within one."""
    found: list[bool | Mask] = [True]
    size = operand.element_bytes * operand.shape[-1]
    for length in operand.shape[-2::-1]:
        if not any_true(found[0]) or not any_true(size < line):
            return [False] * (len(operand.shape) - len(found)) + found
        found.insert(0, found[0] & (size < line))
        size = size * length
    return found


def segment_count(operand: OperandView, box: Sequence[Numbers], line: int) -> Numbers:
    """How many rows the points of a box touch; see `joined`."""
    total: Numbers = np.ones_like(box[0])
    for steps, size, row in zip(operand.index_terms, operand.dim_sizes, contiguous_dims(operand, line), strict=True):
        if steps and not all_true(row):
            part = np.minimum(index_count_and_span(steps, box)[0], size)
            total = total * (np.where(row, 1.0, part) if any_true(row) else part)
    return total


def moved_bytes(
    operand: OperandView, box: Sequence[Numbers], line: int, packed: bool = False, unaligned: bool = True
) -> Numbers:
    """How many bytes move when the points of a box are touched for the first time: whole cache lines.

    A packed operand has no gaps, so that only its elements count. Where rows begin `anywhere`, they end in one more
    line as often as they would; else they are in as few lines as can be.
    """
    if packed or not operand.index:
        return touched_elements(operand, box) * operand.element_bytes
    return segment_bytes(operand, box, line, segment_count(operand, box, line), unaligned)


def segment_bytes(
    operand: OperandView, box: Sequence[Numbers], line: int, segments: Numbers, unaligned: bool = True
) -> Numbers:
    """What `moved_bytes` answers for an operand that is not packed, with the runs that the points touch in `total`."""
    count, reach, size = _segment_extent(operand, box, line)
    per_line = max(1, line // operand.element_bytes)
    # a whole operand of less than a line
    short = size < per_line
    if all_true(short):
        return np.maximum(segments * count * operand.element_bytes, line)
    lines = np.ceil(reach / per_line)
    if unaligned:
        part, ragged = reach < size, size % per_line != 0
        if not all_true(ragged):
            part &= (reach % per_line != 0) | ragged
        lines = np.where(part, 1.0 + (reach - 1.0) / per_line, lines)
    found = segments * np.minimum(count, lines) * line
    return (
        np.where(short, np.maximum(segments * count * operand.element_bytes, line), found) if any_true(short) else found
    )


def _segment_extent(
    operand: OperandView, box: Sequence[Numbers], line: int
) -> tuple[Numbers, Numbers, IntPerCandidate]:
    """Of a row: the elements that a box touches, those from the first to the last of them, and all."""
    size = operand.shape[-1]
    count, reach = (np.minimum(x, size) for x in index_count_and_span(operand.index_terms[-1], box))
    for d, row in reversed(list(enumerate(contiguous_dims(operand, line)))[:-1]):
        if not any_true(row):
            break
        length = operand.shape[d]
        more, far = (np.minimum(x, length) for x in index_count_and_span(operand.index_terms[d], box))
        reach = np.where(row, (far - 1.0) * size + reach, reach)
        count = np.where(row, count * more, count)
        size = size * length if all_true(row) else np.where(row, size * length, size)
    return count, reach, size


def all_true(mask: bool | Mask) -> bool:
    """Whether it is yes for all candidates."""
    return mask if isinstance(mask, bool) else bool(mask.all())


def any_true(mask: bool | Mask) -> bool:
    """Whether it is yes for any candidate."""
    return mask if isinstance(mask, bool) else bool(mask.any())
