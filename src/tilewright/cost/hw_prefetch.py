"""Hardware-prefetcher model: slowdown of traffic from beyond L1 while the prefetcher ramps up on a stream or page."""

from collections.abc import Sequence
from functools import reduce
from operator import and_, mul
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tilewright.cost.caches import PAGE_BYTES, CacheHierarchy
from tilewright.cost.candidate_batch import CandidateBatch, is_on_stack, is_packed
from tilewright.cost.conflict_misses import conflict_factors
from tilewright.cost.footprint import (
    Numbers,
    contiguous_dims,
    distant_segment_bytes,
    distant_segments,
    moved_bytes,
    separate_runs,
    sum_arrays,
)
from tilewright.cost.reduction_kind import is_long_reduction, is_streaming
from tilewright.cost.shape_family import FloatPerCandidate, OperandView
from tilewright.machine.cost_parameters import CostParameters
from tilewright.tile.prefetches import min_prefetch_rows
from tilewright.tile.problem import Problem
from tilewright.tile.program import L1, L2, REGISTER, Sketch, min_panel_width

SMOOTH_MAX_POWER = 4
"""Exponent of the p-norm that rounds off the maximum of two overlapping times, or a limit."""


class RampFactors(NamedTuple):
    """Slowdown of one access's traffic into L1, into the caches between, and into the last cache, from memory."""

    l1: Numbers
    cache: Numbers
    memory: Numbers


def ramp_factors(
    problem: Problem, sketch: Sketch, batch: CandidateBatch, caches: CacheHierarchy, far: FloatPerCandidate = 1.0
) -> list[RampFactors]:
    """Slowdown of every access's traffic by the prefetcher's ramp-up, and by prefetched lines that L1 evicts.

    Args:
        problem, sketch, batch: the candidates.
        caches: their parameters; nothing aliases in L1 where its sets are unknown.
        far: share of what the kernel accesses that comes from beyond the private caches of a core; nothing has to
            prefetch the rest. Only long reductions distinguish.
    """
    accesses, cost = batch.family.accesses, caches.cost
    if is_long_reduction(problem, cost) and not is_streaming(problem, cost):
        return _reuse_ramps(sketch, batch, caches, far)
    one = np.ones_like(batch.covered[0])
    if is_streaming(problem, cost):
        ramps = [
            one if is_on_stack(sketch, k) else _streaming_ramp(o, problem, sketch, batch, caches)
            for k, o in enumerate(accesses)
        ]
        refetches = [
            one if not caches.set_counts or o.written or is_packed(sketch, k) else _refetch_factor(o, batch, caches)
            for k, o in enumerate(accesses)
        ]
        return [RampFactors(refetch, ramp, ramp) for ramp, refetch in zip(ramps, refetches, strict=True)]
    ramps = [
        one if is_on_stack(sketch, k)
        else _store_ramp(o, sketch, batch, caches) if o.written else _load_ramp(o, sketch, batch, caches)
        for k, o in enumerate(accesses)
    ]  # fmt: skip
    # a tile that transposes needs several rows
    is_copy = not problem.reduce and all(o.strides[sketch.lane] in (0, 1) for o in problem.operands)
    return [
        RampFactors(one, x * _interleaved_store_factor(o, sketch, batch, caches) if is_copy and o.written else x, x)
        for x, o in zip(ramps, accesses, strict=True)
    ]


def _streaming_ramp(
    operand: OperandView, problem: Problem, sketch: Sketch, batch: CandidateBatch, caches: CacheHierarchy
) -> Numbers:
    """Slowdown of a streaming reduction that reads short segments.

    A register tile has a segment per term. The next tile continues it after all terms of a K-block: the prefetcher
    still tracks it unless the K-block has more pages than the TLB.
    """
    if operand.written:
        return np.ones_like(batch.covered[0])
    line = caches.line
    one_term = [
        np.ones_like(x) if problem.axes[a].is_reduction and a != sketch.lane else x
        for a, x in enumerate(batch.tiles[REGISTER])
    ]
    pages = distant_segments(operand, _k_block_box(batch), line, PAGE_BYTES, False)
    tracked = np.minimum(1.0, caches.tlb_entries / pages) ** SMOOTH_MAX_POWER
    short, long = (distant_segment_bytes(operand, box, line, PAGE_BYTES) for box in (one_term, batch.tiles[L1]))
    return _ramp_slowdown(1.0 / (tracked / np.maximum(long, short) + (1.0 - tracked) / short), caches.cost)


