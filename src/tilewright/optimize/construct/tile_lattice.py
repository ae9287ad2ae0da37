"""The lattice of tile sizes of one axis: (register, L1, L2) sizes, numbered, each with its neighbours.

At every level the size is a multiple of the level below. As tilings are numbered, the states of many walks are arrays
of numbers, and a step of all walks is a table look-up.
"""

from collections.abc import Sequence
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
    """Kinds of edges, in the order of the tables' columns; tiles grow and shrink once per level."""

    TILE = 0
    INV_TILE = 3
    VTHREAD = 6


VTHREADS = (2, 4)
"""Numbers of virtual threads that `set_vthread` tries."""

NUM_EDGES = EdgeKind.VTHREAD + len(VTHREADS)
UNKNOWN, NO_EDGE = -2, -1


MAX_FACTOR = 1 << 16
"""The largest divisor that is tried; cofactors may be larger."""


@lru_cache(maxsize=4096)
def divisors(n: int) -> tuple[int, ...]:
    """The divisors up to `MAX_FACTOR` and their cofactors, ascending: all divisors of any number below its square."""
    candidates = np.arange(1, min(isqrt(n), MAX_FACTOR) + 1)
    small = [int(d) for d in candidates[n % candidates == 0]]
    return tuple(sorted({*small, *(n // d for d in small)}))


@lru_cache(maxsize=4096)
def k_block_sizes(n: int) -> tuple[int, ...]:
    """Sizes of K-blocks of n points, ascending: the divisors of n, and where none lies between two powers of two, a
    size whose last block is hardly shorter than the others."""
    sizes = list(divisors(n))
    for limit in (1 << k for k in range(1, n.bit_length())):
        if not any(limit < 2 * d <= 2 * limit for d in sizes):
            sizes.append(even_k_block(n, limit))
    return tuple(sorted(set(sizes)))


Tiling = tuple[int, int, int]
"""The sizes of the register, L1 and L2 tiles of an axis."""


@dataclass(frozen=True, slots=True)
class TilingRules:
    """What tilings of an axis there are.

    Attributes:
        extent: the extent of the axis.
        multiple: tile sizes are multiples of it: the lanes of a vector, or 1. A reduction along lanes has no L1 tiles
            of its own, and its last vector may exceed the extent.
        register_sizes: sizes of register tiles, ascending.
        is_l2_whole: whether the L2 tile is always the whole axis, as for reductions.
        is_l1_whole: whether the L1 tile is, too.
        min_l1: the smallest L1 tile of a reduction axis, unless it is the whole axis.
        max_l1: the largest L1 tile of a reduction axis; None without a limit.
        tile_counts: register tiles of an L1 or L2 tile, each a multiple of the one before; empty for all numbers that
            divide that of the axis.
    """

    extent: int
    multiple: int
    register_sizes: tuple[int, ...]
    is_l2_whole: bool = False
    is_l1_whole: bool = False
    min_l1: int = 1
    max_l1: int | None = None
    tile_counts: tuple[int, ...] = ()

    def closest(self, register: int, l1: int, l2: int) -> Tiling:
        """The tiling with this register size whose other sizes are the given ones, or the next larger ones, or the
        largest."""
        if self.is_l2_whole and self.multiple > 1:
            cover = -(-self.extent // register) * register
            return register, cover, cover
        if self.is_l2_whole:
            l1 = self.extent if self.is_l1_whole else l1
            if l1 % register:
                register = max(o for o in self.register_sizes if l1 % o == 0)
            return register, l1, self.extent
        outer = _smallest_at_least(self._counts(register), -(-l2 // register))
        inner = _smallest_at_least([d for d in self._counts(register) if outer % d == 0], -(-l1 // register))
        return register, register * inner, register * outer

    def neighbour(self, tiling: Tiling, edge: int) -> Tiling | None:
        """The tiling that an edge leads to; None where there is no such edge."""
        register, l1, l2 = tiling
        if edge >= EdgeKind.VTHREAD:
            grown = register * VTHREADS[edge - EdgeKind.VTHREAD]
            return self.closest(grown, l1, l2) if grown in self.register_sizes and not self.is_l2_whole else None
        is_growing = edge < EdgeKind.INV_TILE
        level = edge % EdgeKind.INV_TILE
        if level == REGISTER:
            size = _adjacent(self.register_sizes, register, is_growing)
            if size is None or (self.is_l2_whole and self.multiple == 1 and l1 % size):
                return None
            return self.closest(size, l1, l2)
        if self.is_l2_whole and (level == L2 or self.is_l1_whole):
            return None
        if self.is_l2_whole:
            max_size = self.extent if self.max_l1 is None else self.max_l1
            options = [d for d in k_block_sizes(self.extent) if d % register == 0 and d <= max_size]
            options = [d for d in options if d >= self.min_l1 or d == self.extent]
            size = _adjacent(options, l1, is_growing)
            return None if size is None else (register, size, l2)
        counts = self._counts(register)
        if level == L2:
            size = _adjacent([d for d in counts if d * register % l1 == 0], l2 // register, is_growing)
            return None if size is None else (register, l1, size * register)
        size = _adjacent(counts, l1 // register, is_growing)
        return None if size is None else self.closest(register, size * register, max(l2, size * register))

    def _counts(self, register: int) -> tuple[int, ...]:
        """The numbers of register tiles of this size that an L1 or L2 tile may have, ascending."""
        return self.tile_counts or divisors(
            -(-self.extent // register) if self.multiple > 1 else self.extent // register
        )


@lru_cache(maxsize=4096)
def _neighbours(rules: TilingRules, tiling: Tiling) -> tuple[Tiling | None, ...]:
    """The tilings that all edges lead to, cached: axes of many sketches and kernels have the same rules."""
    return tuple(rules.neighbour(tiling, edge) for edge in range(NUM_EDGES))


@dataclass(slots=True)
class AxisLattice:
    """The tilings of one axis, numbered in the order in which they are first reached.

    Attributes:
        rules: what tilings there are.
        tilings: the tilings reached so far, as (register, L1, L2) sizes.
        ids: the number of each tiling.
        successor_table: [tiling, edge], `UNKNOWN` in rows that were not computed yet.
        sizes: [tiling, level].
    """

    rules: TilingRules
    tilings: list[Tiling] = field(default_factory=list[Tiling])
    ids: dict[Tiling, int] = field(default_factory=dict[Tiling, int])
    successor_table: Indices = field(default_factory=lambda: np.full((0, NUM_EDGES), UNKNOWN, np.int64))
    sizes: Sizes = field(default_factory=lambda: np.zeros((0, 3), np.int64))

    def id_of(self, tiling: Tiling) -> int:
        """The number of a tiling."""
        if tiling not in self.ids:
            self.ids[tiling] = len(self.tilings)
            self.tilings.append(tiling)
            if len(self.tilings) > len(self.successor_table):
                added_rows = max(16, len(self.successor_table))
                self.successor_table = np.concatenate(
                    [self.successor_table, np.full((added_rows, NUM_EDGES), UNKNOWN, np.int64)]
                )
                self.sizes = np.concatenate([self.sizes, np.ones((added_rows, 3), np.int64)])
            self.sizes[len(self.tilings) - 1] = tiling
        return self.ids[tiling]

    def closest(self, register: int, l1: int, l2: int) -> int:
        """The number of the closest tiling by the rules."""
        return self.id_of(self.rules.closest(register, l1, l2))

    def successors(self, current: Indices) -> Indices:
        """The tilings that all edges lead to from tilings [tiling, edge]; NO_EDGE where there is no such edge."""
        rows = self.successor_table[current]
        if (rows[:, 0] == UNKNOWN).any():
            for k in dict.fromkeys(current.tolist()):
                if self.successor_table[k, 0] == UNKNOWN:
                    # numbering a new neighbour may reallocate the table
                    row = [NO_EDGE if x is None else self.id_of(x) for x in _neighbours(self.rules, self.tilings[k])]
                    self.successor_table[k] = row
            rows = self.successor_table[current]
        return rows

    def successor(self, current: Indices, edges: Indices) -> Indices:
        """The tilings that edges lead to from tilings, one edge each; NO_EDGE where there is no such edge."""
        return self.successors(current)[np.arange(len(current)), edges]


def _adjacent(options: "tuple[int, ...] | list[int]", current: int, larger: bool) -> int | None:
    """The next larger or smaller of ascending options."""
    candidates = [o for o in options if (o > current if larger else o < current)]
    return None if not candidates else candidates[0] if larger else candidates[-1]


def _smallest_at_least(options: Sequence[int], lower: int) -> int:
    return next((o for o in options if o >= lower), options[-1])


def balanced_sizes(count: int, limit: int) -> tuple[int, ...]:
    """Tile heights up to `limit` that are the smallest for their number of tiles, ceil(n / ceil(n / h)), and the
    divisors."""
    return tuple(h for h in range(1, min(count, limit) + 1) if h == -(-count // -(-count // h)) or count % h == 0)
