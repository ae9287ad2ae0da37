"""How far hardware runs ahead of what programs read and write: by what the time of far memory grows because it must
first follow a run, a page or a row.
"""

from collections.abc import Sequence
from functools import reduce
from operator import and_
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tilewright.cost.candidate_batch import (
    PAGE_BYTES,
    CandidateBatch,
    distant_segment_bytes,
    distant_segments,
    is_packed,
    sum_arrays,
)
from tilewright.cost.conflict_misses import conflict_factors
from tilewright.cost.footprint import Numbers, contiguous_dims, moved_bytes
from tilewright.cost.shape_family import OperandView
from tilewright.tile.problem import Problem
from tilewright.tile.program import L1, L2, REGISTER, Sketch, min_panel_width

MIN_LONG_REDUCTION = 32
"""Terms of a sum from which on a program waits for its operands: the next sums come too late to be begun meanwhile."""


def is_long_reduction(problem: Problem) -> bool:
    """Whether sums are so long that a program waits for the operands of one before it begins the next."""
    return problem.reduction_length >= MIN_LONG_REDUCTION


def is_streaming(problem: Problem) -> bool:
    """Whether the kernel is a long sum of elements that are used for one result each, so that no load depends on what
    was computed before and as many are on their way as the hardware takes."""
    return is_long_reduction(problem) and not problem.has_reuse


STREAM_RAMP_BYTES = 170.0
"""Bytes of a run that come from far memory while its first line does, where many runs begin at once."""

SMOOTH_MAX_POWER = 4
"""How sharply the larger one of two times that overlap, or a limit, decides."""


def _streaming_ramp(
    operand: OperandView, problem: Problem, sketch: Sketch, batch: CandidateBatch, line: int, tlb_entries: float
) -> Numbers:
    """By what the time of far memory grows where a sum that uses its elements once reads them in short runs.

    A register tile has a run per term. The next one goes on with it after all terms of a chunk: hardware has followed
    it then unless these lie in more pages than it keeps addresses of.
    """
    if operand.written:
        return np.ones_like(batch.covered[0])
    single = [np.ones_like(x) if problem.axes[a].is_reduction and a != sketch.lane else x
              for a, x in enumerate(batch.tiles[REGISTER])]  # fmt: skip
    kept = (
        np.minimum(1.0, tlb_entries / distant_segments(operand, _k_block_box(batch), PAGE_BYTES, False))
        ** SMOOTH_MAX_POWER
    )
    short, long = (distant_segment_bytes(operand, box, line, PAGE_BYTES) for box in (single, batch.tiles[L1]))
    return _ramp_slowdown(1.0 / (kept / np.maximum(long, short) + (1.0 - kept) / short))


PAGE_RAMP_BYTES = 256.0
"""Bytes of a page that could have come while the first one does: only then they are fetched ahead."""

MAX_WRITE_STREAMS = 16.0
"""Runs of stores that hardware follows at once."""

INTERLEAVED_STORE_PENALTY = 0.05
"""What stores to many rows in turns that begin anywhere in lines cost where nothing is computed, as a part of the time
of their bytes; of two rows half as much. Copies of 36 x 48 x 192 elements with a border of zeros take 1.15 times as
long in tiles of two rows as row by row, 1.25 times in tiles of four."""

SPLIT_STORE_RAMP_BYTES = 250.0
"""Bytes that could have come while the first store to a page waits for two lines: a transpose of 4001x7770 elements,
which no cache holds, takes twice as long in tiles of seven rows as row by row, one of 4000x7770 1.2 times."""

MAX_PREFETCH_PAGES = 32.0
"""Pages in which hardware follows one run of reads each (streamer of the second cache: Intel's optimization manual,
section on data prefetching; a matrix of rows a page and more apart that is read in columns of one line is four times as
slow in chunks of 64 rows as in chunks of 32)."""

UNPREFETCHED_PENALTY = 1.0
"""What loads that nothing waits for cost in more pages than `MAX_PREFETCH_PAGES`, as a part of the time of their bytes,
most of which hides behind instructions and stores: transposes in chunks of 64 rows a page apart take 1.2 times as long
as in chunks of 32."""


