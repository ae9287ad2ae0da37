"""Tiles of sums in registers, as the elements of the buffer that they are copies of: register promotion undone.

Between a copy of a box of a private buffer to a register buffer and a copy back, the elements of the register buffer
are those of the box under another name, provided that the copies have all of its elements, that nothing in between
accesses the box itself, and that the register buffer is accessed nowhere else, in no other such place either. The
verifier's other checks see what is in between with the names of the box (`lower/promote_sums.py` renames them):

    for i in unrolled(8): T[i] = C[i0 + i]
    for k in serial(6):                                  for k in serial(6):
        for i in unrolled(8): T[i] = T[i] + A[k, i]  ->      for i in unrolled(8): C[i0 + i] = C[i0 + i] + A[k, i]
    for i in unrolled(8): C[i0 + i] = T[i]

What that hides from them is proved here: the copies stay in both buffers, the accesses in between in the register
buffer, whose indices are literals once loops are expanded, none divides by 0, and copies prefetch nothing. The copies
are of memory that one thread accesses, so they cannot race. Overflow is checked before (`verifier.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.expr.algebra.polynomial import constant_value, expression, polynomial
from tilewright.expr.algebra.prover import can_prove_lt, can_prove_non_negative
from tilewright.expr.nodes import TRUE, Buffer, Expr, Load, MemoryScope, Var
from tilewright.expr.traversal import free_vars, has_loads
from tilewright.loops.access import accesses
from tilewright.loops.block_context import BlockContext
from tilewright.loops.ir import EXPANDED, Block, For, Func, IterKind, LoopKind, Seq, Stmt, map_children, seq, walk
from tilewright.loops.redirect_accesses import redirect_accesses_in
from tilewright.verify.domains import find_domain_errors
from tilewright.verify.nonzero_divisors import find_zero_divisors

_SEQUENTIAL = (LoopKind.SERIAL, LoopKind.UNROLLED, LoopKind.VECTORIZED)
_OUTER = (LoopKind.SERIAL, LoopKind.UNROLLED, LoopKind.PARALLEL)
_COPYING = (LoopKind.UNROLLED, LoopKind.VECTORIZED)


def with_sums_in_memory(func: Func) -> Func:
    """The function with the accesses to tiles in registers renamed to the elements that they are copies of; unchanged
    where a register buffer that would be renamed in one place is accessed in another."""
    tiles: list[Buffer] = []
    body = _in_memory(func.body, (), tiles)
    is_elsewhere = len(set(tiles)) < len(tiles) or any(b in tiles for s, _ in walk(body) for b in _accessed(s))
    if body is func.body or is_elsewhere:
        return func
    return replace(func, body=body, allocs=tuple(b for b in func.allocs if b not in tiles))


def _accessed(s: Stmt) -> tuple[Buffer, ...]:
    """The buffers that a statement accesses or prefetches, without those inside of it."""
    match s:
        case Block():
            return tuple(a.buffer for a in accesses(s))
        case For():
            return tuple(p.buffer for p in s.prefetches)
        case _:
            return ()


def _in_memory(s: Stmt, outer: tuple[For, ...], tiles: list[Buffer]) -> Stmt:
    """A statement inside of loops with its tiles renamed, which are added to `tiles`."""
    match s:
        case Seq():
            inner = map_children(s, lambda c: _in_memory(c, outer, tiles))
            return _sequence_in_memory(inner.stmts, outer, tiles, inner) if isinstance(inner, Seq) else inner
        case For() if s.kind in _OUTER:
            body = _in_memory(s.body, (*outer, s), tiles)
            return s if body is s.body else replace(s, body=body)
        case For() | Block():
            return s
        case _:
            return map_children(s, lambda c: _in_memory(c, outer, tiles))


def _sequence_in_memory(stmts: Sequence[Stmt], outer: tuple[For, ...], tiles: list[Buffer], unchanged: Stmt) -> Stmt:
    result = list(stmts)
    for k in range(len(stmts) - 3, -1, -1):
        load, loop, store = result[k : k + 3]
        copy = _matching_copies(load, store, outer)
        if copy is not None and isinstance(loop, For) and _may_rename(loop, copy, outer):
            start = copy.start
            renamed = redirect_accesses_in(
                loop, copy.tile, copy.buffer, lambda h, start=start: tuple(i + j for i, j in zip(start, h, strict=True))
            )
            result[k : k + 3] = [renamed]
            tiles.append(copy.tile)
    return unchanged if len(result) == len(stmts) else seq(*result)


@dataclass(frozen=True, slots=True)
class _Copy:
    """A copy between all elements of a register buffer and a box of a buffer that is private to a thread.

    Attributes:
        tile: the register buffer.
        buffer: the other one.
        start: the box's first element.
    """

    tile: Buffer
    buffer: Buffer
    start: tuple[Expr, ...]


def _matching_copies(load: Stmt, store: Stmt, outer: tuple[For, ...]) -> _Copy | None:
    """The copy to a register buffer, if the second statement is the same copy back."""
    forth, back = _copy(load, outer, True), _copy(store, outer, False)
    return forth if forth == back else None


def _copy(s: Stmt, outer: tuple[For, ...], loads: bool) -> _Copy | None:
    """The copy that a nest is, to registers or back; None for another statement."""
    loops: list[For] = []
    while isinstance(s, For):
        loops.append(s)
        s = s.body
    if not isinstance(s, Block) or s.init is not None or s.predicate is not TRUE or not isinstance(s.body.value, Load):
        return None
    if any(i.kind is not IterKind.SPATIAL for i in s.iters):
        return None
    if any(x.kind not in _COPYING or x.prefetches for x in loops):
        return None
    stored, loaded = (s.body.buffer, s.body.indices), (s.body.value.buffer, s.body.value.indices)
    (tile, points), (buffer, elements) = (stored, loaded) if loads else (loaded, stored)
    if tile.scope is not MemoryScope.REGISTER or buffer.scope is not MemoryScope.STACK or tile.dtype != buffer.dtype:
        return None
    if len(tile.shape) != len(buffer.shape):
        return None
    context = BlockContext.of(s, (*outer, *loops))
    points = tuple(context.over_loops(p) for p in points)
    start = tuple(expression(polynomial(context.over_loops(e) - p)) for e, p in zip(elements, points, strict=True))
    inner = frozenset(x.var for x in loops)
    if any(free_vars(i) & inner or has_loads(i) for i in start) or not _reaches_all(points, tile, loops):
        return None
    is_unsafe = any(find_domain_errors(context)) or any(find_zero_divisors(context))
    return None if is_unsafe else _Copy(tile, buffer, start)


def _reaches_all(points: Sequence[Expr], tile: Buffer, loops: Sequence[For]) -> bool:
    """Whether the points of loops are all elements of a buffer: per dimension 0, 1, ... as the digits of a number whose
    places are loops of its own, and no other loop repeats them."""
    extents = {x.var: constant_value(polynomial(x.extent)) for x in loops}
    used: list[Var] = []
    for p, n in zip(points, tile.shape, strict=True):
        digits: list[tuple[int, int]] = []
        for monomial, factor in polynomial(p).items():
            var = monomial[0] if len(monomial) == 1 else None
            extent = extents.get(var) if isinstance(var, Var) else None
            if not isinstance(var, Var) or extent is None:
                return False
            used.append(var)
            digits.append((factor, extent))
        size = 1
        for factor, extent in sorted(digits):
            if factor != size or extent < 1:
                return False
            size *= extent
        if size != constant_value(polynomial(n)):
            return False
    return len(set(used)) == len(used) and all(n == 1 for v, n in extents.items() if v not in used)


def _may_rename(loop: For, copy: _Copy, outer: tuple[For, ...]) -> bool:
    """Whether nothing in a loop accesses the buffer of a copy itself, and whether accesses to the tile stay in it, at
    indices that are literals once loops are expanded."""
    for s, loops in walk(loop, outer):
        if isinstance(s, For) and (s.kind not in _SEQUENTIAL or copy.buffer in _accessed(s)):
            return False
        if not isinstance(s, Block) or not {copy.tile, copy.buffer} & set(_accessed(s)):
            continue
        context = BlockContext.of(s, loops)
        expanded = frozenset(x.var for x in loops[len(outer) :] if x.kind in EXPANDED)
        if s.init is not None or any(find_zero_divisors(context)):
            return False
        for a in accesses(s):
            if a.buffer == copy.buffer:
                return False
            if a.buffer != copy.tile:
                continue
            for h, n in zip(a.indices, copy.tile.shape, strict=True):
                index = context.over_loops(h)
                is_inside = can_prove_non_negative(index, context.bounds) and can_prove_lt(index, n, context.bounds)
                if not is_inside or has_loads(index) or not free_vars(index) <= expanded:
                    return False
    return True
