"""The timestamp counter that instrumented code reads (`codegen.timestamps`), and its rate."""

import ctypes
import time
from dataclasses import dataclass
from functools import lru_cache

from tilewright.codegen import compile_object
from tilewright.codegen.timestamps import emit_clock_reader
from tilewright.machine import Target
from tilewright.runtime.linker import link_functions

_NAME = "tw_now"

MIN_RATE_SECONDS = 0.02
"""Shortest time between two readings that gives a rate."""


class TimestampCounter:
    """The counter of this process."""

    def __init__(self) -> None:
        """Compiles and links a function that reads the counter."""
        code = compile_object(emit_clock_reader(_NAME), Target.host())
        self._library = link_functions(code, [_NAME], "the counter")
        self.read = ctypes.CFUNCTYPE(ctypes.c_int64)(self._library.addresses[_NAME])

    def mark(self) -> "ClockReading":
        """Reads the counter and the system's clock."""
        return ClockReading(int(self.read()), time.perf_counter_ns())


@dataclass(frozen=True, slots=True)
class ClockReading:
    """Simultaneous readings of the counter, in ticks, and of the system's clock, in nanoseconds."""

    ticks: int
    ns: int

    def rate_until(self, later: "ClockReading") -> float:
        """Ticks per microsecond between two readings at least `MIN_RATE_SECONDS` apart."""
        return (later.ticks - self.ticks) * 1e3 / max(1, later.ns - self.ns)


@lru_cache(maxsize=1)
def timestamp_counter() -> TimestampCounter:
    """The counter, linked at its first use."""
    return TimestampCounter()
