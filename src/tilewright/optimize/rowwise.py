"""Row-wise fusion: one parallel loop over rows, in which every block computes its part of a row.

Intermediates shrink to a row on the thread's stack, close in the caches. Within a row every block is vectorized on its
own: element-wise work and reductions to one value along their contiguous operands, windows along their results, in
register tiles.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from tilewright.errors import InternalError
from tilewright.expr.nodes import Const, Expr, MemoryScope, const
from tilewright.expr.traversal import loads
from tilewright.graph.fusion import StageRole
from tilewright.loops.ir import Block, IterKind, LoopKind, blocks
from tilewright.optimize.lane_loops import K_BLOCK_LIMITS, REDUCTION_VECTORS, BlockedSum, with_outer_loops
from tilewright.optimize.needed_points import needed_points
from tilewright.optimize.parallelize import parallelize
from tilewright.optimize.reduction_blocking import choose_k_block
from tilewright.optimize.rowwise_stage import RowAxes, StageTile, elementwise_stage, literal_or_large, window_stage
from tilewright.optimize.strides import is_literal
from tilewright.optimize.task import Task
from tilewright.tile.statements import axis_names
from tilewright.tile.tree import CacheWrite, Compute, Loop, Node, Staging, TileTree, nest

STORE_BUFFER_BYTES = 8 << 10
"""Bytes after whose writing the first ones have reached the cache; twice the size of store buffers."""

ROW_INTERLEAVE = 2
"""Rows whose stages are interleaved (unroll-and-jam). A horizontal reduction is a dependency chain, and its users wait
for its end; meanwhile the processor works on the other row. More rows only take more space."""

MIN_ROW_ITERATIONS = 16
"""Iterations over rows that remain for threads."""


@dataclass(frozen=True, slots=True)
class _Stage:
    """One stage of a row: a block, a register reduction with its epilogue, or the copy of a result.

    Attributes:
        total: its main block, a reduction or element-wise.
        final: the block that stores its results: the main block, or the epilogue of a register reduction.
        axes: names of that block's axes.
        needed: their points that are read.
        store: the statement that stores them, a copy where a register reduction has no epilogue.
        role: what it is.
        is_result: whether it writes a result of the kernel.
        staging: the statements that it adds.
    """

    total: BlockedSum
    final: Block
    axes: tuple[str, ...]
    needed: tuple[Expr, ...]
    store: str
    role: StageRole
    is_result: bool
    staging: tuple[Staging, ...] = ()

    @property
    def is_register_reduction(self) -> bool:
        """Whether the main block accumulates in registers."""
        return self.role is StageRole.REGISTER_REDUCTION


@dataclass(frozen=True, slots=True)
class RowwisePlan:
    """The choices for a row-wise kernel; the rule makes those that are left open.

    Attributes:
        rows_per_block: rows per iteration of the fused loop, a divisor of their number; None leaves it open.
        tiles: register tiles by the name of the stage's main block.
    """

    rows_per_block: int | None = None
    tiles: Mapping[str, StageTile] = field(default_factory=dict[str, StageTile])


RULE_PLAN = RowwisePlan()


def rowwise_tree(task: Task, plan: RowwisePlan = RULE_PLAN, parallel: bool | None = None) -> TileTree:
    """The tree of a row-wise kernel: one loop over blocks of rows around the loops of every stage.

    Args:
        task: the kernel.
        plan: the choices.
        parallel: whether threads share the rows; by default where there is enough work.
    """
    stages, rank = _split_stages(task, plan), task.fusion.outer_rank
    last = stages[-1]
    extents = [i.extent for i in last.final.iters[:rank]]
    count = plan.rows_per_block
    if count is None:
        count = _rows_per_block(stages, extents) if last.is_register_reduction else _row_interleave(extents)
    steps = [1] * (rank - 1) + [count] * (rank > 0)
    rows = [Loop(name, step, ()) for name, step in zip(last.axes, steps, strict=False)]
    if parallel is None:
        rows = parallelize(task, rows, extents)
    elif parallel:
        rows = [replace(x, kind=LoopKind.PARALLEL) for x in rows]
    nests = [_stage_nest(stage, rank, count, stage is last, task, plan) for stage in stages]
    body = _with_operands_inside(stages, nests)
    tree = TileTree(nest(rows, *body), tuple(x for stage in stages for x in stage.staging))
    return with_outer_loops(tree, task.func)


def _with_operands_inside(stages: Sequence[_Stage], nests: Sequence[tuple[Node, ...]]) -> list[Node]:
    """The loops of all stages in order, with what a sum reads of the result before it computed in the loop of the sum.

    Where one register tile has all sums of a row, it reads every point of the operand once: a row of any length, such
    as the values of a cache, is still in registers or in the nearest cache then.
    """
    body: list[Node] = []
    for k, own in enumerate(nests):
        writer = nests[k - 1][0] if k and len(nests[k - 1]) == 1 else None
        total = own[0]
        if (
            isinstance(writer, Loop) and isinstance(total, Loop) and body and body[-1] is writer
            and (writer.axis, writer.step, writer.kind, writer.tail) == (total.axis, total.step, total.kind, total.tail)
            and total.kind is LoopKind.SERIAL and stages[k].is_register_reduction
            and _sums_points_once(stages[k], stages[k - 1], total.axis)
        ):  # fmt: skip
            body.pop()
            own = (replace(total, body=(*writer.body, *total.body)), *own[1:])
        body += own
    return body


def _sums_points_once(total: _Stage, operand: _Stage, axis: str) -> bool:
    """Whether a stage sums another one's results up along an axis and reads them at every point of it alone."""
    if not operand.is_result or operand.role is not StageRole.ELEMENTWISE:
        return False
    node, written = total.total.node, operand.final.body
    reduced = {i.var for i in node.iters if i.kind is IterKind.REDUCE}
    summed = next((i for name, i in zip(total.total.names, node.iters, strict=True) if name == axis), None)
    along = next((i for name, i in zip(operand.axes, operand.final.iters, strict=True) if name == axis), None)
    if summed is None or along is None or summed.extent is not along.extent or reduced != {summed.var}:
        return False
    dims = [d for d, index in enumerate(written.indices) if index is along.var]
    reads = [x for x in loads(node.body.value) if x.buffer == written.buffer]
    return bool(dims and reads) and all(x.indices[d] is summed.var for x in reads for d in dims)


