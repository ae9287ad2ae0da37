"""Primitives that change the shape of loop nests: split, fuse, reorder, peel.

Every primitive is a pure function on a `Func`. Loops are named by their variable. Each has its legality check next to
it; a check raises `ScheduleError` with the loop and the reason.
"""

from collections.abc import Sequence
from dataclasses import replace

from tilewright.errors import ScheduleError
from tilewright.expr.bounds import Bounds
from tilewright.expr.nodes import Expr, Var, as_expr, both, ceildiv, const, free_vars
from tilewright.expr.prover import non_negative, prove
from tilewright.loops.ir import Block, For, Func, LoopKind, Seq, Stmt, blocks, seq
from tilewright.schedule.legality import check_nesting, check_order_free
from tilewright.schedule.tree import (
    bounds_of,
    check_new_names,
    find_loop,
    fresh,
    loops_inside,
    map_blocks,
    needed,
    renamed,
    substituted,
    used_names,
    with_replaced,
)


def split(func: Func, loop: str, factor: int, names: tuple[str, str] | None = None) -> Func:
    """Splits a loop in two, the inner one of constant extent; a tail is guarded by the blocks' predicate.

    Equation: i = io * factor + ii, 0 <= ii < factor, 0 <= io < ceil(N / factor); a guard `i < N` is added to every
    block inside unless factor is known to divide N. The inner loop of a parallel one is serial.

    Legality: factor >= 1; the loop is not vectorized (vectorized loops do not nest).

        for i in serial(N):            for io in serial(ceil(N / 4)):
            block B(v = i)       ->        for ii in serial(4):
                                               block B(v = io*4 + ii) where io*4 + ii < N

    Known as split in Halide and TVM, divide_loop in Exo.
    """
    node, around = find_loop(func, loop)
    check_split(node, factor)
    used = used_names(func)
    outer, inner = names or (fresh(f"{loop}_o", used), fresh(f"{loop}_i", used))
    check_new_names((outer, inner), used - {loop}, f"split of loop {loop!r}")
    io, ii = Var(outer), Var(inner)
    index = io * factor + ii
    body = substituted(node.body, {node.var: index})
    count = ceildiv(node.extent, factor)
    known = bounds_of(around).with_loop(io, count).with_loop(ii, as_expr(factor))
    if not prove(index < node.extent, known):
        body = map_blocks(body, lambda b: replace(b, predicate=both(b.predicate, index < node.extent)))
    inner_kind = LoopKind.SERIAL if node.kind is LoopKind.PARALLEL else node.kind
    nest = For(io, count, node.kind, For(ii, as_expr(factor), inner_kind, body))
    return with_replaced(func, node, nest)


def check_split(node: For, factor: int) -> None:
    """A factor is a positive integer; a vectorized loop stays whole."""
    place = f"split of loop {node.var.name!r}"
    if factor < 1:
        raise ScheduleError(f"factor must be at least 1, got {factor}", where=place)
    if node.kind is LoopKind.VECTORIZED:
        raise ScheduleError("the loop is vectorized already", where=place, hint="split it before `vectorize`")


