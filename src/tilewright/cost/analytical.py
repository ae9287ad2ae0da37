"""Analytical cost model of tile programs: instructions, memory traffic and threads.

The work of different resources overlaps, but never fully, so the time is that of the slowest resource and a share of
the others.

Clocks, execution units, latencies and bandwidths are those of the machine description, and so are cycles of loop entry,
guards, masks, shuffles and spills, overlap, and the hardware prefetcher (`Machine.cost`, `machine/cost_parameters.py`).
`docs/cost-model.md` has the measurements behind each parameter; `benchmarks/cost_model.py` measures how well programs
are ranked.
"""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tilewright.cost.candidate_batch import CandidateBatch, is_packed, remainder_tiles
from tilewright.cost.footprint import Numbers, moved_bytes, sum_arrays
from tilewright.cost.packing import packing_time
from tilewright.cost.parallel_time import parallel_time
from tilewright.cost.part_work import part_work
from tilewright.cost.regimes import group_by_regime
from tilewright.cost.shape_family import ShapeFamily
from tilewright.cost.time import Time
from tilewright.machine.alignment import CACHE_LINE_BYTES
from tilewright.machine.cost_parameters import CostParameters
from tilewright.machine.model import Machine
from tilewright.tile.problem import Problem
from tilewright.tile.program import L1, L2, REGISTER, Mask, Sizes, Sketch, TileProgram

MAX_BATCH_SIZE = 4000
"""Candidates that are scored at once: their intermediate arrays take 14 MB. A second scores 239,000 programs of a 512 x
512 x 512 product in batches of 1000, 370,000 to 400,000 of 4000, 320,000 of 8000 (one core of a Zen 4)."""


def program_times(problem: Problem, sketch: Sketch, sizes: Sizes, machine: Machine) -> Time:
    """The times of candidates [candidate, level, axis]."""
    return family_times(ShapeFamily.of(problem), sketch, sizes, machine)


def family_times(family: ShapeFamily, sketch: Sketch, sizes: Sizes, machine: Machine) -> Time:
    """The times of candidates [candidate, level, axis] whose problems are of one regime (`program_regime`)."""
    if len(sizes) <= MAX_BATCH_SIZE:
        return _batch_times(family, sketch, sizes, machine)
    batches = np.split(np.arange(len(sizes)), range(MAX_BATCH_SIZE, len(sizes), MAX_BATCH_SIZE))
    return Time.concat([_batch_times(family.select(k), sketch, sizes[k], machine) for k in batches])


def _batch_times(family: ShapeFamily, sketch: Sketch, sizes: Sizes, machine: Machine) -> Time:
    """The times of one batch."""
    parts = split_parts(family, sketch, sizes)
    if parts.remainder is None:
        times = _zero_unless(parts.has_whole_tile, _part_times(sketch, parts.main, machine))
    else:
        # one array for both: formulas cost as much for few candidates as for many
        both, count = _part_times(sketch, parts.main.concat(parts.remainder), machine), len(sizes)
        main_times, rest = both.map_arrays(lambda x: x[:count]), both.map_arrays(lambda x: x[count:])
        fork_join = rest.parallel * np.where(parts.has_own_tasks, 1.0, 0.0)
        rest = Time(rest.compute, rest.memory, fork_join, rest.total - rest.parallel + fork_join)
        times = _zero_unless(parts.has_whole_tile, main_times) + _scatter_times(parts.positions, rest, count)
    alone, shared = family.per_shape(lambda p: [packing_time(p, sketch, machine, x) for x in (False, True)])
    packing = np.where(times.parallel > 0, shared, alone)
    return Time(times.compute, times.memory, times.parallel, times.total + packing)