def _row_interleave(extents: Sequence[Expr]) -> int:
    """Rows without windows that are interleaved: two where their number is even and many iterations remain."""
    count = extents[-1] if extents else None
    n = int(count.value) if isinstance(count, Const) else 0
    return ROW_INTERLEAVE if n // MIN_ROW_ITERATIONS >= ROW_INTERLEAVE and n % ROW_INTERLEAVE == 0 else 1


def _rows_per_block(stages: Sequence[_Stage], extents: Sequence[Expr]) -> int:
    """Short rows per block, so that intermediates have left the store buffer when windows read them: a load that
    spans several stores waits until all have reached the cache. A divisor of the number of rows that leaves many
    iterations."""
    intermediates = [x.final.body.buffer for x in stages[:-1]]
    row_bytes = sum(prod(literal_or_large(n) for n in b.shape[len(extents) :]) * b.dtype.bytes for b in intermediates)
    count = extents[-1] if extents else None
    if not isinstance(count, Const) or not row_bytes:
        return 1
    rows = int(count.value)
    max_rows = min(STORE_BUFFER_BYTES // row_bytes, rows // MIN_ROW_ITERATIONS)
    return max((k for k in range(1, max_rows + 1) if rows % k == 0), default=1)


def _split_stages(task: Task, plan: RowwisePlan) -> list[_Stage]:
    """The stages in order. Reductions with many results per row, and those that write the final result, accumulate in
    registers: their element-wise reader, if need be an inserted copy, joins their stage."""
    func_blocks, names, needed = blocks(task.func.body), axis_names(task.func), needed_points(task.func)
    reduction_of: dict[int, Block] = {}
    stages: list[_Stage] = []

    def add(total: BlockedSum, final: Block, store: str, role: StageRole, staging: tuple[Staging, ...] = ()) -> None:
        # what is copied is an intermediate
        is_result = final.body.buffer in task.func.outputs and store not in {x.statement for x in staging}
        stages.append(_Stage(total, final, names[final.name], needed[final.name], store, role, is_result, staging))

    for k, (b, stage) in enumerate(zip(func_blocks, task.fusion.stages, strict=True)):
        total, copy = BlockedSum(b, names[b.name]), f"{b.name}.store"
        match stage.role:
            case StageRole.EPILOGUE:
                reduction = reduction_of[k]
                add(BlockedSum(reduction, names[reduction.name]), b, b.name, StageRole.REGISTER_REDUCTION)
            case StageRole.REGISTER_REDUCTION if stage.epilogue is not None:
                reduction_of[stage.epilogue] = b
            case StageRole.REGISTER_REDUCTION:
                add(total, b, copy, stage.role, (CacheWrite(b.name, copy),))
            case StageRole.ROW_REDUCTION:
                is_result = b.body.buffer in task.func.outputs
                lanes = _reduction_vectors(plan, b.name) * task.target.lanes(32)
                blocked = replace(total, k_block=choose_k_block(b, K_BLOCK_LIMITS, lanes))
                copies = (CacheWrite(b.name, copy),) if is_result else ()
                add(blocked, b, b.name, stage.role, (*copies, *blocked.staging))
                if is_result:
                    add(total, b, copy, StageRole.ELEMENTWISE)
            case StageRole.ELEMENTWISE:
                add(total, b, b.name, stage.role)
            case StageRole.CONTRACTION:
                raise InternalError("a row-wise kernel has a contraction of a chain", where=f"stage {b.name!r}")
    return stages


def _reduction_vectors(plan: RowwisePlan, block: str) -> int:
    return plan.tiles[block].vectors if block in plan.tiles else REDUCTION_VECTORS


def _stage_nest(
    stage: _Stage, rank: int, rows_per_block: int, is_last: bool, task: Task, plan: RowwisePlan
) -> tuple[Node, ...]:
    """The loops of one stage within a block of rows."""
    node, target = stage.total.node, task.target
    tile = plan.tiles.get(node.name)
    lanes = _reduction_vectors(plan, node.name) * target.lanes(32)
    store = Compute(stage.store, None if stage.is_result else MemoryScope.STACK)
    inner_rows = [Loop(stage.axes[rank - 1], 1, ())] if rank and rows_per_block > 1 else []
    extents = {k: i.extent for k, i in enumerate(stage.final.iters) if i.kind is IterKind.SPATIAL and k >= rank}
    points = extents
    if rank and not stage.is_result:
        # moved into the loops over rows, where axes of which a single point is needed have no loop
        points = {k: stage.needed[k] for k in extents if not is_literal(stage.needed[k], 1)}
    narrowed = frozenset(k for k, n in points.items() if n is not extents[k])
    if stage.role is StageRole.ROW_REDUCTION:
        return nest(inner_rows, *stage.total.to_one_value(lanes))
    if inner_rows and not is_last and not (stage.is_result and stage.is_register_reduction):
        points, inner_rows = {rank - 1: const(rows_per_block), **points}, []
    axes = RowAxes(stage.axes, points, rank > 0, narrowed)
    if not stage.is_register_reduction:
        return nest(inner_rows, *elementwise_stage(node, axes, store, target, tile))
    if points:
        return nest(inner_rows, *window_stage(stage.total, stage.final, axes, store, target, tile))
    return nest(inner_rows, *stage.total.to_one_value(lanes), store)
