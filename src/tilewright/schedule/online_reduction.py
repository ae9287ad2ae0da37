"""Reductions whose running results a sum in the same loop reads: matching and legality."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.errors import ScheduleError
from tilewright.expr.algebra.prover import can_prove, can_prove_le
from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.nodes import Const, Expr, Load, Var
from tilewright.expr.operations import minimum
from tilewright.expr.traversal import free_vars, is_one, loads
from tilewright.loops.accumulation import match_accumulation
from tilewright.loops.block_context import BlockContext
from tilewright.loops.ir import Block, For, Func, IterKind, blocks
from tilewright.schedule.online_rescale import RunningExtremum
from tilewright.schedule.region import Span, check_domain, span_of
from tilewright.schedule.rewrite_tree import bounds_of, find_block, spatial_vars
from tilewright.verify.iter_map import IterMapError, iter_ranges


@dataclass(frozen=True, slots=True)
class OnlineReduction:
    """A reduction over a loop, as seen by a sum that is to run in the same loop.

    Attributes:
        block: the reduction.
        load: its result, as the sum reads it.
        op, term: the reducer and the reduced term, over the sum's variables.
        spans: the part of the sum's domain that one iteration of the loop completes.
        own_spans: the part of the reduction's own domain that one iteration computes.
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
    """Returns the reductions over the last of `loops` whose results the sum reads; at least one, each read at one
    element."""
    target = loops[-1]
    reductions: list[OnlineReduction] = []
    for b in blocks(target):
        driven = {v for i in b.iters if i.kind is IterKind.REDUCE for v in free_vars(i.binding)}
        reads = [x for x in loads(node.body.value) if x.buffer == b.body.buffer]
        if target.var not in driven or not reads:
            continue
        if len(reads) > 1:
            shown = " and ".join(map(str, reads))
            raise ScheduleError(f"it reads several elements of {reads[0].buffer.name!r}: {shown}", where=place)
        reductions.append(_online_reduction(func, node, b, reads[0], loops, place))
    if not reductions:
        what = f"it uses no result of a reduction over loop {target.var.name!r}"
        raise ScheduleError(what, where=place, hint="use reverse_compute_at, or name the loop of the reduction")
    return reductions


def _online_reduction(
    func: Func, node: Block, block: Block, load: Load, loops: Sequence[For], place: str
) -> OnlineReduction:
    """A reduction whose variables are matched with those of the sum, and the part of it that an iteration computes."""
    _, enclosing = find_block(func, block.name)
    inner = enclosing[len(loops) :]
    where = f"{place}, block {block.name!r}"
    combined = match_accumulation(block.body)
    if combined is None:
        raise ScheduleError("it does not accumulate", where=where)
    check_domain(block, enclosing, where)
    check_innermost(block, loops, where)
    matched = _match_variables(node, block, load, where)
    own_spans = {i.var: span_of(i.binding, inner, loops, func, where) for i in block.iters}
    for i in block.iters:
        if i.kind is IterKind.SPATIAL and loops[-1].var in free_vars(own_spans[i.var].start):
            raise ScheduleError(f"the loop drives its spatial variable {i.var.name!r}", where=where)
    check_contiguous_chunks(block, enclosing, len(loops), own_spans, where)
    spans = {e: own_spans[v] for v, e in matched.items() if isinstance(e, Var)}
    return OnlineReduction(block, load, combined[0], substitute(combined[1], matched), spans, own_spans)


def check_innermost(block: Block, loops: Sequence[For], where: str) -> None:
    """Checks that the reduction does not depend on loops outside the last of `loops`."""
    driven = {v for i in block.iters if i.kind is IterKind.REDUCE for v in free_vars(i.binding)}
    for x in loops[:-1]:
        if x.var in driven:
            name = x.var.name
            hint = f"use loop {name!r}"
            raise ScheduleError(f"it also reduces over the enclosing loop {name!r}", where=where, hint=hint)


def _match_variables(node: Block, block: Block, load: Load, where: str) -> dict[Var, Expr]:
    """The reduction's variables in terms of the sum's: of equal extents, reductions in order."""
    extents = {i.var: i.extent for i in node.iters}
    mapping: dict[Var, Expr] = {}
    for target, index in zip(block.body.indices, load.indices, strict=True):
        if isinstance(target, Var) and target in spatial_vars(block):
            mapping[target] = index
        elif not (isinstance(target, Const) and target is index):
            raise ScheduleError(f"it does not write {load.buffer.name!r} at its plain variables", where=where)
    reduction_lists = reduction_vars(block), reduction_vars(node)
    if set(mapping) != set(spatial_vars(block)) or len(reduction_lists[0]) != len(reduction_lists[1]):
        what = f"it reduces over {len(reduction_lists[0])} axes, the sum over {len(reduction_lists[1])}"
        raise ScheduleError(what, where=where)
    mapping.update(zip(*reduction_lists, strict=True))
    for i in block.iters:
        e = mapping[i.var]
        is_single = isinstance(e, Const) and is_one(i.extent)
        if not is_single and not (isinstance(e, Var) and e in extents and can_prove(extents[e].equals(i.extent))):
            raise ScheduleError(f"the sum does not run over {i.var.name!r}, 0..{i.extent}, but over {e}", where=where)
    return mapping


