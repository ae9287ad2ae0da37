"""Primitives that change the shape of loop nests: split, split_parts, fuse, reorder, peel.

Every primitive is a pure function on a `Func`. Loops are named by their variable. Each primitive stands next to its
legality check, which raises `ScheduleError` with the loop and the reason.
"""

from collections.abc import Sequence

from tilewright.errors import ScheduleError
from tilewright.expr.algebra.prover import can_prove_non_negative
from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.nodes import Expr, Var, as_expr, const
from tilewright.expr.operations import ceildiv
from tilewright.expr.traversal import free_vars
from tilewright.loops.ir import CONCURRENT, Block, For, Func, LoopKind, Stmt, blocks, seq, walk
from tilewright.schedule.legality import (
    check_accumulated_once,
    check_axes,
    check_iterations_independent,
    check_nesting,
    check_no_races,
    check_order_free,
)
from tilewright.schedule.loop_range import copy_loop_range, truncate_loop
from tilewright.schedule.rewrite_tree import (
    bounds_of,
    check_new_names,
    find_loop,
    fresh_name,
    nest_loops,
    substitute_vars,
    used_names,
    with_stmt_replaced,
)
from tilewright.schedule.tails import Tail, Tiling, tile_loop


def split(func: Func, loop: str, factor: int, names: tuple[str, ...] | None = None, tail: Tail = Tail.GUARD) -> Func:
    """Splits a loop in two, the inner one of constant extent; `tail` is the strategy for iterations beyond the last
    whole tile.

    Equation: i = io * factor + ii, 0 <= ii < factor, 0 <= io < ceil(N / factor). The inner loop of one on threads
    (parallel, or on an axis of a GPU) is serial.

    Args:
        names: of the outer and the inner loop and, with Tail.REMAINDER, of the loop over the remainder.
        tail: see `Tail`; without meaning where the factor is known to divide N, but for Tail.MASK, which vectorizes.

    Legality: factor >= 1; the loop is not vectorized (vectorized loops do not nest); the conditions of the tail
    strategy.

        for i in serial(N):            for io in serial(ceil(N / 4)):
            block B(v = i)       ->        for ii in serial(4):
                                               block B(v = io*4 + ii) where io*4 + ii < N

    Known as split in Halide and TVM, divide_loop in Exo; tails as TailStrategy in Halide.
    """
    node, enclosing = find_loop(func, loop)
    check_split(node, factor)
    return tile_loop(Tiling(func, node, enclosing, as_expr(factor), tile_names(func, loop, names, tail)), tail)


def check_split(node: For, factor: int) -> None:
    """A factor is a positive integer; a vectorized loop stays whole."""
    place = f"split of loop {node.var.name!r}"
    if factor < 1:
        raise ScheduleError(f"factor must be at least 1, got {factor}", where=place)
    if node.kind is LoopKind.VECTORIZED:
        raise ScheduleError("the loop is vectorized already", where=place, hint="split it before `vectorize`")


def tile_names(func: Func, loop: str, names: tuple[str, ...] | None, tail: Tail) -> tuple[str, str, str]:
    """The names of the outer and the inner loop and of the remainder's: those given, else fresh ones."""
    used, place = used_names(func), f"split of loop {loop!r}"
    chosen = names or ()
    if len(chosen) not in (0, 2, 3 if tail is Tail.REMAINDER else 2):
        raise ScheduleError(f"expected names for 2 loops, got {', '.join(chosen)}", where=place)
    check_new_names(chosen, used - {loop}, place)
    outer, inner, remainder = (*chosen, *(fresh_name(f"{loop}_{x}", used | set(chosen)) for x in "oir"[len(chosen) :]))
    return outer, inner, remainder


