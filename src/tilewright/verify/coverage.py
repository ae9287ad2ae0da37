"""Coverage: the blocks that write a parameter reach every point of their domains, and reductions count each point once.

What a block reaches says `images.py`. Blocks that were peeled apart (equal stores, adjacent images) are put together
again. Of blocks that write internal buffers only the reductions are checked: such a buffer holds what its readers need,
which may be less than the domain or some of it several times.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from tilewright.expr.algebra.prover import can_prove_le
from tilewright.expr.nodes import Const, const
from tilewright.expr.traversal import free_vars
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


def find_coverage_errors(func: Func, nests: Sequence[BlockContext]) -> Iterator[Diagnostic]:
    """What is not covered, or counted twice."""
    for whole in (True, False):

        def check(nests: Sequence[BlockContext], whole: bool = whole) -> BlockDiagnostics:
            return _diagnose_blocks([n for n in nests if (n.block.body.buffer in func.params) == whole], nests, whole)

        yield from remaining_diagnostics(check, nests, whole)


def _diagnose_blocks(some: Sequence[BlockContext], nests: Sequence[BlockContext], whole: bool) -> BlockDiagnostics:
    """What algebra finds about some blocks, of which those of parameters must cover their `whole` domains."""
    reached = covered_domain(some, whole)
    found = [(nest, f) for nest in some for f in _diagnose_reduction(nest, reached, nests, whole)]
    boxes = list(dict.fromkeys(reached.boxes.values()))
    first = _group_by_statement(_inits_as_blocks(boxes) if whole else ())
    for key, group in _group_by_statement(boxes).items():
        found += _find_uncovered([_MergedBox(*box, reached.parts(box)) for box in group], first.get(key, ()), nests)
    return [(nest, finding) for nest, finding in found if not _is_pure_initializer(nest, nests)]


def _is_pure_initializer(nest: BlockContext, nests: Sequence[BlockContext]) -> bool:
    """Whether a block gives first values to sums, which cover the domain that it states, and need no more of them."""
    buffer = nest.block.body.buffer
    if not initializes(nest, buffer, True):
        return False
    sums = [n for n in nests if n.block.body.buffer == buffer and match_accumulation(n.block.body) is not None]
    if not any(has_same_domain(nest, n) for n in sums):
        return False
    return all(is_initialized(n, nests[: nests.index(n) + 1]) for n in sums)


def find_incomplete_cover(nest: BlockContext) -> Iterator[Diagnostic]:
    """What a block, alone, misses of its domain or reaches more than once; loops that drive no variable don't count."""
    where = f"block {nest.block.name!r}"
    try:
        images = iter_ranges(nest, True)
    except IterMapError as reason:
        yield Diagnostic(where, str(reason), nest.text)
        return
    for i, image in images:
        if not (is_full_range(image, i.extent) and image.injective):
            low, high = image.offset, image.offset + image.extent - 1
            times = "" if image.injective else ", some several times"
            what = f"binding {i.binding} of {i.var.name!r} covers {low}..{high}{times}, expected 0..{i.extent - 1} once"
            yield Diagnostic(where, what, nest.text)


def find_double_counts(nests: Sequence[BlockContext], names: Collection[str]) -> Iterator[Diagnostic]:
    """What some blocks count twice, by name; `nests` are all those of the function."""

    def check(nests: Sequence[BlockContext]) -> BlockDiagnostics:
        some = [n for n in nests if n.block.name in names]
        reached = covered_domain(some, False)
        return [(nest, f) for nest in some for f in _diagnose_reduction(nest, reached, nests, False)]

    yield from remaining_diagnostics(check, nests, False)


def _diagnose_reduction(
    nest: BlockContext, reached: CoveredDomain, nests: Sequence[BlockContext], whole: bool
) -> Iterator[Diagnostic]:
    reason = reached.unanalyzable.get(nest)
    if reason is not None:
        yield Diagnostic(f"block {nest.block.name!r}", reason, nest.text)
    elif nest in reached.boxes:
        yield from _find_reduction_errors(nest, reached.boxes[nest][1], nests, whole)


