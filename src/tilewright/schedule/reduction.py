"""Primitives on reductions: decompose_reduction separates the initialisation, rfactor reduces in two levels."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.errors import ScheduleError
from tilewright.expr.algebra.prover import can_prove
from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.computation import Reducer
from tilewright.expr.nodes import TRUE, Binary, BinaryOp, Buffer, Expr, Load, Symbol, Var, as_expr, const
from tilewright.expr.operations import binary, ceildiv, conjunction, select
from tilewright.expr.traversal import conjuncts, free_vars
from tilewright.loops.accumulation import match_accumulation
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
    node, enclosing = find_block(func, block)
    outer, _ = find_loop(func, loop)
    init = check_decomposable(node, enclosing, outer)
    spatial_loops = check_initialised_once(node, enclosing, outer)
    place, used = f"decompose_reduction of {block!r}", used_names(func)
    if name is not None:
        check_new_names((name,), used, place)
    start: dict[Var, Expr] = dict.fromkeys(_reduction_loop_vars(node), const(0))
    spatial = tuple(i for i in node.iters if i.kind is IterKind.SPATIAL)
    other_vars = {x.var for x in enclosing} - set(start)
    # Conditions on the reduction alone do not guard the init: elements of empty reductions are initialised, too.
    conditions = (c for c in conjuncts(node.predicate) if not free_vars(c) & set(start) or free_vars(c) & other_vars)
    nest: Stmt = Block(
        name or fresh_name(f"{block}_init", used), spatial, init, None, substitute(conjunction(*conditions), start)
    )
    for x in reversed(spatial_loops):
        nest = replace(x, body=nest)
    without_init = map_blocks(outer, lambda b: replace(b, init=None) if b is node else b)
    result = with_stmt_replaced(func, outer, seq(copy_with_fresh_names(nest, used), without_init))
    check_accumulated_once(result, (node,), place)
    return result


def _reduction_loop_vars(node: Block) -> set[Var]:
    """The loop variables that the block's reduction variables depend on; symbols are not among them."""
    bindings = (i.binding for i in node.iters if i.kind is IterKind.REDUCE)
    return {v for e in bindings for v in free_vars(e) if not isinstance(v, Symbol)}


def check_decomposable(node: Block, enclosing: Sequence[For], outer: For) -> Store:
    """Checks that all reduction loops are inside `outer`, drive reductions only and start at the first point, and that
    no block interferes; returns the init."""
    place = f"decompose_reduction of {node.name!r}"
    if node.init is None:
        raise ScheduleError("it has no init", where=place)
    if not any(x is outer for x in enclosing):
        raise ScheduleError(f"loop {outer.var.name!r} does not enclose it", where=place)
    position = next(k for k, x in enumerate(enclosing) if x is outer)
    outside = {x.var for x in enclosing[:position]}
    reduction_vars = _reduction_loop_vars(node)
    start: dict[Var, Expr] = dict.fromkeys(reduction_vars, const(0))
    for i in node.iters:
        used = free_vars(i.binding)
        if i.kind is IterKind.SPATIAL:
            if used & reduction_vars:
                name = min(v.name for v in used & reduction_vars)
                raise ScheduleError(f"loop {name!r} drives spatial variable {i.var.name!r} too", where=place)
        elif used & outside:
            name = min(v.name for v in used & outside)
            raise ScheduleError(f"it reduces over {name!r}, outside {outer.var.name!r}", where=place)
        elif not can_prove(substitute(i.binding, start).equals(0), bounds_of(enclosing)):
            raise ScheduleError(f"reduction {i.binding} does not start at 0: another part initialises it", where=place)
    check_untouched(node.body.buffer, outer, node, place)
    return node.init


