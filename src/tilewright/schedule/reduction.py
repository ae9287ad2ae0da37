"""Primitives on reductions: decompose_reduction takes the initialisation out, rfactor reduces in two levels."""

from collections.abc import Sequence
from dataclasses import replace

from tilewright.errors import ScheduleError
from tilewright.expr.algebra.prover import can_prove
from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.computation import Reducer
from tilewright.expr.nodes import TRUE, Binary, Buffer, Expr, Load, Symbol, Var, as_expr, const
from tilewright.expr.operations import binary, ceildiv, conjunction, select
from tilewright.expr.traversal import conjuncts, free_vars, loads
from tilewright.loops.ir import Block, BlockIter, For, Func, IterKind, LoopKind, Stmt, Store, blocks, seq
from tilewright.schedule.legality import check_accumulated_once, check_untouched
from tilewright.schedule.rewrite_tree import (
    bounds_of,
    check_new_names,
    claim_name,
    copy_with_fresh_names,
    find_block,
    find_loop,
    fresh_name,
    map_blocks,
    used_names,
    with_stmt_replaced,
)

REDUCERS = {r.op: r for r in Reducer}
"""The reducers by their operation."""

RFACTOR_HINT = "use rfactor before its loops are split, reordered or fused with others"


def decompose_reduction(func: Func, block: str, loop: str, name: str | None = None) -> Func:
    """Moves the initialisation of a reduction block into a nest of its own before `loop`.

    Equation: C[s] = op over k of f(s, k) becomes C[s] = init for all s of the nest, then C[s] = op(C[s], f(s, k)) for
    all k, in the same order. Blocks without an init inside can be vectorized over k, and moved apart from it.

    Args:
        name: of the block that initialises; `<block>_init` without it.

    Legality: the block has an `init`; every loop that a reduction variable depends on is `loop` or lies inside it,
    drives no spatial variable, and starts at the reduction's first point; different iterations of the other loops
    from `loop` inwards write different elements; no other block inside `loop` uses the buffer; every point is counted
    once after it.

        for i:                         for i:
            for k:                         block C_init: C[i] = 0
                block C(i, reduce k) ->    for k:
                    init C[i] = 0              block C(i, reduce k): C[i] = C[i] + ..
                    C[i] = C[i] + ..

    Known as decompose_reduction in TVM, and as the pure and the update definition in Halide.
    """
    node, around = find_block(func, block)
    outer, _ = find_loop(func, loop)
    init = check_decomposable(node, around, outer)
    kept = check_initialised_once(node, around, outer)
    place, used = f"decompose_reduction of {block!r}", used_names(func)
    if name is not None:
        check_new_names((name,), used, place)
    start: dict[Var, Expr] = dict.fromkeys(_reduction_loop_vars(node), const(0))
    spatial = tuple(i for i in node.iters if i.kind is IterKind.SPATIAL)
    others = {x.var for x in around} - set(start)
    # What only limits the reduction does not limit the elements: they are initialised where it is empty too.
    limits = (c for c in conjuncts(node.predicate) if not free_vars(c) & set(start) or free_vars(c) & others)
    nest: Stmt = Block(
        name or fresh_name(f"{block}_init", used), spatial, init, None, substitute(conjunction(*limits), start)
    )
    for x in reversed(kept):
        nest = replace(x, body=nest)
    bare = map_blocks(outer, lambda b: replace(b, init=None) if b is node else b)
    result = with_stmt_replaced(func, outer, seq(copy_with_fresh_names(nest, used), bare))
    check_accumulated_once(result, (node,), place)
    return result


def _reduction_loop_vars(node: Block) -> set[Var]:
    """The loop variables that drive the block's reductions (symbols, which have a declared range, are none)."""
    bindings = (i.binding for i in node.iters if i.kind is IterKind.REDUCE)
    return {v for e in bindings for v in free_vars(e) if not isinstance(v, Symbol)}


def check_decomposable(node: Block, around: Sequence[For], outer: For) -> Store:
    """All reduction loops are inside `outer` and are nothing else, start at the first point, and nobody interferes."""
    place = f"decompose_reduction of {node.name!r}"
    if node.init is None:
        raise ScheduleError("it has no init", where=place)
    if not any(x is outer for x in around):
        raise ScheduleError(f"loop {outer.var.name!r} is not around it", where=place)
    position = next(k for k, x in enumerate(around) if x is outer)
    outside = {x.var for x in around[:position]}
    reduced = _reduction_loop_vars(node)
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
        elif not can_prove(substitute(i.binding, start).equals(0), bounds_of(around)):
            raise ScheduleError(f"reduction {i.binding} does not start at 0: another part initialises it", where=place)
    check_untouched(node.body.buffer, outer, node, place)
    return node.init


def check_initialised_once(node: Block, around: Sequence[For], outer: For) -> list[For]:
    """The loops from `outer` inwards that do not reduce; each tells elements apart."""
    place = f"decompose_reduction of {node.name!r}"
    position = next(k for k, x in enumerate(around) if x is outer)
    reduced = _reduction_loop_vars(node)
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


