"""A function with its indices as simple as the loops around them allow.

Extents, bindings and predicates are simplified with the ranges of the loops, and conditions that follow from them are
dropped. A block that divides an iteration variable, as it does where a tensor is stored in blocks, gets two variables
once its loops are split the same way:

    for co in serial(2):                                  for co in serial(2):
        for ci in serial(4):                                  for ci in serial(4):
            block Y(v: 8 = co*4 + ci):             ->             block Y(v_o: 2 = co, v_i: 4 = ci):
                Y[v] = X[v // 4, v % 4]                               Y[v_o*4 + v_i] = X[v_o, v_i]

Code generation simplifies what it emits by itself; this is for people who read loops, and for whoever compares them.
"""

from collections.abc import Iterator
from dataclasses import replace

from tilewright.expr.algebra.bounds import Bounds
from tilewright.expr.algebra.prover import can_prove
from tilewright.expr.algebra.simplify import simplify, substitute
from tilewright.expr.nodes import FALSE, Binary, Const, Expr, Var, const
from tilewright.expr.operations import conjunction
from tilewright.expr.traversal import conjuncts, post_order
from tilewright.loops.ir import Block, BlockIter, For, Func, Seq, Stmt, Store
from tilewright.loops.ir import walk as walk_stmt


def simplified(func: Func) -> Func:
    """The same function with simpler indices; loops, blocks, buffers and their names stay."""
    names = {v.name for s, _ in walk_stmt(func.body) for v in _variables(s)} | {v.name for v in func.symbols}
    return func.with_body(_statement(func.body, Bounds(), names))


def _variables(s: Stmt) -> tuple[Var, ...]:
    match s:
        case For():
            return (s.var,)
        case Block():
            return tuple(i.var for i in s.iters)
        case Seq():
            return ()


def _statement(s: Stmt, known: Bounds, names: set[str]) -> Stmt:
    match s:
        case For():
            extent = simplify(s.extent, known)
            inside = known.with_loop(s.var, extent)
            hints = s.prefetches_with(lambda e: simplify(e, inside))
            return replace(s, extent=extent, body=_statement(s.body, inside, names), prefetches=hints)
        case Seq():
            return Seq(tuple(_statement(c, known, names) for c in s.stmts))
        case Block():
            return _block(s, known, names)


def _block(block: Block, known: Bounds, names: set[str]) -> Block:
    predicate = conjunction(*(c for c in conjuncts(simplify(block.predicate, known)) if not can_prove(c, known)))
    predicate = block.predicate if predicate is FALSE else predicate  # it says why nothing leaves its domain
    iters = tuple(replace(i, binding=simplify(i.binding, known)) for i in block.iters)
    block = _with_digits(replace(block, iters=iters, predicate=predicate), known, names)
    inside = known
    for i in block.iters:
        inside = inside.with_loop(i.var, i.extent)
    init = None if block.init is None else _store(block.init, inside)
    return replace(block, body=_store(block.body, inside), init=init)


def _store(store: Store, known: Bounds) -> Store:
    return Store(store.buffer, tuple(simplify(i, known) for i in store.indices), simplify(store.value, known))


def _with_digits(block: Block, known: Bounds, names: set[str]) -> Block:
    """The block with two variables in place of each that it divides, where the loops provide quotient and remainder."""
    for i in block.iters:
        for d in sorted(set(_divisors(block, i.var))):
            high, low = (simplify(Binary(op, i.binding, const(d)), known) for op in ("floordiv", "mod"))
            if _is_multiple(i.extent, d) and not _divides(high) and not _divides(low):
                return _with_digits(_split(block, i, d, (high, low), names), known, names)
    return block


def _split(block: Block, i: BlockIter, d: int, bindings: tuple[Expr, Expr], names: set[str]) -> Block:
    """The block with v = v_o*d + v_i."""
    outer, inner = (Var(_fresh(f"{i.var.name}_{letter}", names)) for letter in "oi")
    digits = (
        BlockIter(outer, i.extent // d, i.kind, bindings[0]),
        BlockIter(inner, const(d), i.kind, bindings[1]),
    )
    place = next(k for k, x in enumerate(block.iters) if x is i)
    known = Bounds.from_loops((x.var, x.extent) for x in digits)
    value: dict[Var, Expr] = {i.var: outer * d + inner}

    def changed(s: Store) -> Store:
        indices = tuple(substitute(e, value, known) for e in s.indices)
        return Store(s.buffer, indices, substitute(s.value, value, known))

    return replace(
        block,
        iters=(*block.iters[:place], *digits, *block.iters[place + 1 :]),
        body=changed(block.body),
        init=None if block.init is None else changed(block.init),
    )


def _divisors(block: Block, v: Var) -> Iterator[int]:
    """The numbers that a block divides a variable by."""
    for e in (*block.body.indices, block.body.value):
        for node in post_order(e):
            if isinstance(node, Binary) and node.op in ("floordiv", "mod") and node.a is v:
                d = node.b.value if isinstance(node.b, Const) else 0
                if d > 1:
                    yield int(d)


def _divides(e: Expr) -> bool:
    return any(isinstance(node, Binary) and node.op in ("floordiv", "mod") for node in post_order(e))


def _is_multiple(extent: Expr, d: int) -> bool:
    return extent % d is const(0)


def _fresh(name: str, used: set[str]) -> str:
    chosen, k = name, 2
    while chosen in used:
        chosen, k = f"{name}_{k}", k + 1
    used.add(chosen)
    return chosen
