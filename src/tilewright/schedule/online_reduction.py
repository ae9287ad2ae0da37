"""Results of reductions while they are being computed: what a sum that runs in the same loop may assume of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.errors import ScheduleError
from tilewright.expr.algebra.prover import can_prove, can_prove_le
from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.nodes import Const, Expr, Load, Var
from tilewright.expr.operations import minimum
from tilewright.expr.traversal import free_vars, loads
from tilewright.loops.accumulation import match_accumulation
from tilewright.loops.block_context import BlockContext
from tilewright.loops.ir import Block, For, Func, IterKind, blocks
from tilewright.schedule.online_rescale import RunningExtremum
from tilewright.schedule.region import Span, check_domain, span_of
from tilewright.schedule.rewrite_tree import bounds_of, find_block, spatial_vars
from tilewright.verify.iter_map import IterMapError, iter_ranges


@dataclass(frozen=True, slots=True)
class OnlineReduction:
    """A reduction over a loop, as a sum that is to run in the same loop sees it.

    Attributes:
        block: the reduction.
        load: its result, as the sum reads it.
        op, term: what it combines and how, over the sum's variables.
        spans: the part of the sum's domain that one iteration of the loop makes possible.
        own: the part of its own domain that one iteration computes.
    """

    block: Block
    load: Load
    op: str
    term: Expr
    spans: Mapping[Var, Span]
    own_spans: Mapping[Var, Span]


def reduction_vars(node: Block) -> list[Var]:
    """The block's reduction variables."""
    return [i.var for i in node.iters if i.kind is IterKind.REDUCE]


def check_online_reductions(func: Func, node: Block, loops: Sequence[For], place: str) -> list[OnlineReduction]:
    """The reductions over the last of `loops` whose results the sum reads; at least one, each read at one element."""
    target = loops[-1]
    found: list[OnlineReduction] = []
    for b in blocks(target):
        driven = {v for i in b.iters if i.kind is IterKind.REDUCE for v in free_vars(i.binding)}
        seen = [x for x in loads(node.body.value) if x.buffer == b.body.buffer]
        if target.var not in driven or not seen:
            continue
        if len(seen) > 1:
            shown = " and ".join(map(str, seen))
            raise ScheduleError(f"it reads several elements of {seen[0].buffer.name!r}: {shown}", where=place)
        found.append(_online_reduction(func, node, b, seen[0], loops, place))
    if not found:
        what = f"it uses no result of a reduction over loop {target.var.name!r}"
        raise ScheduleError(what, where=place, hint="use reverse_compute_at, or name the loop of the reduction")
    return found


def _online_reduction(
    func: Func, node: Block, block: Block, load: Load, loops: Sequence[For], place: str
) -> OnlineReduction:
    """A reduction whose variables are matched with those of the sum, and the part of it that an iteration computes."""
    _, around = find_block(func, block.name)
    inner = around[len(loops) :]
    where = f"{place}, block {block.name!r}"
    combined = match_accumulation(block.body)
    if combined is None:
        raise ScheduleError("it does not accumulate", where=where)
    check_domain(block, around, where)
    check_innermost(block, loops, where)
    matched = _match_variables(node, block, load, where)
    own = {i.var: span_of(i.binding, inner, loops, func, where) for i in block.iters}
    for i in block.iters:
        if i.kind is IterKind.SPATIAL and loops[-1].var in free_vars(own[i.var].start):
            raise ScheduleError(f"the loop drives its spatial variable {i.var.name!r}", where=where)
    check_contiguous_chunks(block, around, len(loops), own, where)
    spans = {e: own[v] for v, e in matched.items() if isinstance(e, Var)}
    return OnlineReduction(block, load, combined[0], substitute(combined[1], matched), spans, own)


def check_innermost(block: Block, loops: Sequence[For], where: str) -> None:
    """The reduction depends on no loop outside of the one in question."""
    driven = {v for i in block.iters if i.kind is IterKind.REDUCE for v in free_vars(i.binding)}
    for x in loops[:-1]:
        if x.var in driven:
            name = x.var.name
            hint = f"use loop {name!r}"
            raise ScheduleError(f"it reduces over loop {name!r}, around that one, too", where=where, hint=hint)


def _match_variables(node: Block, block: Block, load: Load, where: str) -> dict[Var, Expr]:
    """The reduction's variables in terms of the sum's: of one extent, reductions in order."""
    extents = {i.var: i.extent for i in node.iters}
    matched: dict[Var, Expr] = {}
    for at, index in zip(block.body.indices, load.indices, strict=True):
        if isinstance(at, Var) and at in spatial_vars(block):
            matched[at] = index
        elif not (isinstance(at, Const) and at is index):
            raise ScheduleError(f"it does not write {load.buffer.name!r} at its plain variables", where=where)
    reduced = reduction_vars(block), reduction_vars(node)
    if set(matched) != set(spatial_vars(block)) or len(reduced[0]) != len(reduced[1]):
        what = f"it reduces over {len(reduced[0])} axes, the sum over {len(reduced[1])}"
        raise ScheduleError(what, where=where)
    matched.update(zip(*reduced, strict=True))
    for i in block.iters:
        e = matched[i.var]
        one = isinstance(e, Const) and isinstance(i.extent, Const) and i.extent.value == 1
        if not one and not (isinstance(e, Var) and e in extents and can_prove(extents[e].equals(i.extent))):
            raise ScheduleError(f"the sum does not run over {i.var.name!r}, 0..{i.extent}, but over {e}", where=where)
    return matched