SINGLE_STREAM_PENALTY = 1.3
"""What memory behind all caches takes for a panel that single rows read, as many times as for several panels side by
side, of which more lines are under way: 1 x 4096 x 4096 takes 2.4 ms with panels of 56 or 64 columns on two cores with
AVX2, 1.7 ms with four or more panels abreast, and 6.6 and 5.4 ms on one core with AVX-512."""


REFETCH_FACTOR = 2.0
"""How often a line is fetched from the second cache again that came before it was asked for and was lost meanwhile, as
rows crowd in fewer sets of the nearest cache than hold them: 1024 x 1024 elements are summed along columns in 62, 82,
136 and 151 us in chunks of 8, 16, 32 and 64 rows, 1024 x 1040 in 58 to 73 us in any (one core of an EPYC of Zen 3)."""


EARLY_PREFETCH_LINES = 2.0
"""Lines at the start of a run that come before it is read."""


class RampFactors(NamedTuple):
    """By what the time of one access grows where the data come into the nearest cache, into another one, and from
    memory behind all of them."""

    l1: Numbers
    cache: Numbers
    memory: Numbers


class L1Cache(NamedTuple):
    """The nearest cache: its sets, and how many bytes it holds."""

    sets: int
    capacity: float


def ramp_factors(
    problem: Problem, sketch: Sketch, batch: CandidateBatch, line: int, tlb_entries: float, l1: L1Cache | None = None
) -> list[RampFactors]:
    """By what the time of memory grows for every access: of far memory as hardware must first follow it, of the nearest
    cache as what was followed is lost.

    Args:
        problem, form, columns: the candidates.
        line: bytes of a cache line.
        translations: pages whose addresses a core keeps at hand.
        near: the nearest cache, where rows may crowd; in all sets alike where nothing is given.
    """
    operands = batch.family.accesses
    if is_long_reduction(problem) and not is_streaming(problem):
        return _reuse_ramps(sketch, batch, line)
    one = np.ones_like(batch.covered[0])
    if is_streaming(problem):
        found = [_streaming_ramp(o, problem, sketch, batch, line, tlb_entries) for o in operands]
        lost = [one if l1 is None or o.written or is_packed(sketch, k) else _refetch_factor(o, batch, line, l1)
                for k, o in enumerate(operands)]  # fmt: skip
        return [RampFactors(again, x, x) for x, again in zip(found, lost, strict=True)]
    found = [_store_ramp(o, sketch, batch, line) if o.written else _load_ramp(o, sketch, batch, line, tlb_entries)
             for o in operands]  # fmt: skip
    # tiles that turn rows into columns need rows
    moves = not problem.reduce and all(o.strides[sketch.lane] in (0, 1) for o in problem.operands)
    return [RampFactors(one, x * _interleaved_store_factor(o, sketch, batch, line) if moves and o.written else x, x)
            for x, o in zip(found, operands, strict=True)]  # fmt: skip


def _refetch_factor(operand: OperandView, batch: CandidateBatch, line: int, l1: L1Cache) -> Numbers:
    """By what the lines that come into the nearest cache grow because some are lost before they are asked for: those at
    the start of each run, as the next ones come while it is read."""
    met = _k_block_box(batch)
    crowded = conflict_factors(operand, met, (l1.sets,), line).get(0)
    if crowded is None:
        return np.ones_like(batch.covered[0])
    read = moved_bytes(operand, met, line)
    stays = np.where(crowded > 1.0, np.minimum(1.0, l1.capacity / (read * crowded)), 1.0)
    run = read / distant_segments(operand, met, line, False)
    return 1.0 + REFETCH_FACTOR * (1.0 - stays) * np.minimum(1.0, EARLY_PREFETCH_LINES * line / run)


def _interleaved_store_factor(operand: OperandView, sketch: Sketch, batch: CandidateBatch, line: int) -> Numbers:
    """By what the time of caches grows because a register tile stores to many rows in turns that begin anywhere."""
    across = has_split_vectors(operand, line, sketch.lanes * operand.element_bytes)
    grown = 1.0 + INTERLEAVED_STORE_PENALTY * (
        1.0 - 1.0 / distant_segments(operand, batch.tiles[REGISTER], line, False)
    )
    return np.where(across, grown, 1.0)


