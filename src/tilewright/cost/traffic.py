"""Bytes that tile programs move into each cache, in closed formulas over arrays of candidates.

Traffic follows from the loops. A loop whose body fits a cache loads what it touches once in all of its iterations, as
the data that two iterations share stays. A loop whose body does not fit loads it in every iteration.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import mul

import numpy as np

from tilewright.cost.caches import CacheHierarchy
from tilewright.cost.candidate_batch import CandidateBatch, is_packed, k_block_count
from tilewright.cost.conflict_misses import conflict_bytes, conflict_factors, reloaded_row_bytes
from tilewright.cost.footprint import Numbers, moved_bytes, sum_arrays, touched_elements
from tilewright.cost.hw_prefetch import RampFactors, ramp_factors
from tilewright.cost.loop_footprints import LoopFootprints, innermost_depths
from tilewright.cost.reduction_kind import is_long_reduction, is_streaming
from tilewright.cost.shape_family import FloatPerCandidate, OperandView
from tilewright.machine.cost_parameters import CostParameters
from tilewright.tile.problem import Problem
from tilewright.tile.program import L1, L2, REGISTER, Mask, Sketch


@dataclass(frozen=True, slots=True)
class _Accesses:
    """Inputs of the traffic formulas per access of a batch, other than the footprints.

    Attributes:
        operands: the accesses.
        innermost: which depths have no loop inside [depth, candidate].
        conflicts: per access the conflict factors by cache, each [depth, candidate].
        beside: bytes of the partial sums of K-blocks, and of what other statements in the same loops touch [depth or 1,
            candidate].
        line_per_element: by access what a register tile moves where every element brings its line; only accesses whose
            elements along the lanes are in different lines, in short reductions.
        min_bytes: bytes of all accesses in as few lines as possible [access, depth, candidate]; None if the former are
            none.
    """

    operands: tuple[OperandView, ...]
    innermost: Mask
    conflicts: Sequence[Mapping[int, Numbers]]
    beside: Numbers
    line_per_element: Mapping[int, Numbers]
    min_bytes: Numbers | None

    @staticmethod
    def of(
        problem: Problem, sketch: Sketch, batch: CandidateBatch, caches: CacheHierarchy, footprints: LoopFootprints
    ) -> "_Accesses":
        operands, line, boxes = batch.family.accesses, caches.line, footprints.boxes
        in_own_lines = has_line_per_lane(problem, sketch, line)
        line_per_element = {
            k: _line_per_element_bytes(problem, sketch, batch, k, footprints.operand_bytes[k, -1], line)
            for k in range(len(operands))
            if not is_long_reduction(problem, caches.cost) and in_own_lines[k]
        }
        conflicts: list[Mapping[int, Numbers]] = [
            {} if is_packed(sketch, k) else conflict_factors(o, boxes, caches.set_counts, line)
            for k, o in enumerate(operands)
        ]
        min_bytes = None
        if line_per_element:
            # the extra line of an unaligned segment is in another set than the aliased ones
            aligned = [moved_bytes(o, boxes, line, is_packed(sketch, k), False) for k, o in enumerate(operands)]
            min_bytes = np.array(aligned)
        innermost, beside = innermost_depths(footprints.present), partial_sum_bytes(problem, sketch, batch)[None]
        return _Accesses(operands, innermost, conflicts, beside + footprints.beside, line_per_element, min_bytes)


def cache_traffic(
    problem: Problem,
    sketch: Sketch,
    batch: CandidateBatch,
    caches: CacheHierarchy,
    footprints: LoopFootprints | None = None,
    far: FloatPerCandidate = 1.0,
) -> tuple[list[Numbers], list[Numbers]]:
    """Bytes that move into each cache by the loops of the program: on one thread, and on several that share them.

    Data that fits the last cache as a whole is there before the program starts: earlier kernels have just used it.

    Args:
        problem, sketch, batch: the candidates.
        caches: their parameters.
        footprints: of the candidates, if they have been computed already.
        far: share of the kernel's data that private caches do not hold, see `ramp_factors`.
    """
    footprints = footprints or LoopFootprints.of(problem, sketch, batch, caches.line)
    accesses = _Accesses.of(problem, sketch, batch, caches, footprints)
    # the traffic of one thread for each cache, then that of several threads for the caches that each has of its own
    private = [k for k, n in enumerate(caches.threads) if n > 1]
    shared = {n: _resident_bytes(footprints, n) for n in {caches.threads[k] for k in private}}
    resident = np.array([
        *(footprints.operand_bytes for _ in caches.capacities), *(shared[caches.threads[k]] for k in private),
    ])  # fmt: skip
    stays = _stays_in_caches(accesses, caches, private, resident)
    uncached = _uncached_bytes(accesses, caches, private, footprints, len(resident))
    if footprints.loaded is not None:
        resident = np.maximum(resident - footprints.loaded, 0.0)
    repeats = _repeats(problem, footprints)
    moved_in = _moved_by_cache(resident, repeats, footprints.present, stays, uncached)
    l1_places = _l1_places(caches, private)
    for k, bytes_ in _reloaded_bytes(problem, sketch, batch, caches, footprints).items():
        moved_in[k, l1_places] = np.maximum(moved_in[k, l1_places], bytes_)
    if batch.reuse_bytes is not None:
        places = [*range(len(caches.capacities)), *private]
        usable = np.array([caches.capacities[k] for k in places])[:, None, None] * caches.cost.usable_cache_fraction
        # a remainder finds beyond L1 what the whole tiles have used, unless it has left the cache since
        is_found = (batch.reuse_bytes <= usable) & (np.array(places) > 0)[:, None, None]
        moved_in = np.where(is_found.swapaxes(0, 1), 0.0, moved_in)
    # every line that is written is read and written back
    moved = [2.0 * x if o.written else x for o, x in zip(accesses.operands, moved_in, strict=True)]
    ramps = ramp_factors(problem, sketch, batch, caches, far)
    last = len(caches.capacities) - 1
    all_bytes = sum_arrays(footprints.operand_bytes[:, 0]) + accesses.beside[0]
    fits_last = all_bytes <= caches.capacities[-1] * caches.cost.usable_cache_fraction
    traffic: list[Numbers] = []
    for place, cache in enumerate([*range(len(caches.capacities)), *private]):
        total = sum_arrays(x[place] * _ramp(r, cache, last) for x, r in zip(moved, ramps, strict=True))
        traffic.append(np.where(fits_last, 0.0, total) if cache == last else total)
    one_thread = traffic[: last + 1]
    by_cache = dict(zip(private, traffic[last + 1 :], strict=True))
    return one_thread, [by_cache.get(k, x) for k, x in enumerate(one_thread)]


def _ramp(factors: RampFactors, cache: int, last: int) -> Numbers:
    """The prefetcher's ramp-up factor for data that moves into a cache."""
    if not cache:
        return factors.l1
    return factors.memory if cache == last else factors.cache


