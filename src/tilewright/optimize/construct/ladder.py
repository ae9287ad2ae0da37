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

from tilewright.optimize.chunk import even_chunk
from tilewright.tile.program import L2, REGISTER, Sizes

Indices = npt.NDArray[np.int64]


class Kind(IntEnum):
    """Kinds of edges, in the order of the tables' columns; growing and shrinking once per level."""

    TILE = 0
    INV_TILE = 3
    VTHREAD = 6


VTHREADS = (2, 4)
"""Numbers of virtual threads that `set_vthread` tries."""

EDGES = Kind.VTHREAD + len(VTHREADS)
UNSEEN, NONE = -2, -1


MAX_FACTOR = 1 << 16
"""Divisors of a number are found up to this one, and what it has beside them."""


@lru_cache(maxsize=4096)
def divisors(n: int) -> tuple[int, ...]:
    """The divisors up to `MAX_FACTOR` and their counterparts, rising: all of any number below its square."""
    tried = np.arange(1, min(isqrt(n), MAX_FACTOR) + 1)
    small = [int(d) for d in tried[n % tried == 0]]
    return tuple(sorted({*small, *(n // d for d in small)}))


@lru_cache(maxsize=4096)
def chunk_lengths(n: int) -> tuple[int, ...]:
    """Lengths of chunks of n points, rising: its divisors, and where none is above a power of two up to the next, one
    that leaves a last chunk which is not much shorter than the others."""
    found = list(divisors(n))
    for most in (1 << k for k in range(1, n.bit_length())):
        if not any(most < 2 * d <= 2 * most for d in found):
            found.append(even_chunk(n, most))
    return tuple(sorted(set(found)))


@dataclass(slots=True)
class Ladder:
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
    step: int
    options: tuple[int, ...]
    between: bool = True
    whole: bool = False
    fixed: bool = False
    least: int = 1
    most: int | None = None
    chains: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])
    numbers: dict[tuple[int, int, int], int] = field(default_factory=dict[tuple[int, int, int], int])
    table: Indices = field(default_factory=lambda: np.full((0, EDGES), UNSEEN, np.int64))
    sizes: Sizes = field(default_factory=lambda: np.zeros((0, 3), np.int64))

    def number(self, chain: tuple[int, int, int]) -> int:
        """The number of a chain."""
        if chain not in self.numbers:
            self.numbers[chain] = len(self.chains)
            self.chains.append(chain)
            if len(self.chains) > len(self.table):
                more = max(16, len(self.table))
                self.table = np.concatenate([self.table, np.full((more, EDGES), UNSEEN, np.int64)])
                self.sizes = np.concatenate([self.sizes, np.ones((more, 3), np.int64)])
            self.sizes[len(self.chains) - 1] = chain
        return self.numbers[chain]

    def fitted(self, register: int, near: int, far: int) -> int:
        """The chain with that register size whose other sizes are those wanted, or a little larger, or the largest."""
        if self.whole and self.step > 1:
            cover = -(-self.extent // register) * register
            return self.number((register, cover, cover))
        if self.whole:
            near = self.extent if self.fixed else near
            if near % register:
                register = max(o for o in self.options if near % o == 0)
            return self.number((register, near, self.extent))
        if not self.between:
            return self.number((register, register, register))
        count = -(-self.extent // register) if self.step > 1 else self.extent // register
        outer = _at_least(divisors(count), -(-far // register))
        inner = _at_least(divisors(outer), -(-near // register))
        return self.number((register, register * inner, register * outer))

    def rows(self, current: Indices) -> Indices:
        """Where all edges lead from chains [chain, edge]; NONE where there is no such edge."""
        found = self.table[current]
        if (found[:, 0] == UNSEEN).any():
            for k in dict.fromkeys(int(k) for k in current):
                if self.table[k, 0] == UNSEEN:
                    # numbering a neighbour may make the table longer
                    row = [self._neighbour(self.chains[k], edge) for edge in range(EDGES)]
                    self.table[k] = row
            found = self.table[current]
        return found

    def step_from(self, current: Indices, edges: Indices) -> Indices:
        """Where edges lead from chains, one edge each; NONE where there is no such edge."""
        return self.rows(current)[np.arange(len(current)), edges]

    def _neighbour(self, chain: tuple[int, int, int], edge: int) -> int:
        register, near, far = chain
        if edge >= Kind.VTHREAD:
            wanted = register * VTHREADS[edge - Kind.VTHREAD]
            return self.fitted(wanted, near, far) if wanted in self.options and not self.whole else NONE
        grow = edge < Kind.INV_TILE
        level = edge % Kind.INV_TILE
        if level == REGISTER:
            found = _next(self.options, register, grow)
            if found is None or (self.whole and self.step == 1 and near % found):
                return NONE
            return self.fitted(found, near, far)
        if not self.between or (self.whole and (level == L2 or self.fixed)):
            return NONE
        if self.whole:
            most = self.extent if self.most is None else self.most
            found = _next([d for d in chunk_lengths(self.extent) if d <= most
                           and d % register == 0 and (d >= self.least or d == self.extent)], near, grow)  # fmt: skip
            return NONE if found is None else self.number((register, found, far))
        count = -(-self.extent // register) if self.step > 1 else self.extent // register
        if level == L2:
            found = _next([d for d in divisors(count) if d * register % near == 0], far // register, grow)
            return NONE if found is None else self.number((register, near, found * register))
        found = _next(divisors(count), near // register, grow)
        return NONE if found is None else self.fitted(register, found * register, max(far, found * register))


def _next(options: "tuple[int, ...] | list[int]", current: int, grow: bool) -> int | None:
    """The next larger or smaller of rising options."""
    later = [o for o in options if (o > current if grow else o < current)]
    return None if not later else later[0] if grow else later[-1]


def _at_least(options: tuple[int, ...], wanted: int) -> int:
    return next((o for o in options if o >= wanted), options[-1])


def balanced(count: int, most: int) -> tuple[int, ...]:
    """Tile heights up to `most` that leave no more for the last tile than a lower one would: ceil(n / ceil(n / h))."""
    return tuple(h for h in range(1, min(count, most) + 1) if h == -(-count // -(-count // h)) or count % h == 0)
