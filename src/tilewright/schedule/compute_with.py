"""The primitive compute_with, which lets blocks of equal iteration spaces share loops."""

from collections.abc import Sequence
from dataclasses import replace

from tilewright.errors import ScheduleError
from tilewright.loops.access import accesses
from tilewright.loops.block_context import BlockContext
from tilewright.loops.ir import CONCURRENT, THREADED, Block, For, Func, LoopKind, blocks, seq, walk
from tilewright.schedule.legality import check_inputs_final, check_no_races, check_only_writer
from tilewright.schedule.rewrite_tree import (
    exclusive_nest,
    find_block,
    find_loop,
    substitute_vars,
    top_statement_of,
    top_statements,
    with_stmt_replaced,
)
from tilewright.verify import races


def compute_with(func: Func, block: str, loop: str) -> Func:
    """Moves a block to the start of a loop of a later nest, whose iterations run both.

    Equation: the block's outermost loops become `loop` and the loops around it, which have the same extents, one by
    one. Its other loops follow inside. Nothing shrinks: the block computes its whole domain and may write a result of
    the function, also one that the later nest reads. (`compute_at` places a producer by what its readers need.)

    Legality: the block's nest holds only that block and comes first; its loops are serial, as many as the loop and
    those around it, of the same extents; it alone writes its buffer; what it reads is final there; nothing between
    it and the loop uses its buffer, and in the loop every element of it is used in one iteration only; `loop` and
    the loops around it are neither vectorized nor virtual threads, and where they are parallel, stay without races.

        for i: block P: B[i] = f(i)
        for k: block Q: C[k] = g(B[k])    ->    for k:
                                                    block P(v = k): B[v] = f(v)
                                                    block Q(w = k): C[w] = g(B[w])

    Known as compute_with in Halide, fuse in Exo.
    """
    node, enclosing = find_block(func, block)
    target, outer = find_loop(func, loop)
    loops = (*outer, target)
    place = f"compute_with of {block!r} in loop {loop!r}"
    check_place(func, node, loops, place)
    nest = exclusive_nest(node, enclosing, "compute_with")
    check_same_extents(enclosing, loops, place)
    inner = enclosing[len(loops)] if len(enclosing) > len(loops) else node
    moved = substitute_vars(inner, {a.var: b.var for a, b in zip(enclosing, loops, strict=False)})
    body = seq(moved, target.body)
    result = with_stmt_replaced(with_stmt_replaced(func, nest, None), target, replace(target, body=body))
    check_uses_in_one_iteration(result, node, [x.var.name for x in loops], place)
    if any(x.kind in THREADED for x in loops):
        check_no_races(result, None, place)
    return result


def check_place(func: Func, node: Block, loops: Sequence[For], place: str) -> None:
    """Checks that the block alone writes its buffer, reads what is final, that nothing but the body of the last of
    `loops` uses its results before the nest of the loops ends, and that their iterations run one after the other or on
    threads."""
    target, buffer = loops[-1], node.body.buffer
    if any(b is node for b in blocks(target)):
        raise ScheduleError("it is inside the loop already", where=place)
    check_only_writer(func, node, place)
    check_inputs_final(func, node, target, place)
    tops = top_statements(func)
    start = next(k for k, s in enumerate(tops) if s is top_statement_of(func, node))
    end = next(k for k, s in enumerate(tops) if s is top_statement_of(func, target))
    inside = set(map(id, blocks(target)))
    for b in (b for top in tops[start : end + 1] for b in blocks(top)):
        if b is not node and id(b) not in inside and any(a.buffer == buffer for a in accesses(b)):
            raise ScheduleError(f"block {b.name!r} uses {buffer.name!r} outside the loop", where=place)
    for x in loops:
        if x.kind in CONCURRENT and x.kind not in THREADED:
            what = f"loop {x.var.name!r} is {x.kind}"
            raise ScheduleError(what, where=place, hint=f"use compute_with before loop {x.var.name!r} becomes {x.kind}")


def check_same_extents(own: Sequence[For], loops: Sequence[For], place: str) -> None:
    """Checks that a block has as many serial loops as it is to share, with the same extents."""
    if len(own) < len(loops):
        what = f"it has {len(own)} loops, fewer than the {len(loops)} that it would share"
        raise ScheduleError(what, where=place)
    for a, b in zip(own, loops, strict=False):
        if a.extent is not b.extent:
            what = f"its loop {a.var.name!r} has {a.extent} iterations, loop {b.var.name!r} has {b.extent}"
            raise ScheduleError(what, where=place)
        if a.kind is not LoopKind.SERIAL:
            raise ScheduleError(f"its loop {a.var.name!r} is {a.kind}, expected a serial loop", where=place)


def check_uses_in_one_iteration(func: Func, node: Block, loops: Sequence[str], place: str) -> None:
    """Checks, after the move, that every element of the block's buffer that others in the loops use is accessed in one
    iteration of each loop only, the one that writes it."""
    buffer = node.body.buffer
    contexts = [BlockContext.of(s, around) for s, around in walk(func.body) if isinstance(s, Block)]
    for name in loops:
        loop, _ = find_loop(func, name)
        users = [b for b in blocks(loop) if b.name != node.name and any(a.buffer == buffer for a in accesses(b))]
        if users and not races.iterations_are_disjoint(loop, buffer, contexts):
            what = f"elements of {buffer.name!r} that block {users[0].name!r} uses"
            raise ScheduleError(f"{what} are not proved to belong to one iteration of loop {name!r}", where=place)