def _stays_in_caches(
    accesses: _Accesses, caches: CacheHierarchy, private: Sequence[int], resident: Numbers
) -> list[Mask]:
    """Per row of `resident` whether what is touched at a depth stays in the cache.

    Args:
        accesses: of the batch.
        caches: their parameters.
        private: the caches that several threads have of their own, after all caches on one thread.
        resident: bytes [cache, access, depth, candidate], see `_resident_bytes`.
    """
    footprints, cost = resident[0], caches.cost
    stays = [_stays_cached(accesses, k, capacity, footprints, cost) for k, capacity in enumerate(caches.capacities)]
    for place, level in enumerate(private, len(caches.capacities)):
        if level != private[-1] or not level:
            stays.append(stays[level])
            continue
        share = np.minimum(cost.shared_line_factor, resident[place][:, :1] / footprints[:, :1])
        stays.append(_stays_cached(accesses, level, caches.capacities[level], footprints * share, cost))
    return stays


def _stays_cached(
    accesses: _Accesses, cache: int, capacity: float, operand_bytes: Numbers, cost: CostParameters
) -> Mask:
    """Whether what is touched at a depth stays in a cache [access, or 1 for all; depth, candidate].

    Args:
        accesses: of the batch.
        cache: its position, for the conflict factors.
        capacity: its bytes.
        operand_bytes: bytes that each access takes of it [access, depth, candidate].
        cost: the machine's parameters.

    Where elements along the lanes may each bring their line (`accesses.min_bytes`), every access conflicts in sets of
    its own at any depth, and register tiles are checked, too. Else a register tile always stays.
    """
    factors = [x.get(cache) for x in accesses.conflicts]
    if accesses.min_bytes is not None:
        effective = [x if f is None else x * f for x, f in zip(accesses.min_bytes, factors, strict=True)]
        total = accesses.beside + sum_arrays(operand_bytes)
        fits = (total <= capacity * cost.usable_cache_fraction) | (accesses.innermost & (total <= capacity))
        return (np.array(effective) <= capacity) & fits
    # conflicts of a store evict its own lines only: what is read is used again and again and stays
    total = accesses.beside + sum_arrays(
        x if f is None or o.written else x * f
        for o, x, f in zip(accesses.operands, operand_bytes, factors, strict=True)
    )
    needed = [
        total if f is None or not o.written else total + x * (f - 1.0)
        for o, x, f in zip(accesses.operands, operand_bytes, factors, strict=True)
    ]
    required = total[None] if all(x is total for x in needed) else np.array(needed)
    return (required <= capacity * cost.usable_cache_fraction) | accesses.innermost