def rfactor(func: Func, block: str, axis: int, factor: int, name: str | None = None, strands: bool = False) -> Func:
    """Reduces in two levels: partial results over chunks of one reduction axis, or over strands of it, then over them.

    Equation: C[s] = op over ko of P[s, ko], P[s, ko] = op over ki < factor and the other axes of f(s, ko*factor + ki);
    with `strands` C[s] = op over ki < factor of P[s, ki], P[s, ki] = op over ko and the other axes of the same.
    Partial results start from what is neutral for op, the total from the block's own init. Floating-point sums are
    reassociated: shorter chains of additions, so a smaller rounding error.

    Args:
        axis: which of the reduction variables, counted from 0.
        factor: steps of a chunk, of which the last one may have fewer; with `strands` how many there are.
        name: of the buffer of partial results; `<buffer>_partial` without it.
        strands: partial results over every `factor`-th step, so that they can be the lanes of a vector.

    Legality: the block has an `init`, accumulates with sum, product, minimum or maximum into plain spatial variables,
    has its untransformed nest to itself. Any extent of the axis is legal: beyond it the last chunk, or some of the
    strands, take in what is neutral.

        for i, k:                            for i, ko, ki: block C_partial: P[i, ko] = P[i, ko] + f(i, ko*4 + ki)
            block C: C[i] = C[i] + f(i, k)   for i, ko: block C: C[i] = C[i] + P[i, ko]

    Known as rfactor in Halide and TVM.
    """
    node, around = find_block(func, block)
    place = f"rfactor of block {block!r}"
    chunked, value = check_factorable(func, node, around, axis, place)
    if factor < 1:
        what = "strand" if strands else "step of a chunk"
        raise ScheduleError(f"expected at least 1 {what}, got {factor}", where=place)
    op = node.body.value
    if not isinstance(op, Binary) or node.init is None:
        raise ScheduleError("it does not accumulate", where=place)
    used = used_names(func)
    spatial = [i for i in node.iters if i.kind is IterKind.SPATIAL]
    chunks = ceildiv(chunked.extent, factor)
    kept, gone = (as_expr(factor), chunks) if strands else (chunks, as_expr(factor))
    own = node.body.buffer
    if name is not None:
        check_new_names((name,), used, place)
    part = Buffer(claim_name(name or f"{own.name}_partial", used), (*own.shape, kept), own.dtype)
    outer, inner = (Var(claim_name(f"{chunked.var.name}_{letter}", used)) for letter in "oi")
    stays, goes = (inner, outer) if strands else (outer, inner)
    index = (*(i.var for i in spatial), stays)
    step = outer * factor + inner
    neutral = REDUCERS[op.op].identity(own.dtype)
    body = substitute(value, {chunked.var: step})
    if not can_prove((chunked.extent % factor).equals(0)):
        body = select(step < chunked.extent, body, neutral)
    target = Load(part, index)
    reduced = [(goes, gone) if i is chunked else (i.var, i.extent)
               for i in node.iters if i.kind is IterKind.REDUCE]  # fmt: skip
    first = _serial_nest(
        fresh_name(f"{block}_partial", used),
        [*((i.var, i.extent) for i in spatial), (stays, kept)],
        reduced,
        Store(part, index, binary(op.op, target, body)),
        Store(part, index, neutral),
        used,
    )
    second = _serial_nest(
        block,
        [(i.var, i.extent) for i in spatial],
        [(stays, kept)],
        Store(own, node.body.indices, binary(op.op, Load(own, node.body.indices), target)),
        node.init,
        used,
    )
    nest = around[0] if around else node
    # The names of the new nests' loops and variables must differ from each other's too.
    result = with_stmt_replaced(func, nest, seq(copy_with_fresh_names(first, used), second))
    return replace(result, allocs=(*func.allocs, part))


def _serial_nest(
    name: str,
    spatial: Sequence[tuple[Var, Expr]],
    reductions: Sequence[tuple[Var, Expr]],
    body: Store,
    init: Store,
    used: set[str],
) -> Stmt:
    """A serial nest around one block, a loop per variable."""
    loops = [(Var(claim_name(f"{v.name}_l", used)), v, n, IterKind.SPATIAL) for v, n in spatial]
    loops += [(Var(claim_name(f"{v.name}_l", used)), v, n, IterKind.REDUCE) for v, n in reductions]
    nest: Stmt = Block(name, tuple(BlockIter(v, n, kind, x) for x, v, n, kind in loops), body, init)
    for x, _, n, _ in reversed(loops):
        nest = For(x, n, LoopKind.SERIAL, nest)
    return nest


def check_factorable(func: Func, node: Block, around: Sequence[For], axis: int, place: str) -> tuple[BlockIter, Expr]:
    """The reduction variable to be cut, and what the block combines."""
    reduced = [i for i in node.iters if i.kind is IterKind.REDUCE]
    if not 0 <= axis < len(reduced):
        raise ScheduleError(f"there is no reduction axis {axis}; it has {len(reduced)}", where=place)
    if node.init is None:
        raise ScheduleError("its init was taken out", where=place, hint="use rfactor before decompose_reduction")
    if node.predicate is not TRUE:
        raise ScheduleError("it has a predicate", where=place, hint=RFACTOR_HINT)
    if around and len(blocks(around[0])) != 1:
        raise ScheduleError("other blocks share its loops", where=place, hint=RFACTOR_HINT)
    extents = {x.var: x.extent for x in around}
    if [i.binding for i in node.iters] != [x.var for x in around] or any(
        i.extent is not extents[v] for i in node.iters if isinstance(v := i.binding, Var)
    ):
        raise ScheduleError("its loops were changed", where=place, hint=RFACTOR_HINT)
    value, own = node.body.value, Load(node.body.buffer, node.body.indices)
    if node.body.indices != tuple(i.var for i in node.iters if i.kind is IterKind.SPATIAL):
        raise ScheduleError("it does not write at its plain iteration variables", where=place)
    if isinstance(value, Binary) and value.op in REDUCERS:
        for mine, other in ((value.a, value.b), (value.b, value.a)):
            if mine is own and all(x.buffer != node.body.buffer for x in loads(other)):
                return reduced[axis], other
    raise ScheduleError("it is no sum, product, minimum or maximum", where=place)
