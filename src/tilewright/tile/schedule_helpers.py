"""Helpers of lowering: new blocks, buffers, extents of loops, lanes that are contiguous."""

from typing import Any

from tilewright.expr.nodes import Expr
from tilewright.expr.traversal import free_vars
from tilewright.layout.layout import Layout
from tilewright.loops.ir import blocks
from tilewright.schedule.rewrite_tree import find_block, find_loop
from tilewright.schedule.schedule import Schedule


def buffer_of(s: Schedule, block: str) -> str:
    """The name of the buffer that a block writes."""
    return find_block(s.func, block)[0].body.buffer.name


def apply_and_get_blocks(s: Schedule, primitive: str, *args: Any) -> tuple[str, ...]:
    """Applies a primitive; returns the names of the blocks that it added, in program order."""
    before = {b.name for b in blocks(s.func.body)}
    s.do(primitive, *args)
    return tuple(b.name for b in blocks(s.func.body) if b.name not in before)


def loop_extent(s: Schedule, name: str) -> Expr:
    """The extent of a loop."""
    return find_loop(s.func, name)[0].extent


def make_lanes_contiguous(s: Schedule, block: str, axis: int) -> None:
    """Transforms the layout of the block's buffer so that an axis, the lane axis, is innermost."""
    node = find_block(s.func, block)[0]
    buffer, lane = node.body.buffer, node.iters[axis].var
    lane_dims = [k for k in range(buffer.rank) if lane in free_vars(node.body.indices[k])]
    order = (*(k for k in range(buffer.rank) if k not in lane_dims), *lane_dims)
    if order != tuple(range(buffer.rank)):
        s.transform_layout(buffer.name, Layout.of(buffer.shape).reorder(order))
