"""The rule-based optimizer: parallel outer loops, vectorized inner loops, register tiles, fused epilogues.

It searches and measures nothing; strides and extents decide. It always applies, so every pipeline falls back to it.
"""

from dataclasses import replace
from math import prod

from tilewright.expr.nodes import Const, Expr, MemoryScope, Var
from tilewright.expr.traversal import loads
from tilewright.graph.fusion import FusionPattern
from tilewright.loops.ir import Block, IterKind, blocks
from tilewright.loops.stack_size import MAX_STACK_BYTES
from tilewright.optimize.contraction import schedule_contraction
from tilewright.optimize.interface import Task
from tilewright.optimize.parallelize import parallelize
from tilewright.optimize.reduction_blocking import KBlockLimits, choose_k_block, reduction_extent
from tilewright.optimize.rowwise import schedule_rowwise
from tilewright.optimize.rowwise_stage import K_BLOCK_LIMITS, REDUCTION_VECTORS, vectorize_reduction
from tilewright.optimize.select_axes import select_axes
from tilewright.optimize.strides import contraction_operands, is_literal, load_stride, store_stride
from tilewright.schedule.rewrite_tree import find_block, spatial_vars
from tilewright.schedule.schedule import Schedule
from tilewright.tile.k_blocks import peel_last_k_block
from tilewright.tile.schedule_helpers import BlockLoops, apply_and_get_blocks, buffer_of, loop_extent, split_for_lanes

MAX_UNROLLED_REDUCTION = 36
"""Reductions of at most this many literal steps (pooling and depthwise windows) are fully unrolled."""


class Rule:
    """The optimizer `rule`."""

    name = "rule"

    def optimize(self, task: Task) -> Schedule | None:
        """The rule's schedule; never None."""
        s = Schedule(task.func)
        func_blocks = blocks(task.func.body)
        match task.fusion.pattern:
            case FusionPattern.ROWWISE:
                return schedule_rowwise(task)
            case FusionPattern.SEQUENCE:
                return s
            case FusionPattern.ELEMENTWISE | FusionPattern.REDUCTION:
                pass
        reduction = next((b for b in func_blocks if b.init is not None), None)
        if reduction is None and len(task.fusion.stages) > 1:
            return schedule_siblings(task)
        if reduction is None:
            schedule_elementwise(s, func_blocks[-1].name, task)
            return s
        final = next((b for b in func_blocks if b is not reduction), None)
        if final is None:
            (copy,) = apply_and_get_blocks(s, "cache_write", reduction.name)
            final = find_block(s.func, copy)[0]
        if contraction_operands(reduction) is not None and schedule_contraction(s, reduction.name, final.name, task):
            return s
        schedule_reduction(s, reduction.name, final.name, task)
        return s


def schedule_elementwise(s: Schedule, block: str, task: Task) -> None:
    """Vectorizes the axis along which most accesses are contiguous; the other loops are parallel."""
    node = find_block(s.func, block)[0]
    loops = s.loops(block)
    if not loops:
        return
    lane = _best_lane_axis(node, task)
    if lane is None:
        parallelize(s, list(loops))
        return
    dispatch_axes = [k for k in select_axes(node) if k != lane]
    if dispatch_axes:
        _unroll_select_axes(s, loops, lane, dispatch_axes, task)
        return
    across = _transposed_axis(node, lane, task)
    outer, inner = split_for_lanes(s, loops[lane], task.target.lanes(32))
    order = [x for k, x in enumerate(loops) if k not in (lane, across)]
    if across is None:
        order += [x for x in (outer, inner) if x is not None]
    else:
        # the next vectors use the rest of a partially used cache line while it is still cached
        across_outer, across_inner = s.split(loops[across], task.target.lanes(32))
        order += [x for x in (across_outer, outer, across_inner, inner) if x is not None]
    if len(order) > 1:
        s.do("reorder", tuple(order))
    s.do("vectorize", inner)
    parallelize(s, order[:-1] if across is None else order[:-2])


