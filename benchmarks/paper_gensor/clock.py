"""Times of functions on one thread: a glance for programs that are clearly slow, turns for those that are compared."""

import time
from collections.abc import Mapping
from dataclasses import replace
from statistics import median

import numpy as np

from tilewright.loops.ir import Func
from tilewright.machine import Target
from tilewright.measure.functions import NativeFunctions, with_workspace
from tilewright.runtime.weights import aligned

CLEARLY, LIKELY = 3.0, 1.3
"""A program that takes so many times as long as the best one in one call, or in a few, is not looked at again."""

GLANCE_SECONDS = 0.006
BLOCKS, BLOCK_SECONDS = 15, 0.02

Array = np.ndarray


class Clock:
    """Functions compiled together with data of their own.

    Args:
        funcs: by name, over float32 arrays of literal sizes.
    """

    def __init__(self, funcs: Mapping[str, Func]) -> None:
        named = {n: replace(f, name=n) for n, f in funcs.items()}
        self.native = NativeFunctions(list(named.values()), Target.host())
        rng = np.random.default_rng(0)
        self.arrays: dict[str, list[Array]] = {}
        shared: dict[tuple[str, tuple[int, ...]], Array] = {}
        for n, f in named.items():
            keys = [(b.name, tuple(int(str(x)) for x in b.shape)) for b in with_workspace(f).params]
            for key in keys:
                if key not in shared:
                    # where tensors lie within lines must not differ from one run to the next
                    shared[key] = aligned(rng.standard_normal(key[1], dtype=np.float32))
            self.arrays[n] = [shared[key] for key in keys]

    def call(self, name: str) -> float:
        """Nanoseconds of one call."""
        start = time.perf_counter_ns()
        self.native.call(name, self.arrays[name])
        return float(time.perf_counter_ns() - start)

    def glance(self, name: str, best: float) -> float:
        """Nanoseconds of the fastest of several calls; fewer where it is clear that `best` is not reached."""
        self.call(name)
        found = self.call(name)
        if found > CLEARLY * best:
            return found
        found = min(found, self.call(name), self.call(name))
        if found > LIKELY * best:
            return found
        end = time.perf_counter() + GLANCE_SECONDS
        while time.perf_counter() < end:
            found = min(found, self.call(name))
        return found

    def fastest(self, rounds: int, seconds: float) -> dict[str, float]:
        """Nanoseconds of the fastest call of each; functions take turns."""
        best = dict.fromkeys(self.arrays, float("inf"))
        for _ in range(rounds):
            for n in self.arrays:
                end = time.perf_counter() + seconds
                while True:
                    best[n] = min(best[n], self.call(n))
                    if time.perf_counter() > end:
                        break
        return best

    def in_turns(self, blocks: int = BLOCKS) -> dict[str, list[float]]:
        """Nanoseconds per function and block: the median call of a block of about 20 ms; functions take turns."""
        counts = {n: max(1, int(BLOCK_SECONDS * 1e9 / min(self.call(n) for _ in range(3)))) for n in self.arrays}
        found: dict[str, list[float]] = {n: [] for n in self.arrays}
        for block in range(blocks):
            # every other round backwards, so that no function always follows the same one
            for n in list(counts)[:: 1 if block % 2 else -1]:
                found[n].append(median(self.call(n) for _ in range(counts[n])))
        return found
