"""Trees of reductions that are no tiled contractions: lanes along a contiguous axis of the results or the reduction."""

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from tilewright.expr.nodes import Const, Expr, MemoryScope, Var
from tilewright.expr.traversal import loads
from tilewright.loops.ir import Block, IterKind, LoopKind
from tilewright.loops.private_memory import MAX_STACK_BYTES
from tilewright.optimize.lane_loops import (
    K_BLOCK_LIMITS,
    REDUCTION_VECTORS,
    BlockedSum,
    is_contiguous_along,
    lane_loops,
)
from tilewright.optimize.parallelize import parallelize
from tilewright.optimize.reduction_blocking import KBlockLimits, choose_k_block
from tilewright.optimize.strides import is_literal, load_stride, store_stride
from tilewright.optimize.task import Task
from tilewright.schedule.rewrite_tree import spatial_vars
from tilewright.schedule.tails import Tail
from tilewright.tile.problem import is_reorderable
from tilewright.tile.statements import axis_names
from tilewright.tile.tree import CacheWrite, Compute, Loop, TileTree, nest

MAX_UNROLLED_REDUCTION = 36
"""Reductions of at most this many literal steps (pooling and depthwise windows) are fully unrolled."""


def plain_reduction_tree(node: Block, epilogue: Block | None, task: Task) -> TileTree:
    """The tree of a reduction.

    Args:
        node: the reduction.
        epilogue: the element-wise reader of its results; without one a copy stores them.
        task: the kernel.
    """
    names = axis_names(task.func)
    final = epilogue or node
    axes = zip(names[final.name], final.iters, strict=True)
    results = [(name, i.extent) for name, i in axes if i.kind is IterKind.SPATIAL]
    store = Compute(f"{node.name}.store" if epilogue is None else epilogue.name)
    total, lane = BlockedSum(node, names[node.name]), _spatial_lane(node, task.target.lanes(32))
    if not results:
        tree = _scalar_tree(total, task)
    elif lane is None:
        tree = _lane_reduction_tree(total, results, store, task)
    else:
        tree = _lane_results_tree(total, spatial_vars(node).index(lane), results, store, task)
    copy = () if epilogue is not None else (CacheWrite(node.name, store.statement),)
    return TileTree(tree.body, (*copy, *tree.staging))


def _lane_reduction_tree(
    total: BlockedSum, results: Sequence[tuple[str, Expr]], store: Compute, task: Task
) -> TileTree:
    """Lanes along the reduction, one result after the other."""
    lanes = REDUCTION_VECTORS * task.target.lanes(32)
    total = replace(total, k_block=choose_k_block(total.node, K_BLOCK_LIMITS, lanes))
    loops = parallelize(task, [Loop(name, 1, ()) for name, _ in results], [n for _, n in results])
    return TileTree(nest(loops, *total.to_one_value(lanes), store), total.staging)


def _lane_results_tree(
    total: BlockedSum, position: int, results: Sequence[tuple[str, Expr]], store: Compute, task: Task
) -> TileTree:
    """Lanes along an axis of the results, which accumulate in registers."""
    node = total.node
    total = replace(total, k_block=choose_k_block(node, K_BLOCK_LIMITS))
    axis, extent = results[position]
    *over_vectors, lanes = lane_loops(axis, extent, task.target.lanes(32))
    others = [x for k, x in enumerate(results) if k != position]
    outer = [*(Loop(name, 1, ()) for name, _ in others), *over_vectors]
    if not outer:
        # a single short axis: there is no loop left to compute the reduction in
        return TileTree(nest([lanes], store), total.staging)
    loops = parallelize(task, outer, [n for _, n in (*others, *([(axis, extent)] * len(over_vectors)))])
    # an axis of a single point has no loop in the reduction
    points = [] if is_literal(extent, 1) else [Loop(total.names[position], 1, (), LoopKind.VECTORIZED)]
    result = Compute(node.name, MemoryScope.REGISTER)
    if total.k_block is None:
        body = nest([*_unrolled_window(total), *points], result)
    else:
        partial = nest([*total.loops(), *points], Compute(total.partial, MemoryScope.REGISTER))
        body = nest(total.over_k_blocks(Tail.REMAINDER), *partial, *nest(points, result))
    return TileTree(nest(loops, *body, *nest([lanes], store)), total.staging)


def _unrolled_window(total: BlockedSum) -> list[Loop]:
    """The loops of a reduction; those of a short window are unrolled."""
    points = prod(int(n.value) if isinstance(n, Const) else MAX_UNROLLED_REDUCTION + 1 for _, _, n in total.axes)
    kind = LoopKind.UNROLLED if points <= MAX_UNROLLED_REDUCTION else LoopKind.SERIAL
    return [replace(x, kind=kind) for x in total.loops()]


def _scalar_tree(total: BlockedSum, task: Task) -> TileTree:
    """A reduction to a single value: in K-blocks that threads share, in vectors where it is short."""
    node, lanes = total.node, REDUCTION_VECTORS * task.target.lanes(32)
    k_block = choose_k_block(node, _stack_k_block_limits(node, lanes), lanes, include_exact=True)
    if k_block is not None:
        blocked = replace(total, k_block=k_block)
        shared = parallelize(task, blocked.over_k_blocks(), [total.axes[k_block[0]][2]])
        partial = nest([*shared, *blocked.lane_loops(lanes)], Compute(blocked.partial, MemoryScope.STACK))
        return TileTree((*partial, *nest(blocked.over_k_blocks(), Compute(node.name))), blocked.staging)
    loops = total.loops()
    if not loops:
        return TileTree(())
    last, var, extent = total.axes[-1]
    if is_contiguous_along(node, var) and is_reorderable(node):
        loops[-1:] = lane_loops(last, extent, lanes)
    return TileTree(nest(loops, Compute(node.name)))


def _spatial_lane(node: Block, lanes: int) -> Var | None:
    """The spatial variable that suits lanes better than the reduction does, by store and loads; None where there is
    none."""
    for var in reversed(spatial_vars(node)):
        if not is_literal(store_stride(node, var), 1):
            continue
        strides = [load_stride(x, var) for x in loads(node.body.value) if x.buffer != node.body.buffer]
        if any(is_literal(x, 1) for x in strides) or not _has_long_contiguous_reduction(node, lanes):
            return var
    return None


def _has_long_contiguous_reduction(node: Block, lanes: int) -> bool:
    """Whether a load is contiguous along a reduction that fills vectors, in any order; pooling and depthwise windows
    are too short."""
    if not is_reorderable(node):
        return False
    for i in node.iters:
        is_short = isinstance(i.extent, Const) and i.extent.value < lanes
        if i.kind is IterKind.REDUCE and not is_short and is_contiguous_along(node, i.var):
            return True
    return False


def _stack_k_block_limits(node: Block, lanes: int) -> KBlockLimits:
    """Limits of K-blocks that are so long that the stack holds the partial sums of all of them."""
    total = prod(int(i.extent.value) for i in node.iters if isinstance(i.extent, Const))
    min_length = -(-total * node.body.buffer.dtype.bytes // MAX_STACK_BYTES)
    return replace(
        K_BLOCK_LIMITS, min_size=max(K_BLOCK_LIMITS.min_size, -(-min_length * K_BLOCK_LIMITS.slack // lanes))
    )
