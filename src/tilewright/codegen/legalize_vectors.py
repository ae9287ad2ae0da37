"""Vector widths that machines have: vectorized loops of other extents become several vectors.

LLVM splits a vector of 32 lanes into hardware vectors well, but not one of 48 or 13. So a loop whose extent is no power
of two becomes an unrolled loop of powers of two and a remainder: one vector with a predicate where the target has
masks, smaller vectors where it has none.
"""

from dataclasses import replace

from tilewright.expr.algebra.polynomial import constant_value, polynomial
from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.nodes import Expr, Var, const
from tilewright.expr.operations import conjunction
from tilewright.loops.ir import Block, For, Func, LoopKind, Seq, Stmt, Store, seq
from tilewright.machine import Target


def legalize_vectors(func: Func, target: Target) -> Func:
    """The function with every vectorized loop of constant extent in lanes that the target handles well."""
    return func.with_body(_legalize(func.body, target))


def _legalize(s: Stmt, target: Target) -> Stmt:
    match s:
        case Seq(stmts):
            return Seq(tuple(_legalize(x, target) for x in stmts))
        case Block():
            return s
        case For():
            size = constant_value(polynomial(s.extent))
            if s.kind is LoopKind.VECTORIZED and size is not None and size & (size - 1):
                return _split_loop(s, size, max(target.lanes(32), size & -size), target)
            return replace(s, body=_legalize(s.body, target))


def shrink_to_active_lanes(loop: For, block: Block, active: int, target: Target) -> Stmt:
    """A vectorized loop around a block of whose lanes only the first have work: in as many vectors as have one of them.
    Names of variables and blocks tell how many lanes are left.

    The vectors are whole ones where the target has masks: accumulators of several widths would share registers, and
    LLVM moves the narrow ones in and out in every step.
    """
    whole = target.lanes(max(32, block.body.buffer.dtype.bits))
    lanes = -(-active // whole) * whole if target.has("avx2") else active
    size = constant_value(polynomial(loop.extent))
    if size is None or lanes >= size:
        return loop
    return _split_loop(loop, lanes, whole, target, f".first{lanes}")


def _split_loop(loop: For, size: int, whole: int, target: Target, which: str = "") -> Stmt:
    name = loop.var.name + which
    parts: list[Stmt] = []
    if size >= whole:
        chunk, lane = Var(f"{name}.chunk"), Var(f"{name}.lane")
        inner = For(lane, const(whole), LoopKind.VECTORIZED, _substitute_lane(loop, chunk * whole + lane, f"{which}.0"))
        parts.append(For(chunk, const(size // whole), LoopKind.UNROLLED, inner))
    start = size // whole * whole
    for number, (lanes, used) in enumerate(_remainder_widths(size - start, target), start=1):
        lane = Var(f"{name}.rest{number}")
        body = _substitute_lane(loop, lane + start, f"{which}.{number}", None if used == lanes else lane < used)
        parts.append(For(lane, const(lanes), LoopKind.VECTORIZED, body))
        start += lanes
    return seq(*parts)


def _remainder_widths(rest: int, target: Target) -> list[tuple[int, int]]:
    """(lanes, lanes in use) of the vectors for what is left."""
    if not rest:
        return []
    if target.mask_registers:
        return [(1 << (rest - 1).bit_length(), rest)]
    return [(1 << k, 1 << k) for k in range(rest.bit_length() - 1, -1, -1) if rest >> k & 1]


def _substitute_lane(loop: For, position: Expr, suffix: str, condition: Expr | None = None) -> Stmt:
    """The loop's body with its variable replaced, in blocks of their own names."""
    mapping = {loop.var: position}

    def store(s: Store) -> Store:
        return Store(s.buffer, tuple(substitute(i, mapping) for i in s.indices), substitute(s.value, mapping))

    def moved(s: Stmt) -> Stmt:
        match s:
            case Seq(stmts):
                return Seq(tuple(moved(x) for x in stmts))
            case For():
                hints = s.prefetches_with(lambda e: substitute(e, mapping))
                return replace(s, extent=substitute(s.extent, mapping), body=moved(s.body), prefetches=hints)
            case Block():
                iters = tuple(replace(i, binding=substitute(i.binding, mapping)) for i in s.iters)
                predicate = substitute(s.predicate, mapping)
                return replace(
                    s,
                    name=s.name + suffix,
                    iters=iters,
                    body=store(s.body),
                    init=None if s.init is None else store(s.init),
                    predicate=predicate if condition is None else conjunction(predicate, condition),
                )

    return moved(loop.body)
