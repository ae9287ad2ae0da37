"""The elements that blocks store as boxes, and whether those of one block are among those of others."""

from collections.abc import Iterator, Sequence

from tilewright.expr.bounds import Bounds
from tilewright.expr.nodes import Expr, Var, conjuncts, const, free_vars, loads, minimum
from tilewright.expr.prover import at_most
from tilewright.loops.elements import equal_combs, placed
from tilewright.loops.images import Images, UnclearError, images_of
from tilewright.loops.interpret import accumulated
from tilewright.loops.ir import IterKind
from tilewright.loops.nest import Nest
from tilewright.loops.siblings import shared_loops

_Ranges = list[tuple[Expr, Expr]]
"""(first, end) along every axis."""


def given(nest: Nest, others: Sequence[Nest]) -> bool:
    """Whether all elements that a block stores in an iteration of the loops that it shares with some others are proved
    to be among those that they store in it, together."""
    if any(_within(nest, n, shared_loops(nest, n)) for n in others):
        return True
    shared = min(shared_loops(nest, n) for n in others)
    mine, boxes = _ranges(nest, shared), [_ranges(n, shared) for n in others if _runs(n, shared)]
    if mine is None or len(boxes) < 2:
        return False
    known = Bounds.inside((x.var, x.extent) for x in nest.loops[:shared])
    left = [ranges for ranges, needed in filter(None, boxes) if all(c in mine[1] for c in needed)]
    while (found := next(_unions(left, known), None)) is not None:
        a, b, together = found
        left = [*(x for x in left if x is not a and x is not b), together]
    return any(_inside(mine[0], x, known) for x in left)


def _unions(boxes: Sequence[_Ranges], known: Bounds) -> Iterator[tuple[_Ranges, _Ranges, _Ranges]]:
    """Two boxes that differ along one axis, along which one goes on where the other ends; and both as one."""
    for a in boxes:
        for b in boxes:
            axes = [d for d, (x, y) in enumerate(zip(a, b, strict=True)) if x != y]
            if a is b or len(axes) != 1:
                continue
            d = axes[0]
            (start, end), (then, last) = a[d], b[d]
            if all(at_most(x, y, known) for x, y in ((start, then), (then, end), (end, last))):
                yield a, b, [*a[:d], (start, last), *a[d + 1 :]]


def _within(a: Nest, b: Nest, shared: int) -> bool:
    """Whether all elements that a block stores in an iteration of the shared loops another one is proved to store in
    it too."""
    if not _runs(b, shared):
        return placed(a, b, shared)
    one, other = _ranges(a, shared), _ranges(b, shared)
    if one is None or other is None:
        return equal_combs(a, b, shared) or placed(a, b, shared)
    (mine, run), (theirs, needed) = one, other
    if any(c not in run for c in needed):
        return False
    return _inside(mine, theirs, Bounds.inside((x.var, x.extent) for x in a.loops[:shared]))


def _inside(a: _Ranges, b: _Ranges, known: Bounds) -> bool:
    """Whether a box is proved to lie in another one."""
    pairs = zip(a, b, strict=True)
    return all(at_most(y, x, known) and at_most(end, last, known) for (x, end), (y, last) in pairs)


def _ranges(nest: Nest, shared: int) -> tuple[_Ranges, list[Expr]] | None:
    """(first, end) of the elements along every axis, which together are a box, while the innermost loops run; and the
    conditions on the others. None where that is not understood."""
    try:
        images = Images.of(nest, True, shared)
        boxes = {i.var: image for i, image in images.all()}
    except UnclearError:
        return None
    if any(images.iters[place].kind is IterKind.REDUCE for place in images.limits):
        return None
    ends = {v: image.offset + image.size for v, image in boxes.items()}
    for place, limit in images.limits.items():
        v = images.iters[place].var
        ends[v] = minimum(ends[v], limit)
    own = {x.var for x in nest.loops[shared:]}
    used: list[Var] = []
    found: _Ranges = []
    for index in nest.block.body.indices:
        names = [v for v in free_vars(index) if v in boxes]
        used += names
        rest = index - names[0] if len(names) == 1 else index
        if loads(rest) or any(v in own or v in boxes for v in free_vars(rest)):
            return None
        found.append((boxes[names[0]].offset + rest, ends[names[0]] + rest) if names else (rest, rest + 1))
    return (found, images.kept) if len(used) == len(set(used)) else None


def _runs(nest: Nest, shared: int) -> bool:
    """Whether the loops and conditions that a block has beside those that drive its elements leave none of these out.
    A sum collects in an element also where it has no points."""
    block, known = nest.block, Bounds.inside((x.var, x.extent) for x in nest.loops[:shared])
    told = {v for e in block.body.indices for v in free_vars(e)}
    sums = accumulated(block.body) is not None
    counted = [i for i in block.iters if i.var in told or (sums and i.kind is IterKind.REDUCE)]
    driving = told.union(*(free_vars(i.binding) for i in counted))
    beside = {x.var: x.extent for x in nest.loops[shared:] if x.var not in driving}
    if any(free_vars(c) & beside.keys() for c in conjuncts(block.predicate)):
        return False
    return all(at_most(const(1), n, known) for n in beside.values())


def begins(nest: Nest) -> bool:
    """Whether a block that stores a first value before the first point of its reduction has that point, or no point."""
    try:
        images = images_of(nest, False)
    except UnclearError:
        return False
    return all(at_most(image.offset, const(0)) for i, image in images if i.kind is IterKind.REDUCE)


def not_empty(nest: Nest, known: Bounds) -> bool:
    """Whether a block is proved to have a part of its reduction."""
    try:
        return all(at_most(const(1), image.size, known) for _, image in images_of(nest, False))
    except UnclearError:
        return False