def _refetch_factor(operand: OperandView, batch: CandidateBatch, caches: CacheHierarchy) -> Numbers:
    """Growth of the traffic into L1 because lines at the start of each segment are evicted before their use; the later
    lines are prefetched while the segment is read."""
    box, line, cost = _k_block_box(batch), caches.line, caches.cost
    factor = conflict_factors(operand, box, caches.set_counts[:1], line).get(0)
    if factor is None:
        return np.ones_like(batch.covered[0])
    read = moved_bytes(operand, box, line)
    stays = np.where(factor > 1.0, np.minimum(1.0, caches.capacities[0] / (read * factor)), 1.0)
    per_segment = read / distant_segments(operand, box, line, line, False)
    return 1.0 + cost.refetch_factor * (1.0 - stays) * np.minimum(1.0, cost.early_prefetch_lines * line / per_segment)


def _interleaved_store_factor(
    operand: OperandView, sketch: Sketch, batch: CandidateBatch, caches: CacheHierarchy
) -> Numbers:
    """Slowdown of caches where a register tile interleaves stores to several unaligned rows."""
    line, penalty = caches.line, caches.cost.interleaved_store_penalty
    is_split = has_split_vectors(operand, line, sketch.lanes * operand.element_bytes)
    rows = distant_segments(operand, batch.tiles[REGISTER], line, line, False)
    return np.where(is_split, 1.0 + penalty * (1.0 - 1.0 / rows), 1.0)


def _reuse_ramps(
    sketch: Sketch, batch: CandidateBatch, caches: CacheHierarchy, far: FloatPerCandidate
) -> list[RampFactors]:
    """Slowdown of long reductions with reuse: register tiles read boxes of operands, and neighbouring tiles continue in
    the same pages.

    Beyond L2 the prefetcher tracks these unless there are too many pages, or too many write streams.
    """
    line, cost = caches.line, caches.cost
    one, tile_box, row_box = np.ones(len(batch.covered[0])), _k_block_box(batch), _tile_row_box(sketch, batch)
    both_boxes = [np.stack(sizes) for sizes in zip(tile_box, row_box, strict=True)]
    factors: list[RampFactors] = []
    for k, o in enumerate(batch.family.accesses):
        if is_packed(sketch, k):
            factors.append(RampFactors(one, one, _single_stream_factor(o, k, sketch, batch, cost)))
            continue
        distance, max_streams = (line, cost.max_write_streams) if o.written else (PAGE_BYTES, cost.max_prefetch_pages)
        streams = distant_segments(o, tile_box, line, distance, False)
        untracked = 1.0 - np.minimum(1.0, max_streams / streams) ** SMOOTH_MAX_POWER
        # both in one array: formulas cost as much for few numbers as for many
        short, long = page_ramp(o, both_boxes, line, cost)
        ramp = far * (long - 1.0 + untracked * np.maximum(short - long, 0.0))
        if k in sketch.prefetched_operands:
            is_ahead = _uses_per_element(o, sketch, batch) >= min_prefetch_rows(batch.family.problem, sketch.lane)
            ramp = ramp * np.where(is_ahead, cost.prefetched_ramp_fraction, 1.0)
        tracked = 1.0 + ramp
        factors.append(RampFactors(one, tracked, tracked))
    return factors


def _single_stream_factor(
    operand: OperandView, operand_index: int, sketch: Sketch, batch: CandidateBatch, cost: CostParameters
) -> Numbers:
    """Slowdown of memory where a single row reads one panel at a time."""
    tile = batch.tiles[REGISTER]
    if dict(sketch.packed)[operand_index] != sketch.lane or operand_index not in sketch.prefetched_operands:
        return np.ones_like(tile[0])
    rows = [tile[a] == 1 for a in sketch.order if not operand.uses(a)]
    is_single_row = reduce(and_, rows, np.ones_like(tile[0], bool))
    panel = min_panel_width(sketch, operand.element_bytes)
    is_interleaved = (tile[sketch.lane] % panel == 0) & (tile[sketch.lane] > panel)
    return np.where(is_single_row & ~is_interleaved, cost.single_stream_penalty, 1.0)


