"""Peels the last K-block of a reduction where it is shorter than the others."""

from tilewright.expr.nodes import Const, Var
from tilewright.expr.traversal import free_vars
from tilewright.loops.ir import Block, For, IterKind, LoopKind, blocks
from tilewright.schedule.rewrite_tree import find_block, find_loop
from tilewright.schedule.schedule import Schedule


def peel_last_k_block(s: Schedule, accumulating: str, computing: str, axis: int, length: int, block_size: int) -> None:
    """Peels the last iteration of the loop over K-blocks where that block is shorter, so that the others need no
    condition; does nothing where the block size divides the length.

        for c in 4:                                              for c in 3:
            for i in 8: P += select(c*8 + i < 29, f, 0)             for i in 8: P += f
            C += P                                         ->       C += P
                                                                 for i in 5: P += f
                                                                 for i in 3: P += 0
                                                                 C += P

    Args:
        s: a schedule with an `rfactor` whose partial results are computed at the loop over K-blocks.
        accumulating: the block that adds up the K-blocks (C).
        computing: the block that computes one (P).
        axis: the K-blocked axis, counted among those of the reduction.
        length: its extent.
        block_size: points of a K-block.

    Raises:
        ScheduleError: the loop over K-blocks is not serial.
    """
    if length % block_size == 0:
        return
    k_loop = _loop_of(s, accumulating, 0)
    position = [b.name for b in blocks(k_loop)].index(computing)
    peeled = s.peel(k_loop.var.name, length // block_size)
    peeled_block = blocks(find_loop(s.func, peeled)[0])[position].name
    steps = _loop_of(s, peeled_block, axis)
    if steps.kind is LoopKind.SERIAL and isinstance(steps.extent, Const):
        s.peel(steps.var.name, length % block_size * int(steps.extent.value) // block_size)


def _loop_of(s: Schedule, block: str, axis: int) -> For:
    """The outermost loop that drives an axis of a reduction."""
    node, enclosing = find_block(s.func, block)
    binding = _reduction_vars(node)[axis]
    return next(x for x in enclosing if x.var in binding)


def _reduction_vars(node: Block) -> list[frozenset[Var]]:
    return [frozenset(free_vars(i.binding)) for i in node.iters if i.kind is IterKind.REDUCE]
