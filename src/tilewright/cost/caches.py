"""The cache hierarchy of a machine as the cost model sees it, and the miss ratio of data that is used again."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from tilewright.errors import MachineError
from tilewright.machine.cost_parameters import DEFAULT_COST, CostParameters
from tilewright.machine.model import Level, Machine

PAGE_BYTES = 4096
"""Bytes of a page of memory."""

_CYCLIC_MISS_FACTOR = 2.0
"""Growth of the share that a cache loses of data that is used again in one order; see `cyclic_miss_ratio`."""

_Bytes = TypeVar("_Bytes", float, npt.NDArray[np.float64])


@dataclass(frozen=True, slots=True)
class CacheHierarchy:
    """Parameters of caches for the traffic formulas.

    Attributes:
        capacities: bytes of each cache, nearest first.
        line: bytes of a cache line.
        set_counts: number of sets of the nearest caches, those that are indexed by the lowest bits of an address; in
            the others nothing aliases.
        threads: per cache the number of threads that share the outer loops and have a cache of their own on this level:
            data that several of them touch is loaded by each, and stays less well in the last such cache. One thread
            where empty.
        tlb_entries: pages that the first-level TLB holds.
        cost: the machine's parameters of the cost model.
    """

    capacities: Sequence[float]
    line: int
    set_counts: Sequence[int] = ()
    threads: Sequence[int] = ()
    tlb_entries: float = inf
    cost: CostParameters = DEFAULT_COST

    @staticmethod
    def of(machine: Machine) -> "CacheHierarchy":
        """The caches of a machine, each with one core's share of its capacity.

        Raises:
            MachineError: the machine has no caches.
        """
        levels = caches(machine)
        return CacheHierarchy(
            [x.share for x in levels],
            levels[0].line,
            # a cache of a processor's cores hashes more bits of an address into its set index
            [_set_count(x) for x in machine.private_caches],
            [machine.cores if x.shared_by == 1 else 1 for x in levels],
            machine.tlb_entries,
            machine.cost,
        )

    def far_fraction(self, size: float) -> float:
        """Share of a kernel's `size` bytes that come from beyond the private caches of a core: none where all fit, as
        earlier kernels have just used them, and all where they are much larger."""
        private = self.capacities[: len(self.set_counts)]
        return cyclic_miss_ratio(size, private[-1], self.cost) if private else 1.0


def caches(machine: Machine) -> tuple[Level, ...]:
    """The caches of a machine, nearest first.

    Raises:
        MachineError: it has none: graphics processors have memories that programs fill themselves.
    """
    levels = tuple(x for x in machine.levels[:-1] if x.ways)
    if not levels:
        what = f"it has no caches, and there is no construction of programs for {machine.arch} yet"
        hint = "choose the description of a processor"
        raise MachineError(what, where=f"machine {machine.name!r}", hint=hint)
    return levels


def _set_count(cache: Level) -> int:
    """Sets of a cache, rounded down to a power of two, whatever a description says of its size and its ways."""
    return 1 << max(1, cache.bytes // (cache.line * cache.ways)).bit_length() - 1


def miss_ratio(size: float, capacity: float, cost: CostParameters) -> float:
    """Share of `size` bytes, used again and again, that a cache beyond L1 no longer holds: earlier kernels have just
    written them, and of data that does not fit a part stays."""
    return max(0.0, _lost_share(max(1.0, size), capacity, cost))


def cyclic_miss_ratio(size: float, capacity: float, cost: CostParameters) -> float:
    """Share of `size` bytes, used again and again in one order, that a cache beyond L1 no longer holds.

    Where more lines belong into a set than it has ways, each has left before it is used again. Pages lie anywhere, so a
    cache of 16 ways and 2 MiB loses 0.04 of 1.2 MiB, 0.16 of 1.5, half of 2 and 0.97 of 3 MiB (the share of lines in
    sets with more than 16, by the Poisson distribution); the formula says 0, 0, half and all.
    """
    return min(1.0, _CYCLIC_MISS_FACTOR * miss_ratio(size, capacity, cost))


def cyclic_miss_ratios(
    sizes: npt.NDArray[np.float64], capacity: float, cost: CostParameters
) -> npt.NDArray[np.float64]:
    """`cyclic_miss_ratio` of every size."""
    return np.clip(_CYCLIC_MISS_FACTOR * _lost_share(np.maximum(1.0, sizes), capacity, cost), 0.0, 1.0)


def _lost_share(size: _Bytes, capacity: float, cost: CostParameters) -> _Bytes:
    """Share of so many bytes that a cache has no room for; below 0 where it has room for more."""
    return 1.0 - capacity * cost.usable_cache_fraction / size