def schedule_siblings(task: Task) -> Schedule:
    """Element-wise blocks over one iteration space in one nest, so that common operands are loaded once: each stores a
    vector in every iteration. Where they suit different lanes, every block has a nest of its own."""
    s = Schedule(task.func)
    nodes = blocks(task.func.body)
    lane = _best_lane_axis(nodes[-1], task)
    width = task.target.lanes(32)
    is_plain = lane is not None and not any(
        select_axes(n) or _transposed_axis(n, lane, task) is not None for n in nodes
    )
    if lane is None or not is_plain or (len(nodes[-1].iters) == 1 and _is_short(nodes[-1].iters[0].extent, width)):
        for node in nodes:
            schedule_elementwise(s, node.name, task)
        return s
    shared: list[str] = []
    for node in reversed(nodes):
        loops = s.loops(node.name)
        outer, inner = split_for_lanes(s, loops[lane], width)
        own = [x for k, x in enumerate(loops) if k != lane] + ([] if outer is None else [outer])
        s.do("reorder", (*own, inner))
        if shared:
            s.do("compute_with", node.name, shared[-1])
        s.do("vectorize", inner)
        shared = shared or own
    parallelize(s, shared)
    return s


def _is_short(extent: Expr, lanes: int) -> bool:
    return isinstance(extent, Const) and extent.value <= lanes


def _unroll_select_axes(s: Schedule, loops: tuple[str, ...], lane: int, unrolled_axes: list[int], task: Task) -> None:
    """Unrolls all cases of a vector next to each other, so that their common subexpressions are computed once."""
    outer, inner = split_for_lanes(s, loops[lane], task.target.lanes(32))
    order = [x for k, x in enumerate(loops) if k != lane and k not in unrolled_axes]
    order += [] if outer is None else [outer]
    s.do("reorder", (*order, *(loops[k] for k in unrolled_axes), inner))
    for k in unrolled_axes:
        s.do("unroll", loops[k])
    s.do("vectorize", inner)
    parallelize(s, order)


def _transposed_axis(node: Block, lane: int, task: Task) -> int | None:
    """Position of an axis along which a load is contiguous that is strided along the lanes, as in a transposition."""
    variables = spatial_vars(node)
    width = task.target.lanes(32)
    for x in loads(node.body.value):
        lane_stride = load_stride(x, variables[lane])
        if is_literal(lane_stride, 0) or is_literal(lane_stride, 1):
            continue
        for k, var in enumerate(variables):
            extent = node.iters[k].extent
            fills_vector = not isinstance(extent, Const) or extent.value >= width
            if k != lane and fills_vector and is_literal(load_stride(x, var), 1):
                return k
    return None


def _best_lane_axis(node: Block, task: Task) -> int | None:
    """Position of the spatial variable along which most accesses are contiguous; the store counts double."""
    scores: list[float] = []
    for var in spatial_vars(node):
        score = 2.0 * is_literal(store_stride(node, var), 1)
        for x in loads(node.body.value):
            stride = load_stride(x, var)
            score += 1.0 if is_literal(stride, 1) else 0.5 if is_literal(stride, 0) else -0.5 if stride is None else 0.0
        extent = next(i.extent for i in node.iters if i.var is var)
        if isinstance(extent, Const) and extent.value < task.target.lanes(32):
            score *= float(extent.value) / task.target.lanes(32)
        scores.append(score)
    if not scores:
        return None
    best = max(scores)
    return max(k for k, x in enumerate(scores) if x == best)


def schedule_reduction(s: Schedule, block: str, final: str, task: Task) -> None:
    """Schedules a reduction that is no tiled contraction: lanes along a contiguous spatial axis, else along the
    reduction."""
    node = find_block(s.func, block)[0]
    spatial = spatial_vars(node)
    lane = _spatial_lane(node, task.target.lanes(32))
    outer = s.loops(final)
    if not outer:
        _schedule_scalar_reduction(s, block, task)
        return
    k_block = choose_k_block(node, K_BLOCK_LIMITS, REDUCTION_VECTORS * task.target.lanes(32) if lane is None else 1)
    partial = None if k_block is None else next(iter(apply_and_get_blocks(s, "rfactor", block, *k_block)))
    if lane is None:
        s.do("compute_at", block, outer[-1])
        if partial is None:
            _vectorize_scalar_reduction(s, block, task)
        else:
            _schedule_k_blocked_scalar(s, block, partial, task)
        parallelize(s, list(outer))
        return
    position = spatial.index(lane)
    lane_outer, inner = split_for_lanes(s, outer[position], task.target.lanes(32))
    order = [x for k, x in enumerate(outer) if k != position] + [x for x in (lane_outer, inner) if x is not None]
    if len(order) > 1:
        s.do("reorder", tuple(order))
    if len(order) == 1:
        # A single short axis: there is no loop left to compute the reduction at.
        s.do("vectorize", inner)
        return
    s.do("compute_at", block, order[-2])
    block_loops = _vectorize_results(s, block)
    if partial is not None:
        s.do("compute_at", partial, block_loops.reduce[0])
        _vectorize_results(s, partial)
        if k_block is not None:
            peel_last_k_block(s, block, partial, k_block[0], reduction_extent(node, k_block[0]), k_block[1])
    else:
        _unroll_window(s, block_loops.reduce)
    s.do("vectorize", inner)
    parallelize(s, order[:-1])


