"""Coverage: the blocks that write a parameter reach every point of their domains, and reductions count each point once.

What a block reaches says `images.py`. Blocks that were peeled apart (equal stores, adjacent images) are put together
again. Of blocks that write internal buffers only the reductions are checked: such a buffer holds what its readers need,
which may be less than the domain or some of it several times.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from tilewright.expr.nodes import Const, const, free_vars
from tilewright.expr.prover import at_most
from tilewright.loops.boxes import given
from tilewright.loops.elements import elements_apart, same_domain
from tilewright.loops.givers import begun, gives, overwritten, shared_with_init, starts, wiped
from tilewright.loops.images import Placed, UnclearError, images_of
from tilewright.loops.interpret import accumulated
from tilewright.loops.ir import Func, IterKind
from tilewright.loops.nest import Finding, Nest
from tilewright.loops.parts import disturbance, full
from tilewright.loops.races import store_keys, tells
from tilewright.loops.settled import Findings, settled
from tilewright.loops.siblings import Box, Reached, joined, kinship, reach, shared_loops


def findings(func: Func, nests: Sequence[Nest]) -> Iterator[Finding]:
    """What is not covered, or counted twice."""
    for whole in (True, False):

        def check(nests: Sequence[Nest], whole: bool = whole) -> Findings:
            return _checked([n for n in nests if (n.block.body.buffer in func.params) == whole], nests, whole)

        yield from settled(check, nests, whole)


def _checked(some: Sequence[Nest], nests: Sequence[Nest], whole: bool) -> Findings:
    """What algebra finds about some blocks, of which those of parameters must cover their `whole` domains."""
    reached = reach(some, whole)
    found = [(nest, f) for nest in some for f in _counted(nest, reached, nests, whole)]
    boxes = list(dict.fromkeys(reached.boxes.values()))
    first = _groups(_initialised(boxes) if whole else ())
    for key, group in _groups(boxes).items():
        found += _uncovered([_Joint(*box, reached.parts(box)) for box in group], first.get(key, ()), nests)
    return [(nest, finding) for nest, finding in found if not _only_begins(nest, nests)]


def _only_begins(nest: Nest, nests: Sequence[Nest]) -> bool:
    """Whether a block gives first values to sums, which cover the domain that it states, and need no more of them."""
    buffer = nest.block.body.buffer
    if not gives(nest, buffer, True):
        return False
    sums = [n for n in nests if n.block.body.buffer == buffer and accumulated(n.block.body) is not None]
    if not any(same_domain(nest, n) for n in sums):
        return False
    return all(begun(n, nests[: nests.index(n) + 1]) for n in sums)


def reached_once(nest: Nest) -> Iterator[Finding]:
    """What a block, alone, misses of its domain or reaches more than once; loops that drive no variable don't count."""
    where = f"block {nest.block.name!r}"
    try:
        images = images_of(nest, True)
    except UnclearError as reason:
        yield Finding(where, str(reason), nest.shown)
        return
    for i, image in images:
        if not (full(image, i.extent) and image.once):
            low, high = image.offset, image.offset + image.size - 1
            times = "" if image.once else ", some several times"
            what = f"binding {i.binding} of {i.var.name!r} covers {low}..{high}{times}, expected 0..{i.extent - 1} once"
            yield Finding(where, what, nest.shown)


def counted_once(nests: Sequence[Nest], names: Collection[str]) -> Iterator[Finding]:
    """What some blocks count twice, by name; `nests` are all those of the function."""

    def check(nests: Sequence[Nest]) -> Findings:
        some = [n for n in nests if n.block.name in names]
        reached = reach(some, False)
        return [(nest, f) for nest in some for f in _counted(nest, reached, nests, False)]

    yield from settled(check, nests, False)


def _counted(nest: Nest, reached: Reached, nests: Sequence[Nest], whole: bool) -> Iterator[Finding]:
    reason = reached.unclear.get(nest)
    if reason is not None:
        yield Finding(f"block {nest.block.name!r}", reason, nest.shown)
    elif nest in reached.boxes:
        yield from _counted_once(nest, reached.boxes[nest][1], nests, whole)


