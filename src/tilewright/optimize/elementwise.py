"""Trees of element-wise work and data movement: lanes along the axis along which most accesses are contiguous."""

from collections.abc import Sequence

from tilewright.expr.nodes import Const
from tilewright.expr.traversal import loads
from tilewright.loops.ir import Block, LoopKind
from tilewright.optimize.lane_loops import lane_loops
from tilewright.optimize.parallelize import parallelize
from tilewright.optimize.select_axes import select_axes
from tilewright.optimize.strides import is_literal, load_stride, store_stride
from tilewright.optimize.task import Task
from tilewright.schedule.rewrite_tree import spatial_vars
from tilewright.tile.statements import axis_names
from tilewright.tile.tree import Compute, Loop, Node, TileTree, nest


def elementwise_tree(nodes: Sequence[Block], task: Task) -> TileTree:
    """The tree of element-wise blocks over one iteration space.

    Several blocks are in one nest, so that common operands are loaded once: each stores a vector in every iteration.
    Where they suit different lanes, every block has a nest of its own.
    """
    last, width = nodes[-1], task.target.lanes(32)
    if not last.iters:
        return TileTree(())
    lane = _best_lane_axis(last, task)
    is_plain = not any(select_axes(n) or _transposed_axis(n, lane, task) is not None for n in nodes)
    is_short = len(last.iters) == 1 and isinstance(last.iters[0].extent, Const) and last.iters[0].extent.value <= width
    groups = [nodes] if is_plain and not is_short else [[n] for n in nodes]
    return TileTree(tuple(x for group in groups for x in _common_nest(group, task)))


def _common_nest(nodes: Sequence[Block], task: Task) -> tuple[Node, ...]:
    """The nest of blocks that suit the same lanes, the axis along which most accesses of the last one are contiguous;
    the other loops are parallel."""
    names, last = axis_names(task.func), nodes[-1]
    axes, extents = names[last.name], [i.extent for i in last.iters]
    width, lane = task.target.lanes(32), _best_lane_axis(last, task)
    *over_vectors, _ = lane_loops(axes[lane], extents[lane], width)
    cases = [k for k in select_axes(last) if k != lane]
    across = None if cases else _transposed_axis(last, lane, task)
    outer = [k for k in range(len(axes)) if k not in (lane, across, *cases)]
    loops = [Loop(axes[k], 1, ()) for k in outer]
    if across is not None:
        # the next vectors use the rest of a partially used cache line while it is still cached
        outer.append(across)
        loops.append(Loop(axes[across], width, ()))
    outer += [lane] * len(over_vectors)
    loops = parallelize(task, [*loops, *over_vectors], [extents[k] for k in outer])
    # all cases of a vector next to each other: their common subexpressions are computed once
    inner = [Loop(axes[k], 1, (), LoopKind.UNROLLED) for k in cases]
    inner += [] if across is None else [Loop(axes[across], 1, ())]
    vectors = (nest([Loop(names[n.name][lane], 1, (), LoopKind.VECTORIZED)], Compute(n.name)) for n in nodes)
    return nest([*loops, *inner], *(x for v in vectors for x in v))


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


def _best_lane_axis(node: Block, task: Task) -> int:
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
    best = max(scores)
    return max(k for k, x in enumerate(scores) if x == best)
