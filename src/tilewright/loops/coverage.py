"""Coverage: the blocks that write a parameter reach every point of their domains, and reductions count each point once.

What a block reaches says `images.py`. Blocks that were peeled apart (equal stores, adjacent images) are put together
again. Of blocks that write internal buffers only the reductions are checked: such a buffer holds what its readers need,
which may be less than the domain or some of it several times.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from tilewright.expr.nodes import Const, Expr, Load, const, free_vars, loads
from tilewright.expr.prover import at_most
from tilewright.loops.images import Image, Images, Placed, UnclearError
from tilewright.loops.interpret import accumulated
from tilewright.loops.ir import Func, IterKind, Store
from tilewright.loops.nest import Finding, Nest
from tilewright.loops.races import keys, tells
from tilewright.loops.siblings import Box, Reached, joined, kinship, reach


def findings(func: Func, nests: Sequence[Nest]) -> Iterator[Finding]:
    """What is not covered, or counted twice."""
    whole = [n for n in nests if n.block.body.buffer in func.params]
    others = [n for n in nests if n.block.body.buffer not in func.params]
    for some, all_variables in ((whole, True), (others, False)):
        reached = reach(some, all_variables)
        for nest in some:
            yield from _counted(nest, reached, nests)
        boxes = list(dict.fromkeys(reached.boxes.values()))
        first = _groups(_initialised(boxes) if all_variables else ())
        for key, group in _groups(boxes).items():
            yield from _uncovered(group, first.get(key, ()))


def reached_once(nest: Nest) -> Iterator[Finding]:
    """What a block, alone, misses of its domain or reaches more than once; loops that drive no variable don't count."""
    where = f"block {nest.block.name!r}"
    try:
        images = Images(nest, True).all()
    except UnclearError as reason:
        yield Finding(where, str(reason), nest.shown)
        return
    for i, image in images:
        if not (_full(image, i.extent) and image.once):
            low, high = image.offset, image.offset + image.size - 1
            times = "" if image.once else ", some several times"
            what = f"binding {i.binding} of {i.var.name!r} covers {low}..{high}{times}, expected 0..{i.extent - 1} once"
            yield Finding(where, what, nest.shown)


def counted_once(nests: Sequence[Nest], names: Collection[str]) -> Iterator[Finding]:
    """What some blocks count twice, by name; `nests` are all those of the function."""
    some = [n for n in nests if n.block.name in names]
    reached = reach(some, False)
    for nest in some:
        yield from _counted(nest, reached, nests)


def _counted(nest: Nest, reached: Reached, nests: Sequence[Nest]) -> Iterator[Finding]:
    reason = reached.unclear.get(nest)
    if reason is not None:
        yield Finding(f"block {nest.block.name!r}", reason, nest.shown)
    elif nest in reached.boxes:
        yield from _counted_once(nest, reached.boxes[nest][1], nests)


def _counted_once(nest: Nest, images: Sequence[Placed], nests: Sequence[Nest]) -> Iterator[Finding]:
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
    free = first
    if block.init is None:
        free = _shared_with_init(nest, nests)
        if free > first:
            yield Finding(where, f"{block.body.buffer.name!r} is initialised again inside the reduction", nest.shown)
            return
    indices = tuple(nest.bound(i) for i in block.body.indices)
    for k, loop in enumerate(nest.loops):
        if k < free or loop.var in reduced or (isinstance(loop.extent, Const) and loop.extent.value == 1):
            continue
        moving = {x.var for x in nest.loops[k:] if x.var not in reduced}
        if not tells(keys(indices, loop, moving, nest.known)):
            what = f"iterations of loop {loop.var.name!r} count the same points into one element"
            yield Finding(where, f"{what} of {block.body.buffer.name!r}", nest.shown)


def _shared_with_init(nest: Nest, nests: Sequence[Nest]) -> int:
    """How many loops the block shares with the one before it that gave its buffer a first value."""
    buffer = nest.block.body.buffer
    best = 0
    for other in nests:
        if other is nest:
            break
        gives = other.block.init is not None or not _updates(other.block.body)
        if gives and other.block.body.buffer == buffer:
            pairs = zip(nest.loops, other.loops, strict=False)
            best = next((k for k, (a, b) in enumerate(pairs) if a is not b), min(len(nest.loops), len(other.loops)))
    return best


def _updates(store: Store) -> bool:
    """Whether what a store leaves in its element depends on what was in it."""
    return Load(store.buffer, store.indices) in loads(store.value)


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


def _uncovered(group: Sequence[Box], helpers: Sequence[Box]) -> Iterator[Finding]:
    """What the blocks of a group miss; `helpers` store there too."""
    left = [(nest, images) for nest, images in group if not _covers(images)]
    rest = [box for box in left if not _empty(box)]
    left = rest if rest or len(left) < len(group) else left
    left = left + list(helpers) if left else left
    silent = {id(nest) for nest, _ in helpers}
    while True:
        pairs = ((a, b, joined(a[1], b[1])) for a in left for b in left if a is not b)
        found = next(((a, b, joined) for a, b, joined in pairs if joined is not None), None)
        if found is None:
            break
        name = min(found[0][0], found[1][0], key=lambda nest: id(nest) in silent)
        left = [p for p in left if p is not found[0] and p is not found[1]] + [(name, found[2])]
    for nest, images in (box for box in left if id(box[0]) not in silent):
        for i, image in images:
            if not _full(image, i.extent):
                low, high = image.offset, image.offset + image.size - 1
                what = f"binding {i.binding} of {i.var.name!r} covers {low}..{high}, expected 0..{i.extent - 1}"
                yield Finding(f"block {nest.block.name!r}", what, nest.shown)


def _empty(box: Box) -> bool:
    """Whether the predicate leaves nothing of a block."""
    return any(at_most(image.size, const(0), box[0].known) for _, image in box[1])


def _covers(images: Sequence[Placed]) -> bool:
    return all(_full(image, i.extent) for i, image in images)


def _full(image: Image, extent: Expr) -> bool:
    return at_most(image.offset, const(0)) and at_most(extent, image.offset + image.size)
