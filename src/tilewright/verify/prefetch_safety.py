"""Prefetch safety: the addresses of prefetches are safe to compute.

A prefetch never faults, so its element may be out of bounds. Its address is computed nevertheless: that must not load
from memory, divide by 0 or wrap around. Buffers are smaller than 2^46 bytes, so an index of at most `MAX_INDEX_FACTOR`
times the size of its dimension keeps the address far below 2^63.
"""

from collections.abc import Iterator
from dataclasses import replace

from tilewright.expr.algebra.bounds import Bounds
from tilewright.expr.algebra.prover import can_prove_le, can_prove_non_negative
from tilewright.expr.nodes import Binary, Expr, Load, MemoryScope, Var
from tilewright.expr.traversal import free_vars, loads, post_order
from tilewright.kernel_caches import kernel_cache
from tilewright.loops.ir import Block, For, Func, If, LoopKind, Seq, Stmt, map_children
from tilewright.loops.ir import walk as walk_stmt
from tilewright.loops.printer import show_loop
from tilewright.verify.diagnostics import Diagnostic

MAX_INDEX_FACTOR = 1 << 10
"""The largest index of a prefetch, relative to the size of its dimension."""


def find_unsafe_prefetches(func: Func) -> Iterator[Diagnostic]:
    """The prefetches whose addresses are not proved to be safe, and those of vectorized loops."""
    for s, enclosing in walk_stmt(func.body):
        if not isinstance(s, For) or not s.prefetches:
            continue
        where = f"loop {s.var.name!r}"
        if s.kind is LoopKind.VECTORIZED:
            yield Diagnostic(where, "a vectorized loop can't have prefetches", show_loop(s))
        bounds = Bounds()
        for loop in (*enclosing, s):
            bounds = bounds.with_loop(loop.var, loop.extent)
        for prefetch in s.prefetches:
            problem = unsafe_reason(prefetch, bounds)
            if problem is not None:
                yield Diagnostic(where, f"prefetch of {prefetch}: {problem}", show_loop(s))


def drop_stale_prefetches(func: Func) -> Func:
    """The function without stale prefetches.

    Stale are prefetches of undeclared buffers, over variables that are not in scope, in vectorized loops, or at
    addresses that are not proved to be safe.
    """

    def visit(s: Stmt, in_scope: frozenset[Var], bounds: Bounds) -> Stmt:
        match s:
            case For():
                in_scope, bounds = in_scope | {s.var}, bounds.with_loop(s.var, s.extent)
                valid = () if s.kind is LoopKind.VECTORIZED else s.prefetches
                valid = (p for p in valid if p.buffer in buffers and free_vars(p) <= in_scope)
                prefetches = tuple(p for p in valid if unsafe_reason(p, bounds) is None)
                body = visit(s.body, in_scope, bounds)
                if body is s.body and prefetches == s.prefetches:
                    return s
                return replace(s, prefetches=prefetches, body=body)
            case Seq() | If():
                return map_children(s, lambda c: visit(c, in_scope, bounds))
            case Block():
                return s

    if not any(isinstance(s, For) and s.prefetches for s, _ in walk_stmt(func.body)):
        return func
    buffers = {*func.params, *func.allocs}
    return func.with_body(visit(func.body, frozenset(func.symbols), Bounds()))


@kernel_cache(maxsize=1 << 12)
def unsafe_reason(prefetch: Load, bounds: Bounds) -> str | None:
    """Why the address of a prefetch is not proved to be safe to compute; None where it is."""
    if prefetch.buffer.scope is not MemoryScope.MEMORY:
        return f"{prefetch.buffer.name!r} is not in memory"
    for index, size in zip(prefetch.indices, prefetch.buffer.shape, strict=True):
        if loads(index):
            return f"index {index} depends on data"
        if not _has_nonzero_divisors(index, bounds):
            return f"index {index} may divide by 0"
        limit = (size + 1) * MAX_INDEX_FACTOR
        if not (can_prove_le(index, limit, bounds) and can_prove_non_negative(index + limit, bounds)):
            return f"index {index} is not proved to be within {MAX_INDEX_FACTOR} times the size {size}"
    return None


def _has_nonzero_divisors(index: Expr, bounds: Bounds) -> bool:
    divisions = (e for e in post_order(index) if isinstance(e, Binary) and e.op in ("floordiv", "mod"))
    return all(can_prove_non_negative(e.b - 1, bounds) for e in divisions)
