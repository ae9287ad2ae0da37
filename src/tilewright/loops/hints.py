"""Prefetches: what makes the address of a hint safe to compute.

A prefetch never faults, so the element that it names may lie outside of its buffer. Its address is computed all the
same: that must not read memory, divide by 0 or wrap around. Sizes of buffers are below 2^46 bytes; an index that is at
most `REACH` times as large as its dimension keeps the address far below 2^63.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from tilewright.expr.bounds import Bounds
from tilewright.expr.buffer import Scope
from tilewright.expr.nodes import Binary, Expr, Load, Var, free_vars, loads, walk
from tilewright.expr.prover import at_most, non_negative
from tilewright.loops.ir import Block, For, Func, LoopKind, Seq, Stmt
from tilewright.loops.ir import walk as walk_stmt
from tilewright.loops.nest import Finding
from tilewright.loops.printer import show_loop

REACH = 1 << 10
"""By how much the index of a hint may exceed the size of its dimension, as a factor."""


def findings(func: Func) -> Iterator[Finding]:
    """The hints whose addresses are not safe."""
    for s, around in walk_stmt(func.body):
        if not isinstance(s, For) or not s.prefetches:
            continue
        where = f"loop {s.var.name!r}"
        if s.kind is LoopKind.VECTORIZED:
            yield Finding(where, "a vectorized loop has no hints", show_loop(s))
        known = Bounds()
        for loop in (*around, s):
            known = known.with_loop(loop.var, loop.extent)
        for hint in s.prefetches:
            problem = unsafe(hint, known)
            if problem is not None:
                yield Finding(where, f"prefetch of {hint}: {problem}", show_loop(s))


def without_stale_hints(func: Func) -> Func:
    """The function without prefetches that mean nothing where they are: of buffers that it does not have, by variables
    that are not known there, in vectorized loops, or at addresses that are not proved to be safe."""

    def visit(s: Stmt, variables: frozenset[Var], known: Bounds) -> Stmt:
        match s:
            case For():
                inside, bounds = variables | {s.var}, known.with_loop(s.var, s.extent)
                alive = () if s.kind is LoopKind.VECTORIZED else s.prefetches
                alive = (p for p in alive if p.buffer in buffers and free_vars(p) <= inside)
                kept = tuple(p for p in alive if unsafe(p, bounds) is None)
                body = visit(s.body, inside, bounds)
                return s if body is s.body and kept == s.prefetches else replace(s, prefetches=kept, body=body)
            case Seq():
                parts = tuple(visit(c, variables, known) for c in s.stmts)
                return s if all(a is b for a, b in zip(parts, s.stmts, strict=True)) else Seq(parts)
            case Block():
                return s

    if not any(isinstance(s, For) and s.prefetches for s, _ in walk_stmt(func.body)):
        return func
    buffers = {*func.params, *func.allocs}
    return func.with_body(visit(func.body, frozenset(func.symbols), Bounds()))


@lru_cache(maxsize=1 << 12)
def unsafe(hint: Load, known: Bounds) -> str | None:
    """What is wrong with the address of a hint, None where nothing is."""
    if hint.buffer.scope is not Scope.MEMORY:
        return f"{hint.buffer.name!r} is not in memory"
    for index, size in zip(hint.indices, hint.buffer.shape, strict=True):
        if loads(index):
            return f"index {index} depends on data"
        if not _divides_safely(index, known):
            return f"index {index} may divide by 0"
        limit = (size + 1) * REACH
        if not (at_most(index, limit, known) and non_negative(index + limit, known)):
            return f"index {index} is not proved to be within {REACH} times the size {size}"
    return None


def _divides_safely(index: Expr, known: Bounds) -> bool:
    divisions = (e for e in walk(index) if isinstance(e, Binary) and e.op in ("floordiv", "mod"))
    return all(non_negative(e.b - 1, known) for e in divisions)
