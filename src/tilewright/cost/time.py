"""Times of a batch by what they are spent on, and how kinds of work that overlap and cores that share it add up."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add

import numpy as np

from tilewright.cost.footprint import Numbers
from tilewright.cost.traffic import USABLE_CACHE_FRACTION
from tilewright.errors import MachineError
from tilewright.machine.model import Level, Machine

CORE_SPEED_VARIATION = 0.1
"""The part by which cores differ in speed for a while: neighbours on a shared machine, clocks, interrupts. Chosen, not
measured; it bounds the wait for the last task, which threads that are done can't take from the one that has it."""

EXPOSED_FRACTION = 0.25
"""The part of the time of all but the slowest kind of work that is not hidden behind it."""


@dataclass(frozen=True, slots=True)
class Time:
    """Nanoseconds of a batch by what they are spent on; `total` is what counts.

    Attributes:
        compute: instructions of register tiles, on the thread that is done last.
        memory: one per memory level from L2 outwards: bytes that leave it over its bandwidth.
        parallel: starting and joining threads, if any.
        total: the whole.
    """

    compute: Numbers
    memory: tuple[Numbers, ...]
    parallel: Numbers
    total: Numbers

    def map_arrays(self, function: Callable[[Numbers], Numbers]) -> "Time":
        """The times with every array changed alike."""
        return Time(
            function(self.compute), tuple(map(function, self.memory)), function(self.parallel), function(self.total)
        )

    @staticmethod
    def concat(batches: Sequence["Time"]) -> "Time":
        """The times of several batches, one behind the other."""
        memory = tuple(np.concatenate(level) for level in zip(*(x.memory for x in batches), strict=True))
        compute, parallel, total = (np.concatenate(x) for x in zip(*((x.compute, x.parallel, x.total) for x in batches),
                                                                   strict=True))  # fmt: skip
        return Time(compute, memory, parallel, total)

    def __add__(self, later: "Time") -> "Time":
        """The times of this work and of what follows it."""
        memory = tuple(a + b for a, b in zip(self.memory, later.memory, strict=True))
        compute, parallel = self.compute + later.compute, self.parallel + later.parallel
        return Time(compute, memory, parallel, self.total + later.total)


def parallel_time(
    parts: Sequence[tuple[Numbers, Sequence[Numbers]]], tasks: Numbers, slowdown: Numbers, machine: Machine,
    streaming: bool = False, traffic_growth: Sequence[Numbers] = (),
) -> Time:  # fmt: skip
    """The times on one thread or on all cores, whichever are shorter.

    Args:
        parts: what a task does one after the other, so that work of one part hides nothing of another: nanoseconds of
            all instructions on one core, and bytes that leave each memory level from the second one outwards.
        tasks: that threads share.
        longer: by what times grow for other reasons.
        machine: with its cores.
        streaming: whether little is used again, so that every line passes all levels one after the other.
        grown: per level by what the bytes grow where threads share the tasks, as what several of them need comes to
            each; not at all where nothing is given.
    """
    far, of = machine.levels[1:], _streaming_time if streaming else _overlapped_time
    alone = reduce(add, [of(work, [m / x.gbs(1) for m, x in zip(moved, far, strict=True)]) for work, moved in parts])
    threads = np.minimum(machine.cores, tasks)
    balance = np.ceil(tasks / machine.cores) * machine.cores / tasks
    # fewer tasks than threads: the busiest thread has one of them, and only so many threads read
    uneven = np.where(tasks < machine.cores, 1.0, balance)
    # where rounds are whole, half of the last task; bandwidth that all share is used up by whoever is left
    busiest = np.maximum(balance, 1.0 + np.minimum(CORE_SPEED_VARIATION, threads / (2.0 * tasks)))
    rates = [np.minimum(x.core_gbs * threads, x.total_gbs) for x in far]
    more = [uneven * g for g in traffic_growth] or [uneven] * len(far)
    shared = reduce(add, [
        of(work * busiest / machine.cores, [m * g / r for m, g, r in zip(moved, more, rates, strict=True)])
        for work, moved in parts
    ])  # fmt: skip
    wake = np.where(tasks > 1, machine.sync_us * 1e3, 0.0)
    together = shared.total + wake
    better = (together < alone.total) & (tasks > 1)
    memory = tuple(np.where(better, s, a) for s, a in zip(shared.memory, alone.memory, strict=True))
    total = np.where(better, together, alone.total) * slowdown
    compute = np.where(better, shared.compute, alone.compute)
    return Time(compute, memory, np.where(better, wake, 0.0), total)


def _overlapped_time(compute: Numbers, memory: list[Numbers]) -> Time:
    kinds = [compute, *memory]
    longest, total = kinds[0], kinds[0]
    for x in kinds[1:]:
        longest, total = np.maximum(longest, x), total + x
    return Time(compute, tuple(memory), np.zeros_like(compute), longest + EXPOSED_FRACTION * (total - longest))


def _streaming_time(compute: Numbers, memory: list[Numbers]) -> Time:
    """Nothing asks ahead for lines of the second cache, so instructions wait for them; what lies farther away is
    fetched while they run."""
    near = compute + memory[0]
    far = sum(memory[1:], start=np.zeros_like(compute))
    total = np.maximum(near, far) + EXPOSED_FRACTION * np.minimum(near, far)
    return Time(compute, tuple(memory), np.zeros_like(compute), total)


def miss_ratio(size: float, capacity: float) -> float:
    """The part of so many bytes, used again and again, that a cache farther than the first has not kept: earlier
    kernels have just made what they hand on, and what does not fit as a whole stays in part."""
    return max(0.0, 1.0 - capacity * USABLE_CACHE_FRACTION / max(1.0, size))


def caches(machine: Machine) -> tuple[Level, ...]:
    """The caches of a machine, nearest first.

    Raises:
        MachineError: it has none, as graphics processors have memories that programs fill themselves.
    """
    found = tuple(x for x in machine.levels[:-1] if x.ways)
    if not found:
        what = f"it has no caches, and there is no construction of programs for {machine.arch} yet"
        hint = "choose the description of a processor"
        raise MachineError(what, where=f"machine {machine.name!r}", hint=hint)
    return found