def fuse(func: Func, outer: str, inner: str, name: str | None = None) -> Func:
    """Makes one loop of two directly nested ones.

    Equation: i = f // M, j = f % M, 0 <= f < N*M, where M is the inner extent.

    Legality: `inner` is the only statement of `outer`, both have one kind, the inner extent does not depend on the
    outer variable, and no block iterates spatially over one and reduces over the other.

        for i in serial(N):            for f in serial(N*M):
            for j in serial(M):  ->        block B(v0 = f // M, v1 = f % M)
                block B(v0 = i, v1 = j)

    Known as fuse in Halide and TVM, mult_loops in Exo.
    """
    out, _ = find_loop(func, outer)
    inn = check_directly_nested(out, inner)
    used = used_names(func)
    fused = name or fresh(f"{outer}_{inner}", used)
    check_new_names((fused,), used - {outer, inner}, f"fuse of loops {outer!r} and {inner!r}")
    f = Var(fused)
    body = substituted(inn.body, {out.var: f // inn.extent, inn.var: f % inn.extent})
    return with_replaced(func, out, For(f, out.extent * inn.extent, out.kind, body))


def check_directly_nested(outer: For, inner: str) -> For:
    """The loop `inner` is the whole body of `outer`, of the same kind, with an independent extent."""
    place = f"fuse of loops {outer.var.name!r} and {inner!r}"
    if not isinstance(outer.body, For) or outer.body.var.name != inner:
        raise ScheduleError(f"{inner!r} is not directly inside {outer.var.name!r}", where=place)
    if outer.kind != outer.body.kind:
        raise ScheduleError(f"kinds differ: {outer.kind} and {outer.body.kind}", where=place)
    if outer.var in free_vars(outer.body.extent):
        raise ScheduleError(f"the extent of {inner!r} depends on {outer.var.name!r}", where=place)
    pair = {outer.var, outer.body.var}
    for b in blocks(outer):
        if len({i.kind for i in b.iters if free_vars(i.binding) & pair}) > 1:
            raise ScheduleError(f"block {b.name!r} is spatial in one and reduces over the other", where=place)
    return outer.body


def reorder(func: Func, order: Sequence[str]) -> Func:
    """Puts loops of one perfect nest into the given order; loops between them that are not named keep their places.

    Legality: the loops form a perfect nest around a single block; the block reads no element that another of its
    iterations writes, except the one it accumulates into, whose first reduction iteration comes first in every order;
    no extent depends on a loop that would come to lie inside; parallel loops stay outside vectorized ones.

        for i in serial(N):            for j in serial(M):
            for j in serial(M):  ->        for i in serial(N):
                block B(...)                   block B(...)

    Known as reorder in Halide and TVM, reorder_loops in Exo.
    """
    if not order:
        raise ScheduleError("no loops are named", where="reorder")
    first, _ = min((find_loop(func, name) for name in order), key=lambda found: len(found[1]))
    chain = check_perfect_nest(first, order)
    named = iter(order)
    by_name = {loop.var.name: loop for loop in chain}
    placed = [by_name[next(named)] if loop.var.name in order else loop for loop in chain]
    check_extents(placed)
    body: Stmt = chain[-1].body
    check_nesting([*placed, *loops_inside(body)], f"reorder of {', '.join(order)}")
    for loop in reversed(placed):
        body = replace(loop, body=body)
    return with_replaced(func, chain[0], body)


def check_perfect_nest(first: For, names: Sequence[str]) -> list[For]:
    """The chain of loops from `first` down to the last of `names`; each is the whole body of the one before."""
    place = f"reorder of {', '.join(names)}"
    if len(set(names)) != len(names):
        raise ScheduleError("a loop is named twice", where=place)
    missing = set(names)
    chain: list[For] = []
    here = first
    while True:
        chain.append(here)
        missing.discard(here.var.name)
        if not missing:
            break
        if not isinstance(here.body, For):
            left = ", ".join(map(repr, sorted(missing)))
            raise ScheduleError(f"{left} not in a perfect nest with {first.var.name!r}", where=place)
        here = here.body
    inside = blocks(here)
    if len(inside) != 1:
        raise ScheduleError("several blocks share the loops, so their order may matter", where=place)
    check_order_free(inside[0], place)
    return chain


def check_extents(placed: Sequence[For]) -> None:
    """No extent uses the variable of a loop further inside."""
    for k, loop in enumerate(placed):
        inside = {later.var for later in placed[k:]}
        bad = inside & free_vars(loop.extent)
        if bad:
            name = min(v.name for v in bad)
            raise ScheduleError(f"the extent of {loop.var.name!r} depends on {name!r}", where="reorder")


def peel(func: Func, loop: str, at: Expr | int) -> Func:
    """Cuts a loop's range in two: the first `at` iterations stay, the others follow in a copy.

    Equation: [0, N) = [0, at) + [at, N); the copy's variable counts from 0, so its bindings are shifted by `at`.

    Legality: `at` is made of symbols and variables of the loops around; 0 <= at <= N is proved, and neither part is
    known to be empty; the loop is serial.

        for i in serial(N):            for i in serial(at):
            block B(v = i)       ->        block B(v = i)
                                       for i_2 in serial(N - at):
                                           block B_2(v_2 = at + i_2)

    Known as loop partition in TVM, cut_loop in Exo.
    """
    node, around = find_loop(func, loop)
    cut = as_expr(at)
    check_cut(func, node, around, cut)
    copy = renamed(node, used_names(func))
    if not isinstance(copy, For):
        raise ScheduleError("not a loop", where=f"peel of loop {loop!r}")
    shifted = substituted(copy.body, {copy.var: copy.var + cut})
    head = _tidied(replace(node, extent=cut), bounds_of(around))
    tail = _tidied(replace(copy, extent=node.extent - cut, body=shifted), bounds_of(around))
    return with_replaced(func, node, seq(head, tail))


def check_cut(func: Func, node: For, around: Sequence[For], cut: Expr) -> None:
    """The cut is known outside the loop and lies in the loop's range."""
    place = f"peel of loop {node.var.name!r}"
    if node.kind is not LoopKind.SERIAL:
        raise ScheduleError(f"the loop is {node.kind}, only a serial one can be cut", where=place)
    unknown = free_vars(cut) - {*func.symbols, *(x.var for x in around)}
    if unknown:
        name = min(v.name for v in unknown)
        raise ScheduleError(f"cut {cut} uses {name!r}, which is not known outside the loop", where=place)
    known = bounds_of(around)
    if cut is const(0) or cut is node.extent:
        raise ScheduleError(f"cut {cut} of 0..{node.extent} leaves one part empty", where=place)
    if not (non_negative(cut, known) and non_negative(node.extent - cut, known)):
        raise ScheduleError(f"cut {cut} is not proved to lie in 0..{node.extent}", where=place)


def _tidied(s: Stmt, known: Bounds) -> Stmt:
    """`s` without the predicates that its loops now make true."""
    match s:
        case For():
            return replace(s, body=_tidied(s.body, known.with_loop(s.var, s.extent)))
        case Seq():
            return Seq(tuple(_tidied(c, known) for c in s.stmts))
        case Block():
            return replace(s, predicate=needed(s.predicate, known))