def _counted_once(nest: Nest, images: Sequence[Placed], nests: Sequence[Nest], whole: bool) -> Iterator[Finding]:
    """Whether an accumulating block adds every point of its reduction once to every element."""
    block = nest.block
    if accumulated(block.body) is None:
        return
    where = f"block {block.name!r}"
    reduced = {v for i in block.iters if i.kind is IterKind.REDUCE for v in free_vars(i.binding)}
    for i, image in images:
        if i.kind is IterKind.REDUCE and not image.once:
            what = f"binding {i.binding} of {i.var.name!r} takes values twice: they count twice"
            yield Finding(where, what, nest.shown)
    positions = [k for k, loop in enumerate(nest.loops) if loop.var in reduced]
    first = min(positions, default=len(nest.loops))
    free = shared_with_init(nest, nests) if block.init is None else first
    if any(n is not nest and gives(n, block.body.buffer, True) and shared_loops(nest, n) > first for n in nests):
        yield Finding(where, f"{block.body.buffer.name!r} is initialised again inside the reduction", nest.shown)
        return
    if not (block.init is not None or _has_first_values(nest, nests)):
        what = f"adds to elements of {block.body.buffer.name!r} to which no block is proved to give a first value"
        yield Finding(where, what, nest.shown)
    for what in _lost(nest, nests, whole):
        yield Finding(where, what, nest.shown)
    for k, loop in enumerate(nest.loops):
        if k < free or loop.var in reduced or (isinstance(loop.extent, Const) and loop.extent.value == 1):
            continue
        if not tells(store_keys(nest, k, reduced)):
            what = f"iterations of loop {loop.var.name!r} count the same points into one element"
            yield Finding(where, f"{what} of {block.body.buffer.name!r}", nest.shown)


def _has_first_values(nest: Nest, nests: Sequence[Nest]) -> bool:
    """Whether blocks give first values to the elements that one without an init adds to: by what they say of
    themselves, or, where they say it in another way, by proof."""
    givers = [n for n in nests if starts(n, nest)]
    before = [n for n in givers if nests.index(n) < nests.index(nest)]
    return any(same_domain(n, nest) for n in givers) or (bool(before) and given(nest, before))


def _lost(nest: Nest, nests: Sequence[Nest], whole: bool) -> Iterator[str]:
    """Blocks that store over what a block adds up."""
    buffer = nest.block.body.buffer.name
    again = wiped(nest, nests)
    if again is not None:
        what = f"block {again.block.name!r} may initialise again what other iterations of the loops around both"
        yield f"{what} collected in {buffer!r}"
    over = overwritten(nest, nests, whole)
    if over is not None:
        what = f"block {over.block.name!r} overwrites what was added up in {buffer!r}"
        yield what if whole else f"{what}, which is not proved to be all read before"


def _initialised(boxes: Iterable[Box]) -> Iterator[Box]:
    """What the inits inside accumulating blocks store, as blocks of their own that accumulate nothing."""
    for nest, images in boxes:
        init = nest.block.init
        spatial, reduced = (tuple(p for p in images if p[0].kind is kind) for kind in IterKind)
        if init is not None and all(at_most(image.offset, const(0)) for _, image in reduced):
            alone = replace(nest.block, body=init, init=None)
            yield Nest(alone, nest.loops, nest.bindings, nest.known), spatial


def _groups(boxes: Iterable[Box]) -> dict[object, list[Box]]:
    """Blocks that may be parts of one."""
    found: dict[object, list[Box]] = {}
    for nest, images in boxes:
        if images:
            found.setdefault(kinship(nest, [i for i, _ in images]), []).append((nest, images))
    return found


@dataclass(frozen=True, slots=True)
class _Joint:
    """A box that some blocks, its parts, reach together; `nest` stands for them."""

    nest: Nest
    images: tuple[Placed, ...]
    parts: tuple[Nest, ...]