def _find_reduction_errors(
    nest: BlockContext, images: Sequence[RangedIter], nests: Sequence[BlockContext], whole: bool
) -> Iterator[Diagnostic]:
    """Whether an accumulating block adds every point of its reduction once to every element."""
    block = nest.block
    if match_accumulation(block.body) is None:
        return
    where = f"block {block.name!r}"
    reduced = {v for i in block.iters if i.kind is IterKind.REDUCE for v in free_vars(i.binding)}
    for i, image in images:
        if i.kind is IterKind.REDUCE and not image.injective:
            what = f"binding {i.binding} of {i.var.name!r} takes values twice: they count twice"
            yield Diagnostic(where, what, nest.text)
    positions = [k for k, loop in enumerate(nest.loops) if loop.var in reduced]
    first = min(positions, default=len(nest.loops))
    free = count_loops_shared_with_init(nest, nests) if block.init is None else first
    if any(
        n is not nest and initializes(n, block.body.buffer, True) and count_shared_loops(nest, n) > first for n in nests
    ):
        yield Diagnostic(where, f"{block.body.buffer.name!r} is initialised again inside the reduction", nest.text)
        return
    if not (block.init is not None or _has_initializers(nest, nests)):
        what = f"adds to elements of {block.body.buffer.name!r} to which no block is proved to give a first value"
        yield Diagnostic(where, what, nest.text)
    for what in _find_clobbers(nest, nests, whole):
        yield Diagnostic(where, what, nest.text)
    for k, loop in enumerate(nest.loops):
        if k < free or loop.var in reduced or (isinstance(loop.extent, Const) and loop.extent.value == 1):
            continue
        if not identifies_iteration(store_keys(nest, k, reduced)):
            what = f"iterations of loop {loop.var.name!r} count the same points into one element"
            yield Diagnostic(where, f"{what} of {block.body.buffer.name!r}", nest.text)


def _has_initializers(nest: BlockContext, nests: Sequence[BlockContext]) -> bool:
    """Whether blocks give first values to the elements that one without an init adds to: by what they say of
    themselves, or, where they say it in another way, by proof."""
    givers = [n for n in nests if is_initializer_of(n, nest)]
    before = [n for n in givers if nests.index(n) < nests.index(nest)]
    return any(has_same_domain(n, nest) for n in givers) or (bool(before) and is_covered_by(nest, before))


def _find_clobbers(nest: BlockContext, nests: Sequence[BlockContext], whole: bool) -> Iterator[str]:
    """Blocks that store over what a block adds up."""
    buffer = nest.block.body.buffer.name
    again = find_clobbering_init(nest, nests)
    if again is not None:
        what = f"block {again.block.name!r} may initialise again what other iterations of the loops around both"
        yield f"{what} collected in {buffer!r}"
    over = find_overwrite(nest, nests, whole)
    if over is not None:
        what = f"block {over.block.name!r} overwrites what was added up in {buffer!r}"
        yield what if whole else f"{what}, which is not proved to be all read before"


def _inits_as_blocks(boxes: Iterable[IterBox]) -> Iterator[IterBox]:
    """What the inits inside accumulating blocks store, as blocks of their own that accumulate nothing."""
    for nest, images in boxes:
        init = nest.block.init
        spatial, reduced = (tuple(p for p in images if p[0].kind is kind) for kind in IterKind)
        if init is not None and all(can_prove_le(image.offset, const(0)) for _, image in reduced):
            alone = replace(nest.block, body=init, init=None)
            yield BlockContext(alone, nest.loops, nest.bindings, nest.bounds), spatial


def _group_by_statement(boxes: Iterable[IterBox]) -> dict[object, list[IterBox]]:
    """Blocks that may be parts of one."""
    found: dict[object, list[IterBox]] = {}
    for nest, images in boxes:
        if images:
            found.setdefault(statement_key(nest, [i for i, _ in images]), []).append((nest, images))
    return found


@dataclass(frozen=True, slots=True)
class _MergedBox:
    """A box that some blocks, its parts, reach together; `nest` stands for them."""

    nest: BlockContext
    images: tuple[RangedIter, ...]
    parts: tuple[BlockContext, ...]