def _vectorize_results(s: Schedule, block: str) -> BlockLoops:
    """Keeps a tile of results in registers, its reduction loops outside and its lanes inside."""
    s.do("set_scope", buffer_of(s, block), MemoryScope.REGISTER)
    loops = BlockLoops.of(s, block)
    if loops.reduce and loops.spatial:
        s.do("reorder", (*loops.reduce, *loops.spatial))
    init = s.decompose_reduction(block, loops.reduce[0])
    for x in (*loops.spatial, *BlockLoops.of(s, init).spatial):
        s.do("vectorize", x)
    return loops


def _schedule_k_blocked_scalar(s: Schedule, block: str, partial: str, task: Task) -> None:
    """Computes one result: adds up the K-blocks' sums, each vectorized along the reduction."""
    s.do("set_scope", buffer_of(s, block), MemoryScope.STACK)
    loops = BlockLoops.of(s, block)
    s.do("decompose_reduction", block, loops.reduce[0])
    s.do("compute_at", partial, loops.reduce[0])
    _vectorize_scalar_reduction(s, partial, task)


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
    """Whether a load is contiguous along a reduction that fills vectors; pooling and depthwise windows are too
    short."""
    for i in node.iters:
        is_short = isinstance(i.extent, Const) and i.extent.value < lanes
        if (
            i.kind is IterKind.REDUCE
            and not is_short
            and any(
                is_literal(load_stride(x, i.var), 1) for x in loads(node.body.value) if x.buffer != node.body.buffer
            )
        ):
            return True
    return False


def _vectorize_scalar_reduction(s: Schedule, block: str, task: Task) -> None:
    """Vectorizes the contiguous reduction loop of a block that is computed inside its consumer; scalar accumulator."""
    s.do("set_scope", buffer_of(s, block), MemoryScope.STACK)
    if BlockLoops.of(s, block).reduce:
        vectorize_reduction(s, block, task)


def _schedule_scalar_reduction(s: Schedule, block: str, task: Task) -> None:
    loops = BlockLoops.of(s, block)
    if loops.reduce and not loops.spatial:
        lanes = REDUCTION_VECTORS * task.target.lanes(32)
        node = find_block(s.func, block)[0]
        k_block = choose_k_block(node, _stack_k_block_limits(node, lanes), lanes, include_exact=True)
        partial = None if k_block is None else next(iter(apply_and_get_blocks(s, "rfactor", block, *k_block)))
        s.do("decompose_reduction", block, loops.reduce[0] if partial is None else BlockLoops.of(s, block).reduce[0])
        if partial is not None:
            # threads share the K-blocks
            s.do("set_scope", buffer_of(s, partial), MemoryScope.STACK)
            vectorize_reduction(s, partial, task)
            parallelize(s, [s.loops(partial)[0]])
            return
        node = find_block(s.func, block)[0]
        last = node.iters[-1].var
        strides = [load_stride(x, last) for x in loads(node.body.value) if x.buffer != node.body.buffer]
        if any(is_literal(stride, 1) for stride in strides):
            _, inner = split_for_lanes(s, loops.reduce[-1], 4 * task.target.lanes(32))
            s.do("vectorize", inner)


def _stack_k_block_limits(node: Block, lanes: int) -> KBlockLimits:
    """Limits of K-blocks that are so long that the stack holds the partial sums of all of them."""
    total = prod(int(i.extent.value) for i in node.iters if isinstance(i.extent, Const))
    min_length = -(-total * node.body.buffer.dtype.bytes // MAX_STACK_BYTES)
    return replace(
        K_BLOCK_LIMITS, min_size=max(K_BLOCK_LIMITS.min_size, -(-min_length * K_BLOCK_LIMITS.slack // lanes))
    )


def _unroll_window(s: Schedule, reduce_loops: tuple[str, ...]) -> None:
    total = 1
    for name in reduce_loops:
        extent = loop_extent(s, name)
        if not isinstance(extent, Const):
            return
        total *= int(extent.value)
    if total <= MAX_UNROLLED_REDUCTION:
        for name in reduce_loops:
            s.do("unroll", name)