def _uncached_bytes(
    accesses: _Accesses, caches: CacheHierarchy, private: Sequence[int], footprints: LoopFootprints, rows: int
) -> dict[int, Numbers]:
    """By access what a register tile moves where not even the tile stays [cache, candidate]; `rows` caches in all."""
    uncached = {k: np.tile(x, (rows, 1)) for k, x in accesses.line_per_element.items()}
    if accesses.min_bytes is None:
        return uncached
    operand_bytes, capacity = footprints.operand_bytes, caches.capacities[0]
    overflows = accesses.beside[-1] + sum_arrays(operand_bytes[:, -1]) > capacity
    # register tiles of one L2 tile
    depth = sum(loop.level == L2 for loop in footprints.loops)
    tiles = reduce(mul, footprints.counts[depth:], np.ones_like(operand_bytes[0, -1]))
    l1_rows = _l1_places(caches, private)
    for k, bytes_ in accesses.line_per_element.items():
        if accesses.operands[k].written or 0 not in accesses.conflicts[k]:
            continue
        factor = accesses.conflicts[k][0][-1]
        pressure = np.where(factor > 1.0, accesses.min_bytes[k, -1] * factor / capacity, 0.0)
        uncached[k][l1_rows] = conflict_bytes(operand_bytes[k, depth] / tiles, bytes_, pressure, overflows, caches.cost)
    return uncached


def _l1_places(caches: CacheHierarchy, private: Sequence[int]) -> list[int]:
    """Where L1 is among all caches on one thread and those that several threads have of their own."""
    return [0, *(place for place, level in enumerate(private, len(caches.capacities)) if not level)]


def _reloaded_bytes(
    problem: Problem, sketch: Sketch, batch: CandidateBatch, caches: CacheHierarchy, footprints: LoopFootprints
) -> dict[int, Numbers]:
    """By access what a program loads into L1 where lines of a register tile's rows do not stay from step to step."""
    if not caches.set_counts or not is_long_reduction(problem, caches.cost) or is_streaming(problem, caches.cost):
        return {}
    per_step = {
        k: reloaded_row_bytes(o, problem, sketch, batch, caches)
        for k, o in enumerate(batch.family.operands)
        if not is_packed(sketch, k)
    }
    factors = [*footprints.counts, *(batch.tiles[REGISTER][a] for a in problem.reduce)]
    steps = reduce(mul, factors, np.ones_like(batch.covered[0]))
    return {k: x * steps for k, x in per_step.items() if x is not None}


