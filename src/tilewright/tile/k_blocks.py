"""Chunks of a sum whose length does not divide it: the last one is shorter, and has loops of its own."""

from tilewright.expr.nodes import Const, Var
from tilewright.expr.traversal import free_vars
from tilewright.loops.ir import Block, For, IterKind, LoopKind, blocks
from tilewright.schedule.rewrite_tree import find_block, find_loop
from tilewright.schedule.schedule import Schedule


def peel_last_k_block(s: Schedule, accumulating: str, computing: str, axis: int, length: int, block_size: int) -> None:
    """Takes the last chunk of a sum out of the loop over chunks where it is shorter, so that the others need not ask
    where the sum ends; nothing where all chunks are whole.

        for c in 4:                                              for c in 3:
            for i in 8: P += select(c*8 + i < 29, f, 0)             for i in 8: P += f
            C += P                                         ->       C += P
                                                                 for i in 5: P += f
                                                                 for i in 3: P += 0
                                                                 C += P

    Args:
        s: a schedule with an `rfactor` whose partial results are computed at the loop over chunks.
        total, partial: the block that adds chunks up, and the one that computes them.
        axis: the one that is cut, counted among those of the reduction.
        length: its points.
        factor: those of a chunk.

    Raises:
        ScheduleError: the loop over chunks is not serial.
    """
    if length % block_size == 0:
        return
    chunks = _loop_of(s, accumulating, 0)
    position = [b.name for b in blocks(chunks)].index(computing)
    rest = s.peel(chunks.var.name, length // block_size)
    own = blocks(find_loop(s.func, rest)[0])[position].name
    steps = _loop_of(s, own, axis)
    if steps.kind is LoopKind.SERIAL and isinstance(steps.extent, Const):
        s.peel(steps.var.name, length % block_size * int(steps.extent.value) // block_size)


def _loop_of(s: Schedule, block: str, axis: int) -> For:
    """The outermost loop that drives an axis of a reduction."""
    node, around = find_block(s.func, block)
    binding = _reduction_vars(node)[axis]
    return next(x for x in around if x.var in binding)


def _reduction_vars(node: Block) -> list[frozenset[Var]]:
    return [frozenset(free_vars(i.binding)) for i in node.iters if i.kind is IterKind.REDUCE]
