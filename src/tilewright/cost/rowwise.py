"""How long programs of chains of blocks take: the instructions of all steps, what they hand on through the nearest
cache that holds it, and what lies outside once from the nearest level that holds all of it."""

from collections.abc import Sequence
from math import prod

import numpy as np

from tilewright.cost.analytical import CODE_SIZE_TIEBREAK
from tilewright.cost.candidate_batch import CandidateBatch
from tilewright.cost.features import extract_features
from tilewright.cost.footprint import Numbers
from tilewright.cost.hw_prefetch import has_split_vectors, is_long_reduction, page_ramp
from tilewright.cost.instructions import tile_cycles
from tilewright.cost.shape_family import ShapeFamily
from tilewright.cost.time import Time, caches, miss_ratio, parallel_time
from tilewright.machine.model import Machine
from tilewright.tile.operand import Operand
from tilewright.tile.problem import Problem
from tilewright.tile.program import REGISTER, Sizes, Sketch
from tilewright.tile.rowwise import RowBlocking, RowwiseProgram

L1_INTERMEDIATE_FRACTION = 0.5
"""The part of the first cache in which a step finds what it touches of a group, as what lies outside passes through it:
groups of planes that take two thirds of it, nine tenths, and a quarter more than all of it take 1.1, 1.25 and 1.4 times
as long per plane as those of a sixth."""

ROW_BLOCK_CYCLES = 6.0
"""Of beginning a step for another group of rows: loops of a few iterations whose ends are mispredicted now and then."""

SPLIT_STORE_L3_FRACTION = 0.25
"""Of the latency of the level behind the second cache, what a store of a part of a row waits: windows of 144 planes of
56 x 56 on one core take 290 us in tiles of one row of 16 lanes, 390, 420 and 470 us in tiles of 2, 3 and 5."""

STORE_BUFFER_ENTRIES = 64
"""Stores that wait for the first cache."""

STORE_FORWARD_STALL_CYCLES = 19.0
"""Of waiting for one of them."""


def row_block_cycles(
    problem: Problem, sketch: Sketch, sizes: Sizes, blocking: RowBlocking, machine: Machine
) -> Numbers:
    """Cycles of a step for one group of rows, per candidate [candidate, level, axis]."""
    columns = CandidateBatch.rounded_up(ShapeFamily.of(problem), sizes)
    found = extract_features(problem, sketch, columns)
    spent = (
        tile_cycles(problem, sketch, columns, found, machine) * (1.0 + CODE_SIZE_TIEBREAK * found.vector_operations)
        + ROW_BLOCK_CYCLES
    )
    return (
        spent
        + _store_forward_stall_cycles(problem, sketch)
        + _split_store_cycles(problem, sketch, sizes, blocking, machine)
    )


def _split_store_cycles(
    problem: Problem, sketch: Sketch, sizes: Sizes, blocking: RowBlocking, machine: Machine
) -> Numbers:
    """Cycles that a window's stores wait for lines that no near cache holds, where register tiles store parts of
    several rows in turns and rows begin anywhere in lines: a store needs two of them then, and the next one waits for
    both. Whole rows, and parts of one row, follow each other; of how many rows, beyond one, is left out."""
    near = caches(machine)
    away = miss_ratio(float(sum(blocking.external_bytes.values())), near[min(1, len(near) - 1)].share)
    wait = SPLIT_STORE_L3_FRACTION * machine.levels[min(2, len(machine.levels) - 1)].latency_ns * machine.ghz * away
    spent: Numbers = np.zeros(len(sizes))
    for o in problem.results:
        if o.private or not o.written or not o.uses(sketch.lane):
            continue
        if not has_split_vectors(o, near[0].line, sketch.lanes * o.element_bytes).any():
            continue
        others = [a for a in problem.spatial if a != sketch.lane and o.uses(a)]
        width, extent = sizes[:, REGISTER, sketch.lane], problem.axes[sketch.lane].extent
        several = (sizes[:, REGISTER, others].prod(axis=1) > 1) & (width < extent)
        parts = prod(problem.axes[a].extent for a in others) * np.ceil(extent / width)
        spent = spent + np.where(several, parts * wait, 0.0)
    return spent


