"""Coverage by enumeration of all iterations where these are few: the fallback of the iteration maps.

Loops, and symbols over their declared ranges, are enumerated in NumPy, so that a proof holds for all sizes. A loop that
by itself is one variable of its block, over all of that variable's domain, need not be enumerated.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tilewright.errors import InternalError
from tilewright.expr.evaluate import Environment, evaluate_expr
from tilewright.expr.nodes import TRUE, Expr, Var
from tilewright.expr.operations import conjunction
from tilewright.expr.traversal import conjuncts, free_vars, loads
from tilewright.loops.access import accesses
from tilewright.loops.block_context import BlockContext
from tilewright.loops.ir import BlockIter

Array = np.ndarray[Any, Any]

MAX_ITERATIONS = 1 << 19
"""Iterations of a block that are enumerated at most: about 100 ms."""

MAX_VALUES = 1 << 22
"""Numbers of 8 bytes that are held at once at most."""


class UndecidedError(Exception):
    """Enumeration is too expensive, or the iterations depend on data."""


@dataclass(frozen=True, slots=True)
class Points:
    """Iterations of a block: the values of symbols and loop variables, as columns of `count` rows."""

    variables: dict[Var, Array]
    count: int

    def subset(self, mask: Array) -> "Points":
        """The iterations where `mask` is set."""
        return Points({v: a[mask] for v, a in self.variables.items()}, int(mask.sum()))


def is_covered(parts: Sequence[BlockContext]) -> bool:
    """Whether blocks with one domain are proved to reach every point of it together."""
    try:
        return _is_covered(parts)
    except (UndecidedError, InternalError):
        return False


def _is_covered(parts: Sequence[BlockContext]) -> bool:
    domain = [i.extent for i in parts[0].block.iters]
    enumerated = [p for p in range(len(domain)) if not all(is_slice_iter(context, p) for context in parts)]
    fixed_loops = {context: _slice_loops(context, enumerated) for context in parts}
    extents = [domain[p] for p in enumerated]
    symbols = relevant_symbols(parts, extents, frozenset[Var]().union(*fixed_loops.values()))
    tables: list[Array] = []
    for context in parts:
        points = enumerate_points(context, symbols, fixed_loops[context])
        iters = [context.block.iters[p] for p in enumerated]
        columns = [*(points.variables[s] for s in symbols), *domain_columns(points, iters)]
        tables.append(table(columns, points.count))
    return count_distinct(pack_rows(np.concatenate(tables))) == int(domain_sizes(symbols, extents).sum())


def enumerate_points(context: BlockContext, symbols: Sequence[Var], fixed_loops: Collection[Var]) -> Points:
    """The iterations of a block, in order, for all values of the symbols.

    Args:
        context: the block in its loops.
        symbols: see `relevant_symbols`.
        fixed_loops: loops of which only iteration 0 is enumerated.

    Raises:
        UndecidedError: there are too many, or they depend on loaded values.
    """
    points = _symbol_values(symbols)
    conditions = conjuncts(context.block.predicate)
    for loop in context.loops:
        ready = [c for c in conditions if all(v in points.variables for v in free_vars(c))]
        points = filter_points(points, conjunction(*ready))
        conditions = [c for c in conditions if c not in ready]
        if loop.var in fixed_loops:
            points = Points({**points.variables, loop.var: np.zeros(points.count, np.int64)}, points.count)
            continue
        extents = np.maximum(column(points, loop.extent), 0)
        total = int(extents.sum())
        if total > MAX_ITERATIONS or total * (len(points.variables) + 2) > MAX_VALUES:
            raise UndecidedError
        row = np.repeat(np.arange(points.count), extents)
        value = np.arange(total) - (np.cumsum(extents) - extents)[row]
        points = Points({**{v: a[row] for v, a in points.variables.items()}, loop.var: value}, total)
    return filter_points(points, conjunction(*conditions))


def _symbol_values(symbols: Sequence[Var]) -> Points:
    """All combinations of values of symbols in their declared ranges."""
    spans = [range(s.lo, s.hi + 1) for s in symbols if s.lo is not None and s.hi is not None]
    count = prod(len(r) for r in spans)
    if len(spans) < len(symbols) or count > MAX_ITERATIONS:
        raise UndecidedError
    grid = np.meshgrid(*(np.arange(r.start, r.stop) for r in spans), indexing="ij")
    return Points({s: a.ravel() for s, a in zip(symbols, grid, strict=True)}, count)


def filter_points(points: Points, condition: Expr) -> Points:
    """The points where a condition holds."""
    return points if condition is TRUE else points.subset(column(points, condition))


def column(points: Points, e: Expr) -> Array:
    """The value of an expression at every point.

    Raises:
        UndecidedError: it loads from memory.
    """
    if loads(e):
        raise UndecidedError
    with np.errstate(all="ignore"):
        return np.broadcast_to(evaluate_expr(e, Environment(points.variables, {})), (points.count,))


def domain_columns(points: Points, iters: Sequence[BlockIter]) -> list[Array]:
    """The values of a block's iteration variables.

    Raises:
        UndecidedError: one leaves its domain.
    """
    values = [column(points, i.binding) for i in iters]
    for value, i in zip(values, iters, strict=True):
        if not np.all((value >= 0) & (value < column(points, i.extent))):
            raise UndecidedError
    return values


def relevant_symbols(
    contexts: Sequence[BlockContext], sizes: Sequence[Expr], fixed_loops: Collection[Var]
) -> tuple[Var, ...]:
    """The symbols that `sizes` and the blocks' iterations and accesses depend on; `fixed_loops` have one iteration."""
    used = {v for e in sizes for v in free_vars(e)}
    for context in contexts:
        used |= {v for loop in context.loops if loop.var not in fixed_loops for v in free_vars(loop.extent)}
        used |= {v for e in (context.block.predicate, *context.bindings.values()) for v in free_vars(e)}
        used |= {v for a in accesses(context.block) for i in a.indices for v in free_vars(context.over_loops(i))}
        used |= {v for a in accesses(context.block) for v in free_vars(context.over_loops(a.condition))}
    inside = {loop.var for context in contexts for loop in context.loops}
    return tuple(sorted(used - inside, key=lambda v: v.name))


