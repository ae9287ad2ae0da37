"""Construction of chains of blocks that work row by row: how many rows a group has, and a register tile for every step.

A group of rows lies in the caches, so a step has no tiles above its register tile, and its states are few: all of them
are scored. Steps do not depend on each other beside the number of rows, so each takes the best one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from tilewright.cost.analytical import cover_reductions, geomean_over_samples
from tilewright.cost.footprint import Numbers
from tilewright.cost.rowwise import row_block_cycles, rowwise_time, rowwise_times
from tilewright.cost.shape_family import ShapeFamily
from tilewright.loops.ir import Block, Func, Seq, Stmt, blocks
from tilewright.machine import Target
from tilewright.machine.model import Machine
from tilewright.optimize.construct.tile_lattice import balanced_sizes, divisors
from tilewright.optimize.interface import Task
from tilewright.optimize.rowwise import (
    ROW_INTERLEAVE,
    RowwisePlan,
    epilogue,
    fits_stack,
    is_rowwise,
    outer_rank,
    schedule_stages,
)
from tilewright.optimize.rowwise_stage import MAX_UNROLLED_TAPS, StageTile, vectorizable_reduction_axis
from tilewright.schedule.rewrite_tree import spatial_vars
from tilewright.schedule.schedule import Schedule
from tilewright.tile.problem import Problem, extract_problem
from tilewright.tile.program import Sketch, TileProgram
from tilewright.tile.rowwise import RowBlocking, RowwiseProgram, RowwiseStage, row_block_problem, row_blocking

VECTOR_COUNTS = (1, 2, 4, 8)
"""Vectors of a register tile of windows along its lanes; LLVM widens other numbers."""

REDUCTION_VECTOR_COUNTS = (2, 4)
"""Vectors over which a reduction to one value runs at once, where a row has them: one would wait for itself, and to
combine many takes time in every row."""

MAX_TILE_ROWS = 16
"""Lines of a register tile of windows."""

MAX_UNROLLED_OPS = 512
"""Vector operations of one register tile that may be written out."""

MIN_ROW_BLOCKS = 16
"""Groups of rows that are left for threads."""


@dataclass(frozen=True, slots=True)
class RowwiseProblem:
    """A chain as construction sees it.

    Attributes:
        func: its untransformed loops.
        rank: leading axes that are rows.
        blocks: of every step the one that does its work.
        problems: theirs, in the whole kernel.
        private: buffers that steps hand on.
    """

    func: Func
    outer_rank: int
    blocks: tuple[Block, ...]
    problems: tuple[Problem, ...]
    intermediates: frozenset[str]

    @property
    def samples(self) -> tuple[tuple[Problem, ...], ...]:
        """The steps' problems at every sample of sizes that are symbols; none where all sizes are known, or a step has
        nothing to do at a sample."""
        count = len(self.problems[0].samples)
        alike = all(len(p.samples) == count for p in self.problems)
        return tuple(zip(*(p.samples for p in self.problems), strict=True)) if alike else ()

    @property
    def ends_in_windows(self) -> bool:
        """Whether the last step has many results in a row, each a reduction."""
        last = self.blocks[-1]
        return last.init is not None and len(spatial_vars(last)) > self.outer_rank


def rowwise_problem(task: Task) -> RowwiseProblem | None:
    """The chain that a kernel is; None where it is none whose rows fit stacks, or a step is not affine."""
    func = task.func
    found = blocks(func.body)
    rank = outer_rank(func)
    if not fits_stack(func, rank):
        return None
    if not is_rowwise(func) and all(vectorizable_reduction_axis(b) is None for b in found):
        return None
    steps: list[Block] = []
    problems: list[Problem] = []
    taken: set[str] = set()
    for b in found:
        if b.name in taken or not b.iters:
            continue
        results = b.init is not None and (len(spatial_vars(b)) > rank or b.body.buffer not in func.allocs)
        after = epilogue(b, found) if results else None
        if results and b is not found[-1] and after != found[-1].name:
            return None
        names = {b.name} | ({after} if after else set())
        taken |= names
        nests = [x for x in _top_statements(func.body) if blocks(x)[0].name in names]
        alone = replace(func, body=nests[0] if len(nests) == 1 else Seq(tuple(nests)))
        problem = extract_problem(alone, task.constants, task.samples)
        if problem is None:
            return None
        steps.append(b)
        problems.append(problem)
    if found[-1].name not in taken:
        return None
    return RowwiseProblem(func, rank, tuple(steps), tuple(problems), frozenset(b.name for b in func.allocs))


def _top_statements(body: Stmt) -> tuple[Stmt, ...]:
    return body.stmts if isinstance(body, Seq) else (body,)


def rows_per_block_options(c: RowwiseProblem) -> tuple[int, ...]:
    """Rows that a group may have: divisors of the last rows that leave groups for threads; windows gain from several
    short rows, other steps have nothing to share between rows, but one may wait beside another."""
    axis = c.problems[-1].axes[c.outer_rank - 1]
    if c.outer_rank == 0 or not axis.is_static:
        return (1,)
    outer = prod(a.extent for a in c.problems[-1].axes[: c.outer_rank - 1])
    most = max(1, axis.extent * outer // MIN_ROW_BLOCKS)
    most = most if c.ends_in_windows else min(most, ROW_INTERLEAVE)
    return tuple(k for k in divisors(axis.extent) if k <= most)


def stage_candidates(
    c: RowwiseProblem, target: Target, machine: Machine, rows_per_block: int
) -> list[list[RowwiseStage]]:
    """Per step its forms with all states of each."""
    return [_stage_candidates(c, k, row_block_problem(p, c.outer_rank, rows_per_block, c.intermediates), target,
    machine)
            for k, p in enumerate(c.problems)]  # fmt: skip


def _stage_candidates(
    c: RowwiseProblem, k: int, problem: Problem, target: Target, machine: Machine
) -> list[RowwiseStage]:
    block, lanes = c.blocks[k], target.lanes(32)
    inner = [a for a in problem.spatial if a >= c.outer_rank]
    if problem.reduce and not inner:
        lane = vectorizable_reduction_axis(block)
        return [
            _stage(
                problem,
                lanes,
                lane,
                [(v, 1, False) for v in _vector_counts(problem, lane, lanes, REDUCTION_VECTOR_COUNTS)],
            )
        ]
    if not inner:
        return [_stage(problem, lanes, None, [(1, 1, False)])]
    store = problem.results[-1] if problem.reduce else problem.operands[-1]
    along = [a for a in inner if store.strides[a] == 1]
    if problem.reduce:
        return [_window_states(problem, a, target.lanes(problem.bits), machine) for a in along]
    moving = [a for a in inner if any(o.strides[a] == 1 for o in problem.operands)]
    # what iterations have in common is little, and LLVM writes several out by itself
    return [_stage(problem, lanes, a, [(1, 1, False)]) for a in along or moving]


def _vector_counts(problem: Problem, lane: int | None, lanes: int, counts: Sequence[int] = VECTOR_COUNTS) -> list[int]:
    most = 1 if lane is None else -(-problem.axes[lane].extent // lanes)
    return [v for v in counts if v < 2 * most] or [1]


def _window_states(problem: Problem, lane: int, lanes: int, machine: Machine) -> RowwiseStage:
    """States of windows: vectors by lines, taps written out while they are few (LLVM does it if we do not)."""
    line = _tile_row_axis(problem, lane)
    heights = (1,) if line is None else _tile_row_counts(problem, line)
    taps = prod(problem.axes[k].extent for k in problem.reduce)
    out = taps <= MAX_UNROLLED_TAPS
    most = min(machine.vector_registers - 1, MAX_UNROLLED_OPS // taps if out else MAX_UNROLLED_OPS)
    states = [(v, h, out) for v in _vector_counts(problem, lane, lanes) for h in heights if v * h <= max(1, most)]
    return _stage(problem, lanes, lane, states)


def _tile_row_counts(problem: Problem, row_axis: int) -> tuple[int, ...]:
    axis = problem.axes[row_axis]
    return balanced_sizes(axis.extent, MAX_TILE_ROWS) if axis.is_static else (1, 2, 4)


def _tile_row_axis(problem: Problem, lane: int) -> int | None:
    """The axis of lines: the last of the results' others."""
    return next((a for a in reversed(problem.spatial) if a != lane), None)


