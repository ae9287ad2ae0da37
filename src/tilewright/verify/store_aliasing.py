"""Aliasing of stores: whether two blocks store the same, disjoint, or a subset of each other's elements."""

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


def has_same_domain(initializer: BlockContext, context: BlockContext) -> bool:
    """Whether an initialiser and an accumulating block declare equal spatial domains and equal indices over them.

    Indices relative to loops that the two do not share are not compared.
    """

    shared = {loop.var for loop in context.loops[: count_shared_loops(initializer, context)]}

    def domain_and_indices(c: BlockContext) -> tuple[list[Expr], list[Expr | None]]:
        spatial = [i for i in c.block.iters if i.kind is IterKind.SPATIAL]
        names: dict[Var, Expr] = {i.var: Var(f"#{k}") for k, i in enumerate(spatial)}
        inner = {loop.var for loop in c.loops} - shared
        indices = (substitute(i, names) for i in c.block.body.indices)
        return [i.extent for i in spatial], [None if free_vars(i) & inner else i for i in indices]

    (init_domain, init_indices), (domain, indices) = domain_and_indices(initializer), domain_and_indices(context)
    pairs = zip(init_indices, indices, strict=True)
    return init_domain == domain and all(i is j for i, j in pairs if i is not None and j is not None)


def stores_same_elements(a: BlockContext, b: BlockContext) -> bool:
    """Whether two copies of a block are proved to store the same elements in every iteration of their shared loops."""
    shared = count_shared_loops(a, b)
    if _is_peeled_reduction(a, b, shared) or _is_peeled_reduction(b, a, shared):
        return True
    if not _has_equal_indices(a, b, {j.var: i.var for i, j in zip(a.block.iters, b.block.iters, strict=True)}, shared):
        return False
    try:
        a_map, b_map = IterMap.of(a, True, shared), IterMap.of(b, True, shared)
    except IterMapError:
        return False
    spatial = [k for k, i in enumerate(a_map.iters) if i.kind is IterKind.SPATIAL]
    a_limits, b_limits = dict(a_map.limits), dict(b_map.limits)
    try:
        a_box, b_box = ([(r.offset, r.extent) for _, r in iter_map.ranges()] for iter_map in (a_map, b_map))
        equal = all(a_box[k] == b_box[k] for k in spatial)
        a_limits, b_limits = a_map.limits, b_map.limits  # without those that the boxes account for
    except IterMapError:
        a_sets, b_sets = _strided_sets(a, a_map), _strided_sets(b, b_map)
        equal = a_sets is not None and a_sets == b_sets
    return (
        equal
        and a_map.outer_conditions == b_map.outer_conditions
        and all(a_limits.get(k) is b_limits.get(k) for k in spatial)
    )


def _is_peeled_reduction(a: BlockContext, b: BlockContext, shared: int) -> bool:
    """Whether a reduction loop was peeled so that `a` has its first iterations and `b` the others."""
    if undo_peel(a, b, shared) is None:
        return False
    peeled = a.loops[shared].var
    return not any(peeled in free_vars(i.binding) for i in a.block.iters if i.kind is IterKind.SPATIAL)


def _has_equal_indices(a: BlockContext, b: BlockContext, names: Mapping[Var, Expr], shared: int) -> bool:
    """Whether two blocks store at the same indices over their iteration variables and the shared loops.

    Args:
        a, b: the blocks.
        names: the variables of `b` in terms of those of `a`.
        shared: how many loops they share.
    """
    inner = {loop.var for c in (a, b) for loop in c.loops[shared:]}
    pairs = zip(a.block.body.indices, b.block.body.indices, strict=True)
    return all(substitute(j, names) is substitute(i, {}) and not free_vars(i) & inner for i, j in pairs)


def has_equal_strided_sets(a: BlockContext, b: BlockContext, shared: int) -> bool:
    """Whether two blocks are proved to store the same elements in every iteration of their shared loops.

    Compares the strided sets that their spatial variables take; the reductions of the blocks may differ.
    """
    a_vars, b_vars = ([i.var for i in c.block.iters if i.kind is IterKind.SPATIAL] for c in (a, b))
    if len(a_vars) != len(b_vars) or not _has_equal_indices(a, b, dict(zip(b_vars, a_vars, strict=True)), shared):
        return False
    try:
        a_map, b_map = IterMap.of(a, True, shared), IterMap.of(b, True, shared)
    except IterMapError:
        return False
    a_sets, b_sets = _strided_sets(a, a_map), _strided_sets(b, b_map)
    return (
        a_sets is not None
        and a_sets == b_sets
        and (a_map.outer_conditions, a_map.limits) == (b_map.outer_conditions, b_map.limits)
    )


