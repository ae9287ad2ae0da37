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

from tilewright.expr.algebra.bounds import Bounds
from tilewright.expr.algebra.prover import can_prove, can_prove_le
from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.nodes import Const, Expr, Var, const
from tilewright.expr.operations import conjunction, minimum
from tilewright.expr.traversal import conjuncts, free_vars
from tilewright.loops.accumulation import match_accumulation
from tilewright.loops.block_context import BlockContext
from tilewright.loops.ir import Block, BlockIter, For, IterKind, LoopKind
from tilewright.verify.iter_map import IterMap, IterMapError, IterRange, RangedIter, iter_ranges

IterBox = tuple[BlockContext, tuple[RangedIter, ...]]


@dataclass(frozen=True, slots=True)
class CoveredDomain:
    """What blocks reach.

    Attributes:
        boxes: by block, the images of its variables; several that were put together have one box.
        unclear: why the images of the others are not understood.
    """

    boxes: dict[BlockContext, IterBox]
    unanalyzable: dict[BlockContext, str]

    def parts(self, box: IterBox) -> tuple[BlockContext, ...]:
        """The blocks that have a box."""
        return tuple(nest for nest, found in self.boxes.items() if found[0] is box[0])


def covered_domain(nests: Sequence[BlockContext], whole: bool) -> CoveredDomain:
    """What blocks reach; `whole` as of `IterMap`."""
    boxes: dict[BlockContext, IterBox] = {}
    unclear: dict[BlockContext, str] = {}
    for nest in nests:
        found = _try_iter_ranges(nest, whole)
        if isinstance(found, str):
            unclear[nest] = found
        else:
            boxes[nest] = (nest, found)
    # What stands for several: the nest that they were put together to, with them.
    left: list[_Merged] = [(n, [n]) for n in nests] if unclear else []
    while (pair := next(_mergeable_pairs(left, unclear, whole), None)) is not None:
        (a, parts), (b, others), together = pair
        left = [*(x for x in left if x[0] is not a and x[0] is not b), (together, parts + others)]
        found = _try_iter_ranges(together, whole)
        if isinstance(found, str):
            continue
        for part in parts + others:
            boxes[part] = (together, found)
            unclear.pop(part, None)
    return CoveredDomain(boxes, unclear)


def _try_iter_ranges(nest: BlockContext, whole: bool) -> tuple[RangedIter, ...] | str:
    try:
        return iter_ranges(nest, whole)
    except IterMapError as reason:
        return str(reason)


_Merged = tuple[BlockContext, list[BlockContext]]


def _mergeable_pairs(
    left: Sequence[_Merged], unclear: Collection[BlockContext], whole: bool
) -> Iterator[tuple[_Merged, _Merged, BlockContext]]:
    """What can be put together so that something unclear may become clear, in the innermost loops first."""
    kin = [(x, statement_key(x[0], [i for i in x[0].block.iters if whole or i.kind is IterKind.REDUCE])) for x in left]
    pairs = [(x, y) for k, (x, one) in enumerate(kin) for y, other in kin[k + 1 :] if one == other]
    pairs = [(x, y) for x, y in pairs if any(n in unclear for n in x[1] + y[1])]
    for x, y in sorted(pairs, key=lambda p: -count_shared_loops(p[0][0], p[1][0])):
        together = _merge(x[0], y[0], whole)
        if together is not None:
            yield x, y, together


def statement_key(nest: BlockContext, iters: Sequence[BlockIter]) -> object:
    """Equal for blocks that may be parts of one: the same store over the same domain, up to the names of variables.

    Sums and products, say, of the same elements are none.
    """
    names: dict[Var, Expr] = {i.var: Var(f"#{k}") for k, i in enumerate(nest.block.iters)}
    loops = {loop.var for loop in nest.loops}
    body = nest.block.body
    # Indices relative to loops differ between parts; the others tell whether it is one computation.
    indices = tuple(i for i in (substitute(i, names) for i in body.indices) if not free_vars(i) & loops)
    term = match_accumulation(body)
    return body.buffer, indices, tuple((i.kind, i.extent) for i in iters), term and term[0]


def count_shared_loops(a: BlockContext, b: BlockContext) -> int:
    """How many loops, from the outermost on, both are in."""
    pairs = zip(a.loops, b.loops, strict=False)
    return next((k for k, (x, y) in enumerate(pairs) if x is not y), min(len(a.loops), len(b.loops)))