def split_parts(func: Func, loop: str, parts: int, names: tuple[str, ...] | None = None) -> Func:
    """Splits a loop in two, the outer one of constant extent; a tail is guarded by the blocks' predicate.

    Equation: i = io * ceil(N / parts) + ii, 0 <= io < parts, 0 <= ii < ceil(N / parts).

    Legality: as of `split` with Tail.GUARD.

        for i in serial(N):            for io in serial(4):
            block B(v = i)       ->        for ii in serial(ceil(N / 4)):
                                               block B(v = io*ceil(N / 4) + ii) where io*ceil(N / 4) + ii < N

    Known as split with nparts in TVM.
    """
    node, enclosing = find_loop(func, loop)
    check_split(node, parts)
    size = ceildiv(node.extent, as_expr(parts))
    chosen = tile_names(func, loop, names, Tail.GUARD)
    return tile_loop(Tiling(func, node, enclosing, size, chosen, as_expr(parts)), Tail.GUARD)


def fuse(func: Func, outer: str, inner: str, name: str | None = None) -> Func:
    """Fuses two directly nested loops into one.

    Equation: i = f // M, j = f % M, 0 <= f < N*M, where M is the inner extent.

    Legality: `inner` is the only statement of `outer`, both have one kind, the inner extent does not depend on the
    outer variable, and no block iterates spatially over one and reduces over the other.

        for i in serial(N):            for f in serial(N*M):
            for j in serial(M):  ->        block B(v0 = f // M, v1 = f % M)
                block B(v0 = i, v1 = j)

    Known as fuse in Halide and TVM, mult_loops in Exo.
    """
    outer_loop, _ = find_loop(func, outer)
    inner_loop = check_directly_nested(outer_loop, inner)
    used = used_names(func)
    fused = name or fresh_name(f"{outer}_{inner}", used)
    check_new_names((fused,), used - {outer, inner}, f"fuse of loops {outer!r} and {inner!r}")
    var = Var(fused)
    mapping: dict[Var, Expr] = {outer_loop.var: var // inner_loop.extent, inner_loop.var: var % inner_loop.extent}
    hints = inner_loop.prefetches_with(
        lambda e: substitute(e, mapping)
    )  # those of `outer` would run in every fused iteration
    return with_stmt_replaced(
        func,
        outer_loop,
        For(
            var,
            outer_loop.extent * inner_loop.extent,
            outer_loop.kind,
            substitute_vars(inner_loop.body, mapping),
            hints,
        ),
    )


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
    """Reorders loops of one perfect nest; loops between them that are not named keep their places.

    Legality: the loops form a perfect nest; around a single block, it reads no element that another of its iterations
    writes, except the one it accumulates into, whose first reduction iteration comes first in every order and which
    counts every point once; around several blocks, iterations of every loop from the first to the last that changes
    place access different elements; no extent depends on a loop that would come to lie inside; parallel loops stay
    outside vectorized ones, the block axes of a GPU outside its thread axes.

        for i in serial(N):            for j in serial(M):
            for j in serial(M):  ->        for i in serial(N):
                block B(...)                   block B(...)

    Known as reorder in Halide and TVM, reorder_loops in Exo.
    """
    if not order:
        raise ScheduleError("no loops are named", where="reorder")
    first, _ = min((find_loop(func, name) for name in order), key=lambda entry: len(entry[1]))
    place = f"reorder of {', '.join(order)}"
    nest = check_perfect_nest(func, first, order, place)
    named = iter(order)
    by_name = {loop.var.name: loop for loop in nest}
    placed = [by_name[next(named)] if loop.var.name in order else loop for loop in nest]
    check_extents(placed)
    check_order(func, nest, placed, place)
    body: Stmt = nest[-1].body
    for inner, enclosing in walk(body):
        if isinstance(inner, Block):
            check_nesting([*placed, *enclosing], place)
    result = with_stmt_replaced(func, nest[0], nest_loops(placed, body))
    check_axes(result, place)
    if any(x.kind in CONCURRENT for x in nest):
        check_no_races(result, None, place)
    check_accumulated_once(result, blocks(body), place)
    return result


def check_perfect_nest(func: Func, first: For, names: Sequence[str], place: str) -> list[For]:
    """The perfect nest from `first` down to the last of `names`: each loop is the whole body of the one before."""
    if len(set(names)) != len(names):
        raise ScheduleError("a loop is named twice", where=place)
    missing = {find_loop(func, name)[0].var.name for name in names}
    nest: list[For] = []
    current = first
    while True:
        nest.append(current)
        missing.discard(current.var.name)
        if not missing:
            return nest
        if not isinstance(current.body, For):
            names_left = ", ".join(map(repr, sorted(missing)))
            raise ScheduleError(f"{names_left} not in a perfect nest with {first.var.name!r}", where=place)
        current = current.body


def check_order(func: Func, nest: Sequence[For], placed: Sequence[For], place: str) -> None:
    """Iterations may be reordered."""
    inner_blocks = blocks(nest[-1])
    if len(inner_blocks) == 1:
        check_order_free(inner_blocks[0], place)
        return
    changed = [k for k, (old, new) in enumerate(zip(nest, placed, strict=True)) if old is not new]
    for loop in nest[changed[0] : changed[-1] + 1] if changed else ():
        check_iterations_independent(func, loop, place)


def check_extents(placed: Sequence[For]) -> None:
    """No extent uses the variable of a loop further inside."""
    for k, loop in enumerate(placed):
        inner_vars = {later.var for later in placed[k:]}
        offending = inner_vars & free_vars(loop.extent)
        if offending:
            name = min(v.name for v in offending)
            raise ScheduleError(f"the extent of {loop.var.name!r} depends on {name!r}", where="reorder")


def peel(func: Func, loop: str, at: Expr | int, name: str | None = None) -> Func:
    """Cuts a loop's range in two: the first `at` iterations stay, the others follow in a copy.

    Equation: [0, N) = [0, at) + [at, N); the copy's variable counts from 0, so its bindings are shifted by `at`.

    Args:
        at: where the second part begins.
        name: of the loop over the second part; a fresh one after `loop` without it.

    Legality: `at` is made of symbols and variables of the loops around; 0 <= at <= N is proved, and neither part is
    known to be empty; the loop is serial.

        for i in serial(N):            for i in serial(at):
            block B(v = i)       ->        block B(v = i)
                                       for i_2 in serial(N - at):
                                           block B_2(v_2 = at + i_2)

    Known as loop partition in TVM, cut_loop in Exo.
    """
    node, enclosing = find_loop(func, loop)
    cut = as_expr(at)
    check_peel_point(func, node, enclosing, cut)
    if name is not None:
        check_new_names((name,), used_names(func), f"peel of loop {loop!r}")
    func, second = copy_loop_range(func, node, cut, node.extent - cut, enclosing, name)
    return with_stmt_replaced(func, node, seq(truncate_loop(node, cut, enclosing), second))


def check_peel_point(func: Func, node: For, enclosing: Sequence[For], cut: Expr) -> None:
    """The cut is known outside the loop and lies in the loop's range."""
    place = f"peel of loop {node.var.name!r}"
    if node.kind is not LoopKind.SERIAL:
        raise ScheduleError(f"the loop is {node.kind}, only a serial one can be cut", where=place)
    unknown = free_vars(cut) - {*func.symbols, *(x.var for x in enclosing)}
    if unknown:
        name = min(v.name for v in unknown)
        raise ScheduleError(f"cut {cut} uses {name!r}, which is not known outside the loop", where=place)
    bounds = bounds_of(enclosing)
    if cut is const(0) or cut is node.extent:
        raise ScheduleError(f"cut {cut} of 0..{node.extent} leaves one part empty", where=place)
    if not (can_prove_non_negative(cut, bounds) and can_prove_non_negative(node.extent - cut, bounds)):
        raise ScheduleError(f"cut {cut} is not proved to lie in 0..{node.extent}", where=place)
