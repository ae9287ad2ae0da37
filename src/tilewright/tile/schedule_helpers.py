"""Helpers for code that builds schedules: a block's own loops, new blocks, splitting an axis into lanes."""

from dataclasses import dataclass
from typing import Any

from tilewright.expr.nodes import Const, Expr, Var
from tilewright.expr.traversal import free_vars
from tilewright.layout.layout import Layout
from tilewright.loops.ir import For, IterKind, blocks
from tilewright.schedule.rewrite_tree import find_block, find_loop
from tilewright.schedule.schedule import Schedule


@dataclass(frozen=True, slots=True)
class BlockLoops:
    """The loops that enclose one block only, by kind, outermost first."""

    spatial: tuple[str, ...]
    reduce: tuple[str, ...]

    @staticmethod
    def of(s: Schedule, block: str) -> "BlockLoops":
        """The loops around a block that hold nothing else, by the kind of the iteration variables that they drive."""
        node, enclosing = find_block(s.func, block)
        own_loops = [x for x in enclosing if _holds_only(x, block)]
        reduction_vars = {v for i in node.iters if i.kind is IterKind.REDUCE for v in free_vars(i.binding)}
        return BlockLoops(
            tuple(x.var.name for x in own_loops if x.var not in reduction_vars),
            tuple(x.var.name for x in own_loops if x.var in reduction_vars),
        )


def _holds_only(loop: For, block: str) -> bool:
    return [b.name for b in blocks(loop)] == [block]


def spatial_loops(s: Schedule, block: str) -> dict[int, str]:
    """The loops around a block alone that drive its spatial variables, by the variable's position."""
    node = find_block(s.func, block)[0]
    loops: dict[int, str] = {}
    for loop in BlockLoops.of(s, block).spatial:
        for k, i in enumerate(node.iters):
            if i.kind is IterKind.SPATIAL and Var(loop) in free_vars(i.binding):
                loops[k] = loop
    return loops


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


def split_for_lanes(s: Schedule, loop: str, lanes: int) -> tuple[str | None, str]:
    """Splits a loop so that its inner part can be vectorised: (outer, inner); (None, loop) where it is short itself."""
    extent = loop_extent(s, loop)
    if isinstance(extent, Const):
        n = int(extent.value)
        if n <= lanes and n & (n - 1) == 0:
            return None, loop
    return s.split(loop, lanes)


def axis_loops(s: Schedule, block: str) -> list[str]:
    """The loop that drives each iteration variable of a block whose loops have not been split."""
    node, enclosing = find_block(s.func, block)
    return [next(x.var.name for x in enclosing if x.var in free_vars(i.binding)) for i in node.iters]


def make_lanes_contiguous(s: Schedule, block: str, axis: int) -> None:
    """Transforms the layout of the block's buffer so that an axis, the lane axis, is innermost."""
    node = find_block(s.func, block)[0]
    buffer, lane = node.body.buffer, node.iters[axis].var
    lane_dims = [k for k in range(buffer.rank) if lane in free_vars(node.body.indices[k])]
    order = (*(k for k in range(buffer.rank) if k not in lane_dims), *lane_dims)
    if order != tuple(range(buffer.rank)):
        s.transform_layout(buffer.name, Layout.of(buffer.shape).reorder(order))
