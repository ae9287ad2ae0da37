"""Legality of moving a consumer into a loop of its producers: its inputs are complete there."""

from collections.abc import Collection, Sequence

from tilewright.errors import ScheduleError
from tilewright.expr.nodes import Buffer
from tilewright.expr.traversal import free_vars, is_one
from tilewright.loops.access import accesses, read_buffers
from tilewright.loops.block_context import BlockContext
from tilewright.loops.ir import Block, For, Func, IterKind, blocks, walk
from tilewright.schedule.legality import check_only_writer
from tilewright.schedule.rewrite_tree import find_block, find_loop, top_statement_of, top_statements
from tilewright.verify import coverage, races


def check_consumer(func: Func, node: Block, target: For, place: str) -> None:
    """Checks that the block runs after the loop's nest, each of its points writes its own element, and it may run
    earlier: its inputs are written in the loop or before it, and no other block uses its results from there on."""
    if any(b is node for b in blocks(target)):
        raise ScheduleError("it is inside the loop already", where=place)
    tops = top_statements(func)
    start = next(k for k, s in enumerate(tops) if s is top_statement_of(func, target))
    end = next(k for k, s in enumerate(tops) if s is top_statement_of(func, node))
    if end <= start:
        raise ScheduleError("it comes before its new place", where=place)
    check_injective_writes(func, node, place)
    inner_ids = set(map(id, blocks(target)))
    inputs, result = read_buffers(node), node.body.buffer
    is_past_loop = False
    for b in (b for top in tops[start:end] for b in blocks(top)):
        if any(a.buffer == result for a in accesses(b)):
            raise ScheduleError(f"block {b.name!r} uses {result.name!r} before it", where=place)
        is_past_loop = is_past_loop or id(b) in inner_ids
        if is_past_loop and id(b) not in inner_ids and b.body.buffer in inputs:
            what = f"block {b.name!r} writes {b.body.buffer.name!r}, which it reads, after the loop"
            raise ScheduleError(what, where=place)


def check_injective_writes(func: Func, node: Block, place: str) -> None:
    """Checks that the block alone writes its buffer, each spatial point a different element, and reads no other
    elements of it."""
    check_only_writer(func, node, place)
    body = node.body
    if any(a.buffer == body.buffer and a.indices != body.indices for a in accesses(node)):
        raise ScheduleError(f"it reads other elements of {body.buffer.name!r} than it writes", where=place)
    for i in node.iters:
        if i.kind is IterKind.SPATIAL and i.var not in body.indices and not is_one(i.extent):
            raise ScheduleError(f"{i.var.name!r} is not an index of {body.buffer.name!r}, which it writes", where=place)


def check_inputs_complete(
    func: Func, block: str, loops: Sequence[str], running: Collection[Buffer], place: str
) -> None:
    """Checks that the inputs of a moved block are complete at its new place: each element that it reads is accessed in
    one iteration of the enclosing loops only, and the block comes last in that iteration.

    Args:
        func: the function after the move.
        block: the block.
        loops: the loop that it was moved into and the enclosing ones, outermost first.
        running: buffers that the last of the loops may keep changing.
    """
    node, _ = find_block(func, block)
    nests = [BlockContext.of(s, enclosing) for s, enclosing in walk(func.body) if isinstance(s, Block)]
    for k, name in enumerate(loops):
        loop, _ = find_loop(func, name)
        written = {b.body.buffer for b in blocks(loop) if b is not node}
        for buffer in read_buffers(node):
            is_last = k == len(loops) - 1
            if (
                buffer in written
                and not (is_last and buffer in running)
                and not races.iterations_are_disjoint(loop, buffer, nests)
            ):
                raise _incomplete_input_error(loop, buffer, place)


def _incomplete_input_error(loop: For, buffer: Buffer, place: str) -> ScheduleError:
    """The reason why elements are not complete, in the most specific words."""
    name = loop.var.name
    for b in blocks(loop):
        if b.body.buffer == buffer:
            for i in b.iters:
                if i.kind is IterKind.REDUCE and loop.var in free_vars(i.binding):
                    what = f"{buffer.name!r} is incomplete there: block {b.name!r} reduces over loop {name!r}"
                    return ScheduleError(what, where=place, hint="move it into a loop outside of the reduction")
    what = f"elements of {buffer.name!r} that it reads are not proved to belong to one iteration of loop {name!r}"
    return ScheduleError(what, where=place)


def check_covered_once(func: Func, block: str, place: str) -> None:
    """Checks that a moved block covers every point of its domain once."""
    node, enclosing = find_block(func, block)
    for diagnostic in coverage.find_incomplete_cover(BlockContext.of(node, enclosing)):
        raise ScheduleError(f"{diagnostic.where}: {diagnostic.what}", where=place)
