"""Blocks that give the elements of an accumulator their first values, and what they do in loops around the sum."""

from collections.abc import Iterator, Sequence

from tilewright.expr.bounds import Bounds
from tilewright.expr.buffer import Buffer
from tilewright.expr.nodes import Const, Expr, Load, Var, free_vars, loads, minimum
from tilewright.expr.prover import at_most
from tilewright.loops.elements import elements_apart, equal_combs
from tilewright.loops.images import Images, UnclearError
from tilewright.loops.ir import For, IterKind, Store
from tilewright.loops.nest import Nest
from tilewright.loops.races import store_keys, tells
from tilewright.loops.siblings import shared_loops


def updates(store: Store) -> bool:
    """Whether what a store leaves in its element depends on what was in it."""
    return Load(store.buffer, store.indices) in loads(store.value)


def gives(nest: Nest, buffer: Buffer, only: bool = False) -> bool:
    """Whether a block stores values in a buffer that do not depend on what was there; `only`: and does nothing else."""
    if nest.block.body.buffer != buffer:
        return False
    return not updates(nest.block.body) or (nest.block.init is not None and not only)


def shared_with_init(nest: Nest, nests: Sequence[Nest]) -> int:
    """How many loops a block shares with whatever gives the elements that it adds to their first values: in every
    iteration of these, all of them begin anew.

    The last giver tells if it is proved to give them all; else those before it may have given some.
    """
    free: int | None = None
    for giver in _givers(nest, nests[: nests.index(nest)]):
        shared = shared_loops(nest, giver)
        if elements_apart(giver, nest, 0):
            continue
        free = shared if free is None else min(free, shared)
        if _within(nest, giver, shared):
            break
    return free or 0


def wiped(nest: Nest, nests: Sequence[Nest]) -> Nest | None:
    """A block that shares loops with one that accumulates and may there give first values to what another of their
    iterations collected; None where there is none. What inits inside of parts do is another question."""
    buffer = nest.block.body.buffer
    return next((n for n in _givers(nest, nests) if gives(n, buffer, True) and not _spares(n, nest)), None)


def _givers(nest: Nest, nests: Sequence[Nest]) -> Iterator[Nest]:
    """The blocks that give values to the buffer that another one adds to; the last first."""
    return (n for n in reversed(nests) if n is not nest and gives(n, nest.block.body.buffer))


def _spares(giver: Nest, nest: Nest) -> bool:
    """Whether what a giver stores in an iteration of the shared loops is only what that iteration collects in, or what
    every iteration does."""
    shared = shared_loops(giver, nest)
    if all(_told_or_unmoved(k, giver, nest) for k in range(shared)):
        return True
    return _within(giver, nest, shared) or elements_apart(giver, nest, 0)


def _told_or_unmoved(k: int, a: Nest, b: Nest) -> bool:
    """Whether elements tell the iteration of the k-th loop alike in two blocks, or are the same in all of them."""
    loop = a.loops[k]
    if isinstance(loop.extent, Const) and loop.extent.value <= 1:
        return True
    if not _moves(loop, a) and not _moves(loop, b):
        return True
    return tells(store_keys(a, k) & store_keys(b, k))


def _moves(loop: For, nest: Nest) -> bool:
    """Whether other iterations of a loop may store other elements."""
    said = [*(nest.bound(i) for i in nest.block.body.indices), nest.block.predicate, *(x.extent for x in nest.loops)]
    return any(loop.var in free_vars(e) or loads(e) for e in said)


def _within(a: Nest, b: Nest, shared: int) -> bool:
    """Whether all elements that a block stores in an iteration of the shared loops another one is proved to store in
    it too."""
    one, other = _ranges(a, shared), _ranges(b, shared)
    if one is None or other is None:
        return equal_combs(a, b, shared)
    (mine, run), (theirs, needed) = one, other
    if any(c not in run for c in needed):
        return False
    known = Bounds.inside((x.var, x.extent) for x in a.loops[:shared])
    pairs = zip(mine, theirs, strict=True)
    return all(at_most(y, x, known) and at_most(end, last, known) for (x, end), (y, last) in pairs)


def _ranges(nest: Nest, shared: int) -> tuple[list[tuple[Expr, Expr]], list[Expr]] | None:
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
    found: list[tuple[Expr, Expr]] = []
    for index in nest.block.body.indices:
        names = [v for v in free_vars(index) if v in boxes]
        used += names
        rest = index - names[0] if len(names) == 1 else index
        if loads(rest) or any(v in own or v in boxes for v in free_vars(rest)):
            return None
        found.append((boxes[names[0]].offset + rest, ends[names[0]] + rest) if names else (rest, rest + 1))
    return (found, images.kept) if len(used) == len(set(used)) else None