def check_initialised_once(node: Block, enclosing: Sequence[For], outer: For) -> list[For]:
    """Checks that the written element depends on every loop from `outer` inwards that does not reduce; returns these
    loops."""
    place = f"decompose_reduction of {node.name!r}"
    position = next(k for k, x in enumerate(enclosing) if x is outer)
    reduction_vars = _reduction_loop_vars(node)
    spatial_loops = [x for x in enclosing[position:] if x.var not in reduction_vars]
    bindings = {i.var: i.binding for i in node.iters}
    identifying = {v for i in node.body.indices for v in free_vars(substitute(i, bindings))}
    spatial = {i.var for i in node.iters if i.kind is IterKind.SPATIAL}
    plain = {v for i in node.body.indices for v in free_vars(i)}
    for x in spatial_loops:
        offending = free_vars(x.extent) & reduction_vars
        if offending:
            name = min(v.name for v in offending)
            raise ScheduleError(f"the extent of {x.var.name!r} depends on {name!r}, which it reduces over", where=place)
        missing = {v for v in spatial - plain if x.var in free_vars(bindings[v])}
        if x.var not in identifying or missing:
            raise ScheduleError(
                f"iterations of {x.var.name!r} write the same element of {node.body.buffer.name!r}", where=place
            )
    return spatial_loops


def rfactor(func: Func, block: str, axis: int, factor: int, name: str | None = None, strands: bool = False) -> Func:
    """Reduces in two levels: partial results over blocks of one reduction axis, or per lane, then their total.

    Equation: C[s] = op over ko of P[s, ko], P[s, ko] = op over ki < factor and the other axes of f(s, ko*factor + ki);
    with `strands` C[s] = op over ki < factor of P[s, ki], P[s, ki] = op over ko and the other axes of the same.
    Partial results start from the identity of op, the total from the block's own init. Floating-point sums are
    reassociated: fewer additions in sequence, so a smaller rounding error. So are products, of which partial ones may
    overflow where the whole does not.

    Args:
        axis: which of the reduction variables, counted from 0.
        factor: steps of a block, of which the last one may have fewer; with `strands` the number of lanes.
        name: of the buffer of partial results; `<buffer>_partial` without it.
        strands: one partial result per lane of a vector, each over every `factor`-th step (horizontal reduction).

    Legality: the block has an `init`, accumulates with sum, product, minimum or maximum into plain spatial variables,
    and is alone in its untransformed nest. Any extent of the axis is legal: beyond it the last block, or some of the
    lanes, take the identity.

        for i, k:                            for i, ko, ki: block C_partial: P[i, ko] = P[i, ko] + f(i, ko*4 + ki)
            block C: C[i] = C[i] + f(i, k)   for i, ko: block C: C[i] = C[i] + P[i, ko]

    Known as rfactor in Halide and TVM.
    """
    node, enclosing = find_block(func, block)
    place = f"rfactor of block {block!r}"
    axis_iter, value = check_factorable(node, enclosing, axis, place)
    if factor < 1:
        what = "lane" if strands else "step of a block"
        raise ScheduleError(f"expected at least 1 {what}, got {factor}", where=place)
    if not isinstance(node.body.value, Binary) or node.init is None:
        raise ScheduleError("it does not accumulate", where=place)
    op, used, total = node.body.value.op, used_names(func), node.body.buffer
    if name is not None:
        check_new_names((name,), used, place)
    partial_name = claim_name(name or f"{total.name}_partial", used)
    split = _split_axis(axis_iter, factor, strands, used)
    partial = Buffer(partial_name, (*total.shape, split.partial_extent), total.dtype)
    partial_nest = _partial_nest(node, op, value, split, partial, used)
    total_nest = _total_nest(node, op, node.init, split, partial, used)
    # The names of loops and variables must be distinct across both new nests.
    nests = seq(copy_with_fresh_names(partial_nest, used), total_nest)
    result = with_stmt_replaced(func, enclosing[0] if enclosing else node, nests)
    return replace(result, allocs=(*func.allocs, partial))


@dataclass(frozen=True, slots=True)
class SplitAxis:
    """A reduction axis split in two.

    Attributes:
        axis: the axis.
        partial_var, partial_extent: the loop that indexes the partial results.
        reduced_var, reduced_extent: the loop that a partial result reduces over.
        index: the axis' variable in terms of both.
        is_exact: whether every pair of iterations is inside the extent.
    """

    axis: BlockIter
    partial_var: Var
    partial_extent: Expr
    reduced_var: Var
    reduced_extent: Expr
    index: Expr
    is_exact: bool


