"""Loops over tiles that end with the last one: a predicate that tells tiles apart becomes the extent of their loop.

A level whose tiles do not divide an axis of unknown size has a partial last tile, of which a part of the tiles inside
exist. They are whole, so one comparison decides for all that they compute; the loop that counts them makes it once:

    for o in serial((n // 3 + 3) // 4):                  for o in serial((n // 3 + 3) // 4):
        for t in serial(4):                                  for t in serial(min(4, n // 3 - o*4)):
            for r in unrolled(3):                                for r in unrolled(3):
                block C(.. = o*12 + t*3 + r)          ->             block C(.. = o*12 + t*3 + r): ..
                  where o*12 + t*3 + r < n // 3 * 3: ..

Tiles of literal sizes are left to loop specialization (`specialize.py`), as are those that may be partial themselves,
and functions without a reduction, whose loops are short. Two conditions end loops of literal size, too:

- No loop goes on over vectors of which no lane is active: 197 columns in tiles of 112 are 7 and 6 vectors, of which the
  last keeps its mask. Code for vectors that may be empty tests for it at every access
  (`docs/decisions/0015-masked-accesses.md`).
- A condition that no loop inside varies ends the loop: 28 rows in tiles of 10 are 10, 10 and 8. Tested by every block
  inside instead, it kept the accumulators of register tiles in memory: an inverted residual of 192 x 28 x 28 in tiles
  of 10 rows took 273 to 359 us, without 156 to 198.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import gcd

from tilewright.expr.algebra.bounds import NO_BOUNDS, Bounds
from tilewright.expr.algebra.polynomial import Polynomial, constant_value, expression, polynomial
from tilewright.expr.algebra.prover import can_prove_non_negative
from tilewright.expr.algebra.simplify import simplify
from tilewright.expr.dtype import int64
from tilewright.expr.nodes import Binary, Const, Expr, Var
from tilewright.expr.operations import conjunction, maximum, minimum
from tilewright.expr.traversal import conjuncts, free_vars
from tilewright.loops.ir import Block, For, Func, IterKind, LoopKind, Seq, Stmt, blocks, map_children, walk
from tilewright.schedule.rewrite_tree import map_blocks


def trim_loops(func: Func) -> Func:
    """The function with serial loops that end where the predicates of all blocks inside say so, by one comparison of
    sizes; these predicates are left out.

    Args:
        func: a scheduled function, without branches.
    """
    if not any(i.kind is IterKind.REDUCE for b in blocks(func.body) for i in b.iters):
        return func
    kinds = LoopKind.VTHREAD, LoopKind.VECTORIZED
    lockstep = frozenset(s.var for s, _ in walk(func.body) if isinstance(s, For) and s.kind in kinds)
    body = _trimmed(func.body, NO_BOUNDS, frozenset(func.symbols), lockstep)
    return func if body is func.body else func.with_body(body)


def _trimmed(s: Stmt, bounds: Bounds, symbols: frozenset[Var], lockstep: frozenset[Var]) -> Stmt:
    match s:
        case For():
            trimmed = _trim(s, bounds, symbols, lockstep) if s.kind is LoopKind.SERIAL else s
            body = _trimmed(trimmed.body, bounds.with_loop(trimmed.var, trimmed.extent), symbols, lockstep)
            return trimmed if body is trimmed.body else replace(trimmed, body=body)
        case Seq():
            return map_children(s, lambda c: _trimmed(c, bounds, symbols, lockstep))
        case _:
            return s


def _trim(loop: For, bounds: Bounds, symbols: frozenset[Var], lockstep: frozenset[Var]) -> For:
    """A loop that ends where all blocks inside do; the same loop where that is not one comparison.

    Args:
        loop: of literal size.
        bounds: of the loops around it.
        symbols: of the function.
        lockstep: variables of lanes and virtual threads, which only share loops of the same size for all of them.
    """
    if not isinstance(loop.extent, Const) or loop.extent.value < 2:
        return loop
    inner = [x for x, _ in walk(loop.body) if isinstance(x, For)]
    by_condition = _end_by_condition if symbols else _end_by_literal_condition
    ends = [by_condition(b, loop, inner, bounds) for b in blocks(loop.body)]
    outer = symbols or bounds.ranges.keys()
    candidates = [e for e, _ in ends[0].values() if free_vars(e) & outer] if ends else []
    end = next((e for e in candidates if all(any(e is y for y, _ in x.values()) for x in ends)), None)
    if end is None:
        return loop
    if free_vars(end) & lockstep or (not symbols and can_prove_non_negative(end - loop.extent, bounds)):
        return loop
    extent = minimum(loop.extent, end if can_prove_non_negative(end, bounds) else maximum(end, 0))
    settled = {c for x in ends for c, (e, is_decided) in x.items() if is_decided and e is end}

    def without_decided(b: Block) -> Block:
        return replace(b, predicate=conjunction(*(c for c in conjuncts(b.predicate) if c not in settled)))

    return replace(loop, extent=extent, body=map_blocks(loop.body, without_decided))


def _end_by_condition(block: Block, loop: For, inner: Sequence[For], bounds: Bounds) -> dict[Expr, tuple[Expr, bool]]:
    """By condition of a block the number of iterations of a loop in which it may hold, the first ones, and whether it
    then holds in all iterations of the loops inside; conditions that decide for no serial loop are left out.

    Args:
        block: inside the loop.
        loop: the loop.
        inner: the loops inside, outermost first.
        bounds: of the loops around it.
    """
    ends: dict[Expr, tuple[Expr, bool]] = {}
    loops = [loop, *inner]
    inside = {x.var: {y.var: y.extent for y in loops[k + 1 :]} for k, x in enumerate(loops)}
    for c in conjuncts(block.predicate):
        if isinstance(c, Binary) and c.op == "lt" and c.a.dtype == int64:
            slack = polynomial(c.b - c.a)
            serial = (x.var for x in loops if x.kind is LoopKind.SERIAL)
            splitters = [v for v in serial if _is_decided(slack, v, inside[v])]
            end = _end(slack, loop.var, [x.var for x in inner], bounds) if splitters else None
            if end is not None:
                ends[c] = end, loop.var in splitters
    return ends


def _end_by_literal_condition(
    block: Block, loop: For, inner: Sequence[For], bounds: Bounds
) -> dict[Expr, tuple[Expr, bool]]:
    """The same among literal sizes: by condition on the lanes of a block the number of iterations of a loop in which a
    lane may be active, which does not settle it, and by condition that no loop inside varies the number in which it
    holds."""
    variables = {x.var for x in inner}
    lanes = {x.var for x in inner if x.kind is LoopKind.VECTORIZED}
    ends: dict[Expr, tuple[Expr, bool]] = {}
    for c in conjuncts(block.predicate):
        if isinstance(c, Binary) and c.op == "lt" and c.a.dtype == int64:
            varying = free_vars(c) & variables
            is_decided = not varying and loop.var in free_vars(c)
            if is_decided or varying & lanes:
                end = _end(polynomial(c.b - c.a), loop.var, [x.var for x in inner], bounds)
                if end is not None:
                    ends[c] = end, is_decided
    return ends


def _is_decided(slack: Polynomial, variable: Var, inner: Mapping[Var, Expr]) -> bool:
    """Whether `slack > 0` holds for all iterations of the loops inside of an iteration of a loop or for none.

    Let it be rest + k - c t - u > 0, in which u takes values between 0 and u_max inside. Where c divides rest, that is
    c (rest' - t) >= 1 - k + u, which is the same for all u where no multiple of c lies between the two ends.
    """
    rest = dict(slack)
    step, most = -rest.pop((variable,), 0), 0
    for v, extent in inner.items():
        factor, size = -rest.pop((v,), 0), constant_value(polynomial(extent))
        if factor and (factor < 0 or size is None):
            return False
        most += factor * ((size or 1) - 1)
    constant = rest.pop((), 0)
    if step <= 0 or any(k % step for k in rest.values()):
        return False
    return -(-(1 - constant) // step) == -(-(1 - constant + most) // step)


def _end(slack: Polynomial, variable: Var, inner: Sequence[Var], bounds: Bounds) -> Expr | None:
    """The number of iterations of a loop in which `slack > 0` holds at the first points of the loops inside; None where
    it does not fall along these loops."""
    rest = {m: k for m, k in slack.items() if not any((v,) == m for v in (variable, *inner))}
    step = -slack.get((variable,), 0)
    known = {variable, *inner}
    if step <= 0 or any(slack.get((v,), 0) > 0 for v in inner) or any(free_vars(a) & known for m in rest for a in m):
        return None
    # step * variable <= rest + constant - 1, divided by what divides step and rest
    constant = rest.pop((), 0)
    factor = gcd(step, *rest.values())
    most = expression({m: k // factor for m, k in rest.items()}) + (constant - 1) // factor
    return simplify(most // (step // factor) + 1, bounds)
