"""The primitive that fuses producers into consumers: compute_at."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.errors import ScheduleError
from tilewright.expr.bounds import Bounds
from tilewright.expr.buffer import Buffer
from tilewright.expr.nodes import Binary, Const, Expr, Var, both, conjuncts, const, free_vars, loads, walk
from tilewright.expr.prover import prove
from tilewright.expr.simplify import simplify, substitute
from tilewright.loops.access import accesses
from tilewright.loops.ir import Block, BlockIter, For, Func, IterKind, LoopKind, Stmt, blocks, seq
from tilewright.loops.ir import walk as walk_stmt
from tilewright.schedule.legality import CONCURRENT, check_inputs_final, check_only_writer
from tilewright.schedule.tree import (
    bounds_of,
    claimed,
    find_block,
    find_loop,
    map_blocks,
    map_store,
    own_nest,
    spatial_vars,
    used_names,
    with_buffer,
    with_replaced,
)


@dataclass(frozen=True, slots=True)
class Span:
    """What is needed of one dimension of a buffer.

    Attributes:
        start, size: the elements of one iteration of the loop.
        first, end: those of all iterations of it and of the loops around it; None where that is not known.
    """

    start: Expr
    size: Expr
    first: Expr | None
    end: Expr | None

    @property
    def single(self) -> bool:
        """Whether it is one element, so that the dimension disappears."""
        return isinstance(self.size, Const) and self.size.value == 1


def compute_at(func: Func, block: str, loop: str) -> Func:
    """Moves a producer into a loop of its consumers, computing there just what one iteration of the loop needs.

    The producer's spatial loops shrink to the region that the consumers inside `loop` read; its reduction loops stay
    whole; all are serial. Its domain shrinks to what all iterations need. The buffer shrinks to the region. Where the
    region may leave the producer's domain (a tail) the producer is guarded, unless all its reads are proved in bounds
    for the whole tile: then it computes a few values more that nobody reads.

    Legality: the producer's nest holds only that block; it alone writes an internal buffer, at plain iteration
    variables; every reader of the buffer lies inside `loop`; the accesses' regions are equal, known without data, and
    of one size in all iterations; nothing that the producer reads is written between its place and the end of the
    consumers' nest; `loop` and the loops around it are not concurrent yet, or they would share the buffer.

        for i: block P: B[i] = f(i)         for jo:
        for jo:                                 for x in serial(4): block P(v = jo*4 + x): B[v - jo*4] = f(v)
            for ji in serial(4):       ->       for ji in serial(4): block Q(w = jo*4 + ji): .. B[w - jo*4] ..
                block Q(w = jo*4+ji): .. B[w] ..

    Known as compute_at in Halide and TVM.
    """
    node, around = find_block(func, block)
    target, outer = find_loop(func, loop)
    place = f"compute_at of {block!r} in loop {loop!r}"
    buffer = check_producer(func, node, (*outer, target), place)
    nest = own_nest(node, around, "compute_at")
    check_domain(node, around, place)
    region = required_region(func, buffer, (*outer, target), place)
    compact = replace(buffer, shape=tuple(s.size for s in region if not s.single))

    def relative(indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return tuple(i - s.start for i, s in zip(indices, region, strict=True) if not s.single)

    moved = _regional_nest(node, region, bounds_of((*outer, target)), used_names(func))
    body = map_blocks(seq(moved, target.body), lambda b: with_buffer(b, buffer, compact, relative))
    body = map_blocks(body, lambda b: _rebased(b, region) if b.name == block else b)
    result = with_replaced(with_replaced(func, nest, None), target, replace(target, body=body))
    return replace(result, allocs=tuple(compact if a == buffer else a for a in func.allocs))


def check_producer(func: Func, node: Block, loops: Sequence[For], place: str) -> Buffer:
    """The block alone writes an internal buffer at its iteration variables; all readers are in the last of `loops`."""
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
        if x.kind in CONCURRENT:
            raise ScheduleError(
                f"loop {x.var.name!r} is {x.kind}; its iterations would share {buffer.name!r}", where=place
            )
    check_inputs_final(func, node, target, place)
    return buffer


def check_domain(node: Block, around: Sequence[For], place: str) -> None:
    """The block's predicate only keeps it in its domain, so that it can be dropped with its loops."""
    known = bounds_of(around)
    for i in node.iters:
        known = known.assuming(both(i.binding >= 0, i.binding < i.extent))
    for c in conjuncts(node.predicate):
        if not prove(c, known):
            raise ScheduleError(f"its predicate {c} does more than guard a tail", where=place)


def required_region(func: Func, buffer: Buffer, loops: Sequence[For], place: str) -> list[Span]:
    """What one iteration of the last of `loops` reads of a buffer, per dimension."""
    found: list[Span] | None = None
    for b, inner in walk_stmt(loops[-1].body):
        if not isinstance(b, Block):
            continue
        bindings = {i.var: i.binding for i in b.iters}
        for a in accesses(b):
            if a.buffer != buffer:
                continue
            region = [_span(substitute(i, bindings), inner, loops, func, place) for i in a.indices]
            if found is not None and region != found:
                raise ScheduleError(f"accesses need different regions of {buffer.name!r}", where=place)
            found = region
    if found is None:
        raise ScheduleError(f"nothing inside the loop reads {buffer.name!r}", where=place)
    return found


