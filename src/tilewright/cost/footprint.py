"""Footprints: elements, contiguous segments and cache lines of an operand that a box of points touches.

Closed formulas over arrays of boxes. A box is given by its sizes per axis, each an array [candidate] or
[depth, candidate]. A segment is a maximal run of adjacent memory in the buffer's last dimension, or in several of the
last dimensions where rows are shorter than a cache line.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from tilewright.cost.shape_family import IntPerCandidate, OperandView
from tilewright.tile.operand import Operand
from tilewright.tile.problem import Problem
from tilewright.tile.program import Mask

Numbers = npt.NDArray[np.float64]
"""One number per candidate."""

IndexTerms = tuple[tuple[int, int], ...]
"""The terms (c_a, a) of an index sum(c_a * x_a), by rising c_a; see `Operand.index_terms`."""


def index_count_and_span(terms: IndexTerms, box: Sequence[Numbers]) -> tuple[Numbers, Numbers]:
    """Number of values that the index sum(c_a * x_a), 0 <= x_a < box_a, takes, and distance from first to last + 1.

    Axes are taken by rising coefficients: where a coefficient exceeds the span of the axes before it there are gaps and
    counts multiply, else the ranges overlap and merge. Exact unless overlapping ranges have gaps.
    """
    if len(terms) == 1:
        ((c, axis),) = terms
        return box[axis], box[axis] if c == 1 else c * (box[axis] - 1.0) + 1.0
    if not terms:
        one = np.ones_like(box[0]) if box else np.ones(1)
        return one, one
    (c, axis), *others = terms
    count, span = box[axis], c * (box[axis] - 1.0) + 1.0
    for c, axis in others:
        merged = c * (box[axis] - 1.0) + span
        count = np.where(c >= span, count * box[axis], np.minimum(count * box[axis], merged))
        span = merged
    return count, span


def touched_elements(operand: OperandView, box: Sequence[Numbers]) -> Numbers:
    """Number of elements of an operand that the points of a box touch."""
    total: Numbers | None = None
    for terms, size in zip(operand.index_terms, operand.dim_sizes, strict=True):
        if terms:
            count = np.minimum(index_count_and_span(terms, box)[0], size)
            total = count if total is None else total * count
    if total is None:
        return np.ones_like(box[0]) if box else np.ones(1)
    return total


def contiguous_dims(operand: OperandView, line: int) -> list[bool | Mask]:
    """Per dimension whether it continues the segment of the dimensions after it.

    The last dimension does, and others as long as rows are shorter than a cache line, as adjacent rows then share
    lines.
    """
    if isinstance(operand, Operand):
        return list(_contiguous_dims_of_shape(operand.element_bytes, operand.shape, line))
    dims: list[bool | Mask] = [True]
    row_bytes = operand.element_bytes * operand.shape[-1]
    for length in operand.shape[-2::-1]:
        if not any_true(dims[0]) or not any_true(row_bytes < line):
            return [False] * (len(operand.shape) - len(dims)) + dims
        dims.insert(0, dims[0] & (row_bytes < line))
        row_bytes = row_bytes * length
    return dims


@lru_cache(maxsize=4096)
def _contiguous_dims_of_shape(element_bytes: int, shape: tuple[int, ...], line: int) -> tuple[bool, ...]:
    """`contiguous_dims` of an array of fixed size."""
    dims, row_bytes = [True], element_bytes * shape[-1]
    for length in shape[-2::-1]:
        dims.insert(0, dims[0] and row_bytes < line)
        row_bytes = row_bytes * length
    return tuple(dims)


def segment_count(operand: OperandView, box: Sequence[Numbers], line: int) -> Numbers:
    """Number of segments that the points of a box touch."""
    total: Numbers | None = None
    dims = zip(operand.index_terms, operand.dim_sizes, contiguous_dims(operand, line), strict=True)
    for terms, size, is_contiguous in dims:
        if terms and not all_true(is_contiguous):
            count = np.minimum(index_count_and_span(terms, box)[0], size)
            factor = np.where(is_contiguous, 1.0, count) if any_true(is_contiguous) else count
            total = factor if total is None else total * factor
    return np.ones_like(box[0]) if total is None else total


def moved_bytes(
    operand: OperandView, box: Sequence[Numbers], line: int, packed: bool = False, unaligned: bool = True
) -> Numbers:
    """Bytes of the cache lines that the points of a box touch.

    Args:
        operand: the access.
        box: sizes per axis.
        line: bytes of a cache line.
        packed: whether the operand is a packed copy; it has no gaps, so only its elements count.
        unaligned: whether segments may begin anywhere in a line, so that on average they touch one line more at their
            ends; else they touch as few lines as possible.
    """
    if packed or not operand.index:
        return touched_elements(operand, box) * operand.element_bytes
    return segment_bytes(operand, box, line, segment_count(operand, box, line), unaligned)


def segment_bytes(
    operand: OperandView, box: Sequence[Numbers], line: int, segments: Numbers, unaligned: bool = True
) -> Numbers:
    """`moved_bytes` of an operand that is not packed, given the number of segments that the box touches."""
    count, span, size = _segment_extent(operand, box, line)
    per_line = max(1, line // operand.element_bytes)
    # the whole operand is shorter than a line
    is_short = size < per_line
    if all_true(is_short):
        return np.maximum(segments * count * operand.element_bytes, line)
    exact_lines = span / per_line
    lines = np.ceil(exact_lines)
    if unaligned:
        is_partial, is_ragged = span < size, size % per_line != 0
        if not all_true(is_ragged):
            # a line has a power of two elements, so the quotient is exact
            is_partial &= (lines != exact_lines) | is_ragged
        lines = np.where(is_partial, 1.0 + (span - 1.0) / per_line, lines)
    total = segments * np.minimum(count, lines) * line
    if not any_true(is_short):
        return total
    return np.where(is_short, np.maximum(segments * count * operand.element_bytes, line), total)


def _segment_extent(
    operand: OperandView, box: Sequence[Numbers], line: int
) -> tuple[Numbers, Numbers, IntPerCandidate]:
    """Of a segment: elements that a box touches, distance from the first to the last of them + 1, and all elements."""
    size = operand.shape[-1]
    count, span = (np.minimum(x, size) for x in index_count_and_span(operand.index_terms[-1], box))
    for d, is_contiguous in reversed(list(enumerate(contiguous_dims(operand, line)))[:-1]):
        if not any_true(is_contiguous):
            break
        length = operand.shape[d]
        rows, row_span = (np.minimum(x, length) for x in index_count_and_span(operand.index_terms[d], box))
        span = np.where(is_contiguous, (row_span - 1.0) * size + span, span)
        count = np.where(is_contiguous, count * rows, count)
        size = size * length if all_true(is_contiguous) else np.where(is_contiguous, size * length, size)
    return count, span, size


def distant_segments(
    operand: OperandView, box: Sequence[Numbers], line: int, distance: int | Numbers, packed: bool
) -> Numbers:
    """Number of segments that a box touches, where segments closer than `distance` bytes count as one."""
    if packed:
        return np.ones_like(box[0])
    return np.minimum(segment_count(operand, box, line), _distance_count(operand, box, distance))


def distant_segment_bytes(operand: OperandView, box: Sequence[Numbers], line: int, distance: int) -> Numbers:
    """Bytes of cache lines per segment that a box touches, where segments closer than `distance` bytes count as one."""
    segments = segment_count(operand, box, line)
    return segment_bytes(operand, box, line, segments) / np.minimum(segments, _distance_count(operand, box, distance))


def _distance_count(operand: OperandView, box: Sequence[Numbers], distance: int | Numbers) -> Numbers:
    """Number of positions `distance` bytes apart from the first to the last element that a box touches."""
    span = sum_arrays(stride * (box[axis] - 1.0) for axis, stride in operand.byte_strides)
    return 1.0 + span / distance


def separate_runs(operand: OperandView, box: Sequence[Numbers], gap: int) -> Numbers:
    """Number of runs of memory that a box touches, where runs less than `gap` bytes apart count as one: rows that a box
    covers as a whole, or nearly, continue in each other."""
    runs, are_merged = np.ones_like(box[0]), np.ones_like(box[0], np.bool_)
    pitch = extent = float(operand.element_bytes) * np.ones_like(box[0])
    for terms, size in zip(operand.index_terms[::-1], operand.dim_sizes[::-1], strict=True):
        count, span = (np.minimum(x, size) for x in index_count_and_span(terms, box))
        step = pitch * (span - 1.0) / np.maximum(count - 1.0, 1.0)
        are_merged = are_merged & ((count == 1.0) | (step - extent < gap))
        runs = np.where(are_merged, runs, runs * count)
        extent, pitch = extent + pitch * (span - 1.0), pitch * size
    return runs


def total_bytes(problem: Problem) -> float:
    """Bytes of all operands and results."""
    return float(sum(o.bytes for o in (*problem.operands, *problem.results)))


def sum_arrays(arrays: Iterable[Numbers]) -> Numbers:
    """The sum of arrays; one zero where there are none."""
    total: Numbers | None = None
    for x in arrays:
        total = x if total is None else total + x
    return np.zeros(1) if total is None else total


def all_true(mask: bool | Mask) -> bool:
    """Whether a condition holds for all candidates."""
    return mask if isinstance(mask, bool) else bool(mask.all())


def any_true(mask: bool | Mask) -> bool:
    """Whether a condition holds for any candidate."""
    return mask if isinstance(mask, bool) else bool(mask.any())
