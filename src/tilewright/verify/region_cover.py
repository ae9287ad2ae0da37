"""The elements that blocks store as boxes, and whether those of one block are among those of others."""

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


def is_covered_by(nest: BlockContext, others: Sequence[BlockContext]) -> bool:
    """Whether all elements that a block stores in an iteration of the loops that it shares with some others are proved
    to be among those that they store in it, together."""
    if any(_is_covered_by_one(nest, n, count_shared_loops(nest, n)) for n in others):
        return True
    shared = min(count_shared_loops(nest, n) for n in others)
    mine, boxes = _written_box(nest, shared), [_written_box(n, shared) for n in others if _always_runs(n, shared)]
    if mine is None or len(boxes) < 2:
        return False
    known = Bounds.from_loops((x.var, x.extent) for x in nest.loops[:shared])
    left = [ranges for ranges, needed in filter(None, boxes) if all(c in mine[1] for c in needed)]
    while (found := next(_mergeable_boxes(left, known), None)) is not None:
        a, b, together = found
        left = [*(x for x in left if x is not a and x is not b), together]
    return any(_is_subset(mine[0], x, known) for x in left)


def _mergeable_boxes(boxes: Sequence[_IndexBox], known: Bounds) -> Iterator[tuple[_IndexBox, _IndexBox, _IndexBox]]:
    """Two boxes that differ along one axis, along which one goes on where the other ends; and both as one."""
    for a in boxes:
        for b in boxes:
            axes = [d for d, (x, y) in enumerate(zip(a, b, strict=True)) if x != y]
            if a is b or len(axes) != 1:
                continue
            d = axes[0]
            (start, end), (then, last) = a[d], b[d]
            if all(can_prove_le(x, y, known) for x, y in ((start, then), (then, end), (end, last))):
                yield a, b, [*a[:d], (start, last), *a[d + 1 :]]


def _is_covered_by_one(a: BlockContext, b: BlockContext, shared: int) -> bool:
    """Whether all elements that a block stores in an iteration of the shared loops another one is proved to store in
    it too."""
    if not _always_runs(b, shared):
        return is_covered_by_inversion(a, b, shared)
    one, other = _written_box(a, shared), _written_box(b, shared)
    if one is None or other is None:
        return has_equal_strided_sets(a, b, shared) or is_covered_by_inversion(a, b, shared)
    (mine, run), (theirs, needed) = one, other
    if any(c not in run for c in needed):
        return False
    return _is_subset(mine, theirs, Bounds.from_loops((x.var, x.extent) for x in a.loops[:shared]))


def _is_subset(a: _IndexBox, b: _IndexBox, known: Bounds) -> bool:
    """Whether a box is proved to lie in another one."""
    pairs = zip(a, b, strict=True)
    return all(can_prove_le(y, x, known) and can_prove_le(end, last, known) for (x, end), (y, last) in pairs)


def _written_box(nest: BlockContext, shared: int) -> tuple[_IndexBox, list[Expr]] | None:
    """(first, end) of the elements along every axis, which together are a box, while the innermost loops run; and the
    conditions on the others. None where that is not understood."""
    try:
        images = IterMap.of(nest, True, shared)
        boxes = {i.var: image for i, image in images.ranges()}
    except IterMapError:
        return None
    if any(images.iters[place].kind is IterKind.REDUCE for place in images.limits):
        return None
    ends = {v: image.offset + image.extent for v, image in boxes.items()}
    for place, limit in images.limits.items():
        v = images.iters[place].var
        ends[v] = minimum(ends[v], limit)
    own = {x.var for x in nest.loops[shared:]}
    used: list[Var] = []
    found: _IndexBox = []
    for index in nest.block.body.indices:
        names = [v for v in free_vars(index) if v in boxes]
        used += names
        rest = index - names[0] if len(names) == 1 else index
        if loads(rest) or any(v in own or v in boxes for v in free_vars(rest)):
            return None
        found.append((boxes[names[0]].offset + rest, ends[names[0]] + rest) if names else (rest, rest + 1))
    return (found, images.outer_conditions) if len(used) == len(set(used)) else None


def _always_runs(nest: BlockContext, shared: int) -> bool:
    """Whether the loops and conditions that a block has beside those that drive its elements leave none of these out.
    A sum collects in an element also where it has no points."""
    block, known = nest.block, Bounds.from_loops((x.var, x.extent) for x in nest.loops[:shared])
    told = {v for e in block.body.indices for v in free_vars(e)}
    sums = match_accumulation(block.body) is not None
    counted = [i for i in block.iters if i.var in told or (sums and i.kind is IterKind.REDUCE)]
    driving = told.union(*(free_vars(i.binding) for i in counted))
    beside = {x.var: x.extent for x in nest.loops[shared:] if x.var not in driving}
    if any(free_vars(c) & beside.keys() for c in conjuncts(block.predicate)):
        return False
    return all(can_prove_le(const(1), n, known) for n in beside.values())


def has_reduction_start(nest: BlockContext) -> bool:
    """Whether a block that stores a first value before the first point of its reduction has that point, or no point."""
    try:
        images = iter_ranges(nest, False)
    except IterMapError:
        return False
    return all(can_prove_le(image.offset, const(0)) for i, image in images if i.kind is IterKind.REDUCE)


def has_reduction_points(nest: BlockContext, known: Bounds) -> bool:
    """Whether a block is proved to have a part of its reduction."""
    try:
        return all(can_prove_le(const(1), image.extent, known) for _, image in iter_ranges(nest, False))
    except IterMapError:
        return False