def _span(index: Expr, inner: Sequence[For], outer: Sequence[For], func: Func, place: str) -> Span:
    """The values that `index` takes while the inner loops run."""
    if loads(index):
        raise ScheduleError(f"index {index} depends on data", where=place)
    low, high = index, index
    for k in range(len(inner) - 1, -1, -1):
        ends = _ends(low, high, inner[k], bounds_of((*outer, *inner[:k])))
        if ends is None:
            raise ScheduleError(f"index {index} is not monotonic in loop {inner[k].var.name!r}", where=place)
        low, high = ends
    size = simplify(high - low + 1, bounds_of(outer))
    moving = free_vars(size) - set(func.symbols)
    if moving:
        raise ScheduleError(
            f"index {index} takes {size} values, which depends on {min(v.name for v in moving)!r}", where=place
        )
    if not prove(size >= 0):
        raise ScheduleError(f"index {index} takes {size} values, which may be less than 0", where=place)
    first: Expr | None = low
    last: Expr | None = high
    for k in range(len(outer) - 1, -1, -1):
        known = bounds_of(outer[:k])
        first = None if first is None else (_ends(first, first, outer[k], known) or (None, None))[0]
        last = None if last is None else (_ends(last, last, outer[k], known) or (None, None))[1]
    return Span(low, size, first, None if last is None else last + 1)


def _ends(low: Expr, high: Expr, loop: For, outside: Bounds) -> tuple[Expr, Expr] | None:
    """The least value of `low` and the largest of `high` while a loop runs; None where they are not monotonic in it."""
    known = outside.with_loop(loop.var, loop.extent)
    last = loop.extent - 1
    found: list[Expr] = []
    for e, at_first, at_last in ((low, const(0), last), (high, last, const(0))):
        if loop.var not in free_vars(e):
            found.append(e)
            continue
        step = substitute(e, {loop.var: loop.var + 1}) - e
        if prove(step >= 0, known):
            found.append(substitute(e, {loop.var: at_first}))
        elif prove(step <= 0, known):
            found.append(substitute(e, {loop.var: at_last}))
        else:
            return None
    return found[0], found[1]


def _regional_nest(node: Block, region: Sequence[Span], known: Bounds, used: set[str]) -> Stmt:
    """The producer over a region: loops over the region's sizes, then over its reductions."""
    spatial: list[For] = []
    reduced: list[For] = []
    iters: list[BlockIter] = []
    guards: list[Expr] = []
    spans = iter(region)
    for i in node.iters:
        is_spatial = i.kind is IterKind.SPATIAL
        span = next(spans) if is_spatial else Span(const(0), i.extent, None, None)
        binding = span.start
        if not (is_spatial and span.single):
            loop = For(Var(claimed(f"{i.var.name}_t", used)), span.size, LoopKind.SERIAL, node)
            (spatial if is_spatial else reduced).append(loop)
            known = known.with_loop(loop.var, loop.extent)
            binding = binding + loop.var
        if is_spatial:
            guards += [c for c in (binding >= 0, binding < i.extent) if not prove(c, known)]
        iters.append(replace(i, binding=binding))
    block = replace(node, iters=tuple(iters), predicate=both(*guards))
    body: Stmt = _relaxed(block, region, known) or block
    for loop in reversed((*spatial, *reduced)):
        body = replace(loop, body=body)
    return body


def _relaxed(block: Block, region: Sequence[Span], known: Bounds) -> Block | None:
    """The block without guards, or None where it needs them: a read may leave its buffer, or it divides by data."""
    bindings = {i.var: i.binding for i in block.iters}
    divisions = [e for e in walk(block.body.value) if isinstance(e, Binary) and e.op in ("floordiv", "mod", "fmod")]
    if any(loads(e.b) for e in divisions):
        return None
    for access in loads(block.body.value):
        if access.buffer == block.body.buffer:
            continue
        for index, extent in zip(access.indices, access.buffer.shape, strict=True):
            value = simplify(substitute(index, bindings), known)
            if not (prove(value >= 0, known) and prove(value < extent, known)):
                return None
    spans = iter(region)
    iters: list[BlockIter] = []
    for i in block.iters:
        end = next(spans).end if i.kind is IterKind.SPATIAL else None
        if i.kind is IterKind.SPATIAL and not prove(i.binding < i.extent, known):
            if end is None or not prove(i.binding < end, known):
                return None
            i = replace(i, extent=end)
        if not prove(i.binding >= 0, known):
            return None
        iters.append(i)
    return replace(block, iters=tuple(iters), predicate=both())


def _rebased(block: Block, region: Sequence[Span]) -> Block:
    """The block over the part of its domain that the iterations need, counted from the first element of that part."""
    spans = iter(region)
    iters: list[BlockIter] = []
    shift: dict[Var, Expr] = {}
    for i in block.iters:
        if i.kind is IterKind.SPATIAL:
            span = next(spans)
            first = span.first if span.first is not None and prove(span.first >= 0) else const(0)
            end = span.end if span.end is not None and prove(span.end <= i.extent) else i.extent
            whole = prove(end >= i.extent) or not prove(end >= first)
            i = replace(i, extent=(i.extent if whole else end) - first)
            if first is not const(0):
                shift[i.var] = i.var + first
                i = replace(i, binding=i.binding - first)
        iters.append(i)

    def moved(e: Expr) -> Expr:
        return substitute(e, shift)

    init = None if block.init is None else map_store(block.init, moved)
    return replace(block, iters=tuple(iters), body=map_store(block.body, moved), init=init)
