"""Cost model of row-wise programs: instructions of all stages, traffic of intermediates, traffic of inputs and outputs.

Intermediates move through the nearest cache that holds them, inputs and outputs once from the nearest level that holds
all of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from tilewright.cost.caches import caches, miss_ratio
from tilewright.cost.candidate_batch import CandidateBatch
from tilewright.cost.core_terms import TileCycles
from tilewright.cost.features import Features, extract_features
from tilewright.cost.footprint import Numbers
from tilewright.cost.hw_prefetch import has_split_vectors, page_ramp
from tilewright.cost.instructions import tile_cycles
from tilewright.cost.parallel_time import Phase, parallel_time
from tilewright.cost.part_work import CODE_SIZE_TIEBREAK
from tilewright.cost.reduction_kind import is_long_reduction
from tilewright.cost.shape_family import ShapeFamily
from tilewright.cost.time import Time
from tilewright.machine.cost_parameters import CostParameters
from tilewright.machine.model import Machine
from tilewright.tile.operand import Operand
from tilewright.tile.problem import Problem
from tilewright.tile.program import REGISTER, Sizes, Sketch
from tilewright.tile.rowwise import RowBlocking, RowwiseProgram


@dataclass(frozen=True, slots=True)
class StageCycles:
    """Cycles of a stage for one block of rows.

    Attributes:
        features: instruction counts.
        tiles: of the register tiles.
        code_size: the penalty for the size of the code.
        store_forward_stalls: loads that wait for buffered stores.
        split_stores: stores that wait for two lines from beyond L2.
        total: of these, and of starting the stage.
    """

    features: Features
    tiles: TileCycles
    code_size: Numbers
    store_forward_stalls: float
    split_stores: Numbers
    total: Numbers


def stage_cycles(
    problem: Problem, sketch: Sketch, sizes: Sizes, blocking: RowBlocking, machine: Machine
) -> StageCycles:
    """Cycles of a stage for one block of rows, of candidates [candidate, level, axis]."""
    batch = CandidateBatch.rounded_up(ShapeFamily.of(problem), sizes)
    features = extract_features(problem, sketch, batch, caches(machine)[0].line, machine.cost)
    code_size_factor = 1.0 + CODE_SIZE_TIEBREAK * features.vector_operations
    tiles = tile_cycles(problem, sketch, batch, features, machine)
    stalls = _store_forward_stall_cycles(problem, sketch, machine)
    split_stores = _split_store_cycles(problem, sketch, sizes, blocking, machine)
    penalized = tiles.total * code_size_factor
    total = penalized + machine.cost.row_block_cycles + stalls + split_stores
    return StageCycles(features, tiles, penalized - tiles.total, stalls, split_stores, total)


def row_block_cycles(
    problem: Problem, sketch: Sketch, sizes: Sizes, blocking: RowBlocking, machine: Machine
) -> Numbers:
    """Cycles of a stage for one block of rows, of candidates [candidate, level, axis]; all terms of `stage_cycles`."""
    return stage_cycles(problem, sketch, sizes, blocking, machine).total


def _split_store_cycles(
    problem: Problem, sketch: Sketch, sizes: Sizes, blocking: RowBlocking, machine: Machine
) -> Numbers:
    """Cycles that a window's stores wait for lines from beyond L2, where register tiles interleave stores to parts of
    several unaligned rows.

    Such a store needs two lines, and the next one waits for both. Whole rows, and parts of a single row, are stored
    contiguously. The number of rows, beyond one, is ignored.
    """
    levels = caches(machine)
    l2 = levels[min(1, len(levels) - 1)]
    misses = miss_ratio(float(sum(blocking.external_bytes.values())), l2.share, machine.cost)
    l3_latency = machine.levels[min(2, len(machine.levels) - 1)].latency_ns
    wait = machine.cost.split_store_l3_fraction * l3_latency * machine.ghz * misses
    cycles: Numbers = np.zeros(len(sizes))
    for o in problem.results:
        if o.private or not o.written or not o.uses(sketch.lane):
            continue
        if not has_split_vectors(o, levels[0].line, sketch.lanes * o.element_bytes).any():
            continue
        row_axes = [a for a in problem.spatial if a != sketch.lane and o.uses(a)]
        width, extent = sizes[:, REGISTER, sketch.lane], problem.axes[sketch.lane].extent
        is_interleaved = (sizes[:, REGISTER, row_axes].prod(axis=1) > 1) & (width < extent)
        stores = prod(problem.axes[a].extent for a in row_axes) * np.ceil(extent / width)
        cycles = cycles + np.where(is_interleaved, stores * wait, 0.0)
    return cycles


def _store_forward_stall_cycles(problem: Problem, sketch: Sketch, machine: Machine) -> float:
    """Cycles that windows wait for rows that the stage before has just stored, where rows are shorter than the widest
    vectors.

    A load that spans several stores, or reads what a masked one has stored, waits until they have left the store
    buffer, which holds all stores of a short block of rows.
    """
    windows = [o for o in problem.operands if o.private and o.uses(sketch.lane) and any(map(o.uses, problem.reduce))]
    stores = sum(prod(o.shape[:-1]) for o in windows if not _is_forwarded(o.shape[-1], problem, sketch, machine))
    if sketch.lane in problem.reduce or stores > machine.cost.store_buffer_entries:
        return 0.0
    return stores * machine.cost.store_forward_stall_cycles


def _is_forwarded(row: int, problem: Problem, sketch: Sketch, machine: Machine) -> bool:
    """Whether loads of rows of so many elements get them from the store buffer, or need not: longer rows are stored in
    several vectors, and before they are read again others are. A load that begins within a row must end in it."""
    if row * problem.bits >= machine.vector_bits:
        return True
    is_masked = row & (row - 1) != 0
    return row >= 2 * sketch.lanes and not is_masked


def rowwise_time(program: RowwiseProgram, machine: Machine) -> Time:
    """The time of one program, as arrays of one element."""
    work = [row_block_cycles(p.problem, p.sketch, p.array[None], program.blocking, machine) for p in program.stages]
    return rowwise_times(program.blocking, [p.problem for p in program.stages], work, machine)


def rowwise_times(
    blocking: RowBlocking, problems: Sequence[Problem], work: Sequence[Numbers], machine: Machine
) -> Time:
    """The times of programs with the same row blocking.

    Args:
        blocking: how rows are split.
        problems: of the stages, for one block of rows.
        work: per stage the cycles for one block of rows [program].
        machine: the machine.
    """
    one, phases = np.ones_like(work[0]), stage_phases(blocking, problems, work, machine)
    return parallel_time(phases, one * blocking.block_count, one, machine, levels_in_turn=True)


def stage_phases(
    blocking: RowBlocking, problems: Sequence[Problem], work: Sequence[Numbers], machine: Machine
) -> list[Phase]:
    """The phases of all blocks of rows, one per stage; arguments as for `rowwise_times`."""
    one, moved = np.ones_like(work[0]), stage_traffic(blocking, problems, machine)
    return [
        Phase(cycles * blocking.block_count / machine.ghz, [one * x for x in bytes_])
        for cycles, bytes_ in zip(work, moved, strict=True)
    ]


def stage_traffic(blocking: RowBlocking, problems: Sequence[Problem], machine: Machine) -> list[list[float]]:
    """Per stage the bytes that leave each level from L2 outwards.

    Inputs and outputs move in the first stage that touches them, outputs in both directions. Intermediates, and outputs
    that a later stage reads, stay in a cache as far as it holds everything that a stage touches of a block of rows, and
    else move in every stage.
    """
    levels, cost = caches(machine), machine.cost
    external_bytes = float(sum(blocking.external_bytes.values()))
    seen: set[str] = set()
    stored: set[str] = set()
    traffic: list[list[float]] = []
    for p in problems:
        operands = {x.buffer: x for x in (*p.operands, *p.results)}.values()
        first_uses = [o for o in operands if not o.private and o.buffer not in seen]
        seen.update(o.buffer for o in first_uses)
        read_again = sum(float(o.bytes) for o in operands if o.buffer in stored)
        stored.update(o.buffer for o in first_uses if o.written)
        live = sum(o.bytes / (1 if o.private else blocking.block_count) for o in operands)
        intermediate_bytes = read_again + sum(
            (2.0 if o.written else 1.0) * o.bytes * blocking.block_count for o in operands if o.private
        )
        moved: list[float] = []
        for k, x in enumerate(levels):
            misses = miss_ratio(external_bytes, x.share, cost)
            streamed = sum(
                blocking.external_bytes[o.buffer] * _external_traffic_factor(p, o, k, misses, x.line, cost)
                for o in first_uses
            )
            moved.append(streamed + intermediate_bytes * _intermediate_miss_ratio(live, k, x.share, cost))
        traffic.append(moved)
    return traffic


def _intermediate_miss_ratio(live: float, level: int, capacity: float, cost: CostParameters) -> float:
    """Share of the intermediates that a cache no longer holds; `live` bytes are touched per block of rows.

    L1 loses the more, the more of it a block takes, long before it is full. In caches beyond it, intermediates are
    written and read from first to last, so one that is a little too small loses most of them.
    """
    if not level:
        return max(0.0, 1.0 - cost.l1_intermediate_fraction * capacity / max(1.0, live))
    return min(1.0, 2.0 * miss_ratio(live, capacity, cost))


def _external_traffic_factor(
    problem: Problem, operand: Operand, level: int, external_miss_ratio: float, line: int, cost: CostParameters
) -> float:
    """Weight of an input's or output's bytes in the traffic into a cache.

    Beyond L1 it follows the miss ratio of all inputs and outputs. A long reduction waits for them as that of a tile
    program does, at the start of every page, and it reads them from first to last, as they were written, so a cache
    that is a little too small has lost most of them.
    """
    if not level:
        return 2.0 if operand.written else 1.0
    if operand.written:
        return 2.0 * external_miss_ratio
    if not is_long_reduction(problem, cost):
        return external_miss_ratio
    box = [np.array([float(a.extent)]) for a in problem.axes]
    return min(1.0, 2.0 * external_miss_ratio) * float(page_ramp(operand, box, line, cost)[0])


def is_rowwise_parallel_profitable(program: RowwiseProgram, machine: Machine) -> bool:
    """Whether a program should run on several threads; always where the number of rows is symbolic."""
    return not program.blocking.is_static or bool(rowwise_time(program, machine).parallel[0] > 0)
