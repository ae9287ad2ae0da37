"""Which elements blocks store: the same, others, or those that another block says to."""

from collections.abc import Iterator, Mapping, Sequence

from tilewright.expr.algebra.bounds import Bounds
from tilewright.expr.algebra.prover import can_prove, can_prove_lt, can_prove_non_negative
from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.nodes import Expr, Var, const
from tilewright.expr.traversal import conjuncts, free_vars, loads
from tilewright.loops.block_context import BlockContext
from tilewright.loops.ir import IterKind
from tilewright.verify.index_inverse import invert_indices
from tilewright.verify.iter_map import IterMap, IterMapError
from tilewright.verify.iter_split import match_iter_split, splits_are_bijective
from tilewright.verify.peeled_blocks import count_shared_loops, undo_peel
from tilewright.verify.races import identifies_iteration, store_keys


def has_same_domain(giver: BlockContext, nest: BlockContext) -> bool:
    """Whether a block stores, by what it says of itself, the elements that another one collects in."""

    shared = {loop.var for loop in nest.loops[: count_shared_loops(giver, nest)]}

    def elements(n: BlockContext) -> tuple[list[Expr], list[Expr | None]]:
        spatial = [i for i in n.block.iters if i.kind is IterKind.SPATIAL]
        names: dict[Var, Expr] = {i.var: Var(f"#{k}") for k, i in enumerate(spatial)}
        own = {loop.var for loop in n.loops} - shared
        indices = (substitute(i, names) for i in n.block.body.indices)
        return [i.extent for i in spatial], [None if free_vars(i) & own else i for i in indices]

    (domain, given), (same, collected) = elements(giver), elements(nest)
    pairs = zip(given, collected, strict=True)
    return domain == same and all(i is j for i, j in pairs if i is not None and j is not None)


def stores_same_elements(a: BlockContext, b: BlockContext) -> bool:
    """Whether two parts are proved to store the same elements in every iteration of the loops that they share."""
    shared = count_shared_loops(a, b)
    if _is_peeled_reduction(a, b, shared) or _is_peeled_reduction(b, a, shared):
        return True
    if not _has_equal_indices(a, b, {j.var: i.var for i, j in zip(a.block.iters, b.block.iters, strict=True)}, shared):
        return False
    try:
        one, other = IterMap.of(a, True, shared), IterMap.of(b, True, shared)
    except IterMapError:
        return False
    spatial = [k for k, i in enumerate(one.iters) if i.kind is IterKind.SPATIAL]
    limits = [dict(images.limits) for images in (one, other)]
    try:
        boxes = [[(image.offset, image.extent) for _, image in images.ranges()] for images in (one, other)]
        same = all(boxes[0][k] == boxes[1][k] for k in spatial)
        limits = [images.limits for images in (one, other)]  # without those that the boxes heed
    except IterMapError:
        combs = _strided_sets(a, one), _strided_sets(b, other)
        same = combs[0] is not None and combs[0] == combs[1]
    return (
        same
        and one.outer_conditions == other.outer_conditions
        and all(limits[0].get(k) is limits[1].get(k) for k in spatial)
    )


def _is_peeled_reduction(a: BlockContext, b: BlockContext, shared: int) -> bool:
    """Whether a loop of a reduction was peeled so that `a` has its first iterations and `b` the others."""
    if undo_peel(a, b, shared) is None:
        return False
    cut = a.loops[shared].var
    return not any(cut in free_vars(i.binding) for i in a.block.iters if i.kind is IterKind.SPATIAL)


def _has_equal_indices(a: BlockContext, b: BlockContext, names: Mapping[Var, Expr], shared: int) -> bool:
    """Whether two blocks store at the same indices of their variables, `names` those of `b` in terms of `a`, and of the
    loops that they share."""
    own = {loop.var for n in (a, b) for loop in n.loops[shared:]}
    pairs = zip(a.block.body.indices, b.block.body.indices, strict=True)
    return all(substitute(j, names) is substitute(i, {}) and not free_vars(i) & own for i, j in pairs)


def has_equal_strided_sets(a: BlockContext, b: BlockContext, shared: int) -> bool:
    """Whether two blocks, which need not reduce alike, are proved to store the same elements in every iteration of the
    loops that they share, by what drives their spatial variables."""
    mine, theirs = ([i.var for i in n.block.iters if i.kind is IterKind.SPATIAL] for n in (a, b))
    if len(mine) != len(theirs) or not _has_equal_indices(a, b, dict(zip(theirs, mine, strict=True)), shared):
        return False
    try:
        one, other = IterMap.of(a, True, shared), IterMap.of(b, True, shared)
    except IterMapError:
        return False
    combs = _strided_sets(a, one), _strided_sets(b, other)
    return (
        combs[0] is not None
        and combs[0] == combs[1]
        and (one.outer_conditions, one.limits) == (other.outer_conditions, other.limits)
    )


