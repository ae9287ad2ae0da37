"""Routines as native code, called with arrays: a segment whose only calls are theirs."""

import ctypes
from collections.abc import Sequence

import numpy as np

from tilewright.codegen import compile_object, emit_entry_module
from tilewright.codegen.segment import RoutineCall, RoutineCode, Segment
from tilewright.expr.dtype import dtype_of
from tilewright.expr.nodes import const
from tilewright.graph.buffer_location import InputLocation, OutputLocation
from tilewright.machine import Target
from tilewright.routine.routine import Routine
from tilewright.runtime.linker import MAIN_TYPE, link

NativeRun = tuple[Routine, Sequence[np.ndarray], Sequence[np.ndarray], Sequence[int]]
"""A routine, the arrays that it reads and writes, and its scalars."""


def run_native(*calls: NativeRun) -> int:
    """Runs routines one after the other; returns the status of the entry."""
    segment = make_segment(*calls)
    code = compile_object(emit_entry_module({}, [segment], Target.host()), Target.host())
    library = link(code, ["s"], "test")

    def pointers(arrays: Sequence[np.ndarray]) -> object:
        return (ctypes.c_void_p * max(1, len(arrays)))(*(a.ctypes.data for a in arrays))

    reads = [a for _, read, _, _ in calls for a in read]
    writes = [a for _, _, written, _ in calls for a in written]
    return MAIN_TYPE(library.addresses["s_main"])(pointers(reads), pointers(writes), None, None, None, 1)


def make_segment(*calls: NativeRun) -> Segment:
    """A segment "s" that calls routines one after the other."""
    writes = [a for _, _, written, _ in calls for a in written]
    routine_calls: list[RoutineCall] = []
    for routine, read, written, scalars in calls:
        first, last = len([a for c in routine_calls for a in c.args if isinstance(a, InputLocation)]), 0
        last = len([a for c in routine_calls for a in c.args if isinstance(a, OutputLocation)])
        locations = [InputLocation(first + k) for k in range(len(read))]
        code = RoutineCode(routine, tuple(dtype_of(a.dtype) for a in (*read, *written)))
        lengths = tuple(const(a.size) for a in (*read, *written))
        targets = [OutputLocation(last + k) for k in range(len(written))]
        routine_calls.append(
            RoutineCall(code, (*locations, *targets), lengths, tuple(map(const, scalars)), routine.failures)
        )
    return Segment("s", (), tuple(routine_calls), const(0), tuple((const(a.size),) for a in writes))
