"""Speed of stores of records: import of lines, and look-ups in a store of many records.

    python -m benchmarks.records [--records 1000000] [--tasks 500] [--folder DIR] [--seconds S]

With a folder the store is kept there, and a run that ends itself after so many seconds, or is stopped, goes on where it
was. Status 3: records are left.
"""

import argparse
import io
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.operators.cases import all_cases
from tilewright.codegen.generator_version import generator_version
from tilewright.driver.compile import make_compilation
from tilewright.gc_policy import raised_gc_threshold
from tilewright.measure.records.jsonl import import_lines, lines_of
from tilewright.measure.records.record import Record, machine_key
from tilewright.measure.records.store import open_store
from tilewright.optimize import task_json
from tilewright.optimize.measurer import Timing
from tilewright.optimize.task import Task
from tilewright.schedule.step import Trace

CASE = "gemm_m512_k512_n512"
MACHINES = ("zen5, 2 cores, 0123456789abcdef", "haswell, 4 cores, 0123456789abcdef")

LINES_AT_ONCE = 10_000
"""Records that are imported from one text."""


def main() -> int:
    """Prints records imported per second and milliseconds of look-ups."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--tasks", type=int, default=500)
    parser.add_argument("--folder", type=Path, default=None, help="for the store, which stays there")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="import nothing more after so long")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        return measure(options.records, options.tasks, folder / "records.db", time.monotonic() + options.seconds)


def measure(count: int, tasks: int, path: Path, deadline: float) -> int:
    """Imports so many records of so many kernels, as far as they are missing, and looks kernels up."""
    case = next(c for c in all_cases() if c.name == CASE)
    compilation = make_compilation(case.model())
    (kernel,) = compilation.kernels
    machine = machine_key(compilation.build.machine_for(compilation.target))
    kernels = [_with_columns(kernel.task, 16 * k) for k in range(1, tasks + 1)]
    trace = kernel.programs[0].trace
    seconds = cpu = added = 0.0
    # as `tilewright records import` does it
    with open_store(path, "write") as store, raised_gc_threshold():
        while (known := store.count()) < count and time.monotonic() < deadline:
            records = _records(kernels, trace, machine, range(known, min(count, known + LINES_AT_ONCE)))
            file = io.BytesIO("".join(lines_of(records)).encode())
            start, cpu_start = time.perf_counter(), time.process_time()
            added += import_lines(file, store, "lines", lambda reason: sys.exit(reason)).added
            seconds, cpu = seconds + time.perf_counter() - start, cpu + time.process_time() - cpu_start
            print(f"{known + LINES_AT_ONCE:,} records", file=sys.stderr)
    if seconds:
        speed, speed_alone = added / seconds, added / cpu
        print(f"{speed:,.0f} records of {len(trace)} steps imported per second, {speed_alone:,.0f} per CPU second")
    print(f"{known:,} records of {tasks} kernels, {path.stat().st_size / 1e6:,.0f} MB as store", flush=True)
    unknown = _with_columns(kernel.task, 8)
    with open_store(path) as store:
        look_ups: dict[str, Any] = {
            "the best exact record": lambda t: next(store.ranked(t, machine)),
            "the best record of another version": lambda t: next(store.ranked(t, machine, "0.0")),
            "the best record of another machine": lambda t: next(store.ranked(t, "zen3, 2 cores, 0")),
            "the eight best records": lambda t: store.best(t, machine),
            "a kernel without records": lambda t: store.best(unknown, machine),
        }
        order = random.Random(0).sample(kernels, min(tasks, 200))
        for name, look_up in look_ups.items():
            times = sorted(_duration(look_up, t) for t in order)
            most = times[len(times) * 95 // 100]
            print(f"{name}: median {1e3 * median(times):.2f} ms, 95 % below {1e3 * most:.2f} ms")
    return 3 if known < count else 0


def _duration(look_up: Any, task: Task) -> float:
    start = time.perf_counter()
    look_up(task)
    return time.perf_counter() - start


def _with_columns(task: Task, columns: int) -> Task:
    """The product with so many columns."""
    data = task_json.encode(task)
    func = data["func"].replace("512", str(columns))
    return task_json.decode(data | {"func": func})


def _records(tasks: list[Task], trace: Trace, machine: str, numbers: range) -> Iterator[Record]:
    rng = random.Random(numbers.start)
    machines = (machine, *MACHINES)
    for k in numbers:
        nanoseconds = rng.uniform(1e3, 1e9)
        timing = Timing(nanoseconds, rng.random(), 0.9 * nanoseconds, 10, 10, 0.0, False, rng.uniform(1e3, 1e9))
        task, traces = tasks[k % len(tasks)], (_with_factor(trace, rng),)
        yield Record(task, traces, timing, "search", rng.choice(machines), generator_version(), created=1.7e9 + k)


def _with_factor(trace: Trace, rng: random.Random) -> Trace:
    """The trace with other sizes in its splits, so that records differ as those of a search."""
    factor = rng.randrange(1, 512)
    return tuple(
        replace(s, args=(s.args[0], factor, *s.args[2:])) if s.primitive == "split" and type(s.args[1]) is int else s
        for s in trace
    )


if __name__ == "__main__":
    sys.exit(main())
