"""Construction of row-wise programs: the number of rows per block, and a register tile for every stage.

A block of rows stays in the caches, so a stage has no tiles above its register tile, and its few states are all scored.
Given the rows per block, stages are independent: each takes its best state.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from tilewright.cost.analytical import cover_reductions, geomean_over_samples
from tilewright.cost.footprint import Numbers
from tilewright.cost.rowwise import row_block_cycles, rowwise_time, rowwise_times
from tilewright.cost.shape_family import ShapeFamily
from tilewright.graph.fusion import FusionPattern, StageRole
from tilewright.loops.ir import Block, Func, Seq, blocks
from tilewright.machine import Target
from tilewright.machine.model import Machine
from tilewright.optimize.construct.tile_lattice import balanced_sizes, divisors
from tilewright.optimize.lane_loops import vectorizable_reduction_axis
from tilewright.optimize.rowwise import ROW_INTERLEAVE
from tilewright.optimize.rowwise_stage import MAX_UNROLLED_TAPS
from tilewright.optimize.task import Task
from tilewright.schedule.rewrite_tree import spatial_vars, top_statements
from tilewright.tile.problem import Problem, extract_problem
from tilewright.tile.program import Sketch, TileProgram
from tilewright.tile.rowwise import RowBlocking, RowwiseProgram, RowwiseStage, row_block_problem, row_blocking

VECTOR_COUNTS = (1, 2, 4, 8)
"""Vectors of a register tile of windows along its lanes; LLVM widens other numbers."""

REDUCTION_VECTOR_COUNTS = (2, 4)
"""Vectors per step of a reduction to one value, where a row has as many: a single vector would be one dependency chain,
and combining many takes time in every row."""

MAX_TILE_ROWS = 16
"""Rows of a register tile of windows."""

MAX_UNROLLED_OPS = 512
"""Vector operations of one register tile that may be unrolled."""

MIN_ROW_BLOCKS = 16
"""Blocks of rows that remain for threads."""


@dataclass(frozen=True, slots=True)
class RowwiseProblem:
    """A row-wise kernel as construction sees it.

    Attributes:
        func: its untransformed loops.
        outer_rank: leading axes that are rows.
        blocks: the main block of every stage.
        problems: their problems, over the whole kernel.
        intermediates: buffers between stages.
    """

    func: Func
    outer_rank: int
    blocks: tuple[Block, ...]
    problems: tuple[Problem, ...]
    intermediates: frozenset[str]

    @property
    def samples(self) -> tuple[tuple[Problem, ...], ...]:
        """The stages' problems at every shape sample; empty where all sizes are literal, or a stage is empty at a
        sample."""
        count = len(self.problems[0].samples)
        is_uniform = all(len(p.samples) == count for p in self.problems)
        return tuple(zip(*(p.samples for p in self.problems), strict=True)) if is_uniform else ()

    @property
    def ends_in_wide_reduction(self) -> bool:
        """Whether the last stage is a reduction with several results per row, such as pooling or a matrix product."""
        last = self.blocks[-1]
        return last.init is not None and len(spatial_vars(last)) > self.outer_rank


def rowwise_problem(task: Task) -> RowwiseProblem | None:
    """The row-wise problem of a kernel; None where its blocks do not fuse row by row, or a stage is not affine."""
    func, fusion = task.func, task.fusion
    func_blocks = blocks(func.body)
    if fusion.pattern in (FusionPattern.SEQUENCE, FusionPattern.CHAIN):
        return None
    if fusion.pattern is not FusionPattern.ROWWISE and all(vectorizable_reduction_axis(b) is None for b in func_blocks):
        return None
    main_blocks: list[Block] = []
    problems: list[Problem] = []
    last = len(func_blocks) - 1
    for k, (b, stage) in enumerate(zip(func_blocks, fusion.stages, strict=True)):
        if stage.role is StageRole.EPILOGUE:
            continue
        if not b.iters:
            if k == last:
                return None
            continue
        written = func_blocks[k if stage.epilogue is None else stage.epilogue].body.buffer
        if stage.role is StageRole.REGISTER_REDUCTION and written in func.allocs:
            return None
        names = {b.name} if stage.epilogue is None else {b.name, func_blocks[stage.epilogue].name}
        statements = [x for x in top_statements(func) if blocks(x)[0].name in names]
        stage_func = replace(func, body=statements[0] if len(statements) == 1 else Seq(tuple(statements)))
        problem = extract_problem(stage_func, task.constants, task.samples)
        if problem is None:
            return None
        main_blocks.append(b)
        problems.append(problem)
    return RowwiseProblem(
        func, fusion.outer_rank, tuple(main_blocks), tuple(problems), frozenset(b.name for b in func.allocs)
    )


def rows_per_block_options(kernel: RowwiseProblem) -> tuple[int, ...]:
    """Possible rows per block: divisors of the last row axis that leave blocks for threads. Windows reuse operands
    across several short rows; other stages share nothing between rows and gain by interleaving alone."""
    axis = kernel.problems[-1].axes[kernel.outer_rank - 1]
    if kernel.outer_rank == 0 or not axis.is_static:
        return (1,)
    outer = prod(a.extent for a in kernel.problems[-1].axes[: kernel.outer_rank - 1])
    max_rows = max(1, axis.extent * outer // MIN_ROW_BLOCKS)
    max_rows = max_rows if kernel.ends_in_wide_reduction else min(max_rows, ROW_INTERLEAVE)
    return tuple(k for k in divisors(axis.extent) if k <= max_rows)


def stage_candidates(
    kernel: RowwiseProblem, target: Target, machine: Machine, rows_per_block: int
) -> list[list[RowwiseStage]]:
    """Per stage its sketches with all states of each."""
    problems = (row_block_problem(p, kernel.outer_rank, rows_per_block, kernel.intermediates) for p in kernel.problems)
    return [_stage_candidates(kernel, k, problem, target, machine) for k, problem in enumerate(problems)]


def _stage_candidates(
    kernel: RowwiseProblem, k: int, problem: Problem, target: Target, machine: Machine
) -> list[RowwiseStage]:
    block, lanes = kernel.blocks[k], target.lanes(32)
    inner = [a for a in problem.spatial if a >= kernel.outer_rank]
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
    contiguous = [a for a in inner if store.strides[a] == 1]
    if problem.reduce:
        return [_window_states(problem, a, _lanes_along(problem, a, problem.bits, target), machine) for a in contiguous]
    readable = [a for a in inner if any(o.strides[a] == 1 for o in problem.operands)]
    # iterations share little, and LLVM unrolls by itself
    return [_stage(problem, _lanes_along(problem, a, 32, target), a, [(1, 1, False)]) for a in contiguous or readable]


def _lanes_along(problem: Problem, axis: int, bits: int, target: Target) -> int:
    """The lanes of vectors along an axis of results."""
    return target.lanes(bits, problem.axes[axis].literal_extent)


def _vector_counts(problem: Problem, lane: int | None, lanes: int, counts: Sequence[int] = VECTOR_COUNTS) -> list[int]:
    needed = 1 if lane is None else -(-problem.axes[lane].extent // lanes)
    return [v for v in counts if v < 2 * needed] or [1]


def _window_states(problem: Problem, lane: int, lanes: int, machine: Machine) -> RowwiseStage:
    """States of windows: vectors by tile rows, fully unrolled while there are few taps (LLVM does it anyway)."""
    row_axis = tile_row_axis(problem, lane)
    heights = (1,) if row_axis is None else _tile_row_counts(problem, row_axis)
    taps = prod(problem.axes[k].extent for k in problem.reduce)
    is_unrolled = taps <= MAX_UNROLLED_TAPS and all(problem.axes[k].is_static for k in problem.reduce)
    max_vectors = min(machine.vector_registers - 1, MAX_UNROLLED_OPS // taps if is_unrolled else MAX_UNROLLED_OPS)
    states = [
        (v, h, is_unrolled)
        for v in _vector_counts(problem, lane, lanes)
        for h in heights
        if v * h <= max(1, max_vectors)
    ]
    return _stage(problem, lanes, lane, states)


def _tile_row_counts(problem: Problem, row_axis: int) -> tuple[int, ...]:
    axis = problem.axes[row_axis]
    return balanced_sizes(axis.extent, MAX_TILE_ROWS) if axis.is_static else (1, 2, 4)


def tile_row_axis(problem: Problem, lane: int) -> int | None:
    """The axis of tile rows: the last of the results' other axes."""
    return next((a for a in reversed(problem.spatial) if a != lane), None)


