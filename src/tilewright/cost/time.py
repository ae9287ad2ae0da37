"""Times of a batch by resource, and how the times of overlapping resources add up."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.cost.footprint import Numbers
from tilewright.machine.cost_parameters import CostParameters
from tilewright.machine.model import Machine


@dataclass(frozen=True, slots=True)
class Time:
    """Nanoseconds of a batch by resource; `total` is the predicted time.

    Attributes:
        compute: instructions of register tiles, on the thread that finishes last.
        memory: one array per memory level from L2 outwards: bytes that leave it over its bandwidth.
        parallel: fork and join of threads; 0 on one thread.
        total: the whole, with overlap.
    """

    compute: Numbers
    memory: tuple[Numbers, ...]
    parallel: Numbers
    total: Numbers

    def total_with_threads(self, machine: Machine) -> Numbers:
        """The predicted times where threads are started even if they do not pay; the total on a machine of one core."""
        is_forked = (self.parallel > 0) | (machine.cores == 1)
        return self.total + np.where(is_forked, 0.0, machine.sync_us * 1e3)

    def map_arrays(self, function: Callable[[Numbers], Numbers]) -> "Time":
        """The times with `function` applied to every array."""
        return Time(
            function(self.compute), tuple(map(function, self.memory)), function(self.parallel), function(self.total)
        )

    @staticmethod
    def concat(batches: Sequence["Time"]) -> "Time":
        """The times of the candidates of several batches, in order."""
        memory = tuple(np.concatenate(level) for level in zip(*(x.memory for x in batches), strict=True))
        rows = zip(*((x.compute, x.parallel, x.total) for x in batches), strict=True)
        compute, parallel, total = (np.concatenate(x) for x in rows)
        return Time(compute, memory, parallel, total)

    def __add__(self, later: "Time") -> "Time":
        """The times of this work followed by other work."""
        memory = tuple(a + b for a, b in zip(self.memory, later.memory, strict=True))
        compute, parallel = self.compute + later.compute, self.parallel + later.parallel
        return Time(compute, memory, parallel, self.total + later.total)


def overlapped_time(compute: Numbers, memory: list[Numbers], cost: CostParameters) -> Time:
    """The time on one thread where all resources overlap: that of the slowest and a share of the others."""
    resources = [compute, *memory]
    longest, total = resources[0], resources[0]
    for x in resources[1:]:
        longest, total = np.maximum(longest, x), total + x
    return Time(compute, tuple(memory), np.zeros_like(compute), longest + cost.exposed_fraction * (total - longest))


def streaming_time(compute: Numbers, memory: list[Numbers], cost: CostParameters) -> Time:
    """The time on one thread where little is used again: nothing prefetches from L2, so instructions wait for it, while
    data from beyond L2 is loaded meanwhile."""
    l2 = compute + memory[0]
    beyond_l2 = sum(memory[1:], start=np.zeros_like(compute))
    total = np.maximum(l2, beyond_l2) + cost.exposed_fraction * np.minimum(l2, beyond_l2)
    return Time(compute, tuple(memory), np.zeros_like(compute), total)
