"""Write-region containment: whether the elements that one block stores are among those that others store."""

from collections.abc import Iterator, Sequence

from tilewright.expr.algebra.bounds import Bounds
from tilewright.expr.algebra.prover import can_prove_le
from tilewright.expr.nodes import Expr, Var, const
from tilewright.expr.operations import minimum
from tilewright.expr.traversal import conjuncts, free_vars, loads
from tilewright.loops.accumulation import match_accumulation
from tilewright.loops.block_context import BlockContext
from tilewright.loops.ir import IterKind
from tilewright.verify.iter_map import IterMap, IterMapError, iter_ranges
from tilewright.verify.peeled_blocks import count_shared_loops
from tilewright.verify.store_aliasing import has_equal_strided_sets, is_covered_by_inversion

_IndexBox = list[tuple[Expr, Expr]]
"""(first, end) along every axis."""


def is_covered_by(context: BlockContext, others: Sequence[BlockContext]) -> bool:
    """Whether other blocks together are proved to store all that a block stores, per iteration of shared loops."""
    if any(_is_covered_by_one(context, other, count_shared_loops(context, other)) for other in others):
        return True
    shared = min(count_shared_loops(context, other) for other in others)
    written = _written_box(context, shared)
    candidates = [_written_box(other, shared) for other in others if _always_runs(other, shared)]
    if written is None or len(candidates) < 2:
        return False
    box, conditions = written
    bounds = Bounds.from_loops((x.var, x.extent) for x in context.loops[:shared])
    boxes = [b for b, required in filter(None, candidates) if all(c in conditions for c in required)]
    while (pair := next(_mergeable_boxes(boxes, bounds), None)) is not None:
        first, second, union = pair
        boxes = [*(b for b in boxes if b is not first and b is not second), union]
    return any(_is_subset(box, b, bounds) for b in boxes)


def _mergeable_boxes(boxes: Sequence[_IndexBox], bounds: Bounds) -> Iterator[tuple[_IndexBox, _IndexBox, _IndexBox]]:
    """Pairs of boxes that differ along one axis, where the second continues the first, with their unions."""
    for a in boxes:
        for b in boxes:
            axes = [d for d, (x, y) in enumerate(zip(a, b, strict=True)) if x != y]
            if a is b or len(axes) != 1:
                continue
            d = axes[0]
            (a_first, a_end), (b_first, b_end) = a[d], b[d]
            if all(can_prove_le(x, y, bounds) for x, y in ((a_first, b_first), (b_first, a_end), (a_end, b_end))):
                yield a, b, [*a[:d], (a_first, b_end), *a[d + 1 :]]


def _is_covered_by_one(a: BlockContext, b: BlockContext, shared: int) -> bool:
    """Whether `b` is proved to store all elements that `a` stores in the same iteration of the shared loops."""
    if not _always_runs(b, shared):
        return is_covered_by_inversion(a, b, shared)
    a_written, b_written = _written_box(a, shared), _written_box(b, shared)
    if a_written is None or b_written is None:
        return has_equal_strided_sets(a, b, shared) or is_covered_by_inversion(a, b, shared)
    (a_box, a_conditions), (b_box, b_conditions) = a_written, b_written
    if any(c not in a_conditions for c in b_conditions):
        return False
    return _is_subset(a_box, b_box, Bounds.from_loops((x.var, x.extent) for x in a.loops[:shared]))


def _is_subset(a: _IndexBox, b: _IndexBox, bounds: Bounds) -> bool:
    """Whether box `a` is proved to lie in box `b`."""
    axes = zip(a, b, strict=True)
    return all(
        can_prove_le(b_first, a_first, bounds) and can_prove_le(a_end, b_end, bounds)
        for (a_first, a_end), (b_first, b_end) in axes
    )


def _written_box(context: BlockContext, shared: int) -> tuple[_IndexBox, list[Expr]] | None:
    """The box of elements that a block stores in one iteration of the shared loops, and its conditions on these loops.

    None where the elements are not proved to be a box.
    """
    try:
        iter_map = IterMap.of(context, True, shared)
        ranges = {i.var: iter_range for i, iter_range in iter_map.ranges()}
    except IterMapError:
        return None
    if any(iter_map.iters[position].kind is IterKind.REDUCE for position in iter_map.limits):
        return None
    ends = {v: iter_range.offset + iter_range.extent for v, iter_range in ranges.items()}
    for position, limit in iter_map.limits.items():
        v = iter_map.iters[position].var
        ends[v] = minimum(ends[v], limit)
    inner = {x.var for x in context.loops[shared:]}
    used: list[Var] = []
    box: _IndexBox = []
    for index in context.block.body.indices:
        variables = [v for v in free_vars(index) if v in ranges]
        used += variables
        rest = index - variables[0] if len(variables) == 1 else index
        if loads(rest) or any(v in inner or v in ranges for v in free_vars(rest)):
            return None
        box.append((ranges[variables[0]].offset + rest, ends[variables[0]] + rest) if variables else (rest, rest + 1))
    return (box, iter_map.outer_conditions) if len(used) == len(set(used)) else None


def _always_runs(context: BlockContext, shared: int) -> bool:
    """Whether loops and conditions that do not drive the indices of a block's store never suppress the store.

    The loops of a reduction do not count: an accumulator belongs to the block even where it has no points.
    """
    block, bounds = context.block, Bounds.from_loops((x.var, x.extent) for x in context.loops[:shared])
    indexing = {v for e in block.body.indices for v in free_vars(e)}
    accumulates = match_accumulation(block.body) is not None
    iters = [i for i in block.iters if i.var in indexing or (accumulates and i.kind is IterKind.REDUCE)]
    driving = indexing.union(*(free_vars(i.binding) for i in iters))
    others = {x.var: x.extent for x in context.loops[shared:] if x.var not in driving}
    if any(free_vars(c) & others.keys() for c in conjuncts(block.predicate)):
        return False
    return all(can_prove_le(const(1), extent, bounds) for extent in others.values())


def has_reduction_start(context: BlockContext) -> bool:
    """Whether a block is proved to have the first point of its reduction, where its init happens, or no points."""
    try:
        ranges = iter_ranges(context, False)
    except IterMapError:
        return False
    return all(can_prove_le(iter_range.offset, const(0)) for i, iter_range in ranges if i.kind is IterKind.REDUCE)


def has_reduction_points(context: BlockContext, bounds: Bounds) -> bool:
    """Whether a block is proved to have points of its reduction where `bounds` hold."""
    try:
        return all(can_prove_le(const(1), iter_range.extent, bounds) for _, iter_range in iter_ranges(context, False))
    except IterMapError:
        return False