def _uses_per_element(operand: OperandView, sketch: Sketch, batch: CandidateBatch) -> Numbers:
    """Uses of every element of an operand within a term of a register tile."""
    tile = batch.tiles[REGISTER]
    return reduce(mul, [tile[a] for a in sketch.order if not operand.uses(a)], np.ones_like(tile[0]))


def _k_block_box(batch: CandidateBatch) -> list[Numbers]:
    """The points of one register tile over one K-block."""
    return [batch.tiles[L1 if x.is_reduction else REGISTER][a] for a, x in enumerate(batch.family.problem.axes)]


def _tile_row_box(sketch: Sketch, batch: CandidateBatch) -> list[Numbers]:
    """The points that are computed while a page is tracked: a register tile, and its neighbours along the innermost
    loop that has several."""
    innermost = sketch.order[-1]
    box = list(batch.tiles[REGISTER])
    for a in range(len(box)):
        if a not in sketch.order:
            box[a] = batch.tiles[L1][a]
    outer_tiles = sum_arrays(batch.tiles[L1][a] - batch.tiles[REGISTER][a] for a in sketch.order[:-1])
    box[innermost] = np.where(outer_tiles > 0, batch.tiles[L1][innermost], batch.tiles[L2][innermost])
    return box


def _store_ramp(operand: OperandView, sketch: Sketch, batch: CandidateBatch, caches: CacheHierarchy) -> Numbers:
    """Slowdown of stores to short streams: stores retire in order, each needs its line, and the prefetcher fetches one
    line too many after every stream.

    A stream lasts for the iterations of the loops, from the innermost one outwards, until there are too many streams.
    Where rows are unaligned, a store needs two lines: the following stores wait for both, unless they continue in the
    same page.
    """
    line, cost = caches.line, caches.cost
    boxes = nested_boxes(operand, sketch, batch)
    box, streams = _tracked_box(operand, boxes, line, line, cost.max_write_streams, operand.uses(sketch.order[-1]))
    ramp = 1.0 + line * streams / moved_bytes(operand, box, line)
    ramp = ramp * _alternation_slowdown(operand, boxes, line, cost)
    is_split = has_split_vectors(operand, line, sketch.lanes * operand.element_bytes)
    if not is_split.any():
        return ramp
    box, pages = _tracked_box(operand, boxes, line, PAGE_BYTES, 1.0, False)
    # stores to one page continue in it; among several pages, every store is to another page than the one before
    page_starts = np.minimum(pages, 2.0 * (pages - 1.0))
    split_ramp = 1.0 + cost.split_store_ramp_bytes * page_starts / moved_bytes(operand, box, line)
    return np.where(is_split, np.maximum(ramp, split_ramp), ramp)


def _alternation_slowdown(operand: OperandView, boxes: Sequence[Numbers], line: int, cost: CostParameters) -> Numbers:
    """Slowdown of stores that alternate between runs of memory, or that jump to another one after every register tile.

    The more runs, the longer there is to fetch the next line of each; those in one page are no streams of their own.
    Whole rows, or nearly whole ones, are a single run, in a tile or stored one after the other. Tiles of one run that
    the loops continue for a while count as jumping all the same: the penalty was fitted on blocks of columns.
    """
    if not cost.alternating_store_penalty and not cost.same_page_store_penalty:
        return np.ones_like(boxes[0][0])
    runs = separate_runs(operand, boxes, line)
    tile_runs, tile = runs[0], [sizes[0] for sizes in boxes]
    pages = np.minimum(tile_runs, distant_segments(operand, tile, line, PAGE_BYTES, False))
    same_page = cost.same_page_store_penalty * (tile_runs / pages - 1.0)
    return np.where((runs == 1.0).all(axis=0), 1.0, 1.0 + cost.alternating_store_penalty / tile_runs + same_page)


def has_split_vectors(operand: OperandView, line: int, vector_bytes: int) -> npt.NDArray[np.bool_]:
    """Per candidate whether vectors of an operand straddle two lines, because rows are multiples neither of a line nor
    of a vector that divides lines; one element where the answer is the same for all."""
    is_contiguous = {
        axis: dim
        for terms, dim in zip(operand.index_terms, contiguous_dims(operand, line), strict=True)
        for _, axis in terms
    }
    alignment = min(line, vector_bytes)
    return (
        sum_arrays(
            np.where(is_contiguous[axis], 0, stride % alignment) + np.zeros(1) for axis, stride in operand.byte_strides
        )
        > 0
    )