def _stage(problem: Problem, lanes: int, lane: int | None, states: Sequence[tuple[int, int, bool]]) -> RowwiseStage:
    """A sketch with its states (vectors, tile rows, whether windows are unrolled)."""
    along = (*problem.reduce, *problem.spatial)[-1] if lane is None else lane
    width = 1 if lane is None else lanes
    row_axis = tile_row_axis(problem, along)
    sizes = np.ones((len(states), 3, len(problem.axes)), np.int64)
    for k, a in enumerate(problem.axes):
        if a.is_reduction:
            sizes[:, 1:, k] = a.extent
    for n, (vectors, rows, is_unrolled) in enumerate(states):
        sizes[n, 0, along] = vectors * width
        if row_axis is not None:
            sizes[n, 0, row_axis] = rows
        for k in problem.reduce if is_unrolled else ():
            sizes[n, 0, k] = problem.axes[k].extent
    for k in problem.spatial:
        sizes[:, 1:, k] = sizes[:, :1, k]
    if lane in problem.reduce:
        cover = -(-problem.axes[along].extent // sizes[:, 0, along]) * sizes[:, 0, along]
        sizes[:, 1:, along] = cover[:, None]
    order = tuple(a for a in problem.spatial if a != along) + ((along,) if along in problem.spatial else ())
    return RowwiseStage(problem, Sketch(along, width, order, None), sizes)


def best_rowwise_programs(
    kernel: RowwiseProblem, target: Target, machine: Machine, count: int
) -> list[tuple[float, RowwiseProgram]]:
    """The best programs with their nanoseconds, best first: per number of rows the best tile of every stage."""
    ranked: list[tuple[float, RowwiseProgram]] = []
    samples = kernel.samples
    for rows_per_block in rows_per_block_options(kernel):
        blocking, candidates = scored_stages(kernel, target, machine, rows_per_block)
        best = [min(s, key=lambda x: x[0]) for s in candidates]
        program = RowwiseProgram(blocking, tuple(p for _, p in best))
        if samples:
            total = _mean_time(kernel, program, samples, machine)
        else:
            total = rowwise_times(
                blocking, [p.problem for p in program.stages], [np.array([t]) for t, _ in best], machine
            ).total
        ranked.append((float(total[0]), program))
    return sorted(ranked, key=lambda x: x[0])[:count]


def _mean_time(
    kernel: RowwiseProblem, program: RowwiseProgram, samples: Sequence[Sequence[Problem]], machine: Machine
) -> Numbers:
    """The mean time of a program over shape samples, as for the tile programs that it competes with; its register tiles
    are the same for all samples."""
    programs = programs_at_samples(kernel, program, samples)
    return geomean_over_samples(np.array([rowwise_time(p, machine).total for p in programs]), machine.cost)


def programs_at_samples(
    kernel: RowwiseProblem, program: RowwiseProgram, samples: Sequence[Sequence[Problem]]
) -> list[RowwiseProgram]:
    """A program at the shapes of samples, each given by the problems of the stages in the whole kernel."""
    rows_per_block, programs = program.blocking.rows_per_block, list[RowwiseProgram]()
    for problems in samples:
        stages: list[TileProgram] = []
        for stage, problem in zip(program.stages, problems, strict=True):
            group = row_block_problem(problem, kernel.outer_rank, rows_per_block, kernel.intermediates)
            stages.append(
                TileProgram.of(group, stage.sketch, cover_reductions(ShapeFamily.of(group), stage.array[None])[0])
            )
        programs.append(RowwiseProgram(_row_blocking(kernel, problems, rows_per_block), tuple(stages)))
    return programs


def _row_blocking(kernel: RowwiseProblem, problems: Sequence[Problem], rows_per_block: int) -> RowBlocking:
    """The row blocking of stages with these problems."""
    return row_blocking(
        {b.name: p for b, p in zip(kernel.blocks, problems, strict=True)},
        kernel.outer_rank,
        rows_per_block,
        kernel.intermediates,
    )


def scored_stages(
    kernel: RowwiseProblem, target: Target, machine: Machine, rows_per_block: int
) -> tuple[RowBlocking, list[list[tuple[float, TileProgram]]]]:
    """The row blocking, and per stage every program with its cycles for one block of rows."""
    blocking = _row_blocking(kernel, kernel.problems, rows_per_block)
    scored: list[list[tuple[float, TileProgram]]] = []
    for sketches in stage_candidates(kernel, target, machine, rows_per_block):
        programs: list[tuple[float, TileProgram]] = []
        for stage in sketches:
            cycles = row_block_cycles(stage.problem, stage.sketch, stage.sizes, blocking, machine)
            programs += [(float(t), TileProgram.of(stage.problem, stage.sketch, s))
                         for t, s in zip(cycles, stage.sizes, strict=True)]  # fmt: skip
        scored.append(programs)
    return blocking, scored