def _uncovered(
    group: Sequence[_Joint], helpers: Sequence[Box], nests: Sequence[Nest]
) -> Iterator[tuple[Nest, Finding]]:
    """What the blocks of a group miss; `helpers` store there too."""
    for joint in group:
        yield from _disturbed(joint, nests)
    left = [x for x in group if not _covers(x.images)]
    rest = [x for x in left if not _empty((x.nest, x.images))]
    left = rest if rest or len(left) < len(group) else left
    left = [*left, *(_Joint(nest, images, ()) for nest, images in helpers)] if left else left
    while (found := _next_joint(left)) is not None:
        a, b, together = found
        left = [x for x in left if x is not a and x is not b] + [together]
        if _adds_up(a.images, together.images):
            yield from _disturbed(together, nests)
        elif not all(image.once for _, image in together.images):
            yield from _added_again([x for x in (a, b) if x.parts], nests)
    yield from _added_again([x for x in (*group, *left) if x.parts and _covers(x.images)], nests)
    for x in left:
        for i, image in x.images:
            if x.parts and not full(image, i.extent):
                low, high = image.offset, image.offset + image.size - 1
                what = f"binding {i.binding} of {i.var.name!r} covers {low}..{high}, expected 0..{i.extent - 1}"
                yield x.parts[0], Finding(f"block {x.nest.block.name!r}", what, x.nest.shown)


def _next_joint(left: Sequence[_Joint]) -> tuple[_Joint, _Joint, _Joint] | None:
    """Two boxes that are one, and that one; parts of a reduction first, as then they are of the same elements."""
    best: tuple[_Joint, _Joint, _Joint] | None = None
    for a in left:
        for b in left:
            images = None if a is b else joined(a.images, b.images)
            if images is None:
                continue
            best = (a, b, _Joint(a.nest if a.parts else b.nest, images, a.parts + b.parts))
            if _adds_up(a.images, images):
                return best
    return best


def _adds_up(part: Sequence[Placed], whole: Sequence[Placed]) -> bool:
    """Whether a part has less of a reduction than the whole."""
    pairs = zip(part, whole, strict=True)
    return any(x is not y and i.kind is IterKind.REDUCE for (i, x), (_, y) in pairs)


def _disturbed(joint: _Joint, nests: Sequence[Nest]) -> Iterator[tuple[Nest, Finding]]:
    """Why parts of a reduction do not add up, although together they reach all of it."""
    parts = [n for n in nests if n in joint.parts]
    if len(parts) > 1 and accumulated(parts[0].block.body) is not None and not all(_sums_alone(n) for n in parts):
        twice = next((i for i, image in joint.images if i.kind is IterKind.REDUCE and not image.once), None)
        reason = disturbance(parts, nests)
        if twice is not None and reason is None:
            reason = f"parts of a reduction overlap: some values of {twice.var.name!r} count twice"
        if reason is not None:
            yield parts[0], Finding(f"block {parts[0].block.name!r}", reason, parts[0].shown)


def _added_again(sums: Sequence[_Joint], nests: Sequence[Nest]) -> Iterator[tuple[Nest, Finding]]:
    """Reductions that are added to what holds the sum already."""
    ordered = [[n for n in nests if n in x.parts] for x in dict.fromkeys(sums)]
    for first in ordered:
        for then in ordered:
            buffer = then[0].block.body.buffer
            if accumulated(then[0].block.body) is None or nests.index(first[0]) >= nests.index(then[0]):
                continue
            between = nests[nests.index(first[-1]) + 1 : nests.index(then[0]) + 1]
            left = [n for n in then if not begun(n, between)]
            if not all(elements_apart(a, b, shared_with_init(b, nests)) for a in first for b in left):
                what = f"adds the same points to elements of {buffer.name!r} as block {first[0].block.name!r}"
                yield then[0], Finding(f"block {then[0].block.name!r}", what, then[0].shown)


def _sums_alone(nest: Nest) -> bool:
    """Whether a block reaches its whole reduction by itself."""
    try:
        return _covers(images_of(nest, False))
    except UnclearError:
        return False


def _empty(box: Box) -> bool:
    """Whether the predicate leaves nothing of a block."""
    return any(at_most(image.size, const(0), box[0].known) for _, image in box[1])


def _covers(images: Sequence[Placed]) -> bool:
    return all(full(image, i.extent) for i, image in images)
