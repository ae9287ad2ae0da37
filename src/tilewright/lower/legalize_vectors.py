"""Vector legalisation: vectorized loops of other extents than powers of two become several vectors.

LLVM splits a vector of 32 lanes into registers well, but not one of 48 or 13. So such a loop becomes an unrolled loop
of whole vectors and a remainder: one masked vector where the target has mask registers, smaller vectors elsewhere.
"""

from dataclasses import replace

from tilewright.expr.algebra.polynomial import constant_value, polynomial
from tilewright.expr.nodes import Expr, Var, const
from tilewright.expr.operations import conjunction
from tilewright.loops.ir import Block, For, Func, If, LoopKind, Seq, Stmt, map_children, seq
from tilewright.machine import Target
from tilewright.schedule.rewrite_tree import map_blocks, substitute_vars


def legalize_vectors(func: Func, target: Target) -> Func:
    """The function with every vectorized loop of constant extent split into lanes that the target handles well."""
    return func.with_body(_legalize(func.body, target))


def _legalize(s: Stmt, target: Target) -> Stmt:
    match s:
        case Seq() | If():
            return map_children(s, lambda x: _legalize(x, target))
        case Block():
            return s
        case For():
            size = constant_value(polynomial(s.extent))
            if s.kind is LoopKind.VECTORIZED and size is not None and size & (size - 1):
                return _split_loop(s, size, max(target.lanes(32), size & -size), target)
            return replace(s, body=_legalize(s.body, target))


def shrink_to_active_lanes(loop: For, block: Block, active: int, target: Target) -> Stmt:
    """A vectorized loop around a block of which only the first lanes are active, in as many vectors as have an active
    lane. Names of variables and blocks contain the number of lanes.

    The vectors are whole ones where the target has masked accesses: accumulators of several widths would share
    registers, and LLVM would move the narrow ones in and out in every step.
    """
    register_lanes = target.lanes(max(32, block.body.buffer.dtype.bits))
    lanes = -(-active // register_lanes) * register_lanes if target.has("avx2") else active
    size = constant_value(polynomial(loop.extent))
    if size is None or lanes >= size:
        return loop
    return _split_loop(loop, lanes, register_lanes, target, f".first{lanes}")


def _split_loop(loop: For, size: int, register_lanes: int, target: Target, suffix: str = "") -> Stmt:
    name = loop.var.name + suffix
    parts: list[Stmt] = []
    if size >= register_lanes:
        chunk, lane = Var(f"{name}.chunk"), Var(f"{name}.lane")
        inner = For(
            lane,
            const(register_lanes),
            LoopKind.VECTORIZED,
            _substitute_lane(loop, chunk * register_lanes + lane, f"{suffix}.0"),
        )
        parts.append(For(chunk, const(size // register_lanes), LoopKind.UNROLLED, inner))
    start = size // register_lanes * register_lanes
    for number, (lanes, active) in enumerate(_remainder_widths(size - start, target), start=1):
        lane = Var(f"{name}.rest{number}")
        body = _substitute_lane(loop, lane + start, f"{suffix}.{number}", None if active == lanes else lane < active)
        parts.append(For(lane, const(lanes), LoopKind.VECTORIZED, body))
        start += lanes
    return seq(*parts)


def _remainder_widths(size: int, target: Target) -> list[tuple[int, int]]:
    """Lanes and active lanes of the vectors of a remainder."""
    if not size:
        return []
    if target.mask_registers:
        return [(1 << (size - 1).bit_length(), size)]
    return [(1 << k, 1 << k) for k in range(size.bit_length() - 1, -1, -1) if size >> k & 1]


def _substitute_lane(loop: For, position: Expr, suffix: str, condition: Expr | None = None) -> Stmt:
    """The loop's body with its variable replaced, in blocks with names of their own."""

    def renamed(block: Block) -> Block:
        predicate = block.predicate if condition is None else conjunction(block.predicate, condition)
        return replace(block, name=block.name + suffix, predicate=predicate)

    return map_blocks(substitute_vars(loop.body, {loop.var: position}), renamed)
