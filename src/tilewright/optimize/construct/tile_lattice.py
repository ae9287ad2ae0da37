"""The sizes that one axis may have: chains over the levels, numbered, each with its neighbours.

A chain holds the sizes of an axis at all levels, each a multiple of the one below, so that the states of many walks are
arrays of chain numbers and a step of all of them is a table look-up.
"""

from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from math import isqrt

import numpy as np
import numpy.typing as npt

from tilewright.optimize.reduction_blocking import even_k_block
from tilewright.tile.program import L2, REGISTER, Sizes

Indices = npt.NDArray[np.int64]


class EdgeKind(IntEnum):
    """Kinds of edges, in the order of the tables' columns; growing and shrinking once per level."""

    TILE = 0
    INV_TILE = 3
    VTHREAD = 6


VTHREADS = (2, 4)
"""Numbers of virtual threads that `set_vthread` tries."""

NUM_EDGES = EdgeKind.VTHREAD + len(VTHREADS)
UNKNOWN, NO_EDGE = -2, -1


MAX_FACTOR = 1 << 16
"""Divisors of a number are found up to this one, and what it has beside them."""


@lru_cache(maxsize=4096)
def divisors(n: int) -> tuple[int, ...]:
    """The divisors up to `MAX_FACTOR` and their counterparts, rising: all of any number below its square."""
    tried = np.arange(1, min(isqrt(n), MAX_FACTOR) + 1)
    small = [int(d) for d in tried[n % tried == 0]]
    return tuple(sorted({*small, *(n // d for d in small)}))


@lru_cache(maxsize=4096)
def k_block_sizes(n: int) -> tuple[int, ...]:
    """Lengths of chunks of n points, rising: its divisors, and where none is above a power of two up to the next, one
    that leaves a last chunk which is not much shorter than the others."""
    found = list(divisors(n))
    for most in (1 << k for k in range(1, n.bit_length())):
        if not any(most < 2 * d <= 2 * most for d in found):
            found.append(even_k_block(n, most))
    return tuple(sorted(set(found)))


@dataclass(slots=True)
class AxisLattice:
    """The chains of one axis, numbered as they are met.

    Attributes:
        extent: of the axis.
        step: elements that sizes are multiples of: lanes of a vector, or 1; a reduction along lanes has no L1 tiles of
            its own, and its last vector may be beyond the end.
        options: register sizes, rising.
        between: whether there are tiles between register tiles and the whole; not where the extent is a symbol.
        whole: whether the L2 tile is always the whole axis; so for reductions.
        fixed: whether the L1 tile is too.
        least: points of a reduction axis that an L1 tile has at least, unless it is the whole axis.
        most: points of a reduction axis that an L1 tile has at most; None without a limit.
        chains: what is known so far, as (register, L1, L2) sizes.
    """

    extent: int
    multiple: int
    register_sizes: tuple[int, ...]
    has_cache_tiles: bool = True
    is_l2_whole: bool = False
    is_l1_whole: bool = False
    min_l1: int = 1
    max_l1: int | None = None
    tilings: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])
    ids: dict[tuple[int, int, int], int] = field(default_factory=dict[tuple[int, int, int], int])
    successor_table: Indices = field(default_factory=lambda: np.full((0, NUM_EDGES), UNKNOWN, np.int64))
    sizes: Sizes = field(default_factory=lambda: np.zeros((0, 3), np.int64))

    def id_of(self, tiling: tuple[int, int, int]) -> int:
        """The number of a chain."""
        if tiling not in self.ids:
            self.ids[tiling] = len(self.tilings)
            self.tilings.append(tiling)
            if len(self.tilings) > len(self.successor_table):
                more = max(16, len(self.successor_table))
                self.successor_table = np.concatenate(
                    [self.successor_table, np.full((more, NUM_EDGES), UNKNOWN, np.int64)]
                )
                self.sizes = np.concatenate([self.sizes, np.ones((more, 3), np.int64)])
            self.sizes[len(self.tilings) - 1] = tiling
        return self.ids[tiling]

    def closest(self, register: int, l1: int, l2: int) -> int:
        """The chain with that register size whose other sizes are those wanted, or a little larger, or the largest."""
        if self.is_l2_whole and self.multiple > 1:
            cover = -(-self.extent // register) * register
            return self.id_of((register, cover, cover))
        if self.is_l2_whole:
            l1 = self.extent if self.is_l1_whole else l1
            if l1 % register:
                register = max(o for o in self.register_sizes if l1 % o == 0)
            return self.id_of((register, l1, self.extent))
        if not self.has_cache_tiles:
            return self.id_of((register, register, register))
        count = -(-self.extent // register) if self.multiple > 1 else self.extent // register
        outer = _smallest_at_least(divisors(count), -(-l2 // register))
        inner = _smallest_at_least(divisors(outer), -(-l1 // register))
        return self.id_of((register, register * inner, register * outer))

    def successors(self, current: Indices) -> Indices:
        """Where all edges lead from chains [chain, edge]; NONE where there is no such edge."""
        found = self.successor_table[current]
        if (found[:, 0] == UNKNOWN).any():
            for k in dict.fromkeys(int(k) for k in current):
                if self.successor_table[k, 0] == UNKNOWN:
                    # numbering a neighbour may make the table longer
                    row = [self._find_successor(self.tilings[k], edge) for edge in range(NUM_EDGES)]
                    self.successor_table[k] = row
            found = self.successor_table[current]
        return found

    def successor(self, current: Indices, edges: Indices) -> Indices:
        """Where edges lead from chains, one edge each; NONE where there is no such edge."""
        return self.successors(current)[np.arange(len(current)), edges]

    def _find_successor(self, tiling: tuple[int, int, int], edge: int) -> int:
        register, near, far = tiling
        if edge >= EdgeKind.VTHREAD:
            wanted = register * VTHREADS[edge - EdgeKind.VTHREAD]
            return (
                self.closest(wanted, near, far) if wanted in self.register_sizes and not self.is_l2_whole else NO_EDGE
            )
        grow = edge < EdgeKind.INV_TILE
        level = edge % EdgeKind.INV_TILE
        if level == REGISTER:
            found = _adjacent(self.register_sizes, register, grow)
            if found is None or (self.is_l2_whole and self.multiple == 1 and near % found):
                return NO_EDGE
            return self.closest(found, near, far)
        if not self.has_cache_tiles or (self.is_l2_whole and (level == L2 or self.is_l1_whole)):
            return NO_EDGE
        if self.is_l2_whole:
            most = self.extent if self.max_l1 is None else self.max_l1
            found = _adjacent([d for d in k_block_sizes(self.extent) if d <= most
                           and d % register == 0 and (d >= self.min_l1 or d == self.extent)], near, grow)  # fmt: skip
            return NO_EDGE if found is None else self.id_of((register, found, far))
        count = -(-self.extent // register) if self.multiple > 1 else self.extent // register
        if level == L2:
            found = _adjacent([d for d in divisors(count) if d * register % near == 0], far // register, grow)
            return NO_EDGE if found is None else self.id_of((register, near, found * register))
        found = _adjacent(divisors(count), near // register, grow)
        return NO_EDGE if found is None else self.closest(register, found * register, max(far, found * register))


def _adjacent(options: "tuple[int, ...] | list[int]", current: int, larger: bool) -> int | None:
    """The next larger or smaller of rising options."""
    later = [o for o in options if (o > current if larger else o < current)]
    return None if not later else later[0] if larger else later[-1]


def _smallest_at_least(options: tuple[int, ...], wanted: int) -> int:
    return next((o for o in options if o >= wanted), options[-1])


def balanced_sizes(count: int, limit: int) -> tuple[int, ...]:
    """Tile heights up to `most` that leave no more for the last tile than a lower one would: ceil(n / ceil(n / h))."""
    return tuple(h for h in range(1, min(count, limit) + 1) if h == -(-count // -(-count // h)) or count % h == 0)
