"""How long tile programs take on a machine, by formulas: instructions of the register tile, bytes through every level
of memory, and what threads cost.

Work of different kinds overlaps, but never fully, so the time is that of the slowest kind and a part of the rest.

Clocks, units, latencies and rates are those of the machine's description. What it has no figure for are constants, here
and in `instructions.py`, `chain.py`, `time.py` and `cost/hw_prefetch.py`: cycles of loops that start, of conditions,
masks, shuffles and spills, how much work overlaps, how many streams and pages are followed and what more of them cost.
They were set by measurements of programs on two machines of two cores each, Intel Xeons with AVX-512, 2 MiB of L2 and
105 or 480 MiB of L3 cache, some on a third one, an AMD EPYC with AVX2, and are the same for all kernels and all
machines. What each was fixed by is in `docs/cost-model.md`; how well programs are ordered says
`benchmarks/cost_model.py`.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np
import numpy.typing as npt

from tilewright.cost.candidate_batch import CandidateBatch, remainder_tiles, sum_arrays
from tilewright.cost.features import extract_features, lane_strides
from tilewright.cost.footprint import Numbers
from tilewright.cost.hw_prefetch import is_long_reduction, is_streaming
from tilewright.cost.instructions import tile_cycles
from tilewright.cost.load_phase import load_phase_fraction
from tilewright.cost.shape_family import ShapeFamily
from tilewright.cost.time import Time, caches, miss_ratio, parallel_time
from tilewright.cost.traffic import USABLE_CACHE_FRACTION, LoopFootprints, cache_traffic, has_line_per_lane
from tilewright.machine.model import Level, Machine
from tilewright.tile.problem import Problem
from tilewright.tile.program import L1, L2, REGISTER, Mask, Sizes, Sketch, TileProgram

CODE_SIZE_TIEBREAK = 4e-4
"""What one more vector operation written out counts, as a part of the time: of programs alike the shorter is better."""

MAX_STREAMS = 12.0
"""Streams that hardware fetches ahead for."""

STREAM_PENALTY = 0.3
"""What as many streams again cost, as a part of the time of far memory."""

COPY_CYCLES = 0.4
"""Of packing one element of an operand along the axis in which it is contiguous."""

MASKED_COPY_CYCLES = 1.0
"""The same where the axis has an unknown size: every run of elements is asked whether it is whole."""

TRANSPOSE_CYCLES = 6.0
"""Of packing one element of an operand along an axis in which it is not contiguous."""


CALL_NS = 1000.0
"""Nanoseconds that a kernel's call costs whatever it computes, no part of times: at sizes so small programs hardly
differ."""


def packing_time(problem: Problem, sketch: Sketch, machine: Machine) -> float:
    """Nanoseconds of packing operands whose data is not known at compile time, on one thread."""
    total = 0.0
    for k, axis in sketch.packed:
        o = problem.operands[k]
        if not o.constant:
            size = float(prod(o.shape))
            # a copy of what a cache holds with its source comes and goes there
            level = next(
                (x for x in machine.levels[1:] if 2.0 * size * o.element_bytes <= x.share * USABLE_CACHE_FRACTION),
                machine.levels[-1],
            )
            copy = COPY_CYCLES if problem.axes[axis].is_static else MASKED_COPY_CYCLES
            each = (copy if o.strides[axis] == 1 else TRANSPOSE_CYCLES) / machine.ghz
            # beyond all caches, lines that are written are read before
            times_moved = 2.0 if level.ways else 3.0
            total += size * (each + times_moved * o.element_bytes / level.gbs(1))
    return total


MAX_BATCH_SIZE = 4000
"""Candidates that are scored at once: of more, what formulas compute in between does not stay in the caches."""


def program_times(problem: Problem, sketch: Sketch, sizes: Sizes, machine: Machine) -> Time:
    """The times of candidates [candidate, level, axis]."""
    return _family_times(ShapeFamily.of(problem), sketch, sizes, machine)


def _family_times(family: ShapeFamily, sketch: Sketch, sizes: Sizes, machine: Machine) -> Time:
    """The times of candidates [candidate, level, axis] whose problems are `group_by_regime`."""
    if len(sizes) <= MAX_BATCH_SIZE:
        return _batch_times(family, sketch, sizes, machine)
    parts = np.split(np.arange(len(sizes)), range(MAX_BATCH_SIZE, len(sizes), MAX_BATCH_SIZE))
    return Time.concat([_batch_times(family.select(k), sketch, sizes[k], machine) for k in parts])


def _batch_times(family: ShapeFamily, sketch: Sketch, sizes: Sizes, machine: Machine) -> Time:
    """The times of one batch."""
    columns = CandidateBatch.of(family, sketch, sizes)
    heights, counts = remainder_tiles(family, sketch, sizes)
    some = np.flatnonzero((counts > 0).any(axis=1))
    has_whole = _has_whole_tile(family, sketch, sizes)
    if not len(some):
        found = _zero_unless(has_whole, _part_times(sketch, columns, machine))
    else:
        rows, of = heights * counts, family.select(some)
        left = CandidateBatch.of_remainder(of, sketch, sizes[some], heights[some], rows[some])
        # formulas cost as much for few candidates as for many
        both, count = _part_times(sketch, columns.concat(left), machine), len(sizes)
        whole, rest = both.map_arrays(lambda x: x[:count]), both.map_arrays(lambda x: x[count:])
        # the rows that are left run behind the others, in the same tasks where these have all whole tiles of rows
        apart = ((sizes[some, L2] < _rows_in_whole_tiles(of, sizes[some])) & (rows[some] > 0)).any(axis=1)
        joined = rest.parallel * np.where(apart, 1.0, 0.0)
        rest = Time(rest.compute, rest.memory, joined, rest.total - rest.parallel + joined)
        found = _zero_unless(has_whole, whole) + _scatter_times(some, rest, count)
    share = np.where(found.parallel > 0, machine.cores, 1)
    (packed,) = family.per_shape(lambda p: (packing_time(p, sketch, machine),))
    return Time(found.compute, found.memory, found.parallel, found.total + packed / share)


def mean_time(problem: Problem, sketch: Sketch, sizes: Sizes, machine: Machine) -> Numbers:
    """Nanoseconds of candidates: their times where all sizes are known, else the geometric means over the problem's
    samples, so that a part of the time of a call counts alike at small sizes and at large ones."""
    if not problem.samples:
        return program_times(problem, sketch, sizes, machine).total
    total = np.empty((len(problem.samples), len(sizes)))
    for same in group_by_regime(problem, sketch, machine):
        # all sizes at once: formulas cost as much for few candidates as for many
        which = np.repeat(np.arange(len(same)), len(sizes))
        family = ShapeFamily(tuple(problem.samples[k] for k in same), which)
        found = _family_times(family, sketch, cover_reductions(family, np.tile(sizes, (len(same), 1, 1))), machine)
        total[same] = found.total.reshape(len(same), -1)
    return geomean_over_samples(total)


def geomean_over_samples(total: Numbers) -> Numbers:
    """The geometric means of nanoseconds [sample, candidate], each with what a call costs."""
    logs = np.log(total + CALL_NS)
    return np.exp(sum_arrays(logs) / len(logs)) - CALL_NS


def group_by_regime(problem: Problem, sketch: Sketch, machine: Machine) -> list[list[int]]:
    """The samples of a problem, by their positions, with those together that formulas treat alike: sums are long or
    short, and operands lie along the lanes in the same way."""
    found: dict[tuple[object, ...], list[int]] = {}
    line = caches(machine)[0].line
    for k, p in enumerate(problem.samples):
        found.setdefault(
            (is_long_reduction(p), lane_strides(p, sketch), has_line_per_lane(p, sketch, line)), []
        ).append(k)
    return list(found.values())


def cover_reductions(family: ShapeFamily, sizes: Sizes) -> Sizes:
    """The sizes of candidates at other extents: tiles of a reduction whose extent is a symbol cover all of it."""
    found = sizes.copy()
    for k in family.problem.reduce:
        if not family.problem.axes[k].is_static:
            step = sizes[:, REGISTER, k]
            found[:, L1:, k] = (-(-family.sizes[:, k] // step) * step)[:, None]
    return found


def _has_whole_tile(family: ShapeFamily, sketch: Sketch, sizes: Sizes) -> Mask:
    """Which candidates have a whole register tile at all."""
    rows = [k for k in family.problem.spatial if k != sketch.lane]
    return np.all(sizes[:, REGISTER, rows] <= family.sizes[:, rows], axis=1)


def _zero_unless(mask: Mask, time: Time) -> Time:
    """The times of some candidates; the others take none."""
    return time if mask.all() else time.map_arrays(lambda x: np.where(mask, x, 0.0))


def _rows_in_whole_tiles(family: ShapeFamily, sizes: Sizes) -> Sizes:
    """Rows in whole register tiles [candidate, axis]."""
    return family.sizes // sizes[:, REGISTER] * sizes[:, REGISTER]


def _scatter_times(positions: npt.NDArray[np.int64], time: Time, count: int) -> Time:
    """The times of some candidates among all of them, of which the others take none."""

    def spread(x: Numbers) -> Numbers:
        result = np.zeros(count)
        result[positions] = x
        return result

    return time.map_arrays(spread)


def _part_times(sketch: Sketch, batch: CandidateBatch, machine: Machine) -> Time:
    """The times of one part: all whole register tiles, or the rows that are left."""
    family, problem = batch.family, batch.family.problem
    batch = batch if is_long_reduction(problem) else _unroll_windows(problem, sketch, batch)
    found = extract_features(problem, sketch, batch)
    work = tile_cycles(problem, sketch, batch, found, machine) / machine.ghz
    near = caches(machine)
    # a cache of many cores mixes more of an address into its set
    sets = [_set_count(x) for x in near if x.shared_by == 1]
    sizes = [x.share for x in near]
    feet = LoopFootprints.of(problem, sketch, batch, near[0].line)
    threads = [machine.cores if x.shared_by == 1 else 1 for x in near]
    moved, by_all = cache_traffic(problem, sketch, batch, sizes, near[0].line, sets, feet, threads, machine.tlb_entries)
    grown = [all_ / np.maximum(one, 1.0) for all_, one in zip(by_all, moved, strict=True)]
    if is_streaming(problem):
        # a cache that is a little too small has lost most of what is read from first to last, as it was written
        away = family.per_shape(
            lambda p: [1.0, *(min(1.0, 2.0 * miss_ratio(_total_bytes(p), x.share)) for x in near[1:])]
        )
        return parallel_time([(work, [m * part for m, part in zip(moved, away, strict=True)])], found.tasks,
                          1.0 + CODE_SIZE_TIEBREAK * found.vector_operations, machine,
                          traffic_growth=grown)  # fmt: skip
    if is_long_reduction(problem):
        # what lies beyond the second cache comes in time only as far as streams are followed
        lost = 1.0 + np.maximum(found.streams - MAX_STREAMS, 0.0) / MAX_STREAMS * STREAM_PENALTY
        moved = [m * lost if k >= 1 else m for k, m in enumerate(moved)]
        parts = _load_phases(problem, sketch, batch, near, (work, moved, feet))
        return parallel_time(
            parts, found.tasks, 1.0 + CODE_SIZE_TIEBREAK * found.vector_operations, machine, traffic_growth=grown
        )
    # stores of single elements leave in order, and each waits for its line
    waiting = moved[0] / (3.0 * near[0].line) * machine.levels[min(1, len(machine.levels) - 1)].latency_ns
    work = work + np.where(found.scatter_stores > 0, waiting, 0.0)
    away = family.per_shape(lambda p: [1.0, *(miss_ratio(_total_bytes(p), x.share) for x in near[1:])])
    moved = [m * part for m, part in zip(moved, away, strict=True)]
    return parallel_time(
        [(work, moved)], found.tasks, 1.0 + CODE_SIZE_TIEBREAK * found.vector_operations, machine, True, grown
    )


def _load_phases(
    problem: Problem, sketch: Sketch, batch: CandidateBatch, near: Sequence[Level],
    known: tuple[Numbers, Sequence[Numbers], LoopFootprints],
) -> list[tuple[Numbers, list[Numbers]]]:  # fmt: skip
    """Work, and bytes that leave each memory level, while data come from beyond the second cache; and the rest, for
    which they are there."""
    work, moved, feet = known
    if len(near) < 2:
        return [(work, list(moved))]
    first = load_phase_fraction(problem, sketch, batch, near[1].share, near[0].line, feet)
    later = 1.0 - first
    return [
        (work * first, [moved[0] * first, *moved[1:]]),
        (work * later, [moved[0] * later, *(np.zeros_like(m) for m in moved[1:])]),
    ]


def _unroll_windows(problem: Problem, sketch: Sketch, batch: CandidateBatch) -> CandidateBatch:
    """The columns as LLVM sees them: it writes out short windows, whichever of their loops a program leaves."""
    sizes, windows = batch.sizes.copy(), [k for k in problem.reduce if k != sketch.lane]
    sizes[REGISTER, windows] = sizes[L1, windows]
    return replace(batch, sizes=sizes)


def _total_bytes(problem: Problem) -> float:
    """Bytes of all operands."""
    return float(sum(prod(o.shape) * o.element_bytes for o in (*problem.operands, *problem.results)))


def _set_count(cache: Level) -> int:
    """Sets of a cache: a power of two, whatever a description says of its size and its ways."""
    return 1 << max(1, cache.bytes // (cache.line * cache.ways)).bit_length() - 1


def program_time(program: TileProgram, machine: Machine) -> float:
    """The time of one program."""
    return float(mean_time(program.problem, program.sketch, program.array[None], machine)[0])


def is_parallel_profitable(program: TileProgram, machine: Machine) -> bool:
    """Whether a program should run on several threads; always where a size is known only later."""
    if not all(a.is_static for a in program.problem.axes):
        return True
    return bool(program_times(program.problem, program.sketch, program.array[None], machine).parallel[0] > 0)