def check_contiguous_chunks(
    block: Block, enclosing: Sequence[For], outer_count: int, spans: Mapping[Var, Span], where: str
) -> None:
    """Checks that one iteration of the loop computes a whole chunk: it leaves no point of it to a later iteration."""
    nest = BlockContext.of(block, tuple(enclosing))
    try:
        maps = iter_ranges(nest, True, outer_count)
    except IterMapError as reason:
        raise ScheduleError(str(reason), where=where) from None
    for i, map_ in maps:
        span = spans[i.var]
        needed = minimum(span.size, i.extent - span.start)
        if map_.offset is not span.start or not can_prove_le(needed, map_.extent, bounds_of(enclosing)):
            what = f"an iteration leaves out some of {i.var.name!r} = {span.start}, ..., {span.start + span.size - 1}"
            raise ScheduleError(what, where=where)


def check_running_extrema(
    func: Func, core: Expr, reductions: Sequence[OnlineReduction], target: For, place: str
) -> list[RunningExtremum]:
    """Returns the running results in a value; each is a maximum or minimum that only its reduction changes inside the
    loop."""
    extrema: list[RunningExtremum] = []
    for source in reductions:
        if source.load not in loads(core):
            continue
        name = source.load.buffer.name
        if source.op not in ("max", "min"):
            what = f"{name!r} is not a maximum or minimum, and not only in factors without the reduction: {core}"
            raise ScheduleError(what, where=place)
        check_term_unchanged(source, target, place)
        start = check_initial_value(func, source, target, place)
        extrema.append(RunningExtremum(source.load, source.term, source.op, start))
    return extrema


def check_term_unchanged(reduction: OnlineReduction, target: For, place: str) -> None:
    """Checks that the reduced term has the same value when the sum reads it: no block of the loop changes it in
    between."""
    inner_blocks = blocks(target)
    later = inner_blocks[next(k for k, b in enumerate(inner_blocks) if b is reduction.block) + 1 :]
    for b in later:
        if any(x.buffer == b.body.buffer for x in loads(reduction.term)):
            what = f"block {b.name!r} writes {b.body.buffer.name!r} after block {reduction.block.name!r} has read it"
            raise ScheduleError(what, where=place)


def check_initial_value(func: Func, reduction: OnlineReduction, target: For, place: str) -> Const:
    """Returns the literal that a reduction starts from; only the reduction changes the result afterwards."""
    buffer = reduction.load.buffer
    inner_ids = set(map(id, blocks(target)))
    values: list[Expr] = [] if reduction.block.init is None else [reduction.block.init.value]
    for b in blocks(func.body):
        if b.body.buffer == buffer and b is not reduction.block:
            if id(b) in inner_ids:
                raise ScheduleError(f"block {b.name!r} changes {buffer.name!r} in the loop too", where=place)
            values.append(b.body.value)
    if len(values) != 1 or not isinstance(values[0], Const):
        shown = ", ".join(map(str, values)) or "nothing"
        raise ScheduleError(f"expected {buffer.name!r} to start from a literal, got {shown}", where=place)
    return values[0]


def check_spans_agree(reductions: Sequence[OnlineReduction], place: str) -> Mapping[Var, Span]:
    """Returns the part of the sum's domain that one iteration completes: the same for all running results."""
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
    """Returns the summed value; the sum starts from 0 in a type with headroom for terms relative to a maximum that is
    still too small."""
    combined = match_accumulation(node.body)
    if combined is None or combined[0] != "add":
        kind = "no accumulation" if combined is None else f"an accumulation with `{combined[0]}`"
        raise ScheduleError(f"it is {kind}, and only sums are rescaled", where=place)
    result = node.body.buffer
    if not result.dtype.is_float or result.dtype.bits < 32:
        what = f"{result.name!r} is {result.dtype}, and a partial sum may exceed the final one"
        hint = "sum up in float32: cast what is summed, and cast the finished sum back"
        raise ScheduleError(what, where=place, hint=hint)
    if node.init is None or not (isinstance(node.init.value, Const) and node.init.value.value == 0):
        raise ScheduleError("its init is not 0, or was decomposed", where=place)
    return combined[1]
