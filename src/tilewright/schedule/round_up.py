"""The primitive round_up, which lets the iterations of a loop compute whole tiles in buffers of their own."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilewright.errors import ScheduleError
from tilewright.expr.algebra.bounds import Bounds
from tilewright.expr.algebra.prover import can_prove, can_prove_lt, can_prove_non_negative
from tilewright.expr.algebra.simplify import simplify, substitute
from tilewright.expr.nodes import Binary, Buffer, Expr, Load, Var, const
from tilewright.expr.operations import conjunction, select
from tilewright.expr.traversal import conjuncts, free_vars, loads, post_order
from tilewright.loops.access import accesses
from tilewright.loops.accumulation import match_accumulation
from tilewright.loops.ir import Block, BlockIter, For, Func, IterKind, Store, blocks, walk
from tilewright.schedule.legality import check_no_races
from tilewright.schedule.region import span_of
from tilewright.schedule.rewrite_tree import bounds_of, find_loop, map_blocks

NestedBlock = tuple[Block, tuple[For, ...]]
"""A block with the loops around it, outermost first."""


def round_up(func: Func, loop: str) -> Func:
    """Drops the guards of a loop's partial last iteration from the blocks that write internal buffers: there they
    compute elements beyond their domain, too, which no element of their domain depends on.

    Lanes and rows of a partial tile then need no conditions and masks. What does not exist is read as 0. Blocks that
    write results, and reductions over the points of the loop, keep their guards.

    Legality: the internal buffers that the blocks with such guards write are used in the loop only; all blocks that
    write one have domains of the same extents, and write it at their variables, each less the same offset; their
    predicates guard tails only; whole tiles fit the buffers; they divide no integers by data; some block has a guard
    to drop.

        alloc B: float32[8] in stack                          alloc B: float32[8] in stack
        for io in serial((N + 7)//8):                         for io in serial((N + 7)//8):
            for ii in serial(8):                                  for ii in serial(8):
                block P(v: N = io*8 + ii)                             block P(v: (N + 7)//8*8 = io*8 + ii):
                        where io*8 + ii < N:           ->                 B[v - io*8] = select(v < N, A[v], 0)
                    B[v - io*8] = A[v]                            for ii_1 in serial(8):
            for ii_1 in serial(8):                                    block Q(w: N = io*8 + ii_1)
                block Q(w: N = io*8 + ii_1) where ..:                         where io*8 + ii_1 < N:
                    C[w] = B[w - io*8]                                    C[w] = B[w - io*8]

    Known as the tail strategy RoundUp in Halide.
    """
    place = f"round_up of loop {loop!r}"
    target, outer = find_loop(func, loop)
    nested = [(b, (*outer, *inner)) for b, inner in walk(target, ()) if isinstance(b, Block)]
    rounded: dict[str, Block] = {}
    for buffer in func.allocs:
        writers = [(b, loops) for b, loops in nested if b.body.buffer == buffer]
        new = [_rounded_block(func, node, loops, target.var, place) for node, loops in writers]
        if all(a is b for a, (b, _) in zip(new, writers, strict=True)):
            continue
        check_private(func, buffer, target, place)
        check_same_domain(writers, place)
        rounded |= {x.name: x for x in new}
    if not rounded:
        raise ScheduleError("no block that writes an internal buffer has a guard to drop", where=place)
    result = func.with_body(map_blocks(func.body, lambda b: rounded.get(b.name, b)))
    check_no_races(result, None, place)
    return result


def check_private(func: Func, buffer: Buffer, target: For, place: str) -> None:
    """Checks that a buffer is used in the loop only."""
    inside = set(map(id, blocks(target)))
    for b in blocks(func.body):
        if id(b) not in inside and any(a.buffer == buffer for a in accesses(b)):
            raise ScheduleError(f"block {b.name!r} uses {buffer.name!r} outside the loop", where=place)


def check_same_domain(writers: Sequence[NestedBlock], place: str) -> None:
    """Checks that what is beyond the domain of one writer of a buffer is beyond that of all."""
    first = _domain(*writers[0], place)
    for node, loops in writers[1:]:
        if _domain(node, loops, place) != first:
            name = node.body.buffer.name
            what = f"blocks {writers[0][0].name!r} and {node.name!r} write different parts of {name!r}"
            raise ScheduleError(what, where=place)


def _domain(node: Block, loops: Sequence[For], place: str) -> list[tuple[Expr, Expr] | None]:
    """Per dimension the extent of the variable that a block writes it at, and its offset; None for a literal index."""
    check_guards_tails(node, loops, place)
    result: list[tuple[Expr, Expr] | None] = []
    seen: set[Var] = set()
    for index in node.body.indices:
        used = [i for i in node.iters if i.var in free_vars(index)]
        if not used:
            result.append(None)
            continue
        offset = index - used[0].var
        if len(used) != 1 or used[0].var in free_vars(offset) or used[0].var in seen or loads(index):
            what = f"block {node.name!r} does not write {node.body.buffer.name!r} at a plain variable: {index}"
            raise ScheduleError(what, where=place)
        seen.add(used[0].var)
        result.append((used[0].extent, offset))
    return result


def check_guards_tails(node: Block, loops: Sequence[For], place: str) -> None:
    """Checks that a block's predicate only keeps it in its domain."""
    bounds = bounds_of(loops)
    for i in node.iters:
        bounds = bounds.assuming(conjunction(i.binding >= 0, i.binding < i.extent))
    for c in conjuncts(node.predicate):
        if not can_prove(c, bounds):
            what = f"the predicate {c} of block {node.name!r} does more than guard a tail"
            raise ScheduleError(what, where=place)


def _rounded_block(func: Func, node: Block, loops: Sequence[For], var: Var, place: str) -> Block:
    """A block without the guards of the spatial variables that a loop drives; itself where it has none."""
    bounds, written = bounds_of(loops), {v for i in node.body.indices for v in free_vars(i)}
    iters: list[BlockIter] = []
    guards: list[Expr] = []
    dropped: list[Expr] = []
    for i in node.iters:
        end = i.extent
        if not can_prove_lt(i.binding, i.extent, bounds):
            is_driven = i.kind is IterKind.SPATIAL and i.var in written and var in free_vars(i.binding)
            if is_driven and can_prove_non_negative(i.binding, bounds):
                last = span_of(i.binding, loops[1:], loops[:1], func, place).end
                end = i.extent if last is None else last
            if end is i.extent or not can_prove_lt(i.binding, end, bounds):
                guards.append(i.binding < i.extent)
            else:
                dropped.append(i.var < i.extent)
        guards += [] if can_prove_non_negative(i.binding, bounds) else [i.binding >= 0]
        iters.append(replace(i, extent=end))
    if not dropped:
        return node
    kept = conjunction(*guards)
    check_no_data_divisors(node, place)
    bindings = {i.var: i.binding for i in node.iters}
    stores = (node.body,) if node.init is None else (node.body, node.init)
    guarded = bounds.assuming(kept)
    check_exist([Load(x.buffer, x.indices) for x in stores], bindings, guarded, place)
    reads = [x for s in stores for x in loads(s.value)]
    body = node.body
    if not all(_exists(x, bindings, guarded) for x in reads):
        tail = conjunction(*dropped)
        check_exist(reads, bindings, guarded.assuming(substitute(tail, bindings)), place)
        body = _conditional(body, tail)
    return replace(node, iters=tuple(iters), predicate=kept, body=body)


def check_exist(elements: Sequence[Load], bindings: Mapping[Var, Expr], bounds: Bounds, place: str) -> None:
    """Checks that elements exist: those that are written without guards, and those that are read under a condition."""
    for x in elements:
        if not _exists(x, bindings, bounds):
            raise ScheduleError(f"{x} may not exist in a whole tile", where=place)


def check_no_data_divisors(node: Block, place: str) -> None:
    """Checks that a block divides no integers by data, which may be 0 where it is beyond the domain."""
    for e in post_order(node.body.value):
        if isinstance(e, Binary) and e.op in ("floordiv", "mod", "fmod") and loads(e.b):
            raise ScheduleError(f"block {node.name!r} divides by data: {e}", where=place)


def _exists(element: Load, bindings: Mapping[Var, Expr], bounds: Bounds) -> bool:
    """Whether an element is proved to exist."""
    for index, extent in zip(element.indices, element.buffer.shape, strict=True):
        value = simplify(substitute(index, bindings), bounds)
        if not (can_prove_non_negative(value, bounds) and can_prove_lt(value, extent, bounds)):
            return False
    return True


def _conditional(store: Store, condition: Expr) -> Store:
    """A store whose value, or what it adds to its element, is 0 where a condition does not hold."""
    combined = match_accumulation(store)
    whole = store.value if combined is None else combined[1]
    part = select(condition, whole, const(0, whole.dtype))
    if combined is None:
        return replace(store, value=part)
    operands = tuple(part if x is whole else x for x in store.value.children())
    return replace(store, value=store.value.rebuild(operands))
