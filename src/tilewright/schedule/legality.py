"""Legality conditions that several primitives share: other users of a buffer, order of iterations, races."""

from collections.abc import Sequence
from dataclasses import replace

from tilewright.errors import ScheduleError
from tilewright.expr.algebra.bounds import NO_BOUNDS
from tilewright.expr.nodes import Buffer, MemoryScope
from tilewright.loops.access import accesses, read_buffers
from tilewright.loops.block_context import BlockContext
from tilewright.loops.ir import (
    CONCURRENT,
    THREADED,
    Block,
    For,
    Func,
    If,
    LoopKind,
    Seq,
    Stmt,
    blocks,
    map_children,
    walk,
)
from tilewright.schedule.rewrite_tree import (
    find_loop,
    top_statement_of,
    top_statements,
    with_buffer_replaced,
    with_stmt_replaced,
)
from tilewright.verify import coverage, gpu_launch, races
from tilewright.verify.domains import find_domain_errors


def check_only_writer(func: Func, node: Block, place: str) -> None:
    """Checks that no other block writes the block's buffer, and the block itself initialises every element."""
    buffer = node.body.buffer
    for b in blocks(func.body):
        if b is not node and b.body.buffer == buffer:
            raise ScheduleError(f"block {b.name!r} writes {buffer.name!r} too", where=place)
    if node.init is None and buffer in read_buffers(node):
        raise ScheduleError(f"it accumulates into existing values of {buffer.name!r}", where=place)


def check_order_free(node: Block, place: str) -> None:
    """Checks that no iteration of the block reads an element that another one writes; it may accumulate into its own
    element."""
    body = node.body
    for a in accesses(node):
        if not a.is_write and a.buffer == body.buffer and a.indices != body.indices:
            raise ScheduleError(
                f"block {node.name!r} reads other elements of {body.buffer.name!r} than it writes: its order matters",
                where=place,
            )


def check_inputs_final(func: Func, node: Block, target: Stmt, place: str) -> None:
    """Checks that no input of the block is written between its nest and the end of the nest that contains `target`."""
    tops = top_statements(func)
    start = next(k for k, s in enumerate(tops) if s is top_statement_of(func, node))
    end = next(k for k, s in enumerate(tops) if s is top_statement_of(func, target))
    if end < start:
        raise ScheduleError("it comes after its new place", where=place)
    inputs = [b for b in read_buffers(node) if b != node.body.buffer]
    for top in tops[start : end + 1]:
        for b in blocks(top):
            if b is not node and b.body.buffer in inputs:
                raise ScheduleError(f"block {b.name!r} writes {b.body.buffer.name!r}, which it reads", where=place)


def check_untouched(buffer: Buffer, inside: Stmt, node: Block, place: str) -> None:
    """Checks that no other block in a statement accesses a buffer."""
    for b in blocks(inside):
        if b is not node and any(a.buffer == buffer for a in accesses(b)):
            raise ScheduleError(f"block {b.name!r} uses {buffer.name!r} there too", where=place)


def check_no_races(func: Func, only: For | None, place: str) -> None:
    """Checks that iterations of concurrent loops do not race; `only` restricts the check to one loop of the function.

    Raises:
        ScheduleError: two iterations may access one element of which one writes it, a parallel loop carries a
            reduction, or loops on GPU axes do not form a valid launch.
    """
    check_axes(func, place)
    # Nested parallel loops run at the same time, so they are checked together.
    is_threaded = only is not None and only.kind in THREADED
    serialized = tuple(k for k in CONCURRENT if not (is_threaded and k in THREADED))
    isolated = func if only is None else func.with_body(_serialize_except(func.body, only.var.name, serialized))
    nests = [_block_context(s, enclosing) for s, enclosing in walk(isolated.body) if isinstance(s, Block)]
    for diagnostic in races.find_races(isolated, nests):
        raise ScheduleError(
            f"{diagnostic.where}: {diagnostic.what}",
            where=place,
            hint=_privatization_hint(func, only, diagnostic.shared_buffer),
        )


def _privatization_hint(func: Func, loop: For | None, shared: Buffer | None) -> str:
    """The hint for scratch memory that the iterations of a loop would share; empty for other races."""
    if loop is None or shared not in func.allocs or shared.scope is not MemoryScope.MEMORY:
        return ""
    inner_ids = set(map(id, blocks(loop)))
    if any(id(n) not in inner_ids for n in blocks(func.body) if any(a.buffer == shared for a in accesses(n))):
        return ""
    return (
        f"every iteration needs a part of {shared.name!r} of its own: use set_scope({shared.name!r}, 'stack'), "
        f"or parallel before compute_at, which then keeps the dimension"
    )