def _reuse_ramps(sketch: Sketch, batch: CandidateBatch, line: int) -> list[RampFactors]:
    """By what the time of far memory grows where register tiles meet boxes of operands, and others in a row with them
    go on in the same pages. Of memory behind all caches these are followed unless there are too many of them, or too
    many runs of results; what caches hold comes soon enough."""
    one, met, row = np.ones(len(batch.covered[0])), _k_block_box(batch), _tile_row_box(sketch, batch)
    found: list[RampFactors] = []
    for k, o in enumerate(batch.family.accesses):
        if is_packed(sketch, k):
            found.append(RampFactors(one, one, _single_stream_factor(o, k, sketch, batch)))
            continue
        apart, most = (line, MAX_WRITE_STREAMS) if o.written else (PAGE_BYTES, MAX_PREFETCH_PAGES)
        lost = 1.0 - np.minimum(1.0, most / distant_segments(o, met, apart, False)) ** SMOOTH_MAX_POWER
        short, long = (page_ramp(o, box, line) for box in (met, row))
        found.append(RampFactors(one, long, long + lost * np.maximum(short - long, 0.0)))
    return found


def _single_stream_factor(operand: OperandView, operand_index: int, sketch: Sketch, batch: CandidateBatch) -> Numbers:
    """By what the time of far memory grows because a single row reads one panel at a time."""
    tile = batch.tiles[REGISTER]
    if dict(sketch.packed)[operand_index] != sketch.lane or operand_index not in sketch.prefetched_operands:
        return np.ones_like(tile[0])
    single = reduce(and_, [tile[a] == 1 for a in sketch.order if not operand.uses(a)], np.ones_like(tile[0], bool))
    line = min_panel_width(sketch, operand.element_bytes)
    abreast = (tile[sketch.lane] % line == 0) & (tile[sketch.lane] > line)
    return np.where(single & ~abreast, SINGLE_STREAM_PENALTY, 1.0)


def _k_block_box(batch: CandidateBatch) -> list[Numbers]:
    """What one register tile reads over a chunk of the reduction."""
    return [batch.tiles[L1 if x.is_reduction else REGISTER][a] for a, x in enumerate(batch.family.problem.axes)]


def _tile_row_box(sketch: Sketch, batch: CandidateBatch) -> list[Numbers]:
    """What is met in a row while a page is followed: a register tile, and its neighbours along the innermost loop that
    has any."""
    last = sketch.order[-1]
    box = list(batch.tiles[REGISTER])
    for a in range(len(box)):
        if a not in sketch.order:
            box[a] = batch.tiles[L1][a]
    apart = sum_arrays(batch.tiles[L1][a] - batch.tiles[REGISTER][a] for a in sketch.order[:-1])
    box[last] = np.where(apart > 0, batch.tiles[L1][last], batch.tiles[L2][last])
    return box


def _store_ramp(operand: OperandView, sketch: Sketch, batch: CandidateBatch, line: int) -> Numbers:
    """By what the time of far memory grows because little is written in a row: stores leave one after the other, each
    needs its line, and hardware fetches one more behind every run of them.

    What is met in a row are the iterations of loops, from the innermost one outwards, until there are too many runs.
    Where rows begin anywhere in lines, a store needs two: the next ones wait until both are there, unless they go on in
    the same page.
    """
    boxes = _nested_boxes(operand, sketch, batch)
    box, count = _tracked_box(operand, boxes, line, MAX_WRITE_STREAMS, operand.uses(sketch.order[-1]))
    grown = 1.0 + line * count / moved_bytes(operand, box, line)
    across = has_split_vectors(operand, line, sketch.lanes * operand.element_bytes)
    if not across.any():
        return grown
    box, pages = _tracked_box(operand, boxes, PAGE_BYTES, 1.0, False)
    # those of one page go on in it; of several, every one is another than that before
    begun = np.minimum(pages, 2.0 * (pages - 1.0))
    waiting = 1.0 + SPLIT_STORE_RAMP_BYTES * begun / moved_bytes(operand, box, line)
    return np.where(across, np.maximum(grown, waiting), grown)


