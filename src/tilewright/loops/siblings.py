"""Blocks that were cut apart inside loops that they share: seen together they reach what neither does by itself.

for io in serial(N // 8):                           for io in serial(N // 8):
    for a in serial(2):                                 for u in serial(8):
        for b in serial(3):                   as            block B(v = io*8 + u)
            block B(v = io*8 + a*3 + b)
    for r in serial(2):
        block B_2(v_2 = io*8 + 6 + r)
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.expr.bounds import Bounds
from tilewright.expr.nodes import Const, Expr, Var, both, conjuncts, const, free_vars, minimum
from tilewright.expr.prover import at_most, prove
from tilewright.expr.simplify import substitute
from tilewright.loops.images import Image, Images, Placed, UnclearError, images_of
from tilewright.loops.interpret import accumulated
from tilewright.loops.ir import Block, BlockIter, For, IterKind, LoopKind
from tilewright.loops.nest import Nest

Box = tuple[Nest, tuple[Placed, ...]]


@dataclass(frozen=True, slots=True)
class Reached:
    """What blocks reach.

    Attributes:
        boxes: by block, the images of its variables; several that were put together have one box.
        unclear: why the images of the others are not understood.
    """

    boxes: dict[Nest, Box]
    unclear: dict[Nest, str]

    def parts(self, box: Box) -> tuple[Nest, ...]:
        """The blocks that have a box."""
        return tuple(nest for nest, found in self.boxes.items() if found[0] is box[0])


def reach(nests: Sequence[Nest], whole: bool) -> Reached:
    """What blocks reach; `whole` as of `Images`."""
    boxes: dict[Nest, Box] = {}
    unclear: dict[Nest, str] = {}
    for nest in nests:
        found = _images(nest, whole)
        if isinstance(found, str):
            unclear[nest] = found
        else:
            boxes[nest] = (nest, found)
    # What stands for several: the nest that they were put together to, with them.
    left: list[_Standing] = [(n, [n]) for n in nests] if unclear else []
    while (pair := next(_pairs(left, unclear, whole), None)) is not None:
        (a, parts), (b, others), together = pair
        left = [*(x for x in left if x[0] is not a and x[0] is not b), (together, parts + others)]
        found = _images(together, whole)
        if isinstance(found, str):
            continue
        for part in parts + others:
            boxes[part] = (together, found)
            unclear.pop(part, None)
    return Reached(boxes, unclear)


def _images(nest: Nest, whole: bool) -> tuple[Placed, ...] | str:
    try:
        return images_of(nest, whole)
    except UnclearError as reason:
        return str(reason)


_Standing = tuple[Nest, list[Nest]]


def _pairs(
    left: Sequence[_Standing], unclear: Collection[Nest], whole: bool
) -> Iterator[tuple[_Standing, _Standing, Nest]]:
    """What can be put together so that something unclear may become clear, in the innermost loops first."""
    kin = [(x, kinship(x[0], [i for i in x[0].block.iters if whole or i.kind is IterKind.REDUCE])) for x in left]
    pairs = [(x, y) for k, (x, one) in enumerate(kin) for y, other in kin[k + 1 :] if one == other]
    pairs = [(x, y) for x, y in pairs if any(n in unclear for n in x[1] + y[1])]
    for x, y in sorted(pairs, key=lambda p: -shared_loops(p[0][0], p[1][0])):
        together = _together(x[0], y[0], whole)
        if together is not None:
            yield x, y, together


def kinship(nest: Nest, iters: Sequence[BlockIter]) -> object:
    """Equal for blocks that may be parts of one: the same store over the same domain, up to the names of variables.

    Sums and products, say, of the same elements are none.
    """
    names: dict[Var, Expr] = {i.var: Var(f"#{k}") for k, i in enumerate(nest.block.iters)}
    loops = {loop.var for loop in nest.loops}
    body = nest.block.body
    # Indices relative to loops differ between parts; the others tell whether it is one computation.
    indices = tuple(i for i in (substitute(i, names) for i in body.indices) if not free_vars(i) & loops)
    term = accumulated(body)
    return body.buffer, indices, tuple((i.kind, i.extent) for i in iters), term and term[0]


def shared_loops(a: Nest, b: Nest) -> int:
    """How many loops, from the outermost on, both are in."""
    pairs = zip(a.loops, b.loops, strict=False)
    return next((k for k, (x, y) in enumerate(pairs) if x is not y), min(len(a.loops), len(b.loops)))


def seam(a: Nest, b: Nest, shared: int) -> Nest | None:
    """The block before `peel` cut a loop in two of which `a` has the first iterations; None where it did not."""
    mine, other = a.loops[shared:], b.loops[shared:]
    if not mine or len(mine) != len(other):
        return None
    first, rest = mine[0], other[0]
    whole = first.extent + rest.extent
    old: dict[Var, Expr] = {rest.var: first.var - first.extent}
    for x, y in zip(mine[1:], other[1:], strict=True):
        if substitute(y.extent, old) is not substitute(x.extent, {}):
            return None
        old[y.var] = x.var
    if any(substitute(j.binding, old) is not i.binding for i, j in zip(a.block.iters, b.block.iters, strict=True)):
        return None
    old.update({j.var: i.var for i, j in zip(a.block.iters, b.block.iters, strict=True)})
    indices = zip(a.block.body.indices, b.block.body.indices, strict=True)
    if any(substitute(j, old) is not substitute(i, {}) for i, j in indices):
        return None
    here, there = (conjuncts(e) for e in (a.block.predicate, substitute(b.block.predicate, old)))
    new: dict[Var, Expr] = {x.var: y.var for x, y in zip(mine, other, strict=True)}
    new[first.var] = rest.var + first.extent
    # A condition of one part alone goes without saying in the other.
    if not all(prove(c, a.known) for c in there if c not in here):
        return None
    if not all(prove(substitute(c, new), b.known) for c in here if c not in there):
        return None
    loops = (*a.loops[:shared], replace(first, extent=whole), *mine[1:])
    return Nest.of(replace(a.block, predicate=both(*dict.fromkeys((*here, *there)))), loops)


def _together(a: Nest, b: Nest, whole: bool) -> Nest | None:
    """A block in the loops that both share that reaches there what they do; None where that is no box."""
    shared = shared_loops(a, b)
    whole_again = seam(a, b, shared) or seam(b, a, shared)
    if whole_again is not None:
        return whole_again
    try:
        one, other = Images.of(a, whole, shared), Images.of(b, whole, shared)
        pair = one.all(), other.all()
    except UnclearError:
        return None
    if not shared or one.kept != other.kept:
        return None
    known = Nest.of(Block("", (), a.block.body, None, both(*one.kept)), a.loops[:shared]).known
    limits = one.limits | other.limits
    if not (_heeds(pair[0], one.limits, limits, known) and _heeds(pair[1], other.limits, limits, known)):
        return None
    for i, image in (*pair[0], *pair[1]):
        if not at_most(const(0), image.size, known) or (i.kind is IterKind.REDUCE and not image.once):
            return None
    box = joined(*pair) or joined(pair[1], pair[0])
    if box is None or _adds_twice(a.block, b.block, box):
        return None
    loops = list(a.loops[:shared])
    iters: list[BlockIter] = []
    conditions = list(one.kept)
    for place, (i, image) in enumerate(box):
        binding = image.offset
        if not (isinstance(image.size, Const) and image.size.value == 1):
            loops.append(For(Var(f"@{len(loops)}"), image.size, LoopKind.SERIAL, a.block))
            binding = binding + loops[-1].var
        iters.append(replace(i, binding=binding))
        if place in limits:
            conditions.append(binding < limits[place])
    return Nest.of(replace(a.block, iters=tuple(iters), predicate=both(*conditions)), tuple(loops))


def _heeds(box: Sequence[Placed], own: Mapping[int, Expr], limits: Mapping[int, Expr], known: Bounds) -> bool:
    """Whether a block that states some limits of a box keeps to the others without saying so."""
    ends = {place: image.offset + image.size for place, (_, image) in enumerate(box)}
    return all(own.get(k) is n or (k not in own and at_most(ends[k], n, known)) for k, n in limits.items())


def _adds_twice(a: Block, b: Block, box: Sequence[Placed]) -> bool:
    """Whether blocks that reach some elements both may both add to what these hold."""
    fresh = a.init is not None and b.init is not None
    return accumulated(a.body) is not None and not fresh and not all(image.once for _, image in box)


def joined(a: Sequence[Placed], b: Sequence[Placed]) -> tuple[Placed, ...] | None:
    """One box out of two that are adjacent in one dimension and equal in the others."""
    pairs = [(x, y) for (_, x), (_, y) in zip(a, b, strict=True)]
    differ = [k for k, (x, y) in enumerate(pairs) if (x.offset, x.size) != (y.offset, y.size)]
    if len(differ) != 1:
        return None
    k = differ[0]
    x, y = pairs[k]
    here, there = x.offset + x.size, y.offset + y.size
    apart = here is y.offset
    if not apart:
        # Where y is empty, x must reach its end by itself.
        if not (at_most(minimum(y.offset, there), here) and at_most(here, there)):
            return None
        apart = at_most(here, y.offset)
    both_of_them = Image(x.offset, there - x.offset, x.once and y.once and apart)
    return (*a[:k], (a[k][0], both_of_them), *a[k + 1 :])
