"""Small steps that everything shares that schedules kernels: finding a block's loops, cutting an axis into lanes."""

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
    """A block's own loops by kind, outermost first: those that only it depends on."""

    spatial: tuple[str, ...]
    reduce: tuple[str, ...]

    @staticmethod
    def of(s: Schedule, block: str) -> "BlockLoops":
        """The innermost loops that hold nothing but the block, by the kind of the variables that they drive."""
        node, around = find_block(s.func, block)
        own = [x for x in around if _holds_only(x, block)]
        reduced = {v for i in node.iters if i.kind is IterKind.REDUCE for v in free_vars(i.binding)}
        return BlockLoops(
            tuple(x.var.name for x in own if x.var not in reduced), tuple(x.var.name for x in own if x.var in reduced)
        )


def _holds_only(loop: For, block: str) -> bool:
    return [b.name for b in blocks(loop)] == [block]


def spatial_loops(s: Schedule, block: str) -> dict[int, str]:
    """The loops around a block alone that drive its spatial variables, by the variable's position."""
    node = find_block(s.func, block)[0]
    found: dict[int, str] = {}
    for loop in BlockLoops.of(s, block).spatial:
        for k, i in enumerate(node.iters):
            if i.kind is IterKind.SPATIAL and Var(loop) in free_vars(i.binding):
                found[k] = loop
    return found


def buffer_of(s: Schedule, block: str) -> str:
    """The name of the buffer that a block writes."""
    return find_block(s.func, block)[0].body.buffer.name


def apply_and_get_blocks(s: Schedule, primitive: str, *args: Any) -> tuple[str, ...]:
    """Applies a primitive; names of the blocks that it added, in the order of the text."""
    before = {b.name for b in blocks(s.func.body)}
    s.do(primitive, *args)
    return tuple(b.name for b in blocks(s.func.body) if b.name not in before)


def loop_extent(s: Schedule, name: str) -> Expr:
    """The extent of a loop."""
    return find_loop(s.func, name)[0].extent


def split_for_lanes(s: Schedule, loop: str, lanes: int) -> tuple[str | None, str]:
    """(outer, inner) with an inner loop that can be vectorized; no outer one where the loop is short itself."""
    extent = loop_extent(s, loop)
    if isinstance(extent, Const):
        n = int(extent.value)
        if n <= lanes and n & (n - 1) == 0:
            return None, loop
    return s.split(loop, lanes)


def axis_loops(s: Schedule, block: str) -> list[str]:
    """The loop that drives each iteration variable of a block whose loops have not been split."""
    node, around = find_block(s.func, block)
    return [next(x.var.name for x in around if x.var in free_vars(i.binding)) for i in node.iters]


def make_lanes_contiguous(s: Schedule, block: str, axis: int) -> None:
    """Stores the block's buffer so that an axis, the one along lanes, is innermost."""
    node = find_block(s.func, block)[0]
    buffer, lane = node.body.buffer, node.iters[axis].var
    last = [k for k in range(buffer.rank) if lane in free_vars(node.body.indices[k])]
    order = (*(k for k in range(buffer.rank) if k not in last), *last)
    if order != tuple(range(buffer.rank)):
        s.transform_layout(buffer.name, Layout.of(buffer.shape).reorder(order))
