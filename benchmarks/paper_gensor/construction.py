"""How long construction takes: choosing a program, writing its loops, and making machine code of them."""

import time
from statistics import median
from typing import Any

from tilewright.codegen import compile_object, emit_llvm
from tilewright.lower.prepack_constants import prepack_constants
from tilewright.machine import Target
from tilewright.optimize.construct.optimizer import Gensor, Roller, best_schedule
from tilewright.optimize.task import Task
from tilewright.verify.verifier import verify

REPEATS = 3


def construction_phases(task: Task, optimizer: Gensor | Roller) -> dict[str, Any]:
    """Seconds of every part for one kernel, medians; "total" is what a user waits for."""
    rows: list[dict[str, float]] = []
    for _ in range(REPEATS):
        marks = [time.perf_counter()]
        constructed = optimizer.construct(task)
        marks.append(time.perf_counter())
        schedule = best_schedule(constructed, task)
        if schedule is None:
            raise ValueError(f"{optimizer.name} does not construct {task.func.name}")
        marks.append(time.perf_counter())
        func = prepack_constants(schedule.func, task.constants).func
        verify(func)
        marks.append(time.perf_counter())
        compile_object(emit_llvm([func], [], Target.host()), Target.host())
        marks.append(time.perf_counter())
        parts = dict(zip(("choose", "lower", "verify", "code"), map(float.__sub__, marks[1:], marks), strict=True))
        rows.append({**parts, "total": marks[-1] - marks[0]})
    return {key: median(row[key] for row in rows) for key in rows[0]}
