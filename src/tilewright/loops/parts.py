"""Parts of one reduction: what must not happen between them, so that together they are the sum that one block was."""

from collections.abc import Iterator, Sequence

from tilewright.expr.bounds import Bounds
from tilewright.expr.buffer import Buffer
from tilewright.expr.nodes import Expr, Load, Var, free_vars, loads
from tilewright.expr.prover import at_most
from tilewright.expr.simplify import substitute
from tilewright.loops.access import accesses
from tilewright.loops.images import Images, UnclearError
from tilewright.loops.ir import IterKind, Store
from tilewright.loops.nest import Nest
from tilewright.loops.races import keys, tells
from tilewright.loops.siblings import seam, shared_loops


def disturbance(parts: Sequence[Nest], nests: Sequence[Nest]) -> str | None:
    """Why parts of a reduction, in the order of the program, do not add up to one; None where they do.

    They must collect in the same elements; only the first may give them a first value; and of the other blocks, those
    between the parts must leave the buffer alone, but for those inside a loop of the reduction that adjust or use what
    there is so far.
    """
    buffer = parts[0].block.body.buffer
    names = ", ".join(repr(n.block.name) for n in parts[:-1]) + f" and {parts[-1].block.name!r}"
    for k, one in enumerate(parts):
        if not all(_same_elements(one, other) for other in parts[k + 1 :]):
            return f"parts of a reduction, {names}, are not proved to collect in the same elements of {buffer.name!r}"
    for k, part in enumerate(parts):
        for earlier in parts[:k] if part.block.init is not None else ():
            if not _begins_where_empty(earlier, part):
                before = f"another part of the reduction, {earlier.block.name!r}"
                return f"block {part.block.name!r} initialises {buffer.name!r} after {before}"
    for nest in _between(parts, nests):
        touched = [a for a in accesses(nest.block) if a.buffer == buffer]
        if gives(nest, buffer, True) or (touched and not running(nest, parts)):
            verb = "overwrites" if any(a.write for a in touched) else "reads"
            return f"block {nest.block.name!r} {verb} {buffer.name!r} between parts of a reduction, {names}"
    return None


def updates(store: Store) -> bool:
    """Whether what a store leaves in its element depends on what was in it."""
    return Load(store.buffer, store.indices) in loads(store.value)


def gives(nest: Nest, buffer: Buffer, only: bool = False) -> bool:
    """Whether a block stores values in a buffer that do not depend on what was there; `only`: and does nothing else."""
    if nest.block.body.buffer != buffer:
        return False
    return not updates(nest.block.body) or (nest.block.init is not None and not only)


def running(nest: Nest, parts: Sequence[Nest]) -> bool:
    """Whether a block is inside a loop of the reduction: then it may use what there is so far."""
    for part in parts:
        reduced = {v for i in part.block.iters if i.kind is IterKind.REDUCE for v in free_vars(i.binding)}
        if any(x is y and x.var in reduced for x, y in zip(nest.loops, part.loops, strict=False)):
            return True
    return False


def same_domain(giver: Nest, nest: Nest) -> bool:
    """Whether a block stores, by what it says of itself, the elements that another one collects in."""

    def elements(n: Nest) -> object:
        spatial = [i for i in n.block.iters if i.kind is IterKind.SPATIAL]
        names: dict[Var, Expr] = {i.var: Var(f"#{k}") for k, i in enumerate(spatial)}
        loops = {loop.var for loop in n.loops}
        indices = (substitute(i, names) for i in n.block.body.indices)
        return [i.extent for i in spatial], [i for i in indices if not free_vars(i) & loops]

    return elements(giver) == elements(nest)


def _same_elements(a: Nest, b: Nest) -> bool:
    """Whether two parts are proved to store the same elements in every iteration of the loops that they share."""
    shared = shared_loops(a, b)
    try:
        one, other = Images(a, True, shared), Images(b, True, shared)
        pairs = zip(one.all(), other.all(), strict=True)
        same = all(x.offset is y.offset and x.size is y.size for (i, x), (_, y) in pairs if i.kind is IterKind.SPATIAL)
    except UnclearError:
        return seam(a, b, shared) is not None or seam(b, a, shared) is not None
    return same and one.kept == other.kept and one.limits == other.limits


def elements_apart(a: Nest, b: Nest, free: int) -> bool:
    """Whether two blocks are proved to store different elements, also in different iterations of the loops that both
    share, but for the outermost `free` ones."""
    shared = shared_loops(a, b)
    free = min(free, shared)
    indices = [tuple(n.bound(i) for i in n.block.body.indices) for n in (a, b)]
    for k, loop in enumerate(a.loops[free:shared], free):
        moving = [frozenset(x.var for x in n.loops[k:]) for n in (a, b)]
        common = [keys(e, loop.var, loop.extent, m, n.known) for n, e, m in zip((a, b), indices, moving, strict=True)]
        if not tells(common[0] & common[1]):
            return False
    known = Bounds.inside((loop.var, loop.extent) for loop in a.loops[:shared])
    try:
        pairs = list(zip(Images(a, True, shared).all(), Images(b, True, shared).all(), strict=True))
    except UnclearError:
        return False
    return any(
        at_most(x.offset + x.size, y.offset, known) or at_most(y.offset + y.size, x.offset, known)
        for (i, x), (_, y) in pairs
        if i.kind is IterKind.SPATIAL and i.var in a.block.body.indices
    )


def _begins_where_empty(earlier: Nest, part: Nest) -> bool:
    """Whether the first point of the reduction is proved to be none of a part's unless an earlier part is empty."""
    try:
        pairs = zip(Images(earlier, False).all(), Images(part, False).all(), strict=True)
        return any(at_most(x.offset + x.size, y.offset) for (_, x), (_, y) in pairs)
    except UnclearError:
        return False


def _between(parts: Sequence[Nest], nests: Sequence[Nest]) -> Iterator[Nest]:
    """The other blocks that run after one part and before another."""
    places = [k for k, nest in enumerate(nests) if nest in parts]
    yield from (nest for nest in nests[places[0] : places[-1]] if nest not in parts)
