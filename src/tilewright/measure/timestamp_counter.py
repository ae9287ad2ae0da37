"""The processor's counter that instrumented code reads (`codegen.stamps`), and its rate."""

import ctypes
import time
from dataclasses import dataclass
from functools import lru_cache

from llvmlite import ir

from tilewright.codegen import compile_object
from tilewright.codegen.llvm_types import I64
from tilewright.codegen.timestamps import read_clock
from tilewright.machine import Target
from tilewright.runtime.linker import link_functions

_NAME = "tw_now"

MIN_RATE_SECONDS = 0.02
"""Seconds between two marks from which a rate is told."""


class TimestampCounter:
    """The counter of this process."""

    def __init__(self) -> None:
        target = Target.host()
        module = ir.Module(name="counter")
        function = ir.Function(module, ir.FunctionType(I64, []), _NAME)
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        builder.ret(read_clock(builder))
        self._library = link_functions(compile_object(str(module), target), [_NAME], "the counter")
        self.read = ctypes.CFUNCTYPE(ctypes.c_int64)(self._library.addresses[_NAME])

    def mark(self) -> "ClockReading":
        """What the counter and the system's clock say now."""
        return ClockReading(int(self.read()), time.perf_counter_ns())


@dataclass(frozen=True, slots=True)
class ClockReading:
    """A reading of the counter and, at the same time, of the system's clock in nanoseconds."""

    ticks: int
    ns: int

    def rate_until(self, later: "ClockReading") -> float:
        """Ticks per microsecond between two marks at least `SHORTEST` seconds apart."""
        return (later.ticks - self.ticks) * 1e3 / max(1, later.ns - self.ns)


@lru_cache(maxsize=1)
def timestamp_counter() -> TimestampCounter:
    """The counter, linked at its first use."""
    return TimestampCounter()
