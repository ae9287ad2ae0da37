"""Parts of one reduction: what must not happen between them, so that together they are the sum that one block was."""

from collections.abc import Iterator, Sequence

from tilewright.expr.nodes import Expr, both, const, free_vars
from tilewright.expr.prover import at_most
from tilewright.loops.access import accesses
from tilewright.loops.elements import elements_apart, same_elements
from tilewright.loops.givers import gives, shared_with_init
from tilewright.loops.images import Image, UnclearError, images_of
from tilewright.loops.ir import IterKind
from tilewright.loops.nest import Nest
from tilewright.loops.siblings import joined


def disturbance(parts: Sequence[Nest], nests: Sequence[Nest]) -> str | None:
    """Why parts of a reduction, in the order of the program, do not add up to one; None where they do.

    They must collect in the same elements; only the first may give them a first value; and of the other blocks, those
    between the parts must leave the buffer alone, but for those inside a loop of the reduction that adjust or use what
    there is so far. Or they fall apart into groups, each a whole reduction of other elements, of which this holds.
    """
    buffer = parts[0].block.body.buffer
    names = ", ".join(repr(n.block.name) for n in parts[:-1]) + f" and {parts[-1].block.name!r}"
    groups = _of_same_elements(parts)
    if len(groups) > 1:
        if not all(map(_complete, groups)) or not _all_apart(groups, nests):
            return f"parts of a reduction, {names}, are not proved to collect in the same elements of {buffer.name!r}"
        alone = ([n for n in nests if n in group or n not in parts] for group in groups)
        reasons = (disturbance(group, mine) for group, mine in zip(groups, alone, strict=True))
        return next((reason for reason in reasons if reason is not None), None)
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


def running(nest: Nest, parts: Sequence[Nest]) -> bool:
    """Whether a block is inside a loop of the reduction: then it may use what there is so far."""
    for part in parts:
        reduced = {v for i in part.block.iters if i.kind is IterKind.REDUCE for v in free_vars(i.binding)}
        if any(x is y and x.var in reduced for x, y in zip(nest.loops, part.loops, strict=False)):
            return True
    return False


def _of_same_elements(parts: Sequence[Nest]) -> list[list[Nest]]:
    """The parts in groups that are proved to collect in the same elements."""
    found: list[list[Nest]] = []
    for part in parts:
        mine = next((group for group in found if all(same_elements(x, part) for x in group)), None)
        if mine is None:
            found.append([part])
        else:
            mine.append(part)
    return found


def _complete(parts: Sequence[Nest]) -> bool:
    """Whether parts are proved to reach every point of the reduction once."""
    try:
        left = [images_of(part, False) for part in parts]
    except UnclearError:
        return False
    whole = left.pop()
    while (found := next(((x, one) for x in left if (one := joined(whole, x) or joined(x, whole))), None)) is not None:
        left.remove(found[0])
        whole = found[1]
    return not left and all(image.once and full(image, i.extent) for i, image in whole)


def full(image: Image, extent: Expr) -> bool:
    """Whether an image is a whole domain."""
    return at_most(image.offset, const(0)) and at_most(extent, image.offset + image.size)


def _all_apart(groups: Sequence[Sequence[Nest]], nests: Sequence[Nest]) -> bool:
    """Whether groups are proved to store different elements, as long as these are not given first values again."""
    free = max(len(part.loops) for group in groups for part in group)
    for first, *_ in groups:
        if first.block.init is None:
            free = min(free, shared_with_init(first, nests))
    pairs = [(a, b) for k, group in enumerate(groups) for other in groups[k + 1 :] for a in group for b in other]
    return all(elements_apart(a, b, free) for a, b in pairs)


def _begins_where_empty(earlier: Nest, part: Nest) -> bool:
    """Whether the first point of the reduction is proved to be none of a part's unless an earlier part is empty."""
    first = part.known.assuming(both(*(i.binding.equals(0) for i in part.block.iters if i.kind is IterKind.REDUCE)))
    sizes = (x.extent for x in earlier.loops if all(v.lo is not None for v in free_vars(x.extent)))
    if any(at_most(n, const(0), first) for n in sizes):
        return True
    try:
        pairs = zip(images_of(earlier, False), images_of(part, False), strict=True)
        return any(at_most(x.offset + x.size, y.offset) for (_, x), (_, y) in pairs)
    except UnclearError:
        return False


def _between(parts: Sequence[Nest], nests: Sequence[Nest]) -> Iterator[Nest]:
    """The other blocks that run after one part and before another."""
    places = [k for k, nest in enumerate(nests) if nest in parts]
    yield from (nest for nest in nests[places[0] : places[-1]] if nest not in parts)