def _part_times(sketch: Sketch, batch: CandidateBatch, machine: Machine) -> Time:
    """The times of all whole register tiles, or of the remainder."""
    part = part_work(sketch, batch, machine)
    return parallel_time(
        part.phases, part.features.tasks, part.slowdown, machine, part.levels_in_turn, part.traffic_growth,
        part.sharing,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Parts:
    """Candidates as their whole register tiles and the remainder.

    Attributes:
        main: whole register tiles of all candidates, at least one along every axis.
        has_whole_tile: which candidates have a whole register tile at all.
        positions: of the candidates that have a remainder.
        remainder: their remainders; None where no candidate has one.
        has_own_tasks: which of the remainders are tasks of their own: the others follow the whole tiles in the same
            tasks, as an L2 tile has all whole tiles of rows.
    """

    main: CandidateBatch
    has_whole_tile: Mask
    positions: npt.NDArray[np.int64]
    remainder: CandidateBatch | None
    has_own_tasks: Mask


def split_parts(family: ShapeFamily, sketch: Sketch, sizes: Sizes) -> Parts:
    """The parts of candidates [candidate, level, axis]."""
    main, has_whole_tile = CandidateBatch.of(family, sketch, sizes), _has_whole_tile(family, sketch, sizes)
    heights, counts = remainder_tiles(family, sketch, sizes)
    positions = np.flatnonzero((counts > 0).any(axis=1))
    if not len(positions):
        return Parts(main, has_whole_tile, positions, None, np.zeros(0, np.bool_))
    family, sizes, heights, counts = family.select(positions), sizes[positions], heights[positions], counts[positions]
    rows = heights * counts
    remainder = CandidateBatch.of_remainder(family, sketch, sizes, heights, rows)
    is_own: Mask = (sizes[:, L2] < _rows_in_whole_tiles(family, sizes)) & (rows > 0)
    has_own_tasks: Mask = np.logical_or.reduce(is_own, axis=1)
    before = _touched_before(sketch, main.select(positions), rows.T > 0)
    touched = np.where(has_whole_tile[positions] & ~has_own_tasks, before, np.inf)
    uses_rows = [[o.uses(a) for a in range(len(family.problem.axes))] for o in family.accesses]
    is_new = np.array(uses_rows, np.int64) @ (rows > 0).T > 0
    remainder = replace(remainder, reuse_bytes=np.where(is_new, np.inf, touched))
    return Parts(main, has_whole_tile, positions, remainder, has_own_tasks)


def _touched_before(sketch: Sketch, batch: CandidateBatch, has_remainder: Mask) -> Numbers:
    """Bytes that whole register tiles touch in the iteration of the loops around that a remainder follows in; infinite
    where no loop is around both, and with lanes along the reduction, whose loops are too short for it to matter.

    Args:
        sketch, batch: the whole register tiles.
        has_remainder: along which axis each candidate has a remainder [axis, candidate].
    """
    if batch.family.problem.axes[sketch.lane].is_reduction:
        return np.full(has_remainder.shape[1], np.inf)
    box, is_inside = list(batch.tiles[L2]), np.zeros(has_remainder.shape[1], np.bool_)
    is_repeated = is_inside
    for a in sketch.order:
        is_inside = is_inside | has_remainder[a]
        is_repeated = is_repeated | (~is_inside & (batch.covered[a] > batch.tiles[L2][a]))
        box[a] = np.where(is_inside, batch.covered[a], box[a])
    accesses = enumerate(batch.family.accesses)
    touched = sum_arrays(moved_bytes(o, box, CACHE_LINE_BYTES, is_packed(sketch, k)) for k, o in accesses)
    return np.where(is_repeated, touched, np.inf)


def mean_time(problem: Problem, sketch: Sketch, sizes: Sizes, machine: Machine) -> Numbers:
    """Nanoseconds of candidates: their times where all sizes are static, else the geometric means over the problem's
    samples, so that a relative gain counts alike at small and at large shapes."""
    if not problem.samples:
        return program_times(problem, sketch, sizes, machine).total
    return geomean_over_samples(sample_times(problem, sketch, sizes, machine), machine.cost)


def sample_times(problem: Problem, sketch: Sketch, sizes: Sizes, machine: Machine) -> Numbers:
    """Nanoseconds of candidates at a problem's samples [sample, candidate]."""
    total = np.empty((len(problem.samples), len(sizes)))
    for samples in group_by_regime(problem, sketch, machine):
        # all shapes in one batch: formulas cost as much for few candidates as for many
        shape_indices = np.repeat(np.arange(len(samples)), len(sizes))
        family = ShapeFamily(tuple(problem.samples[k] for k in samples), shape_indices)
        shape_sizes = cover_reductions(family, np.tile(sizes, (len(samples), 1, 1)))
        times = family_times(family, sketch, shape_sizes, machine)
        total[samples] = times.total.reshape(len(samples), -1)
    return total


def geomean_over_samples(total: Numbers, cost: CostParameters) -> Numbers:
    """The geometric means of nanoseconds [sample, candidate], each with `call_ns` added."""
    logs = np.log(total + cost.call_ns)
    return np.exp(sum_arrays(logs) / len(logs)) - cost.call_ns


def cover_reductions(family: ShapeFamily, sizes: Sizes) -> Sizes:
    """The sizes of candidates at other shapes: tiles of a reduction of symbolic extent cover all of it."""
    covering = sizes.copy()
    for k in family.problem.reduce:
        if not family.problem.axes[k].is_static:
            step = sizes[:, REGISTER, k]
            covering[:, L1:, k] = (-(-family.sizes[:, k] // step) * step)[:, None]
    return covering


def _has_whole_tile(family: ShapeFamily, sketch: Sketch, sizes: Sizes) -> Mask:
    """Which candidates have a whole register tile at all."""
    rows = [k for k in family.problem.spatial if k != sketch.lane]
    return np.all(sizes[:, REGISTER, rows] <= family.sizes[:, rows], axis=1)


def _zero_unless(mask: Mask, time: Time) -> Time:
    """The times, with 0 for candidates outside of a mask."""
    return time if mask.all() else time.map_arrays(lambda x: np.where(mask, x, 0.0))


def _rows_in_whole_tiles(family: ShapeFamily, sizes: Sizes) -> Sizes:
    """Rows in whole register tiles [candidate, axis]."""
    return family.sizes // sizes[:, REGISTER] * sizes[:, REGISTER]


def _scatter_times(positions: npt.NDArray[np.int64], time: Time, count: int) -> Time:
    """Times of `count` candidates: those given, at their positions, and 0 for the others."""

    def scatter(x: Numbers) -> Numbers:
        result = np.zeros(count)
        result[positions] = x
        return result

    return time.map_arrays(scatter)


def program_time(program: TileProgram, machine: Machine) -> float:
    """Nanoseconds of one program."""
    return float(mean_time(program.problem, program.sketch, program.array[None], machine)[0])


def is_parallel_profitable(program: TileProgram, machine: Machine) -> bool:
    """Whether a program should run on several threads; always where a size is symbolic."""
    if not all(a.is_static for a in program.problem.axes):
        return True
    return bool(program_times(program.problem, program.sketch, program.array[None], machine).parallel[0] > 0)
