"""The primitive tile, which splits and reorders a perfect nest of loops."""

from collections.abc import Sequence

from tilewright.errors import ScheduleError
from tilewright.expr.algebra.prover import can_prove
from tilewright.expr.nodes import as_expr
from tilewright.loops.ir import Func, seq
from tilewright.schedule.loop_range import copy_loop_range, truncate_loop
from tilewright.schedule.loop_transforms import check_perfect_nest, check_split, reorder, tile_names
from tilewright.schedule.rewrite_tree import find_loop, fresh_name, loops_inside, used_names, with_stmt_replaced
from tilewright.schedule.tails import Tail, Tiling, check_remainder, tile_loop


def tile(
    func: Func,
    loops: tuple[str, ...],
    factors: tuple[int, ...],
    names: tuple[str, ...] | None = None,
    tail: Tail = Tail.GUARD,
) -> Func:
    """Splits every loop of a perfect nest: the loops over tiles outside, those inside a tile inside.

    Equation: that of `split` for each loop; the order is io, jo, ..., ii, ji, ...

    Args:
        loops: from the outermost inwards; loops between them that are not named keep their places.
        factors: one for each loop.
        names: of the outer loops, then of the inner ones.
        tail: as of `split`. Tail.MASK masks the last loop and guards the others. Tail.REMAINDER leaves a nest for
            every loop: it covers the remainder of that loop, the whole tiles of those before it in `loops`, and all of
            those after it.

    Legality: as of `split` for each loop and, for more than one, of `reorder`.

        for i in serial(N):            for io in serial(ceil(N / 4)):
            for j in serial(16):           for jo in serial(2):
                block B(...)     ->            for ii in serial(4):
                                                   for ji in serial(8):
                                                       block B(...) where io*4 + ii < N

    Known as tile in Halide, split and reorder in TVM and Exo.
    """
    name_pairs = check_tile(func, loops, factors, names)
    outers: list[str] = []
    inners: list[str] = []
    if tail is Tail.REMAINDER:
        func = split_remainders(func, loops, factors)
    for k, (loop, factor, pair) in enumerate(zip(loops, factors, name_pairs, strict=True)):
        guards = tail is Tail.MASK and k + 1 < len(loops)
        node, enclosing = find_loop(func, loop)
        check_split(node, factor)
        chosen = tile_names(func, loop, pair, tail)
        func = tile_loop(Tiling(func, node, enclosing, as_expr(factor), chosen), Tail.GUARD if guards else tail)
        outers.append(chosen[0])
        inners.append(chosen[1])
    return reorder(func, (*outers, *inners)) if len(loops) > 1 else func


def check_tile(
    func: Func, loops: Sequence[str], factors: Sequence[int], names: tuple[str, ...] | None
) -> list[tuple[str, ...] | None]:
    """Checks that there is a factor for each loop, two names for each loop or none, and that loops are nested in the
    order given; returns the pair of names per loop."""
    place = f"tile of {', '.join(loops)}"
    if not loops or len(loops) != len(factors):
        raise ScheduleError(f"expected a factor for each of {len(loops)} loops, got {len(factors)}", where=place)
    if names is not None and len(names) != 2 * len(loops):
        raise ScheduleError(f"expected {2 * len(loops)} names, got {len(names)}", where=place)
    depths = [len(find_loop(func, loop)[1]) for loop in loops]
    if depths != sorted(set(depths)):
        raise ScheduleError("expected loops inside one another, the outermost first", where=place)
    if len(loops) > 1:
        check_perfect_nest(func, find_loop(func, loops[0])[0], loops, place)
    return [None if names is None else (names[k], names[k + len(loops)]) for k in range(len(loops))]


def split_remainders(func: Func, loops: Sequence[str], factors: Sequence[int]) -> Func:
    """The function with the remainder of every loop in a nest of its own, after that of the whole tiles."""
    for loop, factor in zip(loops, factors, strict=True):
        node, _ = find_loop(func, loop)
        check_split(node, factor)
        if can_prove((node.extent % factor).equals(0)):
            continue
        other_loops = [x for x in loops if x != loop]
        func = reorder(func, (loop, *other_loops))
        node, enclosing = find_loop(func, loop)
        check_remainder(Tiling(func, node, enclosing, as_expr(factor), tile_names(func, loop, None, Tail.REMAINDER)))
        whole = node.extent // factor * factor
        func, remainder = copy_loop_range(
            func, node, whole, node.extent % factor, enclosing, fresh_name(f"{loop}_r", used_names(func))
        )
        func = with_stmt_replaced(func, node, seq(truncate_loop(node, whole, enclosing), remainder))
        copies = {x.var.name: y.var.name for x, y in zip(loops_inside(node), loops_inside(remainder), strict=True)}
        func = reorder(reorder(func, tuple(loops)), tuple(copies[x] for x in loops))
    return func