def _store_forward_stall_cycles(problem: Problem, sketch: Sketch) -> float:
    """Cycles that windows wait for rows that the step before has just stored, where rows are shorter than vectors: a
    load spans several stores, and must wait until they have left the store buffer. That of a short group holds all."""
    handed = [o for o in problem.operands if o.private and o.uses(sketch.lane) and any(map(o.uses, problem.reduce))]
    stores = sum(prod(o.shape[:-1]) for o in handed if o.shape[-1] < sketch.lanes)
    return (
        0.0 if sketch.lane in problem.reduce or stores > STORE_BUFFER_ENTRIES else stores * STORE_FORWARD_STALL_CYCLES
    )


def rowwise_time(program: RowwiseProgram, machine: Machine) -> Time:
    """The time of one program, as arrays of one element."""
    work = [row_block_cycles(p.problem, p.sketch, p.array[None], program.blocking, machine) for p in program.stages]
    return rowwise_times(program.blocking, [p.problem for p in program.stages], work, machine)


def rowwise_times(
    blocking: RowBlocking, problems: Sequence[Problem], work: Sequence[Numbers], machine: Machine
) -> Time:
    """The times of programs that cut rows alike.

    Args:
        rows: how they do.
        problems: of the steps, for one group of rows.
        work: per step the cycles for one group, per program.
        machine: where they run.
    """
    one = np.ones_like(work[0])
    moved = stage_traffic(blocking, problems, machine)
    parts = [
        (cycles * blocking.block_count / machine.ghz, [one * x for x in m])
        for cycles, m in zip(work, moved, strict=True)
    ]
    return parallel_time(parts, one * blocking.block_count, one, machine, streaming=True)


def stage_traffic(blocking: RowBlocking, problems: Sequence[Problem], machine: Machine) -> list[list[float]]:
    """Per step the bytes that leave each level from the second one outwards.

    What lies outside moves in the first step that touches it, results back and forth; what steps hand on stays in a
    cache as far as that holds all that a step touches in a group, or moves in every step.
    """
    near = caches(machine)
    outside = float(sum(blocking.external_bytes.values()))
    seen: set[str] = set()
    found: list[list[float]] = []
    for p in problems:
        touched = {x.buffer: x for x in (*p.operands, *p.results)}.values()
        first = [o for o in touched if not o.private and o.buffer not in seen]
        seen.update(o.buffer for o in first)
        live = sum(prod(o.shape) * o.element_bytes / (1 if o.private else blocking.block_count) for o in touched)
        handed = sum(
            (2.0 if o.written else 1.0) * prod(o.shape) * o.element_bytes * blocking.block_count
            for o in touched
            if o.private
        )
        moved: list[float] = []
        for k, x in enumerate(near):
            away = miss_ratio(outside, x.share)
            passing = sum(blocking.external_bytes[o.buffer] * (_external_traffic_factor(p, o, away,
            x.line) if k else 2.0 if o.written else 1.0)
                          for o in first)  # fmt: skip
            moved.append(
                passing
                + handed
                * (_intermediate_miss_ratio(live, x.share) if k else _l1_intermediate_miss_ratio(live, x.share))
            )
        found.append(moved)
    return found


def _intermediate_miss_ratio(live: float, capacity: float) -> float:
    """The part of what is handed on that a cache behind the first one has lost: as it is written and read from first to
    last, one that is a little too small loses most of it."""
    return min(1.0, 2.0 * miss_ratio(live, capacity))


def _l1_intermediate_miss_ratio(live: float, capacity: float) -> float:
    """The part that the first cache has lost: the more of it a group takes, the more, long before it is full."""
    return max(0.0, 1.0 - L1_INTERMEDIATE_FRACTION * capacity / max(1.0, live))


def _external_traffic_factor(problem: Problem, operand: Operand, external_miss_ratio: float, line: int) -> float:
    """By what an operand's bytes count in levels behind a cache that misses this part of what lies outside.

    A long sum waits for them as that of a tile program does, at the start of every page, and it reads them from first
    to last, as they were written: a cache that is a little too small has lost most of them.
    """
    if operand.written:
        return 2.0 * external_miss_ratio
    if not is_long_reduction(problem):
        return external_miss_ratio
    group = [np.array([float(a.extent)]) for a in problem.axes]
    return min(1.0, 2.0 * external_miss_ratio) * float(page_ramp(operand, group, line)[0])


def is_rowwise_parallel_profitable(program: RowwiseProgram, machine: Machine) -> bool:
    """Whether a program should run on several threads; always where the number of rows is known only later."""
    return not program.blocking.is_static or bool(rowwise_time(program, machine).parallel[0] > 0)
