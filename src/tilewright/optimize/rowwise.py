"""Chains of blocks that work row by row: one parallel loop over rows, in which every block does its part of a row.

What blocks hand on shrinks to a row and lives on the stack of the thread, near in the caches. Inside a row every block
has lanes of its own: element-wise work and reductions to one value along what they read contiguously, windows along
their results, in tiles of registers.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from tilewright.errors import ScheduleError
from tilewright.expr.buffer import MemoryScope
from tilewright.expr.nodes import Const, loads
from tilewright.loops.access import accesses
from tilewright.loops.ir import Block, Func, IterKind, blocks
from tilewright.loops.stack_size import MAX_STACK_BYTES
from tilewright.optimize.interface import Task
from tilewright.optimize.parallelize import parallelize
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
from tilewright.schedule.rewrite_tree import find_block, spatial_vars
from tilewright.schedule.schedule import Schedule
from tilewright.tile.schedule_helpers import BlockLoops, apply_and_get_blocks, buffer_of, loop_extent, spatial_loops

_log = logging.getLogger("tilewright.construct")

STORE_BUFFER_BYTES = 8 << 10
"""Bytes after whose writing the first of them are in the cache; twice what store buffers hold."""

ROW_INTERLEAVE = 2
"""Rows that take each step together. The lanes of a row are combined by instructions that wait for each other, and what
follows waits for the last of them; meanwhile the processor works on the other row. More only need more room."""

MIN_ROW_ITERATIONS = 16
"""Iterations over rows that are left for threads."""


def is_rowwise(func: Func) -> bool:
    """Whether a function is more than one block with an epilogue that takes its results one by one."""
    found = blocks(func.body)
    if len(found) < 2:
        return False
    first, last = found[0], found[-1]
    if len(found) > 2 or first.init is None or last.init is not None:
        return True
    plain = spatial_vars(last)
    made = [x.indices for x in loads(last.body.value) if x.buffer == first.body.buffer]
    return first.body.indices != spatial_vars(first) or any(x != plain for x in made)


def outer_rank(func: Func) -> int:
    """How many leading axes are rows: all blocks have them and access what they hand on at these very axes."""
    found = blocks(func.body)
    rank = min(len(spatial_vars(b)) for b in found)
    for b in found:
        own = [i.var for i in b.iters[:rank]]
        for a in accesses(b):
            if a.buffer in func.allocs or a.is_write:
                same = [i is v for i, v in zip(a.indices, own, strict=False)]
                rank = min(rank, same.index(False) if False in same else len(same))
        extents = [i.extent for i in b.iters[:rank]]
        while extents != [i.extent for i in found[-1].iters[: len(extents)]]:
            extents.pop()
        rank = min(rank, len(extents))
    return rank


@dataclass(frozen=True, slots=True)
class StageBlocks:
    """One step of a row.

    Attributes:
        block: makes what is handed on, or the result.
        sums: the reduction that it copies from registers; None for other steps.
        partial: the block that sums up the chunks of a sum; None without chunks.
    """

    block: str
    reduction: str | None = None
    partial: str | None = None


@dataclass(frozen=True, slots=True)
class RowwisePlan:
    """What is chosen for a chain; the rule chooses what is left open.

    Attributes:
        together: rows that are handed on at once, a divisor of their number; None leaves it open.
        tiles: by the name of the block that does a step's work.
    """

    rows_per_block: int | None = None
    tiles: Mapping[str, StageTile] = field(default_factory=dict[str, StageTile])


RULE_PLAN = RowwisePlan()


def schedule_rowwise(task: Task) -> Schedule:
    """The schedule of a chain. One that hands on more than stacks hold, that has windows before its end, or whose parts
    of a row are not known without data, stays as it is."""
    s = Schedule(task.func)
    rank = outer_rank(s.func)
    if not fits_stack(s.func, rank):
        return s
    try:
        schedule_stages(s, rank, task)
    except ScheduleError as error:
        _log.info("%s: a chain stays as it is: %s", task.func.name, error)
        return Schedule(task.func)
    return s


def schedule_stages(
    s: Schedule, rank: int, task: Task, plan: RowwisePlan = RULE_PLAN, parallel: bool | None = None
) -> None:
    """Schedules a chain of blocks whose first `rank` axes are rows.

    Args:
        s: of the untransformed function.
        rank: see `shared_axes`.
        task: the kernel.
        plan: what is chosen.
        parallel: whether threads share the rows; by default where there is enough work.

    Raises:
        ScheduleError: see `schedule_rowwise`.
    """
    stages = _split_stages(s, rank, task, plan)
    if any(x.reduction is not None for x in stages[:-1]):
        raise ScheduleError("windows before the end of a chain", where=f"func {s.func.name!r}")
    last = stages[-1]
    rows = list(s.loops(last.block)[:rank])
    together = plan.rows_per_block
    if together is None:
        together = _row_interleave(s, rows) if last.reduction is None else _rows_per_block(s, stages, rank)
    inside: list[str] = []
    if rows and together > 1:
        outer, inner = s.split(rows[-1], together)
        rows, inside = [*rows[:-1], outer], [inner]
    _schedule_stage(s, last, [*rows, *inside], task, plan)
    for stage in reversed(stages[:-1]):
        if rows:
            s.do("compute_at", stage.block, rows[-1])
        s.do("set_scope", buffer_of(s, stage.block), MemoryScope.STACK)
        if stage.partial is not None:
            # chunks move in before what they read, which can only move to where all its readers are
            _schedule_stage(s, stage, rows, task, plan)
    for stage in (x for x in stages[:-1] if x.partial is None):
        _schedule_stage(s, stage, rows, task, plan)
    if parallel is None:
        parallelize(s, rows)
    for x in rows if parallel else ():
        s.do("parallel", x)


def _row_interleave(s: Schedule, rows: Sequence[str]) -> int:
    """How many rows without windows take each step together: two where they divide and many iterations are left."""
    count = loop_extent(s, rows[-1]) if rows else None
    most = int(count.value) // MIN_ROW_ITERATIONS if isinstance(count, Const) else 1
    return (
        ROW_INTERLEAVE
        if most >= ROW_INTERLEAVE and isinstance(count, Const) and count.value % ROW_INTERLEAVE == 0
        else 1
    )


def _rows_per_block(s: Schedule, stages: Sequence[StageBlocks], rank: int) -> int:
    """How many short rows are handed on at once, so that they have left the store buffer when windows read them: a load
    that spans several stores waits until all are in the cache. A divisor of the rows that leaves many iterations."""
    handed = [find_block(s.func, x.block)[0].body.buffer for x in stages[:-1]]
    row = sum(prod(literal_or_large(n) for n in b.shape[rank:]) * b.dtype.bytes for b in handed)
    count = loop_extent(s, s.loops(stages[-1].block)[rank - 1]) if rank else None
    if not isinstance(count, Const) or not row:
        return 1
    rows = int(count.value)
    most = min(STORE_BUFFER_BYTES // row, rows // MIN_ROW_ITERATIONS)
    return max((k for k in range(1, most + 1) if rows % k == 0), default=1)


def _split_stages(s: Schedule, rank: int, task: Task, plan: RowwisePlan) -> list[StageBlocks]:
    """The steps in order. Reductions with many results in a row are made in registers, and so are those of the end: the
    block that takes them over one by one, if need be a copy, goes with them."""
    found = blocks(s.func.body)
    epilogues: dict[str, str] = {}
    stages: list[StageBlocks] = []
    for b in found:
        if b.name in epilogues:
            stages.append(StageBlocks(b.name, epilogues[b.name]))
        elif b.init is not None and (len(spatial_vars(b)) > rank or b.body.buffer not in s.func.allocs):
            after = epilogue(b, found)
            if after is None:
                stages.append(StageBlocks(next(iter(apply_and_get_blocks(s, "cache_write", b.name))), b.name))
            else:
                epilogues[after] = b.name
        else:
            beside = _reduction_vectors(plan, b.name) * task.target.lanes(32)
            chunk = None if b.init is None else choose_k_block(b, K_BLOCK_LIMITS, beside)
            partial = None if chunk is None else next(iter(apply_and_get_blocks(s, "rfactor", b.name, *chunk)))
            stages.append(StageBlocks(b.name, None, partial))
    return stages


def _reduction_vectors(plan: RowwisePlan, block: str) -> int:
    return plan.tiles[block].vectors if block in plan.tiles else REDUCTION_VECTORS


def epilogue(b: Block, found: Sequence[Block]) -> str | None:
    """The only reader of a reduction's results, which takes them one by one."""
    readers = [x for x in found if x is not b and any(y.buffer == b.body.buffer for y in loads(x.body.value))]
    if len(readers) != 1 or readers[0].init is not None:
        return None
    (reader,) = readers
    own = spatial_vars(reader)
    extents = [i.extent for i in b.iters if i.kind is IterKind.SPATIAL]
    plain = all(x.indices == own for x in loads(reader.body.value) if x.buffer == b.body.buffer)
    return reader.name if plain and extents == [i.extent for i in reader.iters] else None


