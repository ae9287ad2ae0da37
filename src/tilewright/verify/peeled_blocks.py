"""Peeled copies of one block: the union of their iteration domains.

Copies are merged into one block in the loops that they share:

for io in serial(N // 8):                           for io in serial(N // 8):
    for a in serial(2):                                 for u in serial(8):
        for b in serial(3):                   as            block B(v = io*8 + u)
            block B(v = io*8 + a*3 + b)
    for r in serial(2):
        block B_2(v_2 = io*8 + 6 + r)
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.expr.algebra.bounds import Bounds
from tilewright.expr.algebra.prover import can_prove, can_prove_le
from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.nodes import Expr, Var, const
from tilewright.expr.operations import conjunction, minimum
from tilewright.expr.traversal import conjuncts, free_vars, is_one
from tilewright.loops.accumulation import match_accumulation
from tilewright.loops.block_context import BlockContext
from tilewright.loops.ir import Block, BlockIter, For, IterKind, LoopKind
from tilewright.verify.iter_map import IterMap, IterMapError, IterRange, RangedIter, iter_ranges

IterBox = tuple[BlockContext, tuple[RangedIter, ...]]
"""A block, or one that stands for merged copies, with the ranges of its iteration variables."""


@dataclass(frozen=True, slots=True)
class CoveredDomain:
    """The points of their domains that blocks reach.

    Attributes:
        boxes: by block, the ranges of its variables; merged copies share one box.
        unanalyzable: by block, why its ranges are unknown.
    """

    boxes: dict[BlockContext, IterBox]
    unanalyzable: dict[BlockContext, str]

    def parts(self, box: IterBox) -> tuple[BlockContext, ...]:
        """The blocks that share a box."""
        return tuple(context for context, (merged, _) in self.boxes.items() if merged is box[0])


def covered_domain(contexts: Sequence[BlockContext], include_spatial: bool) -> CoveredDomain:
    """The points that blocks reach; `include_spatial` as of `IterMap`."""
    boxes: dict[BlockContext, IterBox] = {}
    unanalyzable: dict[BlockContext, str] = {}
    for context in contexts:
        ranges = _try_iter_ranges(context, include_spatial)
        if isinstance(ranges, str):
            unanalyzable[context] = ranges
        else:
            boxes[context] = (context, ranges)
    candidates: list[_Merged] = [(c, [c]) for c in contexts] if unanalyzable else []
    while (pair := next(_mergeable_pairs(candidates, unanalyzable, include_spatial), None)) is not None:
        (a, a_parts), (b, b_parts), merged = pair
        candidates = [*(x for x in candidates if x[0] is not a and x[0] is not b), (merged, a_parts + b_parts)]
        ranges = _try_iter_ranges(merged, include_spatial)
        if isinstance(ranges, str):
            continue
        for part in a_parts + b_parts:
            boxes[part] = (merged, ranges)
            unanalyzable.pop(part, None)
    return CoveredDomain(boxes, unanalyzable)


def _try_iter_ranges(context: BlockContext, include_spatial: bool) -> tuple[RangedIter, ...] | str:
    try:
        return iter_ranges(context, include_spatial)
    except IterMapError as reason:
        return str(reason)


_Merged = tuple[BlockContext, list[BlockContext]]
"""A block that stands for merged copies, and the copies."""


def _mergeable_pairs(
    candidates: Sequence[_Merged], unanalyzable: Collection[BlockContext], include_spatial: bool
) -> Iterator[tuple[_Merged, _Merged, BlockContext]]:
    """Pairs that can be merged and contain an unanalyzable block, those in the innermost loops first."""

    def key(context: BlockContext) -> object:
        iters = [i for i in context.block.iters if include_spatial or i.kind is IterKind.REDUCE]
        return statement_key(context, iters)

    keyed = [(x, key(x[0])) for x in candidates]
    pairs = [(x, y) for k, (x, x_key) in enumerate(keyed) for y, y_key in keyed[k + 1 :] if x_key == y_key]
    pairs = [(x, y) for x, y in pairs if any(c in unanalyzable for c in x[1] + y[1])]
    for x, y in sorted(pairs, key=lambda p: -count_shared_loops(p[0][0], p[1][0])):
        merged = _merge(x[0], y[0], include_spatial)
        if merged is not None:
            yield x, y, merged


def statement_key(context: BlockContext, iters: Sequence[BlockIter]) -> object:
    """Equal for blocks that may be peeled copies of one: the same store over the same domain, up to variable names.

    The accumulation operator is part of the key: a sum and a product over the same elements differ.
    """
    names: dict[Var, Expr] = {i.var: Var(f"#{k}") for k, i in enumerate(context.block.iters)}
    loops = {loop.var for loop in context.loops}
    body = context.block.body
    # Indices relative to loops differ between copies; only the others identify the statement.
    indices = tuple(i for i in (substitute(i, names) for i in body.indices) if not free_vars(i) & loops)
    accumulation = match_accumulation(body)
    return body.buffer, indices, tuple((i.kind, i.extent) for i in iters), accumulation and accumulation[0]


def count_shared_loops(a: BlockContext, b: BlockContext) -> int:
    """The number of outermost loops that two blocks share."""
    pairs = zip(a.loops, b.loops, strict=False)
    return next((k for k, (x, y) in enumerate(pairs) if x is not y), min(len(a.loops), len(b.loops)))


def undo_peel(a: BlockContext, b: BlockContext, shared: int) -> BlockContext | None:
    """The block before a loop was peeled: `a` has the first iterations, `b` the rest; None where it was not.

    Args:
        a, b: two copies of a block.
        shared: how many loops they share.
    """
    a_loops, b_loops = a.loops[shared:], b.loops[shared:]
    if not a_loops or len(a_loops) != len(b_loops):
        return None
    first, rest = a_loops[0], b_loops[0]
    b_to_a: dict[Var, Expr] = {rest.var: first.var - first.extent}
    for x, y in zip(a_loops[1:], b_loops[1:], strict=True):
        if substitute(y.extent, b_to_a) is not substitute(x.extent, {}):
            return None
        b_to_a[y.var] = x.var
    if any(substitute(j.binding, b_to_a) is not i.binding for i, j in zip(a.block.iters, b.block.iters, strict=True)):
        return None
    b_to_a.update({j.var: i.var for i, j in zip(a.block.iters, b.block.iters, strict=True)})
    indices = zip(a.block.body.indices, b.block.body.indices, strict=True)
    if any(substitute(j, b_to_a) is not substitute(i, {}) for i, j in indices):
        return None
    a_conditions, b_conditions = (conjuncts(e) for e in (a.block.predicate, substitute(b.block.predicate, b_to_a)))
    a_to_b: dict[Var, Expr] = {x.var: y.var for x, y in zip(a_loops, b_loops, strict=True)}
    a_to_b[first.var] = rest.var + first.extent
    # A condition that only one copy has must be implied in the other.
    if not all(can_prove(c, a.bounds) for c in b_conditions if c not in a_conditions):
        return None
    if not all(can_prove(substitute(c, a_to_b), b.bounds) for c in a_conditions if c not in b_conditions):
        return None
    loops = (*a.loops[:shared], replace(first, extent=first.extent + rest.extent), *a_loops[1:])
    predicate = conjunction(*dict.fromkeys((*a_conditions, *b_conditions)))
    return BlockContext.of(replace(a.block, predicate=predicate), loops)


def _merge(a: BlockContext, b: BlockContext, include_spatial: bool) -> BlockContext | None:
    """A block in the shared loops that reaches what two copies do together; None where that is no box."""
    shared = count_shared_loops(a, b)
    unpeeled = undo_peel(a, b, shared) or undo_peel(b, a, shared)
    if unpeeled is not None:
        return unpeeled
    try:
        a_map, b_map = IterMap.of(a, include_spatial, shared), IterMap.of(b, include_spatial, shared)
        a_ranges, b_ranges = a_map.ranges(), b_map.ranges()
    except IterMapError:
        return None
    if not shared or a_map.outer_conditions != b_map.outer_conditions:
        return None
    outer = Block("", (), a.block.body, None, conjunction(*a_map.outer_conditions))
    bounds = BlockContext.of(outer, a.loops[:shared]).bounds
    limits = a_map.limits | b_map.limits
    for ranges, stated in ((a_ranges, a_map.limits), (b_ranges, b_map.limits)):
        if not _respects_limits(ranges, stated, limits, bounds):
            return None
    for i, iter_range in (*a_ranges, *b_ranges):
        if not can_prove_le(const(0), iter_range.extent, bounds):
            return None
        if i.kind is IterKind.REDUCE and not iter_range.injective:
            return None
    box = merge_boxes(a_ranges, b_ranges) or merge_boxes(b_ranges, a_ranges)
    if box is None or _may_add_twice(a.block, b.block, box):
        return None
    loops = list(a.loops[:shared])
    iters: list[BlockIter] = []
    conditions = list(a_map.outer_conditions)
    # the extent of a partial tile in a loop of one tile is a number only without the loop's variable
    single: dict[Var, Expr] = {x.var: const(0) for x in loops if is_one(x.extent)}
    for position, (i, iter_range) in enumerate(box):
        binding, extent = substitute(iter_range.offset, single), substitute(iter_range.extent, single)
        if not is_one(extent):
            loops.append(For(Var(f"@{len(loops)}"), extent, LoopKind.SERIAL, a.block))
            binding = binding + loops[-1].var
        iters.append(replace(i, binding=binding))
        if position in limits:
            conditions.append(binding < limits[position])
    return BlockContext.of(replace(a.block, iters=tuple(iters), predicate=conjunction(*conditions)), tuple(loops))


def _respects_limits(
    box: Sequence[RangedIter], stated: Mapping[int, Expr], limits: Mapping[int, Expr], bounds: Bounds
) -> bool:
    """Whether a box keeps to `limits`: it states each of them, or is proved to end before."""
    ends = [iter_range.offset + iter_range.extent for _, iter_range in box]
    return all(
        stated.get(k) is limit or (k not in stated and can_prove_le(ends[k], limit, bounds))
        for k, limit in limits.items()
    )


def _may_add_twice(a: Block, b: Block, box: Sequence[RangedIter]) -> bool:
    """Whether overlapping copies of an accumulating block may both accumulate into one element."""
    initialized = a.init is not None and b.init is not None
    return match_accumulation(a.body) is not None and not initialized and not all(r.injective for _, r in box)


def merge_boxes(a: Sequence[RangedIter], b: Sequence[RangedIter]) -> tuple[RangedIter, ...] | None:
    """The union of two boxes that are equal but for one dimension, in which `b` continues `a`; None for others."""
    pairs = [(x, y) for (_, x), (_, y) in zip(a, b, strict=True)]
    different = [k for k, (x, y) in enumerate(pairs) if (x.offset, x.extent) != (y.offset, y.extent)]
    if len(different) != 1:
        return None
    k = different[0]
    x, y = pairs[k]
    x_end, y_end = x.offset + x.extent, y.offset + y.extent
    disjoint = x_end is y.offset
    if not disjoint:
        # Where y is empty, x must reach y's end by itself.
        if not (can_prove_le(minimum(y.offset, y_end), x_end) and can_prove_le(x_end, y_end)):
            return None
        disjoint = can_prove_le(x_end, y.offset)
    union = IterRange(x.offset, y_end - x.offset, x.injective and y.injective and disjoint)
    return (*a[:k], (a[k][0], union), *a[k + 1 :])
