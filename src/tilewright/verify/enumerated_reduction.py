"""The history of an accumulator: what happens to its elements, by element and time, for sizes that can be enumerated.

An element is given a first value, then every point of its reduction is added once, and only then other blocks may use
it, except for those inside the loops of the reduction, which may use what there is so far.
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
"""What happens to an element: it gets a value that does not depend on what it held; a point of the reduction is added;
another block reads it, or changes it."""

_INIT, _READ, _BODY = range(3)
"""When that happens within one iteration of a block."""


def is_counted_once(parts: Sequence[BlockContext], contexts: Sequence[BlockContext], full_domain: bool) -> bool:
    """Whether it is proved that blocks of one domain together add every point of their reduction once.

    Args:
        parts: blocks that accumulate into one buffer, over one domain.
        nests: all blocks of the function, in order.
        whole: whether every element of the domain must be complete at the end; else only those that are begun.
    """
    try:
        return _is_counted_once(parts, contexts, full_domain)
    except (UndecidedError, InternalError):
        return False


def _is_counted_once(parts: Sequence[BlockContext], contexts: Sequence[BlockContext], full_domain: bool) -> bool:
    buffer, iters = parts[0].block.body.buffer, parts[0].block.iters
    touching = [n for n in contexts if any(a.buffer == buffer for a in accesses(n.block))]
    places, still = _split_slice_iters(parts, touching, buffer)
    spatial = [p for p in places if iters[p].kind is IterKind.SPATIAL]
    reduced = [p for p in places if iters[p].kind is IterKind.REDUCE]
    all_still = frozenset[Var]().union(*still.values())
    symbols = relevant_symbols(touching, [iters[p].extent for p in places], all_still)
    sizes = [iters[p].extent for p in reduced]
    history = _EventLog(symbols, contexts, sizes, (len(spatial), len(reduced)))
    for context in touching:
        points = enumerate_points(context, symbols, still[context])
        if context in parts:
            history.accumulate(
                context, points, *([context.block.iters[p] for p in some] for some in (spatial, reduced))
            )
        else:
            history.add_other_block(context, points, buffer, inside_reduction=is_inside_reduction(context, parts))
    number = history.count_complete_elements()
    if not full_domain:
        return number is not None
    if not all(domain_sizes(symbols, sizes)):
        return False  # what an empty reduction leaves is not looked at
    return number == int(domain_sizes(symbols, [iters[p].extent for p in spatial]).sum())


def _split_slice_iters(
    parts: Sequence[BlockContext], touching: Sequence[BlockContext], buffer: Buffer
) -> tuple[list[int], dict[BlockContext, frozenset[Var]]]:
    """The variables that must be enumerated, by place, and the loops that need not: those that pick a slice of the
    buffer in which the same happens as in all others, whatever order slices are in."""
    iters = parts[0].block.iters
    still = {context: set[Var]() for context in touching}
    places = list(range(len(iters)))
    for place in range(len(iters)):
        if not all(
            is_slice_iter(context, place) and context.block.iters[place].kind is IterKind.SPATIAL for context in parts
        ):
            continue
        axes = [[d for d, e in enumerate(n.block.body.indices) if e is n.block.iters[place].var] for n in parts]
        if any(len(d) != 1 or d != axes[0] for d in axes):
            continue
        loops = {context: _slice_loop(context, buffer, axes[0][0], iters[place].extent) for context in touching}
        chosen = {v for v in loops.values() if v is not None}
        if None in loops.values() or any(
            x.var in chosen and x.var is not loops[context] for context in touching for x in context.loops
        ):
            continue
        places.remove(place)
        for context, v in loops.items():
            if v is not None:
                still[context].add(v)
    return places, {context: frozenset(found) for context, found in still.items()}


def _slice_loop(context: BlockContext, buffer: Buffer, axis: int, extent: Expr) -> Var | None:
    """The loop that is the index of every access along an axis, and decides nothing else about the accesses; where
    the block writes, it goes through all slices."""
    found: set[Var] = set()
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
        found.add(loop.var)
    return found.pop() if len(found) == 1 else None


@dataclass(slots=True)
class _Events:
    """Events of one kind, a row each: the element and the sizes it belongs to, the time, the kind, how many points the
    reduction has, and the point that is added."""

    element: Array
    time: Array
    kind: Array
    expected: Array
    spatial: Array
    reduced: Array


class _EventLog:
    """What happens to the elements of one buffer.

    Args:
        symbols: the symbols that are enumerated; elements of runs with different sizes are different elements.
        nests: all blocks, in order: their places say when they run.
        sizes: extents of the reduction.
        variables: numbers of spatial and reduction variables.
    """

    def __init__(
        self,
        symbols: Sequence[Var],
        contexts: Sequence[BlockContext],
        sizes: Sequence[Expr],
        variables: tuple[int, int],
    ) -> None:
        self.symbols, self.nests, self.sizes, self.variables = symbols, contexts, sizes, variables
        self.depth = max(len(context.loops) for context in contexts)
        self.events: list[_Events] = []
        self.num_values = 0

    def accumulate(
        self, context: BlockContext, points: Points, spatial: Sequence[BlockIter], reduced: Sequence[BlockIter]
    ) -> None:
        """A part of the reduction: its init where it has one, and what it adds."""
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
        """A block that is no part of the reduction."""
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
        n = points.count
        # Every number is copied once, when events of all blocks are put together.
        self.num_values += 2 * n * (2 * len(self.symbols) + len(indices) + 2 * self.depth + sum(self.variables) + 5)
        if self.num_values > MAX_VALUES:
            raise UndecidedError
        zero = np.zeros(n, np.int64)
        symbols = [points.variables[s] for s in self.symbols]
        time: list[Array] = []
        for depth in range(self.depth + 1):
            time.append(np.full(n, self._position(context, depth) if depth <= len(context.loops) else 0))
            time.append(points.variables[context.loops[depth].var] if depth < len(context.loops) else zero)
        spatial, reduced = domain or tuple([zero] * count for count in self.variables)
        self.events.append(_Events(
            table([*symbols, *(column(points, context.over_loops(i)) for i in indices)], n),
            table([*time, np.full(n, step)], n),
            np.full(n, kind), domain_sizes_at(points, self.sizes), table([*symbols, *spatial], n), table(reduced, n),
        ))  # fmt: skip

    def _position(self, context: BlockContext, depth: int) -> int:
        """When a block, or the loop around it, comes inside the outermost `depth` loops: its first block's number."""
        mine = context.loops[: depth + 1]
        for k, other in enumerate(self.nests):
            theirs = other.loops[: depth + 1]
            inside = len(mine) == len(theirs) == depth + 1 and all(x is y for x, y in zip(mine, theirs, strict=True))
            if other is context or inside:
                return k
        raise UndecidedError

    def count_complete_elements(self) -> int | None:
        """How many elements hold a sum at the end; None where some sum is not as it should be."""
        if not any(len(e.kind) for e in self.events):
            return 0
        element, time, kind, wanted, spatial, reduced = (
            np.concatenate([getattr(e, name) for e in self.events]) for name in _Events.__slots__
        )
        element = pack_rows(element)
        order = np.lexsort((pack_rows(time), element))
        element, kind, wanted, spatial, reduced = (a[order] for a in (element, kind, wanted, spatial, reduced))
        new = np.append(True, element[1:] != element[:-1])
        start = new | (kind == _RESET)
        era = np.cumsum(start) - 1  # from one first value of an element to the next
        first = np.flatnonzero(start)
        valued = (kind[first] == _RESET)[era]
        adds = kind == _COUNT
        number = np.bincount(era[adds], minlength=len(first))
        if np.any(adds & ~valued) or np.any(adds & (number[era] != wanted)):
            return None
        so_far = np.cumsum(adds)
        so_far = so_far - (so_far - adds)[first][era]
        if np.any((kind == _USE) & valued & (so_far != wanted)):
            return None
        mine, points = era[adds], pack_rows(spatial[adds])
        if np.any((mine[1:] == mine[:-1]) & (points[1:] != points[:-1])):
            return None  # one element collects for two
        terms = pack_rows(np.concatenate([mine[:, None], reduced[adds]], axis=1))
        if count_distinct(terms) != len(terms):
            return None
        last = np.append(np.flatnonzero(new)[1:], len(order)) - 1
        final = np.isin(mine, era[last])
        return count_distinct(points[final])
