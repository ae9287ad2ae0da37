"""Copies of a loop over part of its range; shared by the primitives that cut ranges."""

from collections.abc import Sequence
from dataclasses import replace

from tilewright.expr.algebra.bounds import Bounds
from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.nodes import Buffer, Expr, MemoryScope, Var
from tilewright.loops.access import accesses
from tilewright.loops.ir import CONCURRENT, Block, For, Func, If, Seq, Stmt, map_children, walk
from tilewright.loops.redirect_accesses import redirect_accesses_in
from tilewright.schedule.rewrite_tree import (
    bounds_of,
    claim_name,
    copy_with_fresh_names,
    substitute_vars,
    unproved_conjuncts,
    used_names,
)


def truncate_loop(loop: For, extent: Expr, enclosing: Sequence[For]) -> For:
    """The first `extent` iterations of a loop, without the predicates that are true there."""
    return replace(
        loop, extent=extent, body=drop_proved_predicates(loop.body, bounds_of(enclosing).with_loop(loop.var, extent))
    )


def copy_loop_range(
    func: Func, loop: For, start: Expr, extent: Expr, enclosing: Sequence[For], name: str | None = None
) -> tuple[Func, For]:
    """A copy of a loop over `start`, ..., `start + extent - 1`, counted from 0, under names of its own.

    Args:
        func: the function; buffers that are private to a thread or lane of the loop are declared again for the copy.
        loop: the loop.
        start, extent: the part of its range.
        enclosing: the enclosing loops.
        name: of the copy's variable; a fresh one without it.

    Returns:
        The function with the new buffers, and the copy.
    """
    used = used_names(func)
    var = Var(name or claim_name(loop.var.name, used))
    used.add(var.name)
    shifted = {loop.var: var + start}
    body = copy_with_fresh_names(substitute_vars(loop.body, shifted), used)
    copy: Stmt = For(var, extent, loop.kind, body, loop.prefetches_with(lambda e: substitute(e, shifted)))
    allocs = func.allocs
    for old in _private_buffers(func, loop):
        new = replace(old, name=claim_name(old.name, used))
        copy, allocs = redirect_accesses_in(copy, old, new), (*allocs, new)
    if not isinstance(copy, For):
        raise TypeError("a copy of a loop is a loop")
    return replace(func, allocs=allocs), truncate_loop(copy, extent, enclosing)


def _private_buffers(func: Func, loop: For) -> list[Buffer]:
    """The buffers that are private to every iteration of some concurrent loop: `loop` or one inside it."""
    private: list[Buffer] = []
    for buffer in func.allocs:
        users = [enclosing for s, enclosing in walk(func.body) if isinstance(s, Block) and _uses(s, buffer)]
        is_inside = bool(users) and all(any(x is loop for x in enclosing) for enclosing in users)
        owners = [x for x in (users[0] if users else ()) if x.kind in CONCURRENT]
        is_owned = any(all(any(x is o for x in enclosing) for enclosing in users) for o in owners)
        if is_inside and is_owned and buffer.scope in (MemoryScope.REGISTER, MemoryScope.STACK):
            private.append(buffer)
    return private


def _uses(block: Block, buffer: Buffer) -> bool:
    return any(a.buffer == buffer for a in accesses(block))


def drop_proved_predicates(s: Stmt, bounds: Bounds) -> Stmt:
    """`s` without the predicates that its loops' ranges imply."""
    match s:
        case For():
            return replace(s, body=drop_proved_predicates(s.body, bounds.with_loop(s.var, s.extent)))
        case Seq() | If():
            return map_children(s, lambda c: drop_proved_predicates(c, bounds))
        case Block():
            return replace(s, predicate=unproved_conjuncts(s.predicate, bounds))