def _find_uncovered(
    group: Sequence[_MergedBox], helpers: Sequence[IterBox], nests: Sequence[BlockContext]
) -> Iterator[tuple[BlockContext, Diagnostic]]:
    """What the blocks of a group miss; `helpers` store there too."""
    for joint in group:
        yield from _find_part_interference(joint, nests)
    left = [x for x in group if not _covers_domain(x.images)]
    rest = [x for x in left if not _is_empty((x.nest, x.images))]
    left = rest if rest or len(left) < len(group) else left
    left = [*left, *(_MergedBox(nest, images, ()) for nest, images in helpers)] if left else left
    while (found := _next_merge(left)) is not None:
        a, b, together = found
        left = [x for x in left if x is not a and x is not b] + [together]
        if _extends_reduction(a.images, together.images):
            yield from _find_part_interference(together, nests)
        elif not all(image.injective for _, image in together.images):
            yield from _find_repeated_reductions([x for x in (a, b) if x.parts], nests)
    yield from _find_repeated_reductions([x for x in (*group, *left) if x.parts and _covers_domain(x.images)], nests)
    for x in left:
        for i, image in x.images:
            if x.parts and not is_full_range(image, i.extent):
                low, high = image.offset, image.offset + image.extent - 1
                what = f"binding {i.binding} of {i.var.name!r} covers {low}..{high}, expected 0..{i.extent - 1}"
                yield x.parts[0], Diagnostic(f"block {x.nest.block.name!r}", what, x.nest.text)


def _next_merge(left: Sequence[_MergedBox]) -> tuple[_MergedBox, _MergedBox, _MergedBox] | None:
    """Two boxes that are one, and that one; parts of a reduction first, as then they are of the same elements."""
    best: tuple[_MergedBox, _MergedBox, _MergedBox] | None = None
    for a in left:
        for b in left:
            images = None if a is b else merge_boxes(a.images, b.images)
            if images is None:
                continue
            best = (a, b, _MergedBox(a.nest if a.parts else b.nest, images, a.parts + b.parts))
            if _extends_reduction(a.images, images):
                return best
    return best


def _extends_reduction(part: Sequence[RangedIter], whole: Sequence[RangedIter]) -> bool:
    """Whether a part has less of a reduction than the whole."""
    pairs = zip(part, whole, strict=True)
    return any(x is not y and i.kind is IterKind.REDUCE for (i, x), (_, y) in pairs)


def _find_part_interference(
    joint: _MergedBox, nests: Sequence[BlockContext]
) -> Iterator[tuple[BlockContext, Diagnostic]]:
    """Why parts of a reduction do not add up, although together they reach all of it."""
    parts = [n for n in nests if n in joint.parts]
    if (
        len(parts) > 1
        and match_accumulation(parts[0].block.body) is not None
        and not all(_is_whole_reduction(n) for n in parts)
    ):
        twice = next((i for i, image in joint.images if i.kind is IterKind.REDUCE and not image.injective), None)
        reason = find_interference(parts, nests)
        if twice is not None and reason is None:
            reason = f"parts of a reduction overlap: some values of {twice.var.name!r} count twice"
        if reason is not None:
            yield parts[0], Diagnostic(f"block {parts[0].block.name!r}", reason, parts[0].text)


def _find_repeated_reductions(
    sums: Sequence[_MergedBox], nests: Sequence[BlockContext]
) -> Iterator[tuple[BlockContext, Diagnostic]]:
    """Reductions that are added to what holds the sum already."""
    ordered = [[n for n in nests if n in x.parts] for x in dict.fromkeys(sums)]
    for first in ordered:
        for then in ordered:
            buffer = then[0].block.body.buffer
            if match_accumulation(then[0].block.body) is None or nests.index(first[0]) >= nests.index(then[0]):
                continue
            between = nests[nests.index(first[-1]) + 1 : nests.index(then[0]) + 1]
            left = [n for n in then if not is_initialized(n, between)]
            if not all(stores_are_disjoint(a, b, count_loops_shared_with_init(b, nests)) for a in first for b in left):
                what = f"adds the same points to elements of {buffer.name!r} as block {first[0].block.name!r}"
                yield then[0], Diagnostic(f"block {then[0].block.name!r}", what, then[0].text)


def _is_whole_reduction(nest: BlockContext) -> bool:
    """Whether a block reaches its whole reduction by itself."""
    try:
        return _covers_domain(iter_ranges(nest, False))
    except IterMapError:
        return False


def _is_empty(box: IterBox) -> bool:
    """Whether the predicate leaves nothing of a block."""
    return any(can_prove_le(image.extent, const(0), box[0].bounds) for _, image in box[1])


def _covers_domain(images: Sequence[RangedIter]) -> bool:
    return all(is_full_range(image, i.extent) for i, image in images)
