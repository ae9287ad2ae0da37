"""The primitive compute_at, which fuses producers into consumers."""

from collections.abc import Sequence
from dataclasses import replace

from tilewright.errors import ScheduleError
from tilewright.expr.algebra.bounds import Bounds
from tilewright.expr.algebra.prover import can_prove_le, can_prove_lt, can_prove_non_negative
from tilewright.expr.algebra.simplify import simplify, substitute
from tilewright.expr.nodes import Binary, Buffer, Const, Expr, MemoryScope, Var, const
from tilewright.expr.operations import conjunction
from tilewright.expr.traversal import free_vars, loads, post_order
from tilewright.loops.access import accesses
from tilewright.loops.ir import CONCURRENT, THREADED, Block, BlockIter, For, Func, IterKind, blocks, seq
from tilewright.loops.redirect_accesses import redirect_accesses_in
from tilewright.schedule.legality import check_inputs_final, check_no_races, check_only_writer
from tilewright.schedule.region import Span, check_domain, over_region, region
from tilewright.schedule.rewrite_tree import (
    bounds_of,
    exclusive_nest,
    find_block,
    find_loop,
    map_blocks,
    map_store,
    nest_loops,
    spatial_vars,
    used_names,
    with_stmt_replaced,
)
from tilewright.verify.prefetch_safety import drop_stale_prefetches