def _block_context(block: Block, enclosing: tuple[For, ...]) -> BlockContext:
    """The block in its loops; without bounds where no enclosing loop is concurrent, as then only its accesses
    matter."""
    is_concurrent = any(x.kind in CONCURRENT for x in enclosing)
    return BlockContext.of(block, enclosing) if is_concurrent else BlockContext(block, enclosing, {}, NO_BOUNDS)


def _serialize_except(s: Stmt, name: str, kinds: Sequence[LoopKind]) -> Stmt:
    """`s` with all loops of some kinds, except the one of this name, made serial."""
    match s:
        case For():
            body = _serialize_except(s.body, name, kinds)
            kind = LoopKind.SERIAL if s.kind in kinds and s.var.name != name else s.kind
            return s if body is s.body and kind is s.kind else replace(s, kind=kind, body=body)
        case Seq() | If():
            return map_children(s, lambda c: _serialize_except(c, name, kinds))
        case Block():
            return s


def check_axes(func: Func, place: str) -> None:
    """Checks that loops on GPU axes form grids of blocks of threads."""
    nests = [BlockContext(s, enclosing, {}, NO_BOUNDS) for s, enclosing in walk(func.body) if isinstance(s, Block)]
    for diagnostic in gpu_launch.find_launch_errors(func, nests):
        raise ScheduleError(f"{diagnostic.where}: {diagnostic.what}", where=place)


def check_iterations_independent(func: Func, node: For, place: str) -> None:
    """Checks that iterations of a loop access different elements, so that they may run in any order, repeatedly, or
    concurrently.

    Internal buffers that only this loop uses, at places that do not move with it, are written anew in every iteration.
    """
    inner_ids = {id(b) for b in blocks(node)}
    shared = {a.buffer for b in blocks(func.body) if id(b) not in inner_ids for a in accesses(b)}
    probe = func.with_body(_serialize_except(func.body, "", CONCURRENT))
    private = [b for b in func.allocs if b.scope is MemoryScope.MEMORY and b not in shared]
    for buffer in private:
        probe = with_buffer_replaced(probe, buffer, replace(buffer, scope=MemoryScope.STACK))
    loop, _ = find_loop(probe, node.var.name)
    probe = with_stmt_replaced(probe, loop, replace(loop, kind=LoopKind.PARALLEL))
    for diagnostic in races.find_races(
        probe, [BlockContext.of(s, a) for s, a in walk(probe.body) if isinstance(s, Block)]
    ):
        what = diagnostic.what.replace(f"parallel loop {node.var.name!r}", f"loop {node.var.name!r}")
        for buffer in private:  # it is private in this check only
            what = what.replace(f"private buffer {buffer.name!r}", f"buffer {buffer.name!r}")
        raise ScheduleError(f"{diagnostic.where}: {what}", where=place)


def check_accumulated_once(func: Func, inside: Sequence[Block], place: str) -> None:
    """Checks that accumulating blocks add every point of their reductions once to every element."""
    names = {b.name for b in inside if b.init is not None or b.body.buffer in read_buffers(b)}
    if names:
        nests = [BlockContext.of(s, enclosing) for s, enclosing in walk(func.body) if isinstance(s, Block)]
        for diagnostic in coverage.find_double_counts(nests, names):
            raise ScheduleError(f"{diagnostic.where}: {diagnostic.what}", where=place)


def accessing_blocks(func: Func, buffer: Buffer) -> list[str]:
    """The names of the blocks that access a buffer."""
    return [b.name for b in blocks(func.body) if any(a.buffer == buffer for a in accesses(b))]


def check_in_bounds(func: Func, names: Sequence[str], place: str, hint: str = "") -> None:
    """Checks that the verifier proves that all accesses of the blocks of these names are in bounds."""
    for s, enclosing in walk(func.body):
        if isinstance(s, Block) and s.name in names:
            for diagnostic in find_domain_errors(BlockContext.of(s, enclosing)):
                raise ScheduleError(f"{diagnostic.where}: {diagnostic.what}", where=place, hint=hint)


def check_nesting(loops: Sequence[For], place: str) -> None:
    """Checks that no concurrent loop is inside a vectorized one; loops are nested, outermost first."""
    for k, outer in enumerate(loops):
        for inner in loops[k + 1 :]:
            if inner.kind in CONCURRENT and outer.kind is LoopKind.VECTORIZED:
                what = f"{inner.kind} loop {inner.var.name!r} would be inside {outer.kind} loop {outer.var.name!r}"
                raise ScheduleError(what, where=place)
