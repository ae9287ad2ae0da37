"""Parts of a split reduction: what must not happen between them, so that together they compute the whole reduction."""

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


def find_interference(parts: Sequence[BlockContext], contexts: Sequence[BlockContext]) -> str | None:
    """Why parts of a reduction, in program order, do not compute the whole reduction; None where they do.

    The parts must accumulate into the same elements; only the first may initialise them; other blocks between the parts
    must not access the buffer, unless they are inside a loop of the reduction and use or rescale partial sums.
    Alternatively the parts form groups, each a complete reduction of its own elements, for which the same holds.

    Args:
        parts: the parts.
        contexts: all blocks of the function, in order.
    """
    buffer = parts[0].block.body.buffer
    names = ", ".join(repr(c.block.name) for c in parts[:-1]) + f" and {parts[-1].block.name!r}"
    groups = _group_by_elements(parts)
    if len(groups) > 1:
        if not all(map(_is_complete, groups)) or not _are_disjoint(groups, contexts):
            return (
                f"parts of a reduction, {names}, are not proved to accumulate into the same elements of {buffer.name!r}"
            )
        without_others = ([c for c in contexts if c in group or c not in parts] for group in groups)
        reasons = (find_interference(group, blocks) for group, blocks in zip(groups, without_others, strict=True))
        return next((reason for reason in reasons if reason is not None), None)
    for k, part in enumerate(parts):
        for earlier in parts[:k] if part.block.init is not None else ():
            if not _starts_only_where_empty(earlier, part):
                before = f"another part of the reduction, {earlier.block.name!r}"
                return f"block {part.block.name!r} initialises {buffer.name!r} after {before}"
    for context in _blocks_between(parts, contexts):
        touched = [a for a in accesses(context.block) if a.buffer == buffer]
        if initializes(context, buffer, True) or (touched and not is_inside_reduction(context, parts)):
            verb = "overwrites" if any(a.is_write for a in touched) else "reads"
            return f"block {context.block.name!r} {verb} {buffer.name!r} between parts of a reduction, {names}"
    return None


def is_inside_reduction(context: BlockContext, parts: Sequence[BlockContext]) -> bool:
    """Whether a block is inside a loop of the reduction, where it may use partial sums."""
    for part in parts:
        reduced = {v for i in part.block.iters if i.kind is IterKind.REDUCE for v in free_vars(i.binding)}
        if any(x is y and x.var in reduced for x, y in zip(context.loops, part.loops, strict=False)):
            return True
    return False


def _group_by_elements(parts: Sequence[BlockContext]) -> list[list[BlockContext]]:
    """Groups of parts that are proved to accumulate into the same elements."""
    groups: list[list[BlockContext]] = []
    for part in parts:
        group = next((g for g in groups if all(stores_same_elements(member, part) for member in g)), None)
        if group is None:
            groups.append([part])
        else:
            group.append(part)
    return groups


def _is_complete(parts: Sequence[BlockContext]) -> bool:
    """Whether parts are proved to reach every point of the reduction once."""
    try:
        boxes = [iter_ranges(part, False) for part in parts]
    except IterMapError:
        return False
    box = boxes.pop()
    while (
        merge := next(((x, union) for x in boxes if (union := merge_boxes(box, x) or merge_boxes(x, box))), None)
    ) is not None:
        neighbour, box = merge
        boxes.remove(neighbour)
    return not boxes and all(iter_range.injective and is_full_range(iter_range, i.extent) for i, iter_range in box)


def is_full_range(iter_range: IterRange, extent: Expr) -> bool:
    """Whether a range is proved to contain 0 .. extent - 1."""
    return can_prove_le(iter_range.offset, const(0)) and can_prove_le(extent, iter_range.offset + iter_range.extent)


def _are_disjoint(groups: Sequence[Sequence[BlockContext]], contexts: Sequence[BlockContext]) -> bool:
    """Whether groups of parts are proved to store different elements between two initialisations."""
    free = max(len(part.loops) for group in groups for part in group)
    for first, *_ in groups:
        if first.block.init is None:
            free = min(free, count_loops_shared_with_init(first, contexts))
    pairs = [(a, b) for k, group in enumerate(groups) for other in groups[k + 1 :] for a in group for b in other]
    return all(stores_are_disjoint(a, b, free) for a, b in pairs)


def _starts_only_where_empty(earlier: BlockContext, part: BlockContext) -> bool:
    """Whether a part is proved to contain the first point of the reduction only if an earlier part is empty."""
    at_start = conjunction(*(i.binding.equals(0) for i in part.block.iters if i.kind is IterKind.REDUCE))
    bounds = part.bounds.assuming(at_start)
    sizes = (x.extent for x in earlier.loops if all(isinstance(v, Symbol) for v in free_vars(x.extent)))
    if any(can_prove_le(size, const(0), bounds) for size in sizes):
        return True
    try:
        pairs = zip(iter_ranges(earlier, False), iter_ranges(part, False), strict=True)
        return any(can_prove_le(x.offset + x.extent, y.offset) for (_, x), (_, y) in pairs)
    except IterMapError:
        return False


def _blocks_between(parts: Sequence[BlockContext], contexts: Sequence[BlockContext]) -> Iterator[BlockContext]:
    """The other blocks between the first part and the last."""
    positions = [k for k, context in enumerate(contexts) if context in parts]
    yield from (context for context in contexts[positions[0] : positions[-1]] if context not in parts)