def is_covered_by_inversion(a: BlockContext, b: BlockContext, shared: int) -> bool:
    """Whether `b` is proved to store every element that `a` stores, in the same iteration of the shared loops.

    `index_inverse.py` proposes the values of the other loops of `b` at which it stores the element; undetermined loops
    are at 0. Where `b` has an init, it must store the element at the first point of its reduction.
    """
    inner = b.loops[shared:]
    fresh: dict[Var, Expr] = {x.var: Var(f"{x.var.name}'") for x in inner}
    pairs = zip(b.block.body.indices, a.block.body.indices, strict=True)
    equations = [(substitute(b.over_loops(i), fresh), a.over_loops(j)) for i, j in pairs]
    conditions = conjuncts(b.block.predicate)
    if any(loads(e) for e in (*(e for pair in equations for e in pair), *conditions, *(x.extent for x in inner))):
        return False  # memory may have changed between the two stores
    unknown = frozenset(v for v in fresh.values() if isinstance(v, Var))
    solution = invert_indices(equations, unknown, a.bounds)
    values: dict[Var, Expr] = {v: solution.get(v, const(0)) for v in unknown}

    def at_store(e: Expr) -> Expr:
        return substitute(substitute(e, fresh), values, a.bounds)

    if not all(substitute(i, values, a.bounds) is j for i, j in equations):
        return False
    if not all(
        can_prove_non_negative(at_store(x.var), a.bounds)
        and can_prove_lt(at_store(x.var), at_store(x.extent), a.bounds)
        for x in inner
    ):
        return False
    first = () if b.block.init is None else (i.binding.equals(0) for i in b.block.iters if i.kind is IterKind.REDUCE)
    return all(can_prove(at_store(c), a.bounds) for c in (*conditions, *first))


StridedSet = tuple[Expr, list[tuple[Expr, Expr]]]
"""(offset, [(step, count), ...]): the values offset + sum of step * (0 .. count-1), the terms in a fixed order."""


def _strided_sets(context: BlockContext, iter_map: IterMap) -> list[StridedSet] | None:
    """The values of every spatial variable over the inner loops of `iter_map`.

    None where they are no strided sets, or where one loop drives several variables.
    """
    inner = iter_map.extents.keys()
    unused = dict(iter_map.extents)
    sets: list[StridedSet] = []
    for i in context.block.iters if not iter_map.guards else ():
        driving = [v for v in unused if v in free_vars(i.binding)]
        terms = [(substitute(i.binding, {v: v + 1}) - i.binding, unused.pop(v)) for v in driving]
        offset = substitute(i.binding, dict.fromkeys(driving, const(0)))
        if any(free_vars(e) & inner for e in (offset, *(step for step, _ in terms))):
            return None
        if i.kind is IterKind.SPATIAL:
            sets.append((offset, sorted(_merge_strides(terms), key=lambda t: (str(t[0]), str(t[1])))))
    return None if iter_map.guards else sets


def _merge_strides(terms: Sequence[tuple[Expr, Expr]]) -> Sequence[tuple[Expr, Expr]]:
    """Terms (step, count) with contiguous ones merged: (1, 2) and (2, 3), values 0, 1 and 0, 2, 4, are (1, 6)."""
    for k, (step, count) in enumerate(terms):
        for j, (outer_step, outer_count) in enumerate(terms):
            if j != k and outer_step is step * count:
                rest = [t for n, t in enumerate(terms) if n not in (j, k)]
                return _merge_strides([*rest, (step, count * outer_count)])
    return terms


def stores_are_disjoint(a: BlockContext, b: BlockContext, free_loops: int) -> bool:
    """Whether two blocks are proved to store different elements.

    Args:
        a, b: the blocks.
        free_loops: how many of the outermost shared loops are at the same iteration for both; iterations of the other
            shared loops may differ.
    """
    shared = count_shared_loops(a, b)
    free_loops = min(free_loops, shared)
    indices = [tuple(c.over_loops(i) for i in c.block.body.indices) for c in (a, b)]
    if not all(identifies_iteration(store_keys(a, k) & store_keys(b, k)) for k in range(free_loops, shared)):
        return False
    bounds = Bounds.from_loops((loop.var, loop.extent) for loop in (*a.loops, *b.loops[shared:]))
    bounds = bounds.assuming(a.block.predicate).assuming(b.block.predicate)
    pairs = [(i, j) for i, j in zip(*indices, strict=True) if not loads(i) and not loads(j)]
    return any(can_prove_lt(i, j, bounds) or can_prove_lt(j, i, bounds) for i, j in (*pairs, *_undigited_pairs(pairs)))


def _undigited_pairs(pairs: Sequence[tuple[Expr, Expr]]) -> Iterator[tuple[Expr, Expr]]:
    """Pairs of fused indices whose splits are all among the given pairs: these differ if the fused indices do."""
    splits: dict[tuple[Expr, Expr], list[tuple[Expr, Expr | None]]] = {}
    for a, b in pairs:
        x, y = match_iter_split(a), match_iter_split(b)
        if x and y and (x.lower_factor, x.extent) == (y.lower_factor, y.extent):
            splits.setdefault((x.source, y.source), []).append((x.lower_factor, x.extent))
    yield from (sources for sources, factors in splits.items() if splits_are_bijective(factors))
