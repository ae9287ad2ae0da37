"""Primitives that change loops: split, fuse, reorder, peel, and the kinds of loops.

Every primitive is a pure function on a `Func`. Loops are named by their variable. Each has its legality check next to it;
a check raises `ScheduleError` with the loop and the reason.
"""

from collections.abc import Sequence
from dataclasses import replace

from tilewright.errors import ScheduleError
from tilewright.expr.bounds import Bounds, non_negative, prove
from tilewright.expr.nodes import Const, Expr, Var, as_expr, both, ceildiv, free_vars
from tilewright.loops.ir import Block, For, Func, IterKind, LoopKind, Seq, Stmt, blocks, seq
from tilewright.schedule.tree import (
    bounds_of,
    find_loop,
    fresh,
    map_blocks,
    needed,
    renamed,
    substituted,
    used_names,
    with_replaced,
)

MAX_UNROLL = 512
"""Iterations that one unrolled loop may have; more would only bloat the code."""


def split(func: Func, loop: str, factor: int, names: tuple[str, str] | None = None) -> Func:
    """Splits a loop in two, the inner one of constant extent; a tail is guarded by the blocks' predicate.

    Equation: i = io * factor + ii, 0 <= ii < factor, 0 <= io < ceil(N / factor); a guard `i < N` is added to every block
    inside unless factor is known to divide N.

    Legality: always, for factor >= 1.

        for i in serial(N):            for io in serial(ceil(N / 4)):
            block B(v = i)       ->        for ii in serial(4):
                                               block B(v = io*4 + ii) where io*4 + ii < N

    Known as split in Halide and TVM, divide_loop in Exo.
    """
    node, around = find_loop(func, loop)
    check_factor(loop, factor)
    used = used_names(func)
    outer, inner = names or (fresh(f"{loop}_o", used), fresh(f"{loop}_i", used))
    check_new_names(loop, (outer, inner), used - {loop})
    io, ii = Var(outer), Var(inner)
    index = io * factor + ii
    body = substituted(node.body, {node.var: index})
    blocks_count = ceildiv(node.extent, factor)
    known = bounds_of(around).with_loop(io, blocks_count).with_loop(ii, as_expr(factor))
    if not prove(index < node.extent, known):
        body = map_blocks(body, lambda b: replace(b, predicate=both(b.predicate, index < node.extent)))
    nest = For(io, blocks_count, node.kind, For(ii, as_expr(factor), node.kind, body))
    return with_replaced(func, node, nest)


def check_factor(loop: str, factor: int) -> None:
    """A factor is a positive integer."""
    if factor < 1:
        raise ScheduleError(f"factor must be at least 1, got {factor}", where=f"split of loop {loop!r}")


def check_new_names(loop: str, names: Sequence[str], used: set[str]) -> None:
    """New names are not in use and differ."""
    for name in names:
        if name in used or names.count(name) > 1:
            raise ScheduleError(f"name {name!r} is already used", where=f"loop {loop!r}")


def fuse(func: Func, outer: str, inner: str, name: str | None = None) -> Func:
    """Makes one loop of two directly nested ones.

    Equation: i = f // M, j = f % M, 0 <= f < N*M, where M is the inner extent.

    Legality: `inner` is the only statement of `outer`, both have one kind, and the inner extent does not depend on the outer variable.

        for i in serial(N):            for f in serial(N*M):
            for j in serial(M):  ->        block B(v0 = f // M, v1 = f % M)
                block B(v0 = i, v1 = j)

    Known as fuse in Halide and TVM, mult_loops in Exo.
    """
    out, _ = find_loop(func, outer)
    inn = check_directly_nested(out, inner)
    fused = name or fresh(f"{outer}_{inner}", used_names(func))
    check_new_names(outer, (fused,), used_names(func) - {outer, inner})
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
    return outer.body


def reorder(func: Func, order: Sequence[str]) -> Func:
    """Puts loops of one perfect nest into the given order; loops between them that are not named keep their places.

    Legality: the loops form a perfect nest (one statement each, down to a single block or nest), no extent depends on a loop that
    would come to lie inside, and reduction blocks keep their reduction loops inside the same spatial iteration (always so here, since
    a block's result does not depend on the order of its iterations).

        for i in serial(N):            for j in serial(M):
            for j in serial(M):  ->        for i in serial(N):
                block B(...)                   block B(...)

    Known as reorder in Halide and TVM, reorder_loops in Exo.
    """
    first, _ = min((find_loop(func, name) for name in order), key=lambda found: len(found[1]))
    chain = check_perfect_nest(first, order)
    named = iter(order)
    by_name = {loop.var.name: loop for loop in chain}
    placed = [by_name[next(named)] if loop.var.name in order else loop for loop in chain]
    check_extents(placed)
    body: Stmt = chain[-1].body
    for loop in reversed(placed):
        body = replace(loop, body=body)
    return with_replaced(func, chain[0], body)