def check_contiguous_chunks(
    block: Block, around: Sequence[For], outer_count: int, spans: Mapping[Var, Span], where: str
) -> None:
    """One iteration of the loop computes all of its part: no point of it is left to a later iteration."""
    nest = BlockContext.of(block, tuple(around))
    try:
        images = iter_ranges(nest, True, outer_count)
    except IterMapError as reason:
        raise ScheduleError(str(reason), where=where) from None
    for i, image in images:
        span = spans[i.var]
        wanted = minimum(span.size, i.extent - span.start)
        if image.offset is not span.start or not can_prove_le(wanted, image.extent, bounds_of(around)):
            what = f"an iteration leaves out some of {i.var.name!r} = {span.start}, ..., {span.start + span.size - 1}"
            raise ScheduleError(what, where=where)


def check_running_extrema(
    func: Func, core: Expr, reductions: Sequence[OnlineReduction], target: For, place: str
) -> list[RunningExtremum]:
    """The running results in a value, each a maximum or minimum that only its reduction changes inside the loop."""
    found: list[RunningExtremum] = []
    for source in reductions:
        if source.load not in loads(core):
            continue
        name = source.load.buffer.name
        if source.op not in ("max", "min"):
            what = f"{name!r} is no maximum or minimum, and not only in factors without the reduction: {core}"
            raise ScheduleError(what, where=place)
        check_term_unchanged(source, target, place)
        start = check_initial_value(func, source, target, place)
        found.append(RunningExtremum(source.load, source.term, source.op, start))
    return found


def check_term_unchanged(reduction: OnlineReduction, target: For, place: str) -> None:
    """What a reduction combines is the same when the sum reads it: nothing in the loop changes it in between."""
    inside = blocks(target)
    after = inside[next(k for k, b in enumerate(inside) if b is reduction.block) + 1 :]
    for b in after:
        if any(x.buffer == b.body.buffer for x in loads(reduction.term)):
            what = f"block {b.name!r} writes {b.body.buffer.name!r} after block {reduction.block.name!r} has read it"
            raise ScheduleError(what, where=place)


def check_initial_value(func: Func, reduction: OnlineReduction, target: For, place: str) -> Const:
    """The literal that a reduction starts from; it alone changes the result from then on."""
    buffer = reduction.load.buffer
    inside = set(map(id, blocks(target)))
    values: list[Expr] = [] if reduction.block.init is None else [reduction.block.init.value]
    for b in blocks(func.body):
        if b.body.buffer == buffer and b is not reduction.block:
            if id(b) in inside:
                raise ScheduleError(f"block {b.name!r} changes {buffer.name!r} in the loop too", where=place)
            values.append(b.body.value)
    if len(values) != 1 or not isinstance(values[0], Const):
        shown = ", ".join(map(str, values)) or "nothing"
        raise ScheduleError(f"expected {buffer.name!r} to start from a literal, got {shown}", where=place)
    return values[0]


def check_spans_agree(reductions: Sequence[OnlineReduction], place: str) -> Mapping[Var, Span]:
    """The part of the sum's domain that one iteration makes possible: the same for all results that it uses."""
    spans: dict[Var, Span] = {}
    for source in reductions:
        for var, span in source.spans.items():
            other = spans.setdefault(var, span)
            if other != span:
                what = (
                    f"{var.name!r} would start at {other.start} with {other.size} values, "
                    f"but for {source.load.buffer.name!r} at {span.start} with {span.size}"
                )
                raise ScheduleError(what, where=place)
    return spans


def check_sum(node: Block, place: str) -> Expr:
    """What the block sums up, from 0, in a type with room for sums that use too small a maximum."""
    combined = match_accumulation(node.body)
    if combined is None or combined[0] != "add":
        kind = "no accumulation" if combined is None else f"an accumulation with `{combined[0]}`"
        raise ScheduleError(f"it is {kind}, and only sums are corrected", where=place)
    own = node.body.buffer
    if not own.dtype.is_float or own.dtype.bits < 32:
        what = f"{own.name!r} is {own.dtype}, and a sum on the way may exceed what it is in the end"
        hint = "sum up in float32: cast what is summed, and cast the finished sum back"
        raise ScheduleError(what, where=place, hint=hint)
    if node.init is None or not (isinstance(node.init.value, Const) and node.init.value.value == 0):
        raise ScheduleError("its init is not 0, or was taken out", where=place)
    return combined[1]