def _split_axis(axis: BlockIter, factor: int, strands: bool, used: set[str]) -> SplitAxis:
    """Splits a reduction axis by a factor; the outer loop indexes the partial results, with `strands` the inner one."""
    outer, inner = (Var(claim_name(f"{axis.var.name}_{letter}", used)) for letter in "oi")
    index, is_exact = outer * factor + inner, can_prove((axis.extent % factor).equals(0))
    blocks, steps = ceildiv(axis.extent, factor), as_expr(factor)
    if strands:
        return SplitAxis(axis, inner, steps, outer, blocks, index, is_exact)
    return SplitAxis(axis, outer, blocks, inner, steps, index, is_exact)


def _partial_nest(node: Block, op: BinaryOp, value: Expr, split: SplitAxis, partial: Buffer, used: set[str]) -> Stmt:
    """The nest that computes the partial results, which start from the identity of the reducer."""
    spatial = [(i.var, i.extent) for i in node.iters if i.kind is IterKind.SPATIAL]
    element = Load(partial, (*(v for v, _ in spatial), split.partial_var))
    identity = REDUCERS[op].identity(partial.dtype)
    term = substitute(value, {split.axis.var: split.index})
    if not split.is_exact:
        term = select(split.index < split.axis.extent, term, identity)
    reductions = [(split.reduced_var, split.reduced_extent) if i is split.axis else (i.var, i.extent)
                  for i in node.iters if i.kind is IterKind.REDUCE]  # fmt: skip
    return _serial_nest(
        fresh_name(f"{node.name}_partial", used),
        [*spatial, (split.partial_var, split.partial_extent)],
        reductions,
        Store(partial, element.indices, binary(op, element, term)),
        Store(partial, element.indices, identity),
        used,
    )


def _total_nest(node: Block, op: BinaryOp, init: Store, split: SplitAxis, partial: Buffer, used: set[str]) -> Stmt:
    """The nest that reduces the partial results to the total."""
    spatial = [(i.var, i.extent) for i in node.iters if i.kind is IterKind.SPATIAL]
    total = Load(node.body.buffer, node.body.indices)
    element = Load(partial, (*(v for v, _ in spatial), split.partial_var))
    body = Store(total.buffer, total.indices, binary(op, total, element))
    return _serial_nest(node.name, spatial, [(split.partial_var, split.partial_extent)], body, init, used)


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


def check_factorable(node: Block, enclosing: Sequence[For], axis: int, place: str) -> tuple[BlockIter, Expr]:
    """Returns the reduction variable to be split, and the value that the block combines."""
    reduction_iters = [i for i in node.iters if i.kind is IterKind.REDUCE]
    if not 0 <= axis < len(reduction_iters):
        raise ScheduleError(f"there is no reduction axis {axis}; it has {len(reduction_iters)}", where=place)
    if node.init is None:
        raise ScheduleError("its init was decomposed", where=place, hint="use rfactor before decompose_reduction")
    if node.predicate is not TRUE:
        raise ScheduleError("it has a predicate", where=place, hint=RFACTOR_HINT)
    if enclosing and len(blocks(enclosing[0])) != 1:
        raise ScheduleError("other blocks share its loops", where=place, hint=RFACTOR_HINT)
    extents = {x.var: x.extent for x in enclosing}
    if [i.binding for i in node.iters] != [x.var for x in enclosing] or any(
        i.extent is not extents[v] for i in node.iters if isinstance(v := i.binding, Var)
    ):
        raise ScheduleError("its loops were changed", where=place, hint=RFACTOR_HINT)
    if node.body.indices != tuple(i.var for i in node.iters if i.kind is IterKind.SPATIAL):
        raise ScheduleError("it does not write at its plain iteration variables", where=place)
    combined = match_accumulation(node.body)
    if combined is None:
        raise ScheduleError("it is not a sum, product, minimum or maximum", where=place)
    return reduction_iters[axis], combined[1]
