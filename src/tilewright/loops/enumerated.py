"""Coverage by running through all iterations, where they are few: for what algebra (`siblings.py`) leaves open.

Loops, and symbols over their declared ranges, are enumerated in NumPy, so that an answer holds for all sizes. A loop
that alone is one variable of its block, over all of that variable's domain, need not be enumerated.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tilewright.errors import InternalError
from tilewright.expr.evaluate import Environment, evaluate_expr
from tilewright.expr.nodes import TRUE, Expr, Var, both, conjuncts, free_vars, loads
from tilewright.loops.access import accesses
from tilewright.loops.ir import BlockIter
from tilewright.loops.nest import Nest

Array = np.ndarray[Any, Any]

MOST = 1 << 19
"""Iterations of a block beyond which nothing is enumerated: about 100 ms."""

MOST_VALUES = 1 << 22
"""Numbers that are held at once, of 8 bytes."""


class OpenError(Exception):
    """The question is too large, or not about loops alone."""


@dataclass(frozen=True, slots=True)
class Points:
    """Iterations of a block: the values of symbols and loops at each."""

    variables: dict[Var, Array]
    count: int

    def subset(self, mask: Array) -> "Points":
        """Those where `mask` holds."""
        return Points({v: a[mask] for v, a in self.variables.items()}, int(mask.sum()))


def covered(parts: Sequence[Nest]) -> bool:
    """Whether it is proved that blocks of one domain together reach every point of it."""
    try:
        return _covered(parts)
    except (OpenError, InternalError):
        return False


def _covered(parts: Sequence[Nest]) -> bool:
    domain = [i.extent for i in parts[0].block.iters]
    places = [p for p in range(len(domain)) if not all(slices(nest, p) for nest in parts)]
    still = {nest: _still(nest, places) for nest in parts}
    extents = [domain[p] for p in places]
    symbols = symbols_of(parts, extents, frozenset[Var]().union(*still.values()))
    reached: list[Array] = []
    for nest in parts:
        points = points_of(nest, symbols, still[nest])
        iters = [nest.block.iters[p] for p in places]
        columns = [*(points.variables[s] for s in symbols), *domain_columns(points, iters)]
        reached.append(table(columns, points.count))
    return distinct(packed(np.concatenate(reached))) == int(sizes_of(symbols, extents).sum())


def points_of(nest: Nest, symbols: Sequence[Var], still: Collection[Var]) -> Points:
    """The iterations of a block, in order, for all values of the symbols.

    Args:
        nest: the block in its loops.
        symbols: see `symbols_of`.
        still: loops of which one iteration stands for all.

    Raises:
        OpenError: there are too many, or what is loaded decides about them.
    """
    points = _ranges(symbols)
    conditions = conjuncts(nest.block.predicate)
    for loop in nest.loops:
        ready = [c for c in conditions if all(v in points.variables for v in free_vars(c))]
        points = where(points, both(*ready))
        conditions = [c for c in conditions if c not in ready]
        if loop.var in still:
            points = Points({**points.variables, loop.var: np.zeros(points.count, np.int64)}, points.count)
            continue
        extents = np.maximum(column(points, loop.extent), 0)
        total = int(extents.sum())
        if total > MOST or total * (len(points.variables) + 2) > MOST_VALUES:
            raise OpenError
        row = np.repeat(np.arange(points.count), extents)
        value = np.arange(total) - (np.cumsum(extents) - extents)[row]
        points = Points({**{v: a[row] for v, a in points.variables.items()}, loop.var: value}, total)
    return where(points, both(*conditions))


def _ranges(symbols: Sequence[Var]) -> Points:
    """All values of symbols."""
    spans = [range(s.lo, s.hi + 1) for s in symbols if s.lo is not None and s.hi is not None]
    count = prod(len(r) for r in spans)
    if len(spans) < len(symbols) or count > MOST:
        raise OpenError
    grid = np.meshgrid(*(np.arange(r.start, r.stop) for r in spans), indexing="ij")
    return Points({s: a.ravel() for s, a in zip(symbols, grid, strict=True)}, count)


def where(points: Points, condition: Expr) -> Points:
    """The points where a condition holds."""
    return points if condition is TRUE else points.subset(column(points, condition))


def column(points: Points, e: Expr) -> Array:
    """The value of an expression at every point.

    Raises:
        OpenError: it loads something.
    """
    if loads(e):
        raise OpenError
    with np.errstate(all="ignore"):
        return np.broadcast_to(evaluate_expr(e, Environment(points.variables, {})), (points.count,))


def domain_columns(points: Points, iters: Sequence[BlockIter]) -> list[Array]:
    """The values of a block's variables.

    Raises:
        OpenError: one leaves its domain.
    """
    values = [column(points, i.binding) for i in iters]
    for value, i in zip(values, iters, strict=True):
        if not np.all((value >= 0) & (value < column(points, i.extent))):
            raise OpenError
    return values


def symbols_of(nests: Sequence[Nest], sizes: Sequence[Expr], still: Collection[Var]) -> tuple[Var, ...]:
    """The symbols that iterations and accesses of blocks, and `sizes`, depend on; loops that stand `still` have one
    iteration."""
    used = {v for e in sizes for v in free_vars(e)}
    for nest in nests:
        used |= {v for loop in nest.loops if loop.var not in still for v in free_vars(loop.extent)}
        used |= {v for e in (nest.block.predicate, *nest.bindings.values()) for v in free_vars(e)}
        used |= {v for a in accesses(nest.block) for i in a.indices for v in free_vars(nest.bound(i))}
        used |= {v for a in accesses(nest.block) for v in free_vars(nest.bound(a.condition))}
    inside = {loop.var for nest in nests for loop in nest.loops}
    return tuple(sorted(used - inside, key=lambda v: v.name))


def sizes_of(symbols: Sequence[Var], extents: Sequence[Expr]) -> Array:
    """The number of points of a domain, for all values of the symbols.

    Raises:
        OpenError: it depends on loops.
    """
    if any(v not in symbols for e in extents for v in free_vars(e)):
        raise OpenError
    return sizes_at(_ranges(symbols), extents)


def sizes_at(points: Points, extents: Sequence[Expr]) -> Array:
    """The number of points of a domain, for the sizes of every iteration."""
    size = np.ones(points.count, np.int64)
    for e in extents:
        size = size * np.maximum(column(points, e), 0)
    return size


def slices(nest: Nest, place: int) -> bool:
    """Whether a variable of the block is a loop over its whole domain that drives nothing else: then what happens at
    one of its values happens at all of them."""
    i = nest.block.iters[place]
    loop = next((x for x in nest.loops if x.var is i.binding), None)
    if loop is None or loop.extent is not i.extent:
        return False
    others = [j.binding for j in nest.block.iters if j is not i] + [x.extent for x in nest.loops]
    return not any(loop.var in free_vars(e) for e in (*others, nest.block.predicate))


def _still(nest: Nest, places: Collection[int]) -> frozenset[Var]:
    """The loops that the variables at other places are."""
    return frozenset(v for p, i in enumerate(nest.block.iters) if p not in places for v in free_vars(i.binding))


def table(columns: Sequence[Array], rows: int) -> Array:
    """Columns as an array of int64[rows, columns]."""
    return np.stack(columns, axis=1) if columns else np.zeros((rows, 0), np.int64)


def packed(rows: Array) -> Array:
    """One number per row of a table that orders rows as their columns do.

    Raises:
        OpenError: 62 bits do not suffice.
    """
    result = np.zeros(len(rows), np.int64)
    most = 1
    for values in rows.T if len(rows) else ():
        low = int(values.min())
        span = int(values.max()) - low + 1
        most *= span
        if most >= 1 << 62:
            raise OpenError
        result = result * span + (values - low)
    return result


def distinct(values: Array) -> int:
    """How many different values `packed` found."""
    most = int(values.max(initial=-1)) + 1
    if most > 8 * MOST:
        return len(np.unique(values))
    seen = np.zeros(most, np.bool_)
    seen[values] = True
    return int(seen.sum())