def domain_sizes(symbols: Sequence[Var], extents: Sequence[Expr]) -> Array:
    """The number of points of a domain, for all values of the symbols.

    Raises:
        UndecidedError: it depends on loops.
    """
    if any(v not in symbols for e in extents for v in free_vars(e)):
        raise UndecidedError
    return domain_sizes_at(_symbol_values(symbols), extents)


def domain_sizes_at(points: Points, extents: Sequence[Expr]) -> Array:
    """The number of points of a domain at every iteration, for the sizes there."""
    size = np.ones(points.count, np.int64)
    for e in extents:
        size = size * np.maximum(column(points, e), 0)
    return size


def is_slice_iter(context: BlockContext, position: int) -> bool:
    """Whether an iteration variable is a loop over its whole domain that drives nothing else.

    What happens at one value of such a variable then happens at all of them.
    """
    i = context.block.iters[position]
    loop = next((x for x in context.loops if x.var is i.binding), None)
    if loop is None or loop.extent is not i.extent:
        return False
    others = [j.binding for j in context.block.iters if j is not i] + [x.extent for x in context.loops]
    return not any(loop.var in free_vars(e) for e in (*others, context.block.predicate))


def _slice_loops(context: BlockContext, enumerated: Collection[int]) -> frozenset[Var]:
    """The loops of the iteration variables that are not enumerated."""
    return frozenset(v for p, i in enumerate(context.block.iters) if p not in enumerated for v in free_vars(i.binding))


def table(columns: Sequence[Array], rows: int) -> Array:
    """Columns as an array of int64[rows, columns]."""
    return np.stack(columns, axis=1) if columns else np.zeros((rows, 0), np.int64)


def pack_rows(rows: Array) -> Array:
    """One number per row of a table, in the lexicographical order of the rows.

    Raises:
        UndecidedError: 62 bits do not suffice.
    """
    result = np.zeros(len(rows), np.int64)
    num_codes = 1
    for values in rows.T if len(rows) else ():
        low = int(values.min())
        span = int(values.max()) - low + 1
        num_codes *= span
        if num_codes >= 1 << 62:
            raise UndecidedError
        result = result * span + (values - low)
    return result


def count_distinct(values: Array) -> int:
    """The number of distinct values in a result of `pack_rows`."""
    limit = int(values.max(initial=-1)) + 1
    if limit > 8 * MAX_ITERATIONS:
        return len(np.unique(values))
    seen = np.zeros(limit, np.bool_)
    seen[values] = True
    return int(seen.sum())