def _stage(problem: Problem, lanes: int, lane: int | None, states: Sequence[tuple[int, int, bool]]) -> RowwiseStage:
    """A form with its states (vectors, lines, whether windows are written out)."""
    along = (*problem.reduce, *problem.spatial)[-1] if lane is None else lane
    width = 1 if lane is None else lanes
    line = _tile_row_axis(problem, along)
    sizes = np.ones((len(states), 3, len(problem.axes)), np.int64)
    for k, a in enumerate(problem.axes):
        if a.is_reduction:
            sizes[:, 1:, k] = a.extent
    for n, (vectors, lines, out) in enumerate(states):
        sizes[n, 0, along] = vectors * width
        if line is not None:
            sizes[n, 0, line] = lines
        for k in problem.reduce if out else ():
            sizes[n, 0, k] = problem.axes[k].extent
    for k in problem.spatial:
        sizes[:, 1:, k] = sizes[:, :1, k]
    if lane in problem.reduce:
        cover = -(-problem.axes[along].extent // sizes[:, 0, along]) * sizes[:, 0, along]
        sizes[:, 1:, along] = cover[:, None]
    order = tuple(a for a in problem.spatial if a != along) + ((along,) if along in problem.spatial else ())
    return RowwiseStage(problem, Sketch(along, width, order, None), sizes)


def best_rowwise_programs(
    c: RowwiseProblem, target: Target, machine: Machine, count: int
) -> list[tuple[float, RowwiseProgram]]:
    """The best programs with their nanoseconds, best first: per number of rows the best tile of every step."""
    found: list[tuple[float, RowwiseProgram]] = []
    samples = c.samples
    for together in rows_per_block_options(c):
        rows, scored = scored_stages(c, target, machine, together)
        best = [min(s, key=lambda x: x[0]) for s in scored]
        program = RowwiseProgram(rows, tuple(p for _, p in best))
        if samples:
            total = _mean_time(c, program, samples, machine)
        else:
            total = rowwise_times(
                rows, [p.problem for p in program.stages], [np.array([t]) for t, _ in best], machine
            ).total
        found.append((float(total[0]), program))
    return sorted(found, key=lambda x: x[0])[:count]


def _mean_time(
    c: RowwiseProblem, program: RowwiseProgram, samples: Sequence[Sequence[Problem]], machine: Machine
) -> Numbers:
    """The mean time of a program over samples of its sizes, as that of the tile programs that it may be compared with;
    its register tiles are the same at all of them."""
    together, total = program.blocking.rows_per_block, list[Numbers]()
    for problems in samples:
        steps: list[TileProgram] = []
        for step, problem in zip(program.stages, problems, strict=True):
            group = row_block_problem(problem, c.outer_rank, together, c.intermediates)
            steps.append(
                TileProgram.of(group, step.sketch, cover_reductions(ShapeFamily.of(group), step.array[None])[0])
            )
        total.append(rowwise_time(RowwiseProgram(_row_blocking(c, problems, together), tuple(steps)), machine).total)
    return geomean_over_samples(np.array(total))


def _row_blocking(c: RowwiseProblem, problems: Sequence[Problem], rows_per_block: int) -> RowBlocking:
    """How rows are cut where the steps have these problems."""
    return row_blocking(
        {b.name: p for b, p in zip(c.blocks, problems, strict=True)}, c.outer_rank, rows_per_block, c.intermediates
    )


def scored_stages(
    c: RowwiseProblem, target: Target, machine: Machine, rows_per_block: int
) -> tuple[RowBlocking, list[list[tuple[float, TileProgram]]]]:
    """How rows are cut, and per step every program with its cycles for one group of rows."""
    rows = _row_blocking(c, c.problems, rows_per_block)
    scored: list[list[tuple[float, TileProgram]]] = []
    for forms in stage_candidates(c, target, machine, rows_per_block):
        programs: list[tuple[float, TileProgram]] = []
        for step in forms:
            spent = row_block_cycles(step.problem, step.sketch, step.sizes, rows, machine)
            programs += [(float(t), TileProgram.of(step.problem, step.sketch, s))
                         for t, s in zip(spent, step.sizes, strict=True)]  # fmt: skip
        scored.append(programs)
    return rows, scored


def lower_rowwise(program: RowwiseProgram, task: Task, parallel: bool) -> Schedule:
    """The schedule of a chain's program.

    Raises:
        ScheduleError: a step of it is not legal for these loops.
    """
    tiles = {p.problem.block: _stage_tile(p, program.blocking.outer_rank) for p in program.stages if p.sketch.lanes > 1}
    s = Schedule(task.func)
    schedule_stages(s, program.blocking.outer_rank, task, RowwisePlan(program.blocking.rows_per_block, tiles), parallel)
    return s


def _stage_tile(p: TileProgram, rank: int) -> StageTile:
    lane, (register, *_) = p.sketch.lane, p.sizes
    line = _tile_row_axis(p.problem, lane)
    lines = 1 if line is None else register[line]
    out = bool(p.problem.reduce) and all(register[k] == p.problem.axes[k].extent for k in p.problem.reduce)
    return StageTile(lane, register[lane] // p.sketch.lanes, lines, out)
