"""Regions: the box of a buffer that one iteration of a loop accesses, and nests of a block over such a box."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.errors import ScheduleError
from tilewright.expr.algebra.bounds import Bounds
from tilewright.expr.algebra.prover import can_prove, can_prove_le, can_prove_lt, can_prove_non_negative
from tilewright.expr.algebra.simplify import simplify, substitute
from tilewright.expr.nodes import Buffer, Expr, Var, const
from tilewright.expr.operations import conjunction
from tilewright.expr.traversal import conjuncts, free_vars, is_one, loads
from tilewright.kernel_caches import kernel_cache
from tilewright.loops.access import accesses
from tilewright.loops.ir import Block, BlockIter, For, Func, IterKind, LoopKind, walk
from tilewright.schedule.guarded_ends import guarded_ends_of
from tilewright.schedule.rewrite_tree import bounds_of, new_loop_vars

LoopRange = tuple[Var, Expr]
"""The range of a loop: 0 <= variable < extent."""


@dataclass(frozen=True, slots=True)
class Span:
    """The accessed interval of one dimension of a buffer.

    Attributes:
        start, size: in one iteration of the loop.
        first, end: over all iterations of it and of its enclosing loops; None where that is not known.
        is_guarded: whether `end` follows from the predicates of the accesses, as their loops run further.
    """

    start: Expr
    size: Expr
    first: Expr | None
    end: Expr | None
    is_guarded: bool = False

    @property
    def is_single(self) -> bool:
        """Whether it is one element, so that the dimension disappears."""
        return is_one(self.size)

    def within(self, extent: Expr) -> "Span":
        """The span clipped to a dimension of this extent: predicates keep accesses in bounds."""
        is_all = can_prove_le(self.start, const(0)) and can_prove_le(extent, self.start + self.size)
        return replace(self, start=const(0), size=extent) if is_all else self


def region(func: Func, buffer: Buffer, loops: Sequence[For], place: str, *, writes_only: bool = False) -> list[Span]:
    """The box around all accesses to a buffer in one iteration of the last of `loops`, per dimension.

    Raises:
        ScheduleError: nothing accesses it, or start or size of the box depend on data.
    """
    boxes: dict[tuple[tuple[Expr, tuple[Expr, Expr]], ...], None] = {}
    guarded_ends: list[tuple[Expr | None, ...]] = []
    for b, inner in walk(loops[-1].body):
        if not isinstance(b, Block):
            continue
        bindings = {i.var: i.binding for i in b.iters}
        bounds = bounds_of((*loops, *inner))  # simplifies parts of a split index (x // 4, x % 4) to loop variables
        for a in accesses(b):
            if a.buffer == buffer and (a.is_write or not writes_only):
                indices = tuple(substitute(i, bindings, bounds) for i in a.indices)
                boxes[tuple((i, _index_range(i, inner, loops, place)) for i in indices)] = None
                guarded_ends.append(guarded_ends_of(indices, b.predicate, _loop_ranges((*loops, *inner))))
    if not boxes:
        verb = "writes" if writes_only else "reads"
        raise ScheduleError(f"nothing inside the loop {verb} {buffer.name!r}", where=place)
    spans = [_union(list(parts), buffer, loops, func, place) for parts in zip(*boxes, strict=True)]
    ends = zip(*guarded_ends, strict=True)
    return [_within_guards(*x) for x in zip(spans, ends, buffer.shape, strict=True)]


def _within_guards(span: Span, ends: Sequence[Expr | None], extent: Expr) -> Span:
    """The span up to where predicates end all accesses, if that is less than a dimension of this extent, and the loops
    run beyond it."""
    end = ends[0]
    if end is None or any(x is not end for x in ends) or end is extent:
        return span
    if span.end is None or can_prove_le(span.end, extent) or not can_prove_le(end, extent):
        return span
    return replace(span, end=end, is_guarded=True)


def span_of(index: Expr, inner: Sequence[For], loops: Sequence[For], func: Func, place: str) -> Span:
    """The values of an index in one iteration of the last of `loops`, in which the loops `inner` run."""
    low, high = _index_range(index, inner, loops, place)
    return _make_span(low, high, [index], loops, func, place)


def _union(
    parts: Sequence[tuple[Expr, tuple[Expr, Expr]]], buffer: Buffer, loops: Sequence[For], func: Func, place: str
) -> Span:
    """The span of one dimension around several indices, each given with its least and largest value."""
    bounds = bounds_of(loops)
    lows, highs = zip(*(ends for _, ends in parts), strict=True)
    low = next((a for a in lows if all(can_prove_le(a, b, bounds) for b in lows)), None)
    high = next((a for a in highs if all(can_prove_le(b, a, bounds) for b in highs)), None)
    indices = list(dict.fromkeys(index for index, _ in parts))
    if low is None or high is None:
        shown = " and ".join(map(str, indices))
        what = f"accesses need different regions of {buffer.name!r}: it is not known which of {shown} is larger"
        raise ScheduleError(what, where=place, hint="move the producer into a loop further outside")
    return _make_span(low, high, indices, loops, func, place)


def _index_range(index: Expr, inner: Sequence[For], outer: Sequence[For], place: str) -> tuple[Expr, Expr]:
    """The least and the largest value of `index` while the inner loops run."""
    if loads(index):
        raise ScheduleError(f"index {index} depends on data", where=place)
    ends = _range_over(index, index, _loop_ranges(inner), _loop_ranges(outer))
    if isinstance(ends, Var):
        raise ScheduleError(f"index {index} is not monotonic in loop {ends.name!r}", where=place)
    return ends


def _loop_ranges(loops: Sequence[For]) -> tuple[LoopRange, ...]:
    return tuple((x.var, x.extent) for x in loops)


@kernel_cache(maxsize=1 << 12)
def _range_over(
    low: Expr, high: Expr, inner: tuple[LoopRange, ...], outer: tuple[LoopRange, ...]
) -> tuple[Expr, Expr] | Var:
    """The least value of `low` and the largest of `high` while the inner loops run, or the variable of the innermost
    loop in which they are not monotonic."""
    for k in range(len(inner) - 1, -1, -1):
        ends = _range_over_loop(low, high, inner[k], (*outer, *inner[:k]))
        if ends is None:
            return inner[k][0]
        low, high = ends
    return low, high


def _make_span(low: Expr, high: Expr, of: Sequence[Expr], outer: Sequence[For], func: Func, place: str) -> Span:
    """All values from `low` to `high`, those of some indices; their number does not depend on loops."""
    size = simplify(high - low + 1, bounds_of(outer))
    moving = free_vars(size) - set(func.symbols)
    if moving or not can_prove_non_negative(size):
        which = f"depends on {min(v.name for v in moving)!r}" if moving else "may be less than 0"
        shown = f"index {of[0]} takes" if len(of) == 1 else f"indices {', '.join(map(str, of))} take"
        raise ScheduleError(f"{shown} {size} values, which {which}", where=place)
    first, last = (_range_over(e, e, _loop_ranges(outer), ()) for e in (low, high))
    return Span(low, size, None if isinstance(first, Var) else first[0], None if isinstance(last, Var) else last[1] + 1)


def _range_over_loop(
    low: Expr, high: Expr, loop: LoopRange, outside: tuple[LoopRange, ...]
) -> tuple[Expr, Expr] | None:
    """The least value of `low` and the largest of `high` while a loop runs; None where they are not monotonic in it."""
    var, extent = loop
    bounds = Bounds.from_loops((*outside, loop))
    last = extent - 1
    ends: list[Expr] = []
    for e, at_first, at_last in ((low, const(0), last), (high, last, const(0))):
        if var not in free_vars(e):
            ends.append(e)
            continue
        step = substitute(e, {var: var + 1}) - e
        if can_prove_non_negative(step, bounds):
            ends.append(substitute(e, {var: at_first}))
        elif can_prove_le(step, const(0), bounds):
            ends.append(substitute(e, {var: at_last}))
        else:
            return None
    return ends[0], ends[1]


def over_region(
    node: Block,
    spans: Mapping[Var, Span],
    bounds: Bounds,
    used: set[str],
    names: Sequence[str] | None = None,
    place: str = "",
) -> tuple[Block, tuple[For, ...], Bounds]:
    """A block over a part of its domain, bound to new loops over the sizes of that part, spatial ones outside.

    Args:
        node: the block.
        spans: the part, per iteration variable; variables without a span keep their whole domain.
        bounds: the bounds of the enclosing loops' variables.
        used: names in use; those of the new loops are added.
        names: of the new loops, outermost first; fresh ones without it.
        place: location in error messages about names.

    Returns:
        The block, guarded where the part may leave its domain; the loops, outermost first, whose bodies are
            placeholders; the bounds inside of them.

    Raises:
        ScheduleError: the number of names is not that of the new loops, or a name is in use.
    """
    driven = [i.var for kind in IterKind for i in node.iters
              if i.kind is kind and not (i.var in spans and spans[i.var].is_single)]  # fmt: skip
    variables = new_loop_vars([f"{v.name}_t" for v in driven], names, used, place)
    loops: dict[Var, For] = {}
    iters: list[BlockIter] = []
    guards: list[Expr] = []
    for i in node.iters:
        span = spans.get(i.var) or Span(const(0), i.extent, None, None)
        binding = span.start
        if i.var in driven:
            loops[i.var] = loop = For(variables[driven.index(i.var)], span.size, LoopKind.SERIAL, node)
            bounds = bounds.with_loop(loop.var, loop.extent)
            binding = binding + loop.var
        if i.var in spans:
            guards += [] if can_prove_non_negative(binding, bounds) else [binding >= 0]
            guards += [] if can_prove_lt(binding, i.extent, bounds) else [binding < i.extent]
        iters.append(replace(i, binding=binding))
    return replace(node, iters=tuple(iters), predicate=conjunction(*guards)), tuple(loops[v] for v in driven), bounds


def check_domain(node: Block, enclosing: Sequence[For], place: str) -> None:
    """Checks that the block's predicate only keeps it in its domain, and its body uses no loop variable, so that both
    can be dropped."""
    bounds = bounds_of(enclosing)
    for i in node.iters:
        bounds = bounds.assuming(conjunction(i.binding >= 0, i.binding < i.extent))
    for c in conjuncts(node.predicate):
        if not can_prove(c, bounds):
            raise ScheduleError(f"its predicate {c} does more than guard a tail", where=place)
    stores = (node.body,) if node.init is None else (node.body, node.init)
    used = {v for s in stores for e in (*s.indices, s.value) for v in free_vars(e)}
    for x in enclosing:
        if x.var in used:
            raise ScheduleError(f"its body uses the variable of loop {x.var.name!r}", where=place)
