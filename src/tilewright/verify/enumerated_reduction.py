"""Reductions by enumeration: all events of an accumulator, sorted by element and time, where these are few.

An element must be initialised, then every point of its reduction accumulated once; only then may other blocks use it,
except for blocks inside the loops of the reduction, which may use partial sums.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.errors import InternalError
from tilewright.expr.nodes import Buffer, Expr, Var
from tilewright.expr.traversal import free_vars, loads
from tilewright.loops.access import accesses
from tilewright.loops.block_context import BlockContext
from tilewright.loops.ir import BlockIter, IterKind
from tilewright.verify.enumerated_coverage import (
    MAX_VALUES,
    Points,
    UndecidedError,
    column,
    count_distinct,
    domain_columns,
    domain_sizes,
    domain_sizes_at,
    enumerate_points,
    filter_points,
    is_slice_iter,
    pack_rows,
    relevant_symbols,
    table,
)
from tilewright.verify.initializers import is_update
from tilewright.verify.reduction_parts import is_inside_reduction

Array = np.ndarray[Any, Any]

_RESET, _COUNT, _USE = range(3)
"""Kinds of events: the element gets a value that does not depend on its previous one; a point of the reduction is
accumulated; another block reads the element."""

_INIT, _READ, _BODY = range(3)
"""The order of events within one iteration of a block."""


def is_counted_once(parts: Sequence[BlockContext], contexts: Sequence[BlockContext], full_domain: bool) -> bool:
    """Whether blocks with one domain are proved to accumulate every point of their reduction once together.

    Args:
        parts: blocks that accumulate into one buffer, over one domain.
        contexts: all blocks of the function, in order.
        full_domain: whether every element of the domain must be complete at the end; else only initialised ones.
    """
    try:
        return _is_counted_once(parts, contexts, full_domain)
    except (UndecidedError, InternalError):
        return False


def _is_counted_once(parts: Sequence[BlockContext], contexts: Sequence[BlockContext], full_domain: bool) -> bool:
    buffer, iters = parts[0].block.body.buffer, parts[0].block.iters
    touching = [c for c in contexts if any(a.buffer == buffer for a in accesses(c.block))]
    enumerated, fixed_loops = _split_slice_iters(parts, touching, buffer)
    spatial = [p for p in enumerated if iters[p].kind is IterKind.SPATIAL]
    reduced = [p for p in enumerated if iters[p].kind is IterKind.REDUCE]
    all_fixed = frozenset[Var]().union(*fixed_loops.values())
    symbols = relevant_symbols(touching, [iters[p].extent for p in enumerated], all_fixed)
    sizes = [iters[p].extent for p in reduced]
    log = _EventLog(symbols, contexts, sizes, (len(spatial), len(reduced)))
    for context in touching:
        points = enumerate_points(context, symbols, fixed_loops[context])
        if context in parts:
            log.accumulate(
                context, points, *([context.block.iters[p] for p in positions] for positions in (spatial, reduced))
            )
        else:
            log.add_other_block(context, points, buffer, inside_reduction=is_inside_reduction(context, parts))
    count = log.count_complete_elements()
    if not full_domain:
        return count is not None
    if not all(domain_sizes(symbols, sizes)):
        return False  # the inits of empty reductions are not in the log
    return count == int(domain_sizes(symbols, [iters[p].extent for p in spatial]).sum())


def _split_slice_iters(
    parts: Sequence[BlockContext], touching: Sequence[BlockContext], buffer: Buffer
) -> tuple[list[int], dict[BlockContext, frozenset[Var]]]:
    """The positions of the iteration variables to enumerate, and the loops that need not be enumerated.

    The latter select a slice of the buffer; the same happens in all slices, and in any order of them.
    """
    iters = parts[0].block.iters
    fixed_loops = {context: set[Var]() for context in touching}
    enumerated = list(range(len(iters)))
    for position in range(len(iters)):
        if not all(
            is_slice_iter(context, position) and context.block.iters[position].kind is IterKind.SPATIAL
            for context in parts
        ):
            continue
        axes = [[d for d, e in enumerate(c.block.body.indices) if e is c.block.iters[position].var] for c in parts]
        if any(len(d) != 1 or d != axes[0] for d in axes):
            continue
        loops = {context: _slice_loop(context, buffer, axes[0][0], iters[position].extent) for context in touching}
        slice_loops = {v for v in loops.values() if v is not None}
        if None in loops.values() or any(
            x.var in slice_loops and x.var is not loops[context] for context in touching for x in context.loops
        ):
            continue
        enumerated.remove(position)
        for context, v in loops.items():
            if v is not None:
                fixed_loops[context].add(v)
    return enumerated, {context: frozenset(variables) for context, variables in fixed_loops.items()}


def _slice_loop(context: BlockContext, buffer: Buffer, axis: int, extent: Expr) -> Var | None:
    """The loop whose variable is the index of every access along an axis, and which nothing else depends on.

    Where the block writes the buffer, the loop must run over the whole axis. None where there is no such loop.
    """
    slice_loops: set[Var] = set()
    for a in accesses(context.block):
        if a.buffer != buffer:
            continue
        indices = [context.over_loops(i) for i in a.indices]
        loop = next((x for x in context.loops if x.var is indices[axis]), None)
        others = [e for d, e in enumerate(indices) if d != axis]
        others += [context.over_loops(a.condition), context.block.predicate, *(x.extent for x in context.loops)]
        if loop is None or any(loop.var in free_vars(e) for e in others):
            return None
        if a.is_write and loop.extent is not extent:
            return None
        slice_loops.add(loop.var)
    return slice_loops.pop() if len(slice_loops) == 1 else None


@dataclass(slots=True)
class _Events:
    """Events of one kind, one row each.

    Attributes:
        element: the symbols' values and the indices of the element.
        time: positions and iterations of the loops, outermost first, then the order within the iteration.
        kind: `_RESET`, `_COUNT` or `_USE`.
        expected: the number of points of the reduction.
        spatial: the symbols' values and the spatial part of the accumulated point.
        reduced: its reduction part.
    """

    element: Array
    time: Array
    kind: Array
    expected: Array
    spatial: Array
    reduced: Array


class _EventLog:
    """All events of one buffer.

    Args:
        symbols: the enumerated symbols; elements for different sizes are different elements.
        contexts: all blocks, in program order.
        sizes: extents of the reduction.
        variables: the numbers of spatial and of reduction variables.
    """

    def __init__(
        self,
        symbols: Sequence[Var],
        contexts: Sequence[BlockContext],
        sizes: Sequence[Expr],
        variables: tuple[int, int],
    ) -> None:
        self.symbols, self.contexts, self.sizes, self.variables = symbols, contexts, sizes, variables
        self.depth = max(len(context.loops) for context in contexts)
        self.events: list[_Events] = []
        self.num_values = 0

    def accumulate(
        self, context: BlockContext, points: Points, spatial: Sequence[BlockIter], reduced: Sequence[BlockIter]
    ) -> None:
        """Adds the events of a part of the reduction: its init if it has one, and its accumulations.

        Raises:
            UndecidedError: it accesses other elements than the one it stores, or there are too many events.
        """
        block = context.block
        if any(a.buffer == block.body.buffer and a.indices != block.body.indices for a in accesses(block)):
            raise UndecidedError
        if block.init is not None:
            first = np.ones(points.count, np.bool_)
            for i in block.iters:
                if i.kind is IterKind.REDUCE:
                    first &= column(points, i.binding) == 0
            self._add(context, points.subset(first), block.init.indices, _RESET, _INIT)
        domain = [domain_columns(points, some) for some in (spatial, reduced)]
        self._add(context, points, block.body.indices, _COUNT, _BODY, domain)

    def add_other_block(self, context: BlockContext, points: Points, buffer: Buffer, inside_reduction: bool) -> None:
        """Adds the events of a block that is no part of the reduction.

        Raises:
            UndecidedError: it is another reduction into the buffer, or there are too many events.
        """
        block = context.block
        if block.init is not None and block.init.buffer == buffer:
            raise UndecidedError
        for a in accesses(block):
            if a.buffer == buffer and not a.is_write and not inside_reduction:
                read = points if loads(a.condition) else filter_points(points, context.over_loops(a.condition))
                self._add(context, read, a.indices, _USE, _READ)
        if block.body.buffer == buffer and not is_update(block.body):
            self._add(context, points, block.body.indices, _RESET, _BODY)

    def _add(
        self, context: BlockContext, points: Points, indices: Sequence[Expr], kind: int, step: int,
        domain: Sequence[Sequence[Array]] | None = None,
    ) -> None:  # fmt: skip
        c = points.count
        # Every number is copied once, when the events of all blocks are concatenated.
        self.num_values += 2 * c * (2 * len(self.symbols) + len(indices) + 2 * self.depth + sum(self.variables) + 5)
        if self.num_values > MAX_VALUES:
            raise UndecidedError
        zero = np.zeros(c, np.int64)
        symbols = [points.variables[s] for s in self.symbols]
        time: list[Array] = []
        for depth in range(self.depth + 1):
            time.append(np.full(c, self._position(context, depth) if depth <= len(context.loops) else 0))
            time.append(points.variables[context.loops[depth].var] if depth < len(context.loops) else zero)
        spatial, reduced = domain or tuple([zero] * count for count in self.variables)
        self.events.append(_Events(
            table([*symbols, *(column(points, context.over_loops(i)) for i in indices)], c),
            table([*time, np.full(c, step)], c),
            np.full(c, kind), domain_sizes_at(points, self.sizes), table([*symbols, *spatial], c), table(reduced, c),
        ))  # fmt: skip

    def _position(self, context: BlockContext, depth: int) -> int:
        """The program position of a block or its loop inside the `depth` outermost loops: that of its first block."""
        loops = context.loops[: depth + 1]
        for k, other in enumerate(self.contexts):
            others = other.loops[: depth + 1]
            inside = len(loops) == len(others) == depth + 1 and all(x is y for x, y in zip(loops, others, strict=True))
            if other is context or inside:
                return k
        raise UndecidedError

    def count_complete_elements(self) -> int | None:
        """The number of elements that hold a complete reduction at the end; None where some reduction is wrong."""
        if not any(len(e.kind) for e in self.events):
            return 0
        element = pack_rows(np.concatenate([e.element for e in self.events]))
        time = pack_rows(np.concatenate([e.time for e in self.events]))
        order = np.lexsort((time, element))
        element = element[order]
        kind = np.concatenate([e.kind for e in self.events])[order]
        expected = np.concatenate([e.expected for e in self.events])[order]
        spatial = np.concatenate([e.spatial for e in self.events])[order]
        reduced = np.concatenate([e.reduced for e in self.events])[order]
        new_element = np.append(True, element[1:] != element[:-1])
        starts_run = new_element | (kind == _RESET)
        run = np.cumsum(starts_run) - 1  # a run: the events of an element from one initialisation to the next
        first = np.flatnonzero(starts_run)
        initialized = (kind[first] == _RESET)[run]
        adds = kind == _COUNT
        count = np.bincount(run[adds], minlength=len(first))
        if np.any(adds & ~initialized) or np.any(adds & (count[run] != expected)):
            return None
        so_far = np.cumsum(adds)
        so_far = so_far - (so_far - adds)[first][run]
        if np.any((kind == _USE) & initialized & (so_far != expected)):
            return None
        add_run, points = run[adds], pack_rows(spatial[adds])
        if np.any((add_run[1:] == add_run[:-1]) & (points[1:] != points[:-1])):
            return None  # one element accumulates two spatial points
        terms = pack_rows(np.concatenate([add_run[:, None], reduced[adds]], axis=1))
        if count_distinct(terms) != len(terms):
            return None
        last = np.append(np.flatnonzero(new_element)[1:], len(order)) - 1
        final = np.isin(add_run, run[last])
        return count_distinct(points[final])
