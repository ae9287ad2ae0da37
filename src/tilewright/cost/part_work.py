"""Work of a part of a program, its whole register tiles or their remainder: what threads then share.

The work is a list of phases that do not overlap with each other; within a phase instructions and memory traffic do.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilewright.cost.caches import CacheHierarchy, cyclic_miss_ratio, miss_ratio
from tilewright.cost.candidate_batch import CandidateBatch
from tilewright.cost.core_terms import TileCycles
from tilewright.cost.false_sharing import FalseSharing, false_sharing
from tilewright.cost.features import Features, extract_features
from tilewright.cost.footprint import Numbers, total_bytes
from tilewright.cost.instructions import tile_cycles
from tilewright.cost.load_phase import LoadPhase, load_phases
from tilewright.cost.loop_footprints import LoopFootprints
from tilewright.cost.parallel_time import Phase
from tilewright.cost.reduction_kind import is_long_reduction, is_streaming
from tilewright.cost.shape_family import FloatPerCandidate
from tilewright.cost.split_loads import split_miss_cycles
from tilewright.cost.store_starts import store_start_ns
from tilewright.cost.traffic import cache_traffic
from tilewright.machine.model import Machine
from tilewright.tile.problem import Problem
from tilewright.tile.program import L1, REGISTER, Sketch

CODE_SIZE_TIEBREAK = 4e-4
"""Tie-breaker: relative penalty per unrolled vector operation, so that smaller code wins among equals."""


@dataclass(frozen=True, slots=True)
class PartWork:
    """The work of a part of the candidates' programs, and the terms that it was computed from.

    Attributes:
        batch: the candidates as LLVM compiles them.
        features: their instruction counts.
        tiles: cycles of the register tiles.
        scatter_stalls: nanoseconds that scatter stores wait.
        split_misses: nanoseconds that vector loads wait which touch two lines from beyond L1.
        store_starts: nanoseconds that stores wait for the first lines of rows in memory.
        moved: bytes that move into each cache by the program's loops.
        miss_ratios: per cache the share of these that come from beyond it.
        stream_penalty: factor on the bytes from beyond L2, for streams that the prefetcher does not track.
        phases: the work.
        slowdown: factor on the times, for the size of the code.
        levels_in_turn: whether every line passes all levels one after the other, as little is used again.
        traffic_growth: per level the growth of the bytes on several threads.
        sharing: lines of results that threads share.
    """

    batch: CandidateBatch
    features: Features
    tiles: TileCycles
    scatter_stalls: float | Numbers
    split_misses: float | Numbers
    store_starts: float | Numbers
    moved: Sequence[Numbers]
    miss_ratios: Sequence[FloatPerCandidate]
    stream_penalty: float | Numbers
    phases: Sequence[Phase]
    slowdown: Numbers
    levels_in_turn: bool
    traffic_growth: Sequence[Numbers]
    sharing: FalseSharing


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The place of a statement in a tree.

    Attributes:
        footprints: of the loops around it.
        executions: how often it runs for all of its points.
        total_bytes: of all that the kernel reads and writes, at every shape.
    """

    footprints: LoopFootprints
    executions: Numbers
    total_bytes: tuple[float, ...]


def part_work(sketch: Sketch, batch: CandidateBatch, machine: Machine, place: Surroundings | None = None) -> PartWork:
    """The work of all whole register tiles, or of the remainder.

    Args:
        sketch, batch: the candidates.
        machine: the machine.
        place: of a statement in a tree; None for the loops of a tile program.
    """
    family, problem, cost = batch.family, batch.family.problem, machine.cost
    is_long = is_long_reduction(problem, cost)
    if not is_long:
        batch = unroll_windows(problem, sketch, batch)
    hierarchy = CacheHierarchy.of(machine)
    line, capacities = hierarchy.line, hierarchy.capacities
    features = extract_features(problem, sketch, batch, line, cost)
    tiles = tile_cycles(problem, sketch, batch, features, machine)
    executions = 1.0 if place is None else place.executions
    store_starts = store_start_ns(sketch, batch, machine) * executions
    work = tiles.total / machine.ghz * executions + store_starts
    footprints = LoopFootprints.of(problem, sketch, batch, line) if place is None else place.footprints

    kernel_bytes = [total_bytes(p) for p in family.problems] if place is None else place.total_bytes
    (far,) = family.gather([(hierarchy.far_fraction(x),) for x in kernel_bytes])
    moved, moved_by_all = cache_traffic(problem, sketch, batch, hierarchy, footprints, far)
    growth = [all_ / np.maximum(one, 1.0) for all_, one in zip(moved_by_all, moved, strict=True)]
    slowdown = 1.0 + CODE_SIZE_TIEBREAK * features.vector_operations
    penalty, stalls, split_misses = 1.0, 0.0, 0.0
    misses: Sequence[FloatPerCandidate] = [1.0] * len(capacities)
    if is_streaming(problem, cost):
        # what is read from first to last, as it was written, has left a cache that is a little too small
        misses = family.gather([[1.0, *(cyclic_miss_ratio(n, x, cost) for x in capacities[1:])] for n in kernel_bytes])
        phases = [Phase(work, [m * ratio for m, ratio in zip(moved, misses, strict=True)])]
    elif is_long:
        split_cycles = split_miss_cycles(problem, sketch, features, footprints, capacities[0], cost)
        split_misses = split_cycles / machine.ghz * executions
        work = work + split_misses
        # data from beyond L2 arrives in time only as far as the prefetcher tracks its streams
        penalty = 1.0 + np.maximum(features.streams - cost.max_streams, 0.0) / cost.max_streams * cost.stream_penalty
        phases = [Phase(work, [m * penalty if k >= 1 else m for k, m in enumerate(moved)])]
        if len(capacities) > 1:
            parts = load_phases(problem, sketch, batch, capacities[1], line, cost, footprints, far)
            phases = [_phase_of(phases[0], x) for x in parts]
    else:
        stalls = _scatter_stalls(features, moved[0], line, machine)
        misses = family.gather([[1.0, *(miss_ratio(n, x, cost) for x in capacities[1:])] for n in kernel_bytes])
        phases = [Phase(work + stalls, [m * ratio for m, ratio in zip(moved, misses, strict=True)])]
    return PartWork(
        batch, features, tiles, stalls, split_misses, store_starts, moved, misses, penalty, phases, slowdown,
        not is_long, growth, false_sharing(sketch, batch, machine),
    )  # fmt: skip


def _scatter_stalls(features: Features, moved: Numbers, line: int, machine: Machine) -> Numbers:
    """Nanoseconds that scatter stores wait: they retire in order, and each waits for its line from L2."""
    stalls = moved / (3.0 * line) * machine.levels[min(1, len(machine.levels) - 1)].latency_ns
    return np.where(features.scatter_stores > 0, stalls, 0.0)


def _phase_of(whole: Phase, part: LoadPhase) -> Phase:
    """The work of a load phase, in which all data from L2 and its share of those from beyond come."""
    work, (l2, *beyond) = whole
    return Phase(work * part.work, [l2 * part.work, *(x * part.loads for x in beyond)])


def unroll_windows(problem: Problem, sketch: Sketch, batch: CandidateBatch) -> CandidateBatch:
    """The batch as LLVM compiles it: short windows are fully unrolled, whichever of their loops a program keeps."""
    sizes, windows = batch.sizes.copy(), [k for k in problem.reduce if k != sketch.lane]
    sizes[REGISTER, windows] = sizes[L1, windows]
    return replace(batch, sizes=sizes)
