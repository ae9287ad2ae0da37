"""Prefetches: what makes the address of a hint safe to compute.

A prefetch never faults, so the element that it names may lie outside of its buffer. Its address is computed all the
same: that must not read memory, divide by 0 or wrap around. Sizes of buffers are below 2^46 bytes; an index that is at
most `MAX_INDEX_FACTOR` times as large as its dimension keeps the address far below 2^63.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from tilewright.expr.algebra.bounds import Bounds
from tilewright.expr.algebra.prover import can_prove_le, can_prove_non_negative
from tilewright.expr.nodes import Binary, Expr, Load, MemoryScope, Var
from tilewright.expr.traversal import free_vars, loads, post_order
from tilewright.loops.ir import Block, For, Func, LoopKind, Seq, Stmt
from tilewright.loops.ir import walk as walk_stmt
from tilewright.loops.printer import show_loop
from tilewright.verify.diagnostics import Diagnostic

MAX_INDEX_FACTOR = 1 << 10
"""By how much the index of a hint may exceed the size of its dimension, as a factor."""


def find_unsafe_prefetches(func: Func) -> Iterator[Diagnostic]:
    """The hints whose addresses are not safe."""
    for s, around in walk_stmt(func.body):
        if not isinstance(s, For) or not s.prefetches:
            continue
        where = f"loop {s.var.name!r}"
        if s.kind is LoopKind.VECTORIZED:
            yield Diagnostic(where, "a vectorized loop has no hints", show_loop(s))
        known = Bounds()
        for loop in (*around, s):
            known = known.with_loop(loop.var, loop.extent)
        for hint in s.prefetches:
            problem = unsafe_reason(hint, known)
            if problem is not None:
                yield Diagnostic(where, f"prefetch of {hint}: {problem}", show_loop(s))


def drop_stale_prefetches(func: Func) -> Func:
    """The function without prefetches that mean nothing where they are: of buffers that it does not have, by variables
    that are not known there, in vectorized loops, or at addresses that are not proved to be safe."""

    def visit(s: Stmt, variables: frozenset[Var], known: Bounds) -> Stmt:
        match s:
            case For():
                inside, bounds = variables | {s.var}, known.with_loop(s.var, s.extent)
                alive = () if s.kind is LoopKind.VECTORIZED else s.prefetches
                alive = (p for p in alive if p.buffer in buffers and free_vars(p) <= inside)
                kept = tuple(p for p in alive if unsafe_reason(p, bounds) is None)
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
def unsafe_reason(prefetch: Load, known: Bounds) -> str | None:
    """What is wrong with the address of a hint, None where nothing is."""
    if prefetch.buffer.scope is not MemoryScope.MEMORY:
        return f"{prefetch.buffer.name!r} is not in memory"
    for index, size in zip(prefetch.indices, prefetch.buffer.shape, strict=True):
        if loads(index):
            return f"index {index} depends on data"
        if not _has_nonzero_divisors(index, known):
            return f"index {index} may divide by 0"
        limit = (size + 1) * MAX_INDEX_FACTOR
        if not (can_prove_le(index, limit, known) and can_prove_non_negative(index + limit, known)):
            return f"index {index} is not proved to be within {MAX_INDEX_FACTOR} times the size {size}"
    return None


def _has_nonzero_divisors(index: Expr, known: Bounds) -> bool:
    divisions = (e for e in post_order(index) if isinstance(e, Binary) and e.op in ("floordiv", "mod"))
    return all(can_prove_non_negative(e.b - 1, known) for e in divisions)
