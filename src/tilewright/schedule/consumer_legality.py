"""Conditions of moving a consumer forward into a loop of its producers: what it needs is ready there, and final."""

from collections.abc import Collection, Sequence

from tilewright.errors import ScheduleError
from tilewright.expr.nodes import Buffer, Const
from tilewright.expr.traversal import free_vars
from tilewright.loops.access import accesses, read_buffers
from tilewright.loops.block_context import BlockContext
from tilewright.loops.ir import Block, For, Func, IterKind, blocks, walk
from tilewright.schedule.legality import check_only_writer
from tilewright.schedule.rewrite_tree import find_block, find_loop, top_statement_of, top_statements
from tilewright.verify import coverage, races


def check_consumer(func: Func, node: Block, target: For, place: str) -> None:
    """The block runs after the loop's nest, each of its points has an element of its own, and it may run earlier:
    what it reads is written inside the loop or before it, and nobody else uses what it writes from there on."""
    if any(b is node for b in blocks(target)):
        raise ScheduleError("it is inside the loop already", where=place)
    tops = top_statements(func)
    start = next(k for k, s in enumerate(tops) if s is top_statement_of(func, target))
    end = next(k for k, s in enumerate(tops) if s is top_statement_of(func, node))
    if end <= start:
        raise ScheduleError("it comes before the place that it would move to", where=place)
    check_injective_writes(func, node, place)
    inside = set(map(id, blocks(target)))
    needed, own = read_buffers(node), node.body.buffer
    passed = False
    for b in (b for top in tops[start:end] for b in blocks(top)):
        if any(a.buffer == own for a in accesses(b)):
            raise ScheduleError(f"block {b.name!r} uses {own.name!r} before it", where=place)
        passed = passed or id(b) in inside
        if passed and id(b) not in inside and b.body.buffer in needed:
            what = f"block {b.name!r} writes {b.body.buffer.name!r}, which it reads, after the loop"
            raise ScheduleError(what, where=place)


def check_injective_writes(func: Func, node: Block, place: str) -> None:
    """The block alone writes its buffer, every spatial point another element, without reading other elements of it."""
    check_only_writer(func, node, place)
    body = node.body
    if any(a.buffer == body.buffer and a.indices != body.indices for a in accesses(node)):
        raise ScheduleError(f"it reads other elements of {body.buffer.name!r} than it writes", where=place)
    for i in node.iters:
        is_single = isinstance(i.extent, Const) and i.extent.value == 1
        if i.kind is IterKind.SPATIAL and i.var not in body.indices and not is_single:
            raise ScheduleError(f"{i.var.name!r} is no index of {body.buffer.name!r}, which it writes", where=place)


def check_inputs_complete(
    func: Func, block: str, loops: Sequence[str], running: Collection[Buffer], place: str
) -> None:
    """What a block that was moved reads is final where it is now: each element that it reads is touched in one
    iteration of the loops around only, and the block comes last in it.

    Args:
        func: the function after the move.
        block: the block.
        loops: the loop that it was moved into and those around it, outermost first.
        running: buffers that the last of the loops may go on changing.
    """
    node, _ = find_block(func, block)
    nests = [BlockContext.of(s, around) for s, around in walk(func.body) if isinstance(s, Block)]
    for k, name in enumerate(loops):
        loop, _ = find_loop(func, name)
        written = {b.body.buffer for b in blocks(loop) if b is not node}
        for buffer in read_buffers(node):
            last = k == len(loops) - 1
            if (
                buffer in written
                and not (last and buffer in running)
                and not races.iterations_are_disjoint(loop, buffer, nests)
            ):
                raise _incomplete_input_error(loop, buffer, place)


def _incomplete_input_error(loop: For, buffer: Buffer, place: str) -> ScheduleError:
    """The reason why elements are not final, in the words that fit best."""
    name = loop.var.name
    for b in blocks(loop):
        if b.body.buffer == buffer:
            for i in b.iters:
                if i.kind is IterKind.REDUCE and loop.var in free_vars(i.binding):
                    what = f"{buffer.name!r} is not finished there: block {b.name!r} reduces over loop {name!r}"
                    return ScheduleError(what, where=place, hint="move it into a loop outside of the reduction")
    what = f"elements of {buffer.name!r} that it reads are not proved to belong to one iteration of loop {name!r}"
    return ScheduleError(what, where=place)


def check_covered_once(func: Func, block: str, place: str) -> None:
    """A block that was moved reaches every point of its domain once."""
    node, around = find_block(func, block)
    for finding in coverage.find_incomplete_cover(BlockContext.of(node, around)):
        raise ScheduleError(f"{finding.where}: {finding.what}", where=place)