def fits_stack(func: Func, rank: int) -> bool:
    """Whether the rows that are handed on have literal sizes, few bytes in all."""
    handed = dict.fromkeys(b.body.buffer for b in blocks(func.body) if b.body.buffer in func.allocs)
    sizes = [(b.shape[rank:], b.dtype.bytes) for b in handed]
    if not all(isinstance(n, Const) for shape, _ in sizes for n in shape):
        return False
    return sum(prod(literal_or_large(n) for n in shape) * width for shape, width in sizes) <= MAX_STACK_BYTES


def _schedule_stage(s: Schedule, stage: StageBlocks, row_loops: list[str], task: Task, plan: RowwisePlan) -> None:
    """The loops of a step within a row."""
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
        names = BlockLoops.of(s, stage.block)
        s.do("decompose_reduction", stage.block, names.reduce[0])
        s.do("compute_at", stage.partial, names.reduce[0])
        s.do("set_scope", buffer_of(s, stage.partial), MemoryScope.STACK)
        vectorize_reduction(s, stage.partial, task, vectors)
    elif any(i.kind is IterKind.REDUCE for i in node.iters):
        vectorize_reduction(s, stage.block, task, vectors)
    elif loops:
        schedule_elementwise_stage(s, stage.block, loops, task, tile)
