"""Peels the last iteration of a loop over tiles of a reduction where that tile is partial."""

from collections.abc import Sequence

from tilewright.expr.algebra.prover import can_prove
from tilewright.expr.nodes import Const, Expr
from tilewright.expr.traversal import free_vars
from tilewright.loops.ir import For, LoopKind, blocks
from tilewright.schedule.rewrite_tree import find_block, find_loop
from tilewright.schedule.schedule import Schedule


def peel_tail(s: Schedule, loop: str, extent: Expr, step: int, partial_sums: Sequence[tuple[str, int]]) -> None:
    """Peels the partial last iteration of a loop over a reduction axis, so that the others need no conditions; does
    nothing where there is none.

    Where the iterations are K-blocks, the steps of the last one are cut where the axis ends:

        for c in 4:                                              for c in 3:
            for i in 8: P += select(c*8 + i < 29, f, 0)             for i in 8: P += f
            C += P                                         ->       C += P
                                                                 for i in 5: P += f
                                                                 for i in 3: P += 0
                                                                 C += P

    Args:
        s: a schedule in which everything inside of the loop has its place.
        loop: the loop.
        extent: points of the axis.
        step: points per iteration.
        partial_sums: blocks inside of the loop that reduce over the points of one iteration, each with the position of
            the iteration variable that does.

    Raises:
        ScheduleError: the loop is not serial.
    """
    if can_prove((extent % step).equals(0)) or (isinstance(extent, Const) and extent.value < step):
        return
    names = [b.name for b in blocks(find_loop(s.func, loop)[0])]
    peeled = s.peel(loop, extent // step)
    copies = [b.name for b in blocks(find_loop(s.func, peeled)[0])] if isinstance(extent, Const) else []
    for block, position in partial_sums if copies else ():
        steps = _driving_loop(s, copies[names.index(block)], position)
        if steps.kind is LoopKind.SERIAL and isinstance(steps.extent, Const) and isinstance(extent, Const):
            s.peel(steps.var.name, int(extent.value) % step * int(steps.extent.value) // step)


def _driving_loop(s: Schedule, block: str, position: int) -> For:
    """The outermost loop that drives an iteration variable of a block."""
    node, enclosing = find_block(s.func, block)
    return next(x for x in enclosing if x.var in free_vars(node.iters[position].binding))