def is_covered_by_inversion(a: BlockContext, b: BlockContext, shared: int) -> bool:
    """Whether whatever element a block stores another one is proved to store in the same iteration of the loops that
    they share, at values of its other loops that `invert_indices.py` guesses; those that the element does not tell
    are 0.

    Where `b` has an init, it is proved to store the element with the first point of its reduction.
    """
    own = b.loops[shared:]
    fresh: dict[Var, Expr] = {x.var: Var(f"{x.var.name}'") for x in own}
    pairs = zip(b.block.body.indices, a.block.body.indices, strict=True)
    equations = [(substitute(b.over_loops(i), fresh), a.over_loops(j)) for i, j in pairs]
    conditions = conjuncts(b.block.predicate)
    if any(loads(e) for e in (*(e for pair in equations for e in pair), *conditions, *(x.extent for x in own))):
        return False  # what is loaded may be another value by then
    unknown = frozenset(v for v in fresh.values() if isinstance(v, Var))
    found = invert_indices(equations, unknown, a.bounds)
    at: dict[Var, Expr] = {v: found.get(v, const(0)) for v in unknown}

    def there(e: Expr) -> Expr:
        return substitute(substitute(e, fresh), at, a.bounds)

    if not all(substitute(i, at, a.bounds) is j for i, j in equations):
        return False
    if not all(
        can_prove_non_negative(there(x.var), a.bounds) and can_prove_lt(there(x.var), there(x.extent), a.bounds)
        for x in own
    ):
        return False
    first = () if b.block.init is None else (i.binding.equals(0) for i in b.block.iters if i.kind is IterKind.REDUCE)
    return all(can_prove(there(c), a.bounds) for c in (*conditions, *first))


StridedSet = tuple[Expr, list[tuple[Expr, Expr]]]
"""Values: an offset, to which multiples step * (0 .. count-1) are added; (step, count) in a fixed order."""


def _strided_sets(nest: BlockContext, images: IterMap) -> list[StridedSet] | None:
    """The values of every spatial variable while the loops of `images` run; None where they are no combs, each of
    loops of its own."""
    moving = images.extents.keys()
    left = dict(images.extents)
    found: list[StridedSet] = []
    for i in nest.block.iters if not images.guards else ():
        own = [v for v in left if v in free_vars(i.binding)]
        terms = [(substitute(i.binding, {v: v + 1}) - i.binding, left.pop(v)) for v in own]
        start = substitute(i.binding, dict.fromkeys(own, const(0)))
        if any(free_vars(e) & moving for e in (start, *(step for step, _ in terms))):
            return None
        if i.kind is IterKind.SPATIAL:
            found.append((start, sorted(_merge_strides(terms), key=lambda t: (str(t[0]), str(t[1])))))
    return None if images.guards else found


def _merge_strides(terms: Sequence[tuple[Expr, Expr]]) -> Sequence[tuple[Expr, Expr]]:
    """Terms (step, count), where one that goes on at the end of another is put to it: 0, 1 and 0, 2, 4 are 0..5."""
    for k, (step, count) in enumerate(terms):
        for j, (other, times) in enumerate(terms):
            if j != k and other is step * count:
                rest = [t for n, t in enumerate(terms) if n not in (j, k)]
                return _merge_strides([*rest, (step, count * times)])
    return terms


def stores_are_disjoint(a: BlockContext, b: BlockContext, free_loops: int) -> bool:
    """Whether two blocks are proved to store different elements, also in different iterations of the loops that both
    share, but for the outermost `free` ones."""
    shared = count_shared_loops(a, b)
    free_loops = min(free_loops, shared)
    indices = [tuple(n.over_loops(i) for i in n.block.body.indices) for n in (a, b)]
    if not all(identifies_iteration(store_keys(a, k) & store_keys(b, k)) for k in range(free_loops, shared)):
        return False
    both_of_them = (*a.loops, *b.loops[shared:])
    known = Bounds.from_loops((loop.var, loop.extent) for loop in both_of_them)
    known = known.assuming(a.block.predicate).assuming(b.block.predicate)
    plain = [(i, j) for i, j in zip(*indices, strict=True) if not loads(i) and not loads(j)]
    return any(can_prove_lt(i, j, known) or can_prove_lt(j, i, known) for i, j in (*plain, *_undigited_pairs(plain)))


def _undigited_pairs(pairs: Sequence[tuple[Expr, Expr]]) -> Iterator[tuple[Expr, Expr]]:
    """The pairs of numbers of which pairs of indices hold all digits: these differ if the numbers do."""
    found: dict[tuple[Expr, Expr], list[tuple[Expr, Expr | None]]] = {}
    for a, b in pairs:
        one, other = match_iter_split(a), match_iter_split(b)
        if one and other and (one.lower_factor, one.extent) == (other.lower_factor, other.extent):
            found.setdefault((one.source, other.source), []).append((one.lower_factor, one.extent))
    yield from (numbers for numbers, digits in found.items() if splits_are_bijective(digits))
