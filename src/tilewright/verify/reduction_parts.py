"""Parts of one reduction: what must not happen between them, so that together they are the sum that one block was."""

from collections.abc import Iterator, Sequence

from tilewright.expr.algebra.prover import can_prove_le
from tilewright.expr.nodes import Expr, Symbol, const
from tilewright.expr.operations import conjunction
from tilewright.expr.traversal import free_vars
from tilewright.loops.access import accesses
from tilewright.loops.block_context import BlockContext
from tilewright.loops.ir import IterKind
from tilewright.verify.initializers import count_loops_shared_with_init, initializes
from tilewright.verify.iter_map import IterMapError, IterRange, iter_ranges
from tilewright.verify.peeled_blocks import merge_boxes
from tilewright.verify.store_aliasing import stores_are_disjoint, stores_same_elements


def find_interference(parts: Sequence[BlockContext], nests: Sequence[BlockContext]) -> str | None:
    """Why parts of a reduction, in the order of the program, do not add up to one; None where they do.

    They must collect in the same elements; only the first may give them a first value; and of the other blocks, those
    between the parts must leave the buffer alone, but for those inside a loop of the reduction that adjust or use what
    there is so far. Or they fall apart into groups, each a whole reduction of other elements, of which this holds.
    """
    buffer = parts[0].block.body.buffer
    names = ", ".join(repr(n.block.name) for n in parts[:-1]) + f" and {parts[-1].block.name!r}"
    groups = _group_by_elements(parts)
    if len(groups) > 1:
        if not all(map(_is_complete, groups)) or not _are_disjoint(groups, nests):
            return f"parts of a reduction, {names}, are not proved to collect in the same elements of {buffer.name!r}"
        alone = ([n for n in nests if n in group or n not in parts] for group in groups)
        reasons = (find_interference(group, mine) for group, mine in zip(groups, alone, strict=True))
        return next((reason for reason in reasons if reason is not None), None)
    for k, part in enumerate(parts):
        for earlier in parts[:k] if part.block.init is not None else ():
            if not _starts_only_where_empty(earlier, part):
                before = f"another part of the reduction, {earlier.block.name!r}"
                return f"block {part.block.name!r} initialises {buffer.name!r} after {before}"
    for nest in _blocks_between(parts, nests):
        touched = [a for a in accesses(nest.block) if a.buffer == buffer]
        if initializes(nest, buffer, True) or (touched and not is_inside_reduction(nest, parts)):
            verb = "overwrites" if any(a.is_write for a in touched) else "reads"
            return f"block {nest.block.name!r} {verb} {buffer.name!r} between parts of a reduction, {names}"
    return None


def is_inside_reduction(nest: BlockContext, parts: Sequence[BlockContext]) -> bool:
    """Whether a block is inside a loop of the reduction: then it may use what there is so far."""
    for part in parts:
        reduced = {v for i in part.block.iters if i.kind is IterKind.REDUCE for v in free_vars(i.binding)}
        if any(x is y and x.var in reduced for x, y in zip(nest.loops, part.loops, strict=False)):
            return True
    return False


def _group_by_elements(parts: Sequence[BlockContext]) -> list[list[BlockContext]]:
    """The parts in groups that are proved to collect in the same elements."""
    found: list[list[BlockContext]] = []
    for part in parts:
        mine = next((group for group in found if all(stores_same_elements(x, part) for x in group)), None)
        if mine is None:
            found.append([part])
        else:
            mine.append(part)
    return found


def _is_complete(parts: Sequence[BlockContext]) -> bool:
    """Whether parts are proved to reach every point of the reduction once."""
    try:
        left = [iter_ranges(part, False) for part in parts]
    except IterMapError:
        return False
    whole = left.pop()
    while (
        found := next(((x, one) for x in left if (one := merge_boxes(whole, x) or merge_boxes(x, whole))), None)
    ) is not None:
        left.remove(found[0])
        whole = found[1]
    return not left and all(image.injective and is_full_range(image, i.extent) for i, image in whole)


def is_full_range(image: IterRange, extent: Expr) -> bool:
    """Whether an image is a whole domain."""
    return can_prove_le(image.offset, const(0)) and can_prove_le(extent, image.offset + image.extent)


def _are_disjoint(groups: Sequence[Sequence[BlockContext]], nests: Sequence[BlockContext]) -> bool:
    """Whether groups are proved to store different elements, as long as these are not given first values again."""
    free = max(len(part.loops) for group in groups for part in group)
    for first, *_ in groups:
        if first.block.init is None:
            free = min(free, count_loops_shared_with_init(first, nests))
    pairs = [(a, b) for k, group in enumerate(groups) for other in groups[k + 1 :] for a in group for b in other]
    return all(stores_are_disjoint(a, b, free) for a, b in pairs)


def _starts_only_where_empty(earlier: BlockContext, part: BlockContext) -> bool:
    """Whether the first point of the reduction is proved to be none of a part's unless an earlier part is empty."""
    first = part.bounds.assuming(
        conjunction(*(i.binding.equals(0) for i in part.block.iters if i.kind is IterKind.REDUCE))
    )
    sizes = (x.extent for x in earlier.loops if all(isinstance(v, Symbol) for v in free_vars(x.extent)))
    if any(can_prove_le(n, const(0), first) for n in sizes):
        return True
    try:
        pairs = zip(iter_ranges(earlier, False), iter_ranges(part, False), strict=True)
        return any(can_prove_le(x.offset + x.extent, y.offset) for (_, x), (_, y) in pairs)
    except IterMapError:
        return False


def _blocks_between(parts: Sequence[BlockContext], nests: Sequence[BlockContext]) -> Iterator[BlockContext]:
    """The other blocks that run after one part and before another."""
    places = [k for k, nest in enumerate(nests) if nest in parts]
    yield from (nest for nest in nests[places[0] : places[-1]] if nest not in parts)