def compute_at(func: Func, block: str, loop: str, names: tuple[str, ...] | None = None) -> Func:
    """Moves a producer into a loop of its consumers, computing there just what one iteration of the loop needs.

    The producer's spatial loops shrink to the region that the consumers inside `loop` read: the box around all their
    accesses. Its reduction loops stay whole; all are serial. Its domain shrinks to what all iterations need. The buffer
    shrinks to the region, but in memory not along loops that are parallel already: their iterations get parts of their
    own, whatever the sizes are. Where the region may leave the producer's domain (a tail) the producer is guarded,
    unless all its reads are proved in bounds for the whole tile: then it computes a few unread values. Where regions of
    iterations overlap (a stencil), the overlap is computed again.

    Args:
        names: of the block's new loops, outermost first: over the dimensions of which an iteration needs more than one
            element, then over the reductions. Without it they are called `<variable>_t`.

    Legality: the producer's nest holds only that block; it alone writes an internal buffer, at plain iteration
    variables; every reader of the buffer lies inside `loop`; the box's first and last element are known without data,
    it is of one size in all iterations, and not all of it lies outside of the buffer; nothing that the producer reads
    is written between its place and the end of the consumers' nest; `loop` and the loops around it are neither
    vectorized nor virtual threads yet, and where they are parallel, no two of their iterations need one element.

        for i: block P: B[i] = f(i)         for jo:
        for jo:                                 for x in serial(4): block P(v = jo*4 + x): B[v - jo*4] = f(v)
            for ji in serial(4):       ->       for ji in serial(4): block Q(w = jo*4 + ji): .. B[w - jo*4] ..
                block Q(w = jo*4+ji): .. B[w] ..

    Known as compute_at in Halide and TVM.
    """
    node, enclosing = find_block(func, block)
    target, outer = find_loop(func, loop)
    place = f"compute_at of {block!r} in loop {loop!r}"
    buffer = check_producer(func, node, (*outer, target), place)
    nest = exclusive_nest(node, enclosing, "compute_at")
    check_domain(node, enclosing, place)
    box = [s.within(n) for s, n in zip(region(func, buffer, (*outer, target), place), buffer.shape, strict=True)]
    kept = undivided_dims(buffer, box, (*outer, target))
    shape = tuple(n if k else s.size for n, s, k in zip(buffer.shape, box, kept, strict=True) if k or not s.is_single)
    compact = replace(buffer, shape=shape)

    def relative(indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
        parts = zip(indices, box, kept, strict=True)
        return tuple(i if k else i - s.start for i, s, k in parts if k or not s.is_single)

    node = _end_at_guards(node, box)
    spans = dict(zip(spatial_vars(node), box, strict=True))
    moved, loops, bounds = over_region(node, spans, bounds_of((*outer, target)), used_names(func), names, place)
    moved = (None if any(kept) else _without_guards(moved, box, bounds)) or moved
    check_needed(moved, buffer, place)
    body = redirect_accesses_in(seq(nest_loops(loops, moved), target.body), buffer, compact, relative)
    body = map_blocks(body, lambda b: _shrink_domain(b, box) if b.name == block else b)
    result = with_stmt_replaced(with_stmt_replaced(func, nest, None), target, replace(target, body=body))
    result = drop_stale_prefetches(replace(result, allocs=tuple(compact if a == buffer else a for a in func.allocs)))
    if any(x.kind in THREADED for x in (*outer, target)):
        check_no_races(result, None, place)
    return result


def check_needed(moved: Block, buffer: Buffer, place: str) -> None:
    """Checks that the consumers in the loop need an existing element; guarded reads (padding) may not."""
    if isinstance(moved.predicate, Const) and not moved.predicate.value:
        raise ScheduleError(f"no iteration of the loop needs an element of {buffer.name!r}", where=place)


def undivided_dims(buffer: Buffer, box: Sequence[Span], loops: Sequence[For]) -> list[bool]:
    """The dimensions that keep their size in the buffer: threads need distinct parts of shared memory. On the stack and
    in registers every thread has its own."""
    shared = {x.var for x in loops if x.kind in THREADED and buffer.scope is MemoryScope.MEMORY}
    return [bool(free_vars(s.start) & shared) for s in box]


def check_producer(func: Func, node: Block, loops: Sequence[For], place: str) -> Buffer:
    """Checks that the block alone writes an internal buffer at its iteration variables and that all readers are in the
    last of `loops`; returns the buffer."""
    buffer, target = node.body.buffer, loops[-1]
    if buffer not in func.allocs:
        raise ScheduleError(f"it writes {buffer.name!r}, which is not internal", where=place)
    inside = set(map(id, blocks(target)))
    if id(node) in inside:
        raise ScheduleError("it is inside the loop already", where=place)
    if node.body.indices != spatial_vars(node):
        raise ScheduleError("it does not write at its plain iteration variables", where=place)
    check_only_writer(func, node, place)
    for b in blocks(func.body):
        if b is not node and id(b) not in inside and any(a.buffer == buffer for a in accesses(b)):
            raise ScheduleError(f"block {b.name!r} reads {buffer.name!r} outside the loop", where=place)
    for x in loops:
        if x.kind in CONCURRENT and x.kind not in THREADED:
            what = f"loop {x.var.name!r} is {x.kind}; its iterations would share {buffer.name!r}"
            raise ScheduleError(what, where=place, hint=f"use compute_at before loop {x.var.name!r} becomes {x.kind}")
    check_inputs_final(func, node, target, place)
    return buffer


def _without_guards(block: Block, box: Sequence[Span], bounds: Bounds) -> Block | None:
    """The block without guards, or None where it needs them: a read may leave its buffer, or it divides by data."""
    bindings = {i.var: i.binding for i in block.iters}
    divisions = [
        e for e in post_order(block.body.value) if isinstance(e, Binary) and e.op in ("floordiv", "mod", "fmod")
    ]
    if any(loads(e.b) for e in divisions):
        return None
    for access in loads(block.body.value):
        if access.buffer == block.body.buffer:
            continue
        for index, extent in zip(access.indices, access.buffer.shape, strict=True):
            value = simplify(substitute(index, bindings), bounds)
            if not (can_prove_non_negative(value, bounds) and can_prove_lt(value, extent, bounds)):
                return None
    spans = iter(box)
    iters: list[BlockIter] = []
    for i in block.iters:
        end = next(spans).end if i.kind is IterKind.SPATIAL else None
        if i.kind is IterKind.SPATIAL and not can_prove_lt(i.binding, i.extent, bounds):
            if end is None or not can_prove_lt(i.binding, end, bounds):
                return None
            i = replace(i, extent=end)
        if not can_prove_non_negative(i.binding, bounds):
            return None
        iters.append(i)
    return replace(block, iters=tuple(iters), predicate=conjunction())


def _end_at_guards(block: Block, box: Sequence[Span]) -> Block:
    """The block over a domain that ends where the predicates of its consumers do."""
    spans = iter(box)
    iters: list[BlockIter] = []
    for i in block.iters:
        span = next(spans) if i.kind is IterKind.SPATIAL else None
        end = None if span is None or not span.is_guarded else span.end
        iters.append(i if end is None or not can_prove_le(end, i.extent) else replace(i, extent=end))
    return replace(block, iters=tuple(iters))


def _shrink_domain(block: Block, box: Sequence[Span]) -> Block:
    """The block over the needed part of its domain, counted from the first element of that part."""
    spans = iter(box)
    iters: list[BlockIter] = []
    shift: dict[Var, Expr] = {}
    for i in block.iters:
        if i.kind is IterKind.SPATIAL:
            span = next(spans)
            first = span.first if span.first is not None and can_prove_non_negative(span.first) else const(0)
            end = span.end if span.end is not None and can_prove_le(span.end, i.extent) else i.extent
            whole = can_prove_le(i.extent, end) or not can_prove_le(first, end)
            i = replace(i, extent=(i.extent if whole else end) - first)
            if first is not const(0):
                shift[i.var] = i.var + first
                i = replace(i, binding=i.binding - first)
        iters.append(i)

    def moved(e: Expr) -> Expr:
        return substitute(e, shift)

    init = None if block.init is None else map_store(block.init, moved)
    return replace(block, iters=tuple(iters), body=map_store(block.body, moved), init=init)
