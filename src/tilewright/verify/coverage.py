"""Coverage: outputs are written everywhere, and reductions count every point exactly once.

The blocks that write a parameter must reach every point of their domains; `iter_map.py` computes what a block reaches,
and peeled copies of one block (equal stores, adjacent ranges) are merged before. For blocks that write internal buffers
only the reductions are checked: such a buffer holds what its readers need, which may be a part of the domain, or some
of it computed repeatedly.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from tilewright.expr.algebra.prover import can_prove_le
from tilewright.expr.nodes import const
from tilewright.expr.traversal import free_vars, is_one
from tilewright.loops.accumulation import match_accumulation
from tilewright.loops.block_context import BlockContext
from tilewright.loops.ir import Func, IterKind
from tilewright.verify.coverage_fallbacks import BlockDiagnostics, remaining_diagnostics
from tilewright.verify.diagnostics import Diagnostic
from tilewright.verify.initializers import (
    count_loops_shared_with_init,
    find_clobbering_init,
    find_overwrite,
    initializes,
    is_initialized,
    is_initializer_of,
)
from tilewright.verify.iter_map import IterMapError, RangedIter, iter_ranges
from tilewright.verify.peeled_blocks import (
    CoveredDomain,
    IterBox,
    count_shared_loops,
    covered_domain,
    merge_boxes,
    statement_key,
)
from tilewright.verify.races import identifies_iteration, store_keys
from tilewright.verify.reduction_parts import find_interference, is_full_range
from tilewright.verify.region_cover import is_covered_by
from tilewright.verify.store_aliasing import has_same_domain, stores_are_disjoint


def find_coverage_errors(func: Func, contexts: Sequence[BlockContext]) -> Iterator[Diagnostic]:
    """Points of outputs that no block writes, and reductions that miss, repeat or lose points."""
    for full_domain in (True, False):

        def check(contexts: Sequence[BlockContext], full_domain: bool = full_domain) -> BlockDiagnostics:
            return _diagnose_blocks(
                [c for c in contexts if (c.block.body.buffer in func.params) == full_domain], contexts, full_domain
            )

        yield from remaining_diagnostics(check, contexts, full_domain)


def _diagnose_blocks(
    selected: Sequence[BlockContext], contexts: Sequence[BlockContext], full_domain: bool
) -> BlockDiagnostics:
    """What iteration maps alone cannot prove of some blocks.

    Args:
        selected: the blocks in question.
        contexts: all blocks of the function, in order.
        full_domain: whether the selected blocks must cover their whole domains; else only reductions are checked.
    """
    domain = covered_domain(selected, full_domain)
    diagnostics = [(c, d) for c in selected for d in _diagnose_reduction(c, domain, contexts, full_domain)]
    boxes = list(dict.fromkeys(domain.boxes.values()))
    init_boxes = _group_by_statement(_inits_as_blocks(boxes) if full_domain else ())
    for key, group in _group_by_statement(boxes).items():
        merged = [_MergedBox(*box, domain.parts(box)) for box in group]
        diagnostics += _find_uncovered(merged, init_boxes.get(key, ()), contexts)
    return [(c, d) for c, d in diagnostics if not _is_pure_initializer(c, contexts)]


def _is_pure_initializer(context: BlockContext, contexts: Sequence[BlockContext]) -> bool:
    """Whether a block only initialises accumulators: it need not cover its domain if the reductions are initialised."""
    buffer = context.block.body.buffer
    if not initializes(context, buffer, True):
        return False
    updates = [c for c in contexts if c.block.body.buffer == buffer and match_accumulation(c.block.body) is not None]
    if not any(has_same_domain(context, c) for c in updates):
        return False
    return all(is_initialized(c, contexts[: contexts.index(c) + 1]) for c in updates)


def find_incomplete_cover(context: BlockContext) -> Iterator[Diagnostic]:
    """Points of its domain that a block by itself misses or reaches more than once.

    Loops that drive no iteration variable do not count as repetitions.
    """
    where = f"block {context.block.name!r}"
    try:
        ranges = iter_ranges(context, True)
    except IterMapError as reason:
        yield Diagnostic(where, str(reason), context.text)
        return
    for i, iter_range in ranges:
        if not (is_full_range(iter_range, i.extent) and iter_range.injective):
            low, high = iter_range.offset, iter_range.offset + iter_range.extent - 1
            times = "" if iter_range.injective else ", some of them repeatedly"
            what = f"binding {i.binding} of {i.var.name!r} covers {low}..{high}{times}, expected 0..{i.extent - 1} once"
            yield Diagnostic(where, what, context.text)


def find_double_counts(contexts: Sequence[BlockContext], names: Collection[str]) -> Iterator[Diagnostic]:
    """Points that the blocks called `names` count twice; `contexts` are all blocks of the function, in order."""

    def check(contexts: Sequence[BlockContext]) -> BlockDiagnostics:
        selected = [c for c in contexts if c.block.name in names]
        domain = covered_domain(selected, False)
        return [(c, d) for c in selected for d in _diagnose_reduction(c, domain, contexts, False)]

    yield from remaining_diagnostics(check, contexts, False)


def _diagnose_reduction(
    context: BlockContext, domain: CoveredDomain, contexts: Sequence[BlockContext], full_domain: bool
) -> Iterator[Diagnostic]:
    reason = domain.unanalyzable.get(context)
    if reason is not None:
        yield Diagnostic(f"block {context.block.name!r}", reason, context.text)
    elif context in domain.boxes:
        yield from _find_reduction_errors(context, domain.boxes[context][1], contexts, full_domain)


def _find_reduction_errors(
    context: BlockContext, ranges: Sequence[RangedIter], contexts: Sequence[BlockContext], full_domain: bool
) -> Iterator[Diagnostic]:
    """What keeps an accumulating block from counting every point of its reduction once in every element."""
    block = context.block
    if match_accumulation(block.body) is None:
        return
    where = f"block {block.name!r}"
    reduced = {v for i in block.iters if i.kind is IterKind.REDUCE for v in free_vars(i.binding)}
    for i, iter_range in ranges:
        if i.kind is IterKind.REDUCE and not iter_range.injective:
            what = f"binding {i.binding} of {i.var.name!r} repeats values, whose points are counted twice"
            yield Diagnostic(where, what, context.text)
    positions = [k for k, loop in enumerate(context.loops) if loop.var in reduced]
    reduction_depth = min(positions, default=len(context.loops))
    # In every iteration of these loops the sum starts anew.
    free = count_loops_shared_with_init(context, contexts) if block.init is None else reduction_depth
    if any(
        c is not context
        and initializes(c, block.body.buffer, True)
        and count_shared_loops(context, c) > reduction_depth
        for c in contexts
    ):
        yield Diagnostic(where, f"{block.body.buffer.name!r} is initialised again inside the reduction", context.text)
        return
    if not (block.init is not None or _has_initializers(context, contexts)):
        what = f"accumulates into elements of {block.body.buffer.name!r} that no block is proved to initialise"
        yield Diagnostic(where, what, context.text)
    for what in _find_clobbers(context, contexts, full_domain):
        yield Diagnostic(where, what, context.text)
    for k, loop in enumerate(context.loops):
        if k < free or loop.var in reduced or is_one(loop.extent):
            continue
        if not identifies_iteration(store_keys(context, k, reduced)):
            what = f"iterations of loop {loop.var.name!r} accumulate the same points into one element"
            yield Diagnostic(where, f"{what} of {block.body.buffer.name!r}", context.text)


def _has_initializers(context: BlockContext, contexts: Sequence[BlockContext]) -> bool:
    """Whether other blocks initialise the elements that a block without an init accumulates into.

    An initialiser with the same declared domain suffices; else those before the block must be proved to cover it.
    """
    initializers = [c for c in contexts if is_initializer_of(c, context)]
    before = [c for c in initializers if contexts.index(c) < contexts.index(context)]
    return any(has_same_domain(c, context) for c in initializers) or (bool(before) and is_covered_by(context, before))


def _find_clobbers(context: BlockContext, contexts: Sequence[BlockContext], full_domain: bool) -> Iterator[str]:
    """Blocks that destroy partial or final sums of an accumulating block."""
    buffer = context.block.body.buffer.name
    init = find_clobbering_init(context, contexts)
    if init is not None:
        what = f"block {init.block.name!r} may reinitialise what other iterations of their shared loops"
        yield f"{what} accumulated in {buffer!r}"
    overwrite = find_overwrite(context, contexts, full_domain)
    if overwrite is not None:
        what = f"block {overwrite.block.name!r} overwrites the sums in {buffer!r}"
        yield what if full_domain else f"{what}, which are not proved to be all read before"


def _inits_as_blocks(boxes: Iterable[IterBox]) -> Iterator[IterBox]:
    """The inits of accumulating blocks as separate blocks, where these have the first point of their reduction."""
    for context, ranges in boxes:
        init = context.block.init
        spatial, reduced = (tuple(p for p in ranges if p[0].kind is kind) for kind in IterKind)
        if init is not None and all(can_prove_le(iter_range.offset, const(0)) for _, iter_range in reduced):
            init_block = replace(context.block, body=init, init=None)
            yield BlockContext(init_block, context.loops, context.bindings, context.bounds), spatial


def _group_by_statement(boxes: Iterable[IterBox]) -> dict[object, list[IterBox]]:
    """Boxes of blocks that may be peeled copies of one."""
    groups: dict[object, list[IterBox]] = {}
    for context, ranges in boxes:
        if ranges:
            groups.setdefault(statement_key(context, [i for i, _ in ranges]), []).append((context, ranges))
    return groups


@dataclass(frozen=True, slots=True)
class _MergedBox:
    """A box that several blocks reach together.

    Attributes:
        context: one of them, which stands for all.
        ranges: the box.
        parts: the blocks.
    """

    context: BlockContext
    ranges: tuple[RangedIter, ...]
    parts: tuple[BlockContext, ...]


def _find_uncovered(
    group: Sequence[_MergedBox], init_boxes: Sequence[IterBox], contexts: Sequence[BlockContext]
) -> Iterator[tuple[BlockContext, Diagnostic]]:
    """Points that the copies of one block miss together.

    Args:
        group: the boxes of the copies.
        init_boxes: boxes of inits that store there too.
        contexts: all blocks of the function, in order.
    """
    for box in group:
        yield from _find_part_interference(box, contexts)
    partial = [box for box in group if not _covers_domain(box.ranges)]
    nonempty = [box for box in partial if not _is_empty((box.context, box.ranges))]
    boxes = nonempty if nonempty or len(partial) < len(group) else partial
    boxes = [*boxes, *(_MergedBox(context, ranges, ()) for context, ranges in init_boxes)] if boxes else boxes
    while (pair := _next_merge(boxes)) is not None:
        a, b, merged = pair
        boxes = [box for box in boxes if box is not a and box is not b] + [merged]
        if _extends_reduction(a.ranges, merged.ranges):
            yield from _find_part_interference(merged, contexts)
        elif not all(iter_range.injective for _, iter_range in merged.ranges):
            yield from _find_repeated_reductions([box for box in (a, b) if box.parts], contexts)
    complete = [box for box in (*group, *boxes) if box.parts and _covers_domain(box.ranges)]
    yield from _find_repeated_reductions(complete, contexts)
    for box in boxes:
        for i, iter_range in box.ranges:
            if box.parts and not is_full_range(iter_range, i.extent):
                low, high = iter_range.offset, iter_range.offset + iter_range.extent - 1
                what = f"binding {i.binding} of {i.var.name!r} covers {low}..{high}, expected 0..{i.extent - 1}"
                yield box.parts[0], Diagnostic(f"block {box.context.block.name!r}", what, box.context.text)


def _next_merge(boxes: Sequence[_MergedBox]) -> tuple[_MergedBox, _MergedBox, _MergedBox] | None:
    """Two adjacent boxes and their union; parts of one reduction first, as these store the same elements."""
    best: tuple[_MergedBox, _MergedBox, _MergedBox] | None = None
    for a in boxes:
        for b in boxes:
            ranges = None if a is b else merge_boxes(a.ranges, b.ranges)
            if ranges is None:
                continue
            best = (a, b, _MergedBox(a.context if a.parts else b.context, ranges, a.parts + b.parts))
            if _extends_reduction(a.ranges, ranges):
                return best
    return best


def _extends_reduction(part: Sequence[RangedIter], union: Sequence[RangedIter]) -> bool:
    """Whether a union of boxes spans more of a reduction than a part of it."""
    pairs = zip(part, union, strict=True)
    return any(x is not y and i.kind is IterKind.REDUCE for (i, x), (_, y) in pairs)


def _find_part_interference(
    merged: _MergedBox, contexts: Sequence[BlockContext]
) -> Iterator[tuple[BlockContext, Diagnostic]]:
    """Why the parts of a reduction do not add up to it, although together they reach all of its points."""
    parts = [c for c in contexts if c in merged.parts]
    if (
        len(parts) > 1
        and match_accumulation(parts[0].block.body) is not None
        and not all(_is_whole_reduction(c) for c in parts)
    ):
        overlapping = next((i for i, r in merged.ranges if i.kind is IterKind.REDUCE and not r.injective), None)
        reason = find_interference(parts, contexts)
        if overlapping is not None and reason is None:
            reason = f"parts of a reduction overlap: some values of {overlapping.var.name!r} count twice"
        if reason is not None:
            yield parts[0], Diagnostic(f"block {parts[0].block.name!r}", reason, parts[0].text)


def _find_repeated_reductions(
    boxes: Sequence[_MergedBox], contexts: Sequence[BlockContext]
) -> Iterator[tuple[BlockContext, Diagnostic]]:
    """Reductions that accumulate into elements that hold the same sum already."""
    reductions = [[c for c in contexts if c in box.parts] for box in dict.fromkeys(boxes)]
    for first in reductions:
        for second in reductions:
            start, block = contexts.index(second[0]), second[0].block
            if match_accumulation(block.body) is None or contexts.index(first[0]) >= start:
                continue
            between = contexts[contexts.index(first[-1]) + 1 : start + 1]
            uninitialized = [c for c in second if not is_initialized(c, between)]
            pairs = ((a, b) for a in first for b in uninitialized)
            if not all(stores_are_disjoint(a, b, count_loops_shared_with_init(b, contexts)) for a, b in pairs):
                what = f"accumulates the same points into {block.body.buffer.name!r} as block {first[0].block.name!r}"
                yield second[0], Diagnostic(f"block {block.name!r}", what, second[0].text)


def _is_whole_reduction(context: BlockContext) -> bool:
    """Whether a block by itself reaches every point of its reduction."""
    try:
        return _covers_domain(iter_ranges(context, False))
    except IterMapError:
        return False


def _is_empty(box: IterBox) -> bool:
    """Whether the predicate of a block is proved to exclude all of its points."""
    return any(can_prove_le(iter_range.extent, const(0), box[0].bounds) for _, iter_range in box[1])


def _covers_domain(ranges: Sequence[RangedIter]) -> bool:
    return all(is_full_range(iter_range, i.extent) for i, iter_range in ranges)