def _resident_bytes(footprints: LoopFootprints, threads: int) -> Numbers:
    """Bytes [access, depth, candidate] that the loops from a depth inwards load if everything stays.

    That is their footprint, and what several of the threads touch that share the loops over tasks, once for each: as if
    every thread executed its own share of the tasks only, without stealing any.
    """
    resident = footprints.operand_bytes.copy()
    remaining: Numbers = np.full(resident.shape[2], float(threads))
    shares: list[Numbers] = []
    for loop, count in zip(footprints.loops, footprints.counts, strict=True):
        is_task_loop = loop.level == L2
        shares.append(
            np.minimum(remaining, np.maximum(np.ceil(count), 1.0)) if is_task_loop else np.ones_like(remaining)
        )
        remaining = remaining / shares[-1]
    for d in range(len(shares) - 1, -1, -1):
        shared = np.maximum(resident[:, d], resident[:, d + 1] * shares[d])
        resident[:, d] = np.where(footprints.present[d], shared, resident[:, d + 1])
    return resident


def _repeats(problem: Problem, footprints: LoopFootprints) -> Numbers:
    """How often every access is executed by the iterations of each loop [access, loop, candidate]: once
    per iteration, but results are read and written after the reduction, whose sums are in registers or in buffers of
    their own."""
    repeats = np.tile(np.array(footprints.counts), (len(problem.operands) + len(problem.results), 1, 1))
    if problem.reduce:
        is_reduction = [loop.axis in problem.reduce for loop in footprints.loops]
        repeats[len(problem.operands) :, is_reduction] = 1.0
    return repeats


def _moved_by_cache(
    resident: Numbers, repeats: Numbers, present: Mask, stays: Sequence[Mask], uncached: Mapping[int, Numbers]
) -> Numbers:
    """Bytes that every access moves into every cache [access, cache, candidate].

    Args:
        resident: bytes that the loops from a depth inwards load if everything stays [cache, access, depth, candidate].
        repeats: how often an access is executed by the iterations of the loops, outermost first, see `_repeats`.
        present: which loops candidates have [loop, candidate]; others have one iteration and change nothing.
        stays: per cache whether data stays between iterations [access, or 1 for all; depth, candidate].
        uncached: what a register tile moves of accesses of which not even it stays [cache, candidate].
    """
    stacked = np.empty(resident.shape, np.bool_)
    for cache, stay in zip(stacked, stays, strict=True):
        cache[:] = stay
    moved = resident[:, :, -1].copy()
    for k, bytes_ in uncached.items():
        moved[:, k] = np.where(stacked[:, k, -1], moved[:, k], bytes_)
    # From the inside: what one execution of the loops from depth d inwards moves. Between iterations of a loop whose
    # body fits, everything stays that the next iteration touches again. All caches and accesses in one array: formulas
    # cost as much for few numbers as for many.
    fits = stacked[:, :, 1:] & present
    for d in range(len(present) - 1, -1, -1):
        moved = np.where(fits[:, :, d], resident[:, :, d], moved * repeats[:, d])
    return moved.swapaxes(0, 1)


def _line_per_element_bytes(
    problem: Problem, sketch: Sketch, batch: CandidateBatch, operand_index: int, segment_bytes: Numbers, line: int
) -> Numbers:
    """Bytes that a register tile moves of an access whose elements along the lanes are in different lines, if no line
    stays: one line per element, or whole segments for results that are stored contiguously along another axis."""
    operand, tile = batch.family.accesses[operand_index], batch.tiles[REGISTER]
    bytes_ = touched_elements(operand, tile) * line
    if operand_index < len(problem.operands) or not operand.written:
        return bytes_
    contiguous = [a for a in problem.spatial if a != sketch.lane and problem.results[-1].strides[a] == 1]
    if not contiguous:
        return bytes_
    return np.where(np.logical_or.reduce([tile[a] > 1 for a in contiguous]), segment_bytes, bytes_)


def has_line_per_lane(problem: Problem, sketch: Sketch, line: int) -> tuple[bool, ...]:
    """Per access whether elements along the lanes are in different lines."""
    accesses = (*problem.operands, *problem.results)
    return tuple([abs(o.strides[sketch.lane]) * o.element_bytes >= line for o in accesses])


def partial_sum_bytes(problem: Problem, sketch: Sketch, batch: CandidateBatch) -> Numbers:
    """Bytes of the partial sums of K-blocks; 0 where the reduction is not K-blocked."""
    size: Numbers = np.full_like(batch.covered[0], problem.bits / 8)
    for a in problem.spatial:
        size = size * batch.tiles[L1][a]
    return np.where(k_block_count(sketch, batch) > 1, size, 0.0)
