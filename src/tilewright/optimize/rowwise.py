"""Row-wise fusion: one parallel loop over rows, in which every block computes its part of a row.

Intermediates shrink to a row on the thread's stack, close in the caches. Within a row every block is vectorized on its
own: element-wise work and reductions to one value along their contiguous operands, windows along their results, in
register tiles.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from tilewright.errors import ScheduleError
from tilewright.expr.nodes import Const, MemoryScope
from tilewright.graph.fusion import StageRole
from tilewright.loops.ir import IterKind, blocks
from tilewright.optimize.interface import Task
from tilewright.optimize.parallelize import count_parallel_loops
from tilewright.optimize.reduction_blocking import choose_k_block
from tilewright.optimize.rowwise_stage import (
    K_BLOCK_LIMITS,
    REDUCTION_VECTORS,
    StageTile,
    literal_or_large,
    schedule_elementwise_stage,
    schedule_window_stage,
    vectorize_reduction,
)
from tilewright.schedule.rewrite_tree import find_block
from tilewright.schedule.schedule import Schedule
from tilewright.tile.schedule_helpers import BlockLoops, apply_and_get_blocks, buffer_of, loop_extent, spatial_loops

_log = logging.getLogger("tilewright.construct")

STORE_BUFFER_BYTES = 8 << 10
"""Bytes after whose writing the first ones have reached the cache; twice the size of store buffers."""

ROW_INTERLEAVE = 2
"""Rows whose stages are interleaved (unroll-and-jam). A horizontal reduction is a dependency chain, and its users wait
for its end; meanwhile the processor works on the other row. More rows only take more space."""

MIN_ROW_ITERATIONS = 16
"""Iterations over rows that remain for threads."""


@dataclass(frozen=True, slots=True)
class StageBlocks:
    """The blocks of one stage of a row.

    Attributes:
        block: the block that writes the intermediate or the result.
        reduction: the reduction in registers whose results it copies; None for other stages.
        partial: the block of the K-blocks' partial sums; None without K-blocking.
    """

    block: str
    reduction: str | None = None
    partial: str | None = None


@dataclass(frozen=True, slots=True)
class RowwisePlan:
    """The choices of a row-wise schedule; the rule makes those that are left open.

    Attributes:
        rows_per_block: rows per iteration of the fused loop, a divisor of their number; None leaves it open.
        tiles: register tiles by the name of the stage's main block.
    """

    rows_per_block: int | None = None
    tiles: Mapping[str, StageTile] = field(default_factory=dict[str, StageTile])


RULE_PLAN = RowwisePlan()


def schedule_rowwise(task: Task) -> Schedule:
    """The schedule of a row-wise kernel. The untransformed loops remain where windows stand before the last stage, or
    the regions of a row are not known without data."""
    s = Schedule(task.func)
    try:
        schedule_stages(s, task)
    except ScheduleError as error:
        _log.info("%s: row-wise fusion is not legal, the loops stay untransformed: %s", task.func.name, error)
        return Schedule(task.func)
    return s


def schedule_stages(s: Schedule, task: Task, plan: RowwisePlan = RULE_PLAN, parallel: bool | None = None) -> None:
    """Fuses blocks over their rows and schedules each stage.

    Args:
        s: schedule of the untransformed function.
        task: the kernel.
        plan: the choices.
        parallel: whether threads share the rows; by default where there is enough work.

    Raises:
        ScheduleError: see `schedule_rowwise`.
    """
    rank = task.fusion.outer_rank
    stages = _split_stages(s, task, plan)
    if any(x.reduction is not None for x in stages[:-1]):
        raise ScheduleError("a window stage is not the last one", where=f"func {s.func.name!r}")
    last = stages[-1]
    rows = list(s.loops(last.block)[:rank])
    rows_per_block = plan.rows_per_block
    if rows_per_block is None:
        rows_per_block = _row_interleave(s, rows) if last.reduction is None else _rows_per_block(s, stages, rank)
    inner_rows: list[str] = []
    if rows and rows_per_block > 1:
        outer, inner = s.split(rows[-1], rows_per_block)
        rows, inner_rows = [*rows[:-1], outer], [inner]
    _schedule_stage(s, last, [*rows, *inner_rows], task, plan)
    for stage in reversed(stages[:-1]):
        if rows:
            s.do("compute_at", stage.block, rows[-1])
        s.do("set_scope", buffer_of(s, stage.block), MemoryScope.STACK)
        if stage.partial is not None:
            # K-blocks are placed before the stages that they read: those can only move to where all their readers are
            _schedule_stage(s, stage, rows, task, plan)
    for stage in (x for x in stages[:-1] if x.partial is None):
        _schedule_stage(s, stage, rows, task, plan)
    if parallel is None:
        rows = rows[: count_parallel_loops(s.origin, [loop_extent(s, x) for x in rows])]
    for x in rows if parallel is not False else ():
        s.do("parallel", x)


def _row_interleave(s: Schedule, rows: Sequence[str]) -> int:
    """Rows without windows that are interleaved: two where their number is even and many iterations remain."""
    count = loop_extent(s, rows[-1]) if rows else None
    max_rows = int(count.value) // MIN_ROW_ITERATIONS if isinstance(count, Const) else 1
    return (
        ROW_INTERLEAVE
        if max_rows >= ROW_INTERLEAVE and isinstance(count, Const) and count.value % ROW_INTERLEAVE == 0
        else 1
    )


def _rows_per_block(s: Schedule, stages: Sequence[StageBlocks], rank: int) -> int:
    """Short rows per block, so that intermediates have left the store buffer when windows read them: a load that
    spans several stores waits until all have reached the cache. A divisor of the number of rows that leaves many
    iterations."""
    intermediates = [find_block(s.func, x.block)[0].body.buffer for x in stages[:-1]]
    row_bytes = sum(prod(literal_or_large(n) for n in b.shape[rank:]) * b.dtype.bytes for b in intermediates)
    count = loop_extent(s, s.loops(stages[-1].block)[rank - 1]) if rank else None
    if not isinstance(count, Const) or not row_bytes:
        return 1
    rows = int(count.value)
    max_rows = min(STORE_BUFFER_BYTES // row_bytes, rows // MIN_ROW_ITERATIONS)
    return max((k for k in range(1, max_rows + 1) if rows % k == 0), default=1)


def _split_stages(s: Schedule, task: Task, plan: RowwisePlan) -> list[StageBlocks]:
    """The stages in order. Reductions with many results per row, and those that write the final result, accumulate in
    registers: their element-wise reader, if need be an inserted copy, joins their stage."""
    func_blocks = blocks(s.func.body)
    epilogue_of: dict[int, str] = {}
    stages: list[StageBlocks] = []
    for k, (b, stage) in enumerate(zip(func_blocks, task.fusion.stages, strict=True)):
        match stage.role:
            case StageRole.EPILOGUE:
                stages.append(StageBlocks(b.name, epilogue_of[k]))
            case StageRole.REGISTER_REDUCTION if stage.epilogue is not None:
                epilogue_of[stage.epilogue] = b.name
            case StageRole.REGISTER_REDUCTION:
                stages.append(StageBlocks(next(iter(apply_and_get_blocks(s, "cache_write", b.name))), b.name))
            case StageRole.ROW_REDUCTION:
                lanes = _reduction_vectors(plan, b.name) * task.target.lanes(32)
                k_block = choose_k_block(b, K_BLOCK_LIMITS, lanes)
                partial = None if k_block is None else next(iter(apply_and_get_blocks(s, "rfactor", b.name, *k_block)))
                stages.append(StageBlocks(b.name, None, partial))
            case StageRole.ELEMENTWISE:
                stages.append(StageBlocks(b.name))
    return stages


def _reduction_vectors(plan: RowwisePlan, block: str) -> int:
    return plan.tiles[block].vectors if block in plan.tiles else REDUCTION_VECTORS


def _schedule_stage(s: Schedule, stage: StageBlocks, row_loops: list[str], task: Task, plan: RowwisePlan) -> None:
    """Schedules one stage within a row."""
    name = stage.reduction or stage.block
    tile, vectors = plan.tiles.get(name), _reduction_vectors(plan, name)
    node = find_block(s.func, stage.block)[0]
    loops = {k: x for k, x in spatial_loops(s, stage.block).items() if x not in row_loops}
    if stage.reduction is not None and loops:
        schedule_window_stage(s, stage.block, stage.reduction, row_loops, loops, task, tile)
    elif stage.reduction is not None:
        if row_loops:
            s.do("compute_at", stage.reduction, row_loops[-1])
        s.do("set_scope", buffer_of(s, stage.reduction), MemoryScope.STACK)
        vectorize_reduction(s, stage.reduction, task, vectors)
    elif stage.partial is not None:
        block_loops = BlockLoops.of(s, stage.block)
        s.do("decompose_reduction", stage.block, block_loops.reduce[0])
        s.do("compute_at", stage.partial, block_loops.reduce[0])
        s.do("set_scope", buffer_of(s, stage.partial), MemoryScope.STACK)
        vectorize_reduction(s, stage.partial, task, vectors)
    elif any(i.kind is IterKind.REDUCE for i in node.iters):
        vectorize_reduction(s, stage.block, task, vectors)
    elif loops:
        schedule_elementwise_stage(s, stage.block, loops, task, tile)