def _load_ramp(operand: OperandView, sketch: Sketch, batch: CandidateBatch, caches: CacheHierarchy) -> Numbers:
    """Slowdown of loads that read little of a page before they touch more pages than the TLB or the prefetcher has."""
    line, cost = caches.line, caches.cost
    boxes = nested_boxes(operand, sketch, batch)
    box, pages = _tracked_box(operand, boxes, line, PAGE_BYTES, caches.tlb_entries, operand.uses(sketch.order[-1]))
    ramp = _ramp_slowdown(moved_bytes(operand, box, line) / pages, cost)
    return ramp * (1.0 + cost.unprefetched_penalty * _abandoned_page_fraction(operand, boxes, line, cost))


def _abandoned_page_fraction(
    operand: OperandView, boxes: Sequence[Numbers], line: int, cost: CostParameters
) -> Numbers:
    """Share of the bytes that come from pages which the prefetcher dropped before they were read to the end, in favour
    of more pages than it tracks; 0 where every page is read as a whole."""
    pages = distant_segments(operand, boxes, line, PAGE_BYTES, False)
    is_too_many, candidates = pages > cost.max_prefetch_pages, np.arange(pages.shape[1])
    depth = np.where(is_too_many.any(axis=0), is_too_many.argmax(axis=0), len(pages) - 1)
    inside = np.maximum(depth - 1, 0), candidates
    read_per_page = moved_bytes(operand, [sizes[inside] for sizes in boxes], line) / pages[inside]
    untracked = 1.0 - np.minimum(1.0, cost.max_prefetch_pages / pages[depth, candidates]) ** SMOOTH_MAX_POWER
    return untracked * np.maximum(0.0, 1.0 - read_per_page / PAGE_BYTES)


def _tracked_box(
    operand: OperandView, boxes: Sequence[Numbers], line: int, distance: int, max_segments: float,
    innermost_tracked: bool,
) -> tuple[list[Numbers], Numbers]:  # fmt: skip
    """The first of nested boxes that has too many segments, and their number.

    Args:
        operand: the access.
        boxes: see `nested_boxes`.
        line: bytes of a cache line.
        distance: bytes from which on segments count separately.
        max_segments: number of segments that are tracked.
        innermost_tracked: whether the innermost loop is tracked whatever the number of its segments.
    """
    segments = distant_segments(operand, boxes, line, distance, False)
    is_tracked = segments[:-1] <= max_segments
    if innermost_tracked:
        is_tracked[:1] = True
    depth = np.logical_and.accumulate(is_tracked).sum(axis=0), np.arange(segments.shape[1])
    return [sizes[depth] for sizes in boxes], segments[depth]


def nested_boxes(operand: OperandView, sketch: Sketch, batch: CandidateBatch) -> list[Numbers]:
    """Per axis the points of a register tile, then those of all iterations of the innermost loop, of the next one, and
    so on [depth, candidate]; axes that the operand does not depend on keep their register tile."""
    box = list(batch.tiles[REGISTER])
    boxes = [tuple(box)]
    for level in (batch.tiles[L1], batch.tiles[L2], batch.covered):
        for a in reversed(sketch.order):
            if operand.uses(a):
                box[a] = np.maximum(box[a], level[a])
                boxes.append(tuple(box))
    # all depths in one array: formulas cost as much for few numbers as for many
    return [np.array(sizes) for sizes in zip(*boxes, strict=True)]


def _ramp_slowdown(segment_bytes: Numbers, cost: CostParameters) -> Numbers:
    """Slowdown of streams of this length."""
    return (1.0 + (cost.stream_ramp_bytes / segment_bytes) ** SMOOTH_MAX_POWER) ** (1.0 / SMOOTH_MAX_POWER)


def page_ramp(operand: OperandView, box: Sequence[Numbers], line: int, cost: CostParameters) -> Numbers:
    """Slowdown where boxes [axis][candidate] of an operand are read one after the other: the prefetcher ramps up on
    every page, so the fewer bytes of a page a box has, the slower."""
    read = np.clip(distant_segment_bytes(operand, box, line, PAGE_BYTES), line, PAGE_BYTES)
    return 1.0 + cost.page_ramp_bytes / read
