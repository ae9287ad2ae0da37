"""The primitive that takes the initialisation out of a reduction: decompose_reduction."""

from collections.abc import Sequence
from dataclasses import replace

from tilewright.errors import ScheduleError
from tilewright.expr.bounds import prove
from tilewright.expr.nodes import Expr, Var, const, free_vars
from tilewright.expr.simplify import substitute
from tilewright.loops.ir import Block, For, Func, IterKind, Stmt, Store, seq
from tilewright.schedule.legality import check_untouched
from tilewright.schedule.tree import (
    bounds_of,
    find_block,
    find_loop,
    fresh,
    map_blocks,
    renamed,
    used_names,
    with_replaced,
)


def decompose_reduction(func: Func, block: str, loop: str) -> Func:
    """Moves the initialisation of a reduction block into a nest of its own before `loop`.

    Legality: the block has an `init`; every loop that a reduction variable depends on is `loop` or lies inside it,
    drives no spatial variable, and starts at the reduction's first point; different iterations of the other loops
    from `loop` inwards write different elements; no other block inside `loop` uses the buffer.

        for i:                         for i:
            for k:                         block C_init: C[i] = 0
                block C(i, reduce k) ->    for k:
                    init C[i] = 0              block C(i, reduce k): C[i] = C[i] + ..
                    C[i] = C[i] + ..

    Known as decompose_reduction in TVM.
    """
    node, around = find_block(func, block)
    outer, _ = find_loop(func, loop)
    init = check_decomposable(node, around, outer)
    kept = check_initialised_once(node, around, outer)
    used = used_names(func)
    start: dict[Var, Expr] = dict.fromkeys(_reduced(node), const(0))
    spatial = tuple(i for i in node.iters if i.kind is IterKind.SPATIAL)
    nest: Stmt = Block(fresh(f"{block}_init", used), spatial, init, None, substitute(node.predicate, start))
    for x in reversed(kept):
        nest = replace(x, body=nest)
    bare = map_blocks(outer, lambda b: replace(b, init=None) if b is node else b)
    return with_replaced(func, outer, seq(renamed(nest, used), bare))


def _reduced(node: Block) -> set[Var]:
    """The loop variables that drive the block's reductions."""
    return {v for i in node.iters if i.kind is IterKind.REDUCE for v in free_vars(i.binding)}


def check_decomposable(node: Block, around: Sequence[For], outer: For) -> Store:
    """All reduction loops are inside `outer` and are nothing else, start at the first point, and nobody interferes."""
    place = f"decompose_reduction of {node.name!r}"
    if node.init is None:
        raise ScheduleError("it has no init", where=place)
    if not any(x is outer for x in around):
        raise ScheduleError(f"loop {outer.var.name!r} is not around it", where=place)
    position = next(k for k, x in enumerate(around) if x is outer)
    outside = {x.var for x in around[:position]}
    reduced = _reduced(node)
    start: dict[Var, Expr] = dict.fromkeys(reduced, const(0))
    for i in node.iters:
        used = free_vars(i.binding)
        if i.kind is IterKind.SPATIAL:
            if used & reduced:
                name = min(v.name for v in used & reduced)
                raise ScheduleError(f"loop {name!r} drives spatial variable {i.var.name!r} too", where=place)
        elif used & outside:
            name = min(v.name for v in used & outside)
            raise ScheduleError(f"it reduces over {name!r}, outside {outer.var.name!r}", where=place)
        elif not prove(substitute(i.binding, start).equals(0), bounds_of(around)):
            raise ScheduleError(f"reduction {i.binding} does not start at 0: another part initialises it", where=place)
    check_untouched(node.body.buffer, outer, node, place)
    return node.init


def check_initialised_once(node: Block, around: Sequence[For], outer: For) -> list[For]:
    """The loops from `outer` inwards that do not reduce; each tells elements apart."""
    place = f"decompose_reduction of {node.name!r}"
    position = next(k for k, x in enumerate(around) if x is outer)
    reduced = _reduced(node)
    kept = [x for x in around[position:] if x.var not in reduced]
    bindings = {i.var: i.binding for i in node.iters}
    told = {v for i in node.body.indices for v in free_vars(substitute(i, bindings))}
    spatial = {i.var for i in node.iters if i.kind is IterKind.SPATIAL}
    plain = {v for i in node.body.indices for v in free_vars(i)}
    for x in kept:
        bad = free_vars(x.extent) & reduced
        if bad:
            name = min(v.name for v in bad)
            raise ScheduleError(f"the extent of {x.var.name!r} depends on {name!r}, which it reduces over", where=place)
        missing = {v for v in spatial - plain if x.var in free_vars(bindings[v])}
        if x.var not in told or missing:
            raise ScheduleError(
                f"iterations of {x.var.name!r} write the same element of {node.body.buffer.name!r}", where=place
            )
    return kept
