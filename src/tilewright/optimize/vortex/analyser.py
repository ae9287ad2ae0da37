"""The hybrid analyser: times of tile programs by a recurrence over the levels of the machine.

    T_temporal(L) = load + (n - 1) max(load, cost(L-1)) + cost(L-1) + store
    cost(L)       = ceil(parallel / units) T_temporal(L)

(Vortex, section 5.2.) Level 0 is a register tile over one K-block, whose time was measured once on the machine, or is
computed where it was not; n register tiles fill a cache buffer (level 1), n cache buffers a task, and threads share the
tasks (level 2). Loads are the bytes that miss the cache nearer to the core over the bandwidth of the one that has them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from tilewright.cost.analytical import cover_reductions
from tilewright.cost.caches import caches
from tilewright.cost.candidate_batch import is_packed, remainder_tiles
from tilewright.cost.footprint import Numbers, moved_bytes, sum_arrays
from tilewright.cost.packing import packing_time
from tilewright.cost.shape_family import ShapeFamily
from tilewright.machine.model import Machine
from tilewright.optimize.vortex.register_tiles import RegisterTileTimes
from tilewright.tile.problem import Problem
from tilewright.tile.program import L1, L2, REGISTER, Sizes, Sketch

MAX_GATHERED_CYCLES = 8.0
"""Most cycles that assembling the lanes of one vector from distant elements is taken to cost."""


class RegisterTileSource(StrEnum):
    """Where the times of register tiles are from.

    Attributes:
        MEASURED: the machine's description, computed where it has none.
        COMPUTED: ports and latencies alone.
    """

    MEASURED = "measured"
    COMPUTED = "computed"


@dataclass(frozen=True, slots=True)
class Analyser:
    """Estimates of programs on a machine.

    Attributes:
        machine: the machine.
        tile_source: where the times of register tiles are from.
    """

    machine: Machine
    tile_source: RegisterTileSource = RegisterTileSource.MEASURED

    def times(self, problem: Problem, sketch: Sketch, sizes: Sizes) -> Numbers:
        """Nanoseconds of candidates [candidate, level, axis] of a problem."""
        family = ShapeFamily.of(problem)
        return _candidate_times(
            family, sketch, cover_reductions(family, sizes), self.machine, self._register_tiles(problem)
        )

    def sample_times(self, problem: Problem, sketch: Sketch, sizes: Sizes) -> Numbers:
        """Nanoseconds of candidates at the samples of a problem [sample, candidate]."""
        return np.stack([self.times(p, sketch, sizes) for p in problem.samples])

    def on_one_core(self) -> "Analyser":
        """The same for a single thread."""
        return replace(self, machine=self.machine.with_cores(1))

    def _register_tiles(self, problem: Problem) -> RegisterTileTimes:
        if self.tile_source is RegisterTileSource.COMPUTED:
            return RegisterTileTimes.computed(self.machine)
        return RegisterTileTimes.of(self.machine, problem.bits)


@dataclass(frozen=True, slots=True)
class LevelTimes:
    """One level of the recurrence, one number per candidate.

    Attributes:
        load: nanoseconds of loading what one iteration needs.
        iterations: how many there are.
        store: nanoseconds of storing the results of all.
    """

    load: Numbers
    iterations: Numbers
    store: Numbers

    def temporal(self, inner: Numbers) -> Numbers:
        """Nanoseconds of all iterations, each of which takes `inner` in the level below."""
        return self.load + (self.iterations - 1.0) * np.maximum(self.load, inner) + inner + self.store


def parallel_cost(temporal: Numbers, tasks: Numbers, units: int) -> Numbers:
    """Nanoseconds of tasks that take `temporal` each on so many units."""
    return np.ceil(tasks / units) * temporal


def _candidate_times(
    family: ShapeFamily, sketch: Sketch, sizes: Sizes, machine: Machine, tiles: RegisterTileTimes
) -> Numbers:
    problem = family.problem
    work = _ProgramWork.of(family, sketch, sizes, machine, tiles)
    serial = _on_cores(work, sketch, sizes, family, machine, 1)
    serial = serial + packing_time(problem, sketch, machine)
    if machine.cores == 1:
        return serial
    parallel = _on_cores(work, sketch, sizes, family, machine, machine.cores)
    parallel = parallel + packing_time(problem, sketch, machine, True) + machine.sync_us * 1e3
    return np.minimum(serial, parallel)


@dataclass(frozen=True, slots=True, eq=False)
class _ProgramWork:
    """What candidates execute, one number each.

    Attributes:
        tiles: register tiles, over all K-blocks.
        nanoseconds: of all of them, without waiting for memory.
        buffers: cache buffers, over all K-blocks.
        tasks: what threads share.
    """

    tiles: Numbers
    nanoseconds: Numbers
    buffers: Numbers
    tasks: Numbers

    @staticmethod
    def of(
        family: ShapeFamily, sketch: Sketch, sizes: Sizes, machine: Machine, times: RegisterTileTimes
    ) -> "_ProgramWork":
        """The work of candidates [candidate, level, axis]."""
        problem, spatial = family.problem, list(family.problem.spatial)
        extents, register = problem.extents, sizes[:, REGISTER]
        counts = (extents // register).astype(np.float64)
        counts[:, sketch.lane] = -(-extents[sketch.lane] // register[:, sketch.lane])
        steps = counts[:, list(problem.reduce)].prod(axis=1) * register[:, list(problem.reduce)].prod(axis=1)
        blocks = _blocks(problem, sketch, sizes)
        heights, remainders = remainder_tiles(family, sketch, sizes)
        whole = counts[:, spatial].prod(axis=1)
        rows = _tile_rows(register, problem, sketch)
        total, nanoseconds = np.zeros(len(sizes)), np.zeros(len(sizes))
        parts = [(whole, rows)]
        for a in spatial:
            if (remainders[:, a] > 0).any():
                others = counts[:, [b for b in spatial if b != a]].prod(axis=1)
                parts.append((others * remainders[:, a], rows // register[:, a] * heights[:, a]))
        for count, height in parts:
            cycles = _tile_cycles(height, register, steps, blocks, problem, sketch, machine, times)
            total = total + count * blocks
            nanoseconds = nanoseconds + count * cycles / machine.ghz
        tasks, buffers = (_tile_count(extents, sizes[:, level], problem) for level in (L2, L1))
        return _ProgramWork(np.maximum(total, 1.0), nanoseconds, np.maximum(buffers, tasks) * blocks, tasks)


def _blocks(problem: Problem, sketch: Sketch, sizes: Sizes) -> Numbers:
    """K-blocks of the reduction."""
    k = sketch.k_block_axis
    return np.ones(len(sizes)) if k is None or k == sketch.lane else np.ceil(sizes[:, L2, k] / sizes[:, L1, k])


def _tile_rows(register: Sizes, problem: Problem, sketch: Sketch) -> Sizes:
    """Rows of register tiles along all axes."""
    return register[:, [a for a in problem.spatial if a != sketch.lane]].prod(axis=1)


def _tile_count(extents: Sizes, tiles: Sizes, problem: Problem) -> Numbers:
    """Tiles that cover the spatial axes."""
    return np.stack([-(-extents[a] // tiles[:, a]) for a in problem.spatial]).prod(axis=0).astype(np.float64)


def _tile_cycles(
    rows: Sizes,
    register: Sizes,
    steps: Numbers,
    blocks: Numbers,
    problem: Problem,
    sketch: Sketch,
    machine: Machine,
    times: RegisterTileTimes,
) -> Numbers:
    """Cycles of register tiles of so many rows over the whole reduction."""
    cost, lane = machine.cost, sketch.lane
    vectors = register[:, lane] // sketch.lanes
    sums_in_lanes = problem.axes[lane].is_reduction
    unroll = register[:, [a for a in problem.reduce if a != lane]].prod(axis=1)
    per_term = times.at(np.maximum(rows, 1), vectors, unroll) * problem.operations
    per_term = per_term + vectors * _gather_cycles(problem, sketch, machine)
    if sums_in_lanes:
        # no broadcasts: every row loads vectors of its own, and its lanes are added up at the end
        loads = (rows * vectors + vectors) * cost.load_cycles / machine.load_ports
        terms = steps / register[:, lane]
        combine = rows * np.log2(sketch.lanes) * machine.fma_cycles
        return np.maximum(per_term, loads) * terms + combine + cost.tile_cycles
    overhead = cost.tile_cycles + np.where(blocks > 1, cost.k_block_cycles, 1.0) * rows * vectors
    return per_term * steps + overhead * blocks


def _gather_cycles(problem: Problem, sketch: Sketch, machine: Machine) -> float:
    """Cycles per vector of assembling lanes that are not adjacent."""
    total = 0.0
    for k, o in enumerate(problem.operands):
        stride = abs(o.strides[sketch.lane])
        if stride > 1 and not is_packed(sketch, k):
            total += min(MAX_GATHERED_CYCLES, machine.cost.shuffle_cycles * (stride - 1))
    return total


def _on_cores(
    work: _ProgramWork, sketch: Sketch, sizes: Sizes, family: ShapeFamily, machine: Machine, cores: int
) -> Numbers:
    """Nanoseconds on so many cores by the recurrence, without fork and join."""
    problem = family.problem
    missed = _missed_bytes(family, sketch, sizes, machine)
    levels = [*caches(machine)[1:], machine.levels[-1]]
    from_near, *from_far = [total / (level.gbs(cores) / cores) for total, level in zip(missed, levels, strict=True)]
    results = float(sum(o.bytes for o in problem.results))
    bandwidth = next((x for x in levels[:-1] if results <= x.share), levels[-1])
    store = results / (bandwidth.gbs(cores) / cores) / work.tasks
    none = np.zeros_like(store)
    # hardware prefetches across tiles and tasks, so a core fills its pipelines once
    shares = np.minimum(work.tasks, float(cores))
    tile = LevelTimes(from_near / work.tiles, work.tiles / shares, none)
    whole_tile = tile.temporal(work.nanoseconds / work.tiles) / tile.iterations
    far_load = sum_arrays([none, *from_far]) / work.buffers
    buffer = LevelTimes(far_load, work.buffers / shares, store * work.tasks / shares)
    average = buffer.temporal(whole_tile * work.tiles / work.buffers) * shares / work.tasks
    # remainders are smaller tasks: no core takes less than a whole one, nor more than its share of all
    whole = average * work.tasks * np.minimum(_whole_task_share(problem, sizes), 1.0)
    return np.minimum(average * work.tasks, np.maximum(whole, parallel_cost(average, work.tasks, cores)))


def _whole_task_share(problem: Problem, sizes: Sizes) -> Numbers:
    """The part of all work that a whole task is."""
    axes = [(np.minimum(sizes[:, L2, a], problem.axes[a].extent), problem.axes[a].extent) for a in problem.spatial]
    return np.stack([task / max(1, extent) for task, extent in axes]).prod(axis=0)


def _missed_bytes(family: ShapeFamily, sketch: Sketch, sizes: Sizes, machine: Machine) -> list[Numbers]:
    """Bytes of operands, in a whole call, that each cache has not and the next level gives; what the last cache holds
    entirely stays there between calls."""
    problem, loops = family.problem, _surrounding_loops(family, sketch, sizes)
    box: list[Numbers] = [sizes[:, REGISTER, a].astype(np.float64) for a in range(len(problem.axes))]
    for a in problem.reduce:
        box[a] = sizes[:, L1, a].astype(np.float64)
    accesses = [(o, is_packed(sketch, k)) for k, o in enumerate(problem.operands)]
    line = caches(machine)[0].line
    capacities = [x.share * machine.cost.usable_cache_fraction for x in caches(machine)]
    bytes_ = [moved_bytes(o, box, line, packed) for o, packed in accesses]
    moved = [list(bytes_) for _ in capacities]
    inside = [sum_arrays(bytes_) <= c for c in capacities]
    held = [[np.ones(len(sizes), np.bool_) for _ in accesses] for _ in capacities]
    for axis, trips in loops:
        extent = float(problem.axes[axis].extent)
        box[axis] = np.minimum(box[axis] * trips, np.maximum(extent, box[axis]))
        bytes_ = [moved_bytes(o, box, line, packed) for o, packed in accesses]
        total = sum_arrays(bytes_)
        for c, capacity in enumerate(capacities):
            inside[c] = inside[c] & (total <= capacity)
            for k, (o, _) in enumerate(accesses):
                stays = held[c][k] & (not o.uses(axis))
                outside = np.where(stays, moved[c][k], moved[c][k] * trips)
                moved[c][k] = np.where(inside[c], bytes_[k], outside)
                if o.uses(axis):
                    held[c][k] = held[c][k] & (inside[c] | (trips <= 1))
    return [np.where(inside[c], 0.0, sum_arrays(moved[c])) for c in range(len(capacities))]


def _surrounding_loops(family: ShapeFamily, sketch: Sketch, sizes: Sizes) -> Sequence[tuple[int, Numbers]]:
    """The loops around a register tile's K-block, the innermost first: axis and trips; every tile of a remainder is one
    more."""
    problem, remainders = family.problem, remainder_tiles(family, sketch, sizes)[1]
    loops: list[tuple[int, Numbers]] = []
    inner = sizes[:, REGISTER].astype(np.float64)
    for level in (L1, L2, None):
        for a in reversed(sketch.order):
            extent = problem.axes[a].extent
            outer = np.maximum(extent, 1.0) if level is None else sizes[:, level, a].astype(np.float64)
            trips = np.maximum(np.ceil(outer / inner[:, a]), 1.0)
            loops.append((a, trips + np.maximum(remainders[:, a] - 1, 0) if level is None else trips))
            inner[:, a] = np.maximum(inner[:, a], outer)
        k = sketch.k_block_axis
        if level == L1 and k is not None and k != sketch.lane:
            loops.append((k, np.maximum(np.ceil(sizes[:, L2, k] / sizes[:, L1, k]), 1.0)))
    return loops