def check_perfect_nest(first: For, names: Sequence[str]) -> list[For]:
    """The chain of loops from `first` down to the last of `names`; each is the whole body of the one before."""
    place = f"reorder of {', '.join(names)}"
    if len(set(names)) != len(names):
        raise ScheduleError("a loop is named twice", where=place)
    missing, chain, here = set(names), [], first
    while True:
        chain.append(here)
        missing.discard(here.var.name)
        if not missing:
            break
        if not isinstance(here.body, For):
            raise ScheduleError(f"{', '.join(sorted(missing))} not in a perfect nest with {here.var.name}", where=place)
        here = here.body
    if len(blocks(here)) != 1:
        raise ScheduleError("several blocks share the loops, so their order may matter", where=place)
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

    Legality: 0 <= at <= N is proved; the loop is serial.

        for i in serial(N):            for i in serial(at):
            block B(v = i)       ->        block B(v = i)
                                       for i_2 in serial(N - at):
                                           block B_2(v_2 = at + i_2)

    Known as loop partition in TVM, cut_loop in Exo.
    """
    node, around = find_loop(func, loop)
    cut = as_expr(at)
    check_cut(node, cut, bounds_of(around))
    used = used_names(func)
    copy = renamed(node, used)
    if not isinstance(copy, For):
        raise ScheduleError("not a loop", where=loop)
    shifted = substituted(copy.body, {copy.var: copy.var + cut})
    head = _tidied(replace(node, extent=cut), around)
    tail = _tidied(replace(copy, extent=node.extent - cut, body=shifted), around)
    return with_replaced(func, node, seq(head, tail))


def check_cut(node: For, cut: Expr, known: Bounds) -> None:
    """The cut lies in the loop's range."""
    place = f"peel of loop {node.var.name!r}"
    if node.kind is not LoopKind.SERIAL:
        raise ScheduleError(f"the loop is {node.kind}, only a serial one can be cut", where=place)
    if not (non_negative(cut, known) and non_negative(node.extent - cut, known)):
        raise ScheduleError(f"cut {cut} is not proved to lie in 0..{node.extent}", where=place)


def _tidied(s: Stmt, around: Sequence[For]) -> Stmt:
    """`s` without the predicates that its loops now make true."""
    match s:
        case For():
            return replace(s, body=_tidied(s.body, (*around, s)))
        case Seq():
            return Seq(tuple(_tidied(c, around) for c in s.stmts))
        case Block():
            return replace(s, predicate=needed(s.predicate, bounds_of(around)))


def parallel(func: Func, loop: str) -> Func:
    """Runs the iterations of a loop on several threads.

    Legality: no block reduces over the loop.
    """
    node, _ = find_loop(func, loop)
    check_no_reduction(node)
    return with_replaced(func, node, replace(node, kind=LoopKind.PARALLEL))


def vectorize(func: Func, loop: str) -> Func:
    """Runs the iterations of a loop at once, in the lanes of vectors. A reduction over it is combined across lanes.

    Legality: the extent is a literal; no vectorized loop is around or inside.
    """
    node, around = find_loop(func, loop)
    check_literal_extent(node, "vectorize")
    inside = [s for s in _loops_inside(node) if s.kind in (LoopKind.VECTORIZED, LoopKind.PARALLEL)]
    if inside or any(a.kind is LoopKind.VECTORIZED for a in around):
        raise ScheduleError("vectorized loops can't be nested, nor hold parallel ones", where=f"vectorize of loop {loop!r}")
    return with_replaced(func, node, replace(node, kind=LoopKind.VECTORIZED))


def unroll(func: Func, loop: str) -> Func:
    """Writes out the iterations of a loop one after the other.

    Legality: the extent is a literal of at most `MAX_UNROLL`.
    """
    node, _ = find_loop(func, loop)
    check_literal_extent(node, "unroll")
    if isinstance(node.extent, Const) and node.extent.value > MAX_UNROLL:
        raise ScheduleError(f"{node.extent} iterations are more than {MAX_UNROLL}", where=f"unroll of loop {loop!r}")
    return with_replaced(func, node, replace(node, kind=LoopKind.UNROLLED))


def _loops_inside(s: For) -> list[For]:
    from tilewright.loops.ir import walk

    return [x for x, _ in walk(s.body) if isinstance(x, For)]


def check_literal_extent(node: For, primitive: str) -> None:
    """The loop's extent is a literal."""
    if not isinstance(node.extent, Const):
        raise ScheduleError(
            f"the extent {node.extent} is not a literal", where=f"{primitive} of loop {node.var.name!r}", hint="split the loop first"
        )


def check_no_reduction(node: For) -> None:
    """No block inside reduces over the loop: its threads would write one element together."""
    for b in blocks(node):
        for i in b.iters:
            if i.kind is IterKind.REDUCE and node.var in free_vars(i.binding):
                raise ScheduleError(
                    f"block {b.name!r} reduces over it (iteration variable {i.var.name!r})",
                    where=f"parallel of loop {node.var.name!r}",
                )


def block_of(func: Func, name: str) -> Block:
    """The block of that name."""
    from tilewright.schedule.tree import find_block

    return find_block(func, name)[0]