def has_split_vectors(operand: OperandView, line: int, vector_bytes: int) -> npt.NDArray[np.bool_]:
    """Per candidate whether rows of an operand begin anywhere, so that vectors of so many bytes lie in two lines: rows
    are no whole lines, nor whole vectors that fit lines; one answer where it is that of all."""
    within = {
        axis: row
        for steps, row in zip(operand.index_terms, contiguous_dims(operand, line), strict=True)
        for _, axis in steps
    }
    apart = min(line, vector_bytes)
    return sum_arrays(np.where(within[axis], 0, step % apart) + np.zeros(1) for axis, step in operand.byte_strides) > 0


def _load_ramp(operand: OperandView, sketch: Sketch, batch: CandidateBatch, line: int, tlb_entries: float) -> Numbers:
    """By what the time of far memory grows because little of a page is read in a row, before more pages were touched
    than a core keeps addresses of, or than hardware follows."""
    boxes = _nested_boxes(operand, sketch, batch)
    box, count = _tracked_box(operand, boxes, PAGE_BYTES, tlb_entries, operand.uses(sketch.order[-1]))
    started = _ramp_slowdown(moved_bytes(operand, box, line) / count)
    return started * (1.0 + UNPREFETCHED_PENALTY * _abandoned_page_fraction(operand, boxes, line))


def _abandoned_page_fraction(operand: OperandView, boxes: Sequence[Numbers], line: int) -> Numbers:
    """The part of what is read that comes from pages that were left early, for more others than hardware follows: none
    where every page is read as a whole before the next ones."""
    count = distant_segments(operand, boxes, PAGE_BYTES, False)
    many, each = count > MAX_PREFETCH_PAGES, np.arange(count.shape[1])
    first = np.where(many.any(axis=0), many.argmax(axis=0), len(count) - 1)
    before = np.maximum(first - 1, 0), each
    read = moved_bytes(operand, [sizes[before] for sizes in boxes], line) / count[before]
    lost = 1.0 - np.minimum(1.0, MAX_PREFETCH_PAGES / count[first, each]) ** SMOOTH_MAX_POWER
    return lost * np.maximum(0.0, 1.0 - read / PAGE_BYTES)


def _tracked_box(
    operand: OperandView, boxes: Sequence[Numbers], distance: int, max_segments: float, innermost_tracked: bool
) -> tuple[list[Numbers], Numbers]:
    """What loops touch, of the boxes of more and more of them the first with too many runs; and how many runs these
    are. The innermost loop is `always` followed, where that is said."""
    count = distant_segments(operand, boxes, distance, False)
    followed = count[:-1] <= max_segments
    if innermost_tracked:
        followed[:1] = True
    last = np.logical_and.accumulate(followed).sum(axis=0), np.arange(count.shape[1])
    return [sizes[last] for sizes in boxes], count[last]


def _nested_boxes(operand: OperandView, sketch: Sketch, batch: CandidateBatch) -> list[Numbers]:
    """What a register tile touches, then all iterations of the innermost loop, of the one around it, and so on [depth,
    candidate] per axis. Axes along which the operand stays where it is are left as they are in a register tile."""
    box = list(batch.tiles[REGISTER])
    grown = [tuple(box)]
    for above in (batch.tiles[L1], batch.tiles[L2], batch.covered):
        for a in reversed(sketch.order):
            if operand.uses(a):
                box[a] = np.maximum(box[a], above[a])
                grown.append(tuple(box))
    # all boxes at once: formulas cost as much for few numbers as for many
    return [np.array(sizes) for sizes in zip(*grown, strict=True)]


def _ramp_slowdown(segment_bytes: Numbers) -> Numbers:
    """By what runs of so many bytes take longer than their bytes would."""
    return (1.0 + (STREAM_RAMP_BYTES / segment_bytes) ** SMOOTH_MAX_POWER) ** (1.0 / SMOOTH_MAX_POWER)


def page_ramp(operand: OperandView, box: Sequence[Numbers], line: int) -> Numbers:
    """By what the time of far memory grows where boxes [axis][candidate] of an operand are read in a row: the fewer
    bytes of a page they have, the more, as every page is followed from its start only."""
    return 1.0 + PAGE_RAMP_BYTES / np.clip(distant_segment_bytes(operand, box, line, PAGE_BYTES), line, PAGE_BYTES)