def undo_peel(a: BlockContext, b: BlockContext, shared: int) -> BlockContext | None:
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
    if not all(can_prove(c, a.bounds) for c in there if c not in here):
        return None
    if not all(can_prove(substitute(c, new), b.bounds) for c in here if c not in there):
        return None
    loops = (*a.loops[:shared], replace(first, extent=whole), *mine[1:])
    return BlockContext.of(replace(a.block, predicate=conjunction(*dict.fromkeys((*here, *there)))), loops)


def _merge(a: BlockContext, b: BlockContext, whole: bool) -> BlockContext | None:
    """A block in the loops that both share that reaches there what they do; None where that is no box."""
    shared = count_shared_loops(a, b)
    whole_again = undo_peel(a, b, shared) or undo_peel(b, a, shared)
    if whole_again is not None:
        return whole_again
    try:
        one, other = IterMap.of(a, whole, shared), IterMap.of(b, whole, shared)
        pair = one.ranges(), other.ranges()
    except IterMapError:
        return None
    if not shared or one.outer_conditions != other.outer_conditions:
        return None
    known = BlockContext.of(
        Block("", (), a.block.body, None, conjunction(*one.outer_conditions)), a.loops[:shared]
    ).bounds
    limits = one.limits | other.limits
    if not (
        _respects_limits(pair[0], one.limits, limits, known) and _respects_limits(pair[1], other.limits, limits, known)
    ):
        return None
    for i, image in (*pair[0], *pair[1]):
        if not can_prove_le(const(0), image.extent, known) or (i.kind is IterKind.REDUCE and not image.injective):
            return None
    box = merge_boxes(*pair) or merge_boxes(pair[1], pair[0])
    if box is None or _may_add_twice(a.block, b.block, box):
        return None
    loops = list(a.loops[:shared])
    iters: list[BlockIter] = []
    conditions = list(one.outer_conditions)
    for place, (i, image) in enumerate(box):
        binding = image.offset
        if not (isinstance(image.extent, Const) and image.extent.value == 1):
            loops.append(For(Var(f"@{len(loops)}"), image.extent, LoopKind.SERIAL, a.block))
            binding = binding + loops[-1].var
        iters.append(replace(i, binding=binding))
        if place in limits:
            conditions.append(binding < limits[place])
    return BlockContext.of(replace(a.block, iters=tuple(iters), predicate=conjunction(*conditions)), tuple(loops))


def _respects_limits(
    box: Sequence[RangedIter], own: Mapping[int, Expr], limits: Mapping[int, Expr], known: Bounds
) -> bool:
    """Whether a block that states some limits of a box keeps to the others without saying so."""
    ends = {place: image.offset + image.extent for place, (_, image) in enumerate(box)}
    return all(own.get(k) is n or (k not in own and can_prove_le(ends[k], n, known)) for k, n in limits.items())


def _may_add_twice(a: Block, b: Block, box: Sequence[RangedIter]) -> bool:
    """Whether blocks that reach some elements both may both add to what these hold."""
    fresh = a.init is not None and b.init is not None
    return match_accumulation(a.body) is not None and not fresh and not all(image.injective for _, image in box)


def merge_boxes(a: Sequence[RangedIter], b: Sequence[RangedIter]) -> tuple[RangedIter, ...] | None:
    """One box out of two that are adjacent in one dimension and equal in the others."""
    pairs = [(x, y) for (_, x), (_, y) in zip(a, b, strict=True)]
    differ = [k for k, (x, y) in enumerate(pairs) if (x.offset, x.extent) != (y.offset, y.extent)]
    if len(differ) != 1:
        return None
    k = differ[0]
    x, y = pairs[k]
    here, there = x.offset + x.extent, y.offset + y.extent
    apart = here is y.offset
    if not apart:
        # Where y is empty, x must reach its end by itself.
        if not (can_prove_le(minimum(y.offset, there), here) and can_prove_le(here, there)):
            return None
        apart = can_prove_le(here, y.offset)
    both_of_them = IterRange(x.offset, there - x.offset, x.injective and y.injective and apart)
    return (*a[:k], (a[k][0], both_of_them), *a[k + 1 :])
