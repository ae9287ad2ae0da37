"""Speed of stores of records: import of lines, and look-ups in a store of many records.

python -m benchmarks.records [--records 1000000] [--tasks 500] [--folder DIR]
"""

import argparse
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


def main() -> None:
    """Prints records imported per second and milliseconds of look-ups."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--tasks", type=int, default=500)
    parser.add_argument("--folder", type=Path, default=None, help="for the files, which are removed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        measure(options.records, options.tasks, Path(folder))


def measure(count: int, tasks: int, folder: Path) -> None:
    """Imports so many records of so many kernels, and looks kernels up."""
    case = next(c for c in all_cases() if c.name == CASE)
    compilation = make_compilation(case.model())
    (kernel,) = compilation.kernels
    machine = machine_key(compilation.build.machine_for(compilation.target))
    kernels = [_with_columns(kernel.task, 16 * k) for k in range(1, tasks + 1)]
    lines, path = folder / "records.jsonl", folder / "records.db"
    with lines.open("w") as file:
        file.writelines(lines_of(_records(kernels, kernel.programs[0].trace, machine, count)))
    print(f"{count:,} records of {tasks} kernels, {len(kernel.programs[0].trace)} steps each", flush=True)
    print(f"{lines.stat().st_size / 1e6:,.0f} MB as lines", flush=True)
    # as `tilewright records import` does it
    with lines.open("rb") as file, open_store(path, "write") as store, raised_gc_threshold():
        start = time.perf_counter()
        result = import_lines(file, store, str(lines), lambda reason: sys.exit(reason))
        seconds = time.perf_counter() - start
    print(f"{result.added / seconds:,.0f} records imported per second ({seconds:.0f} s)")
    print(f"{path.stat().st_size / 1e6:,.0f} MB as store", flush=True)
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


def _duration(look_up: Any, task: Task) -> float:
    start = time.perf_counter()
    look_up(task)
    return time.perf_counter() - start


def _with_columns(task: Task, columns: int) -> Task:
    """The product with so many columns."""
    data = task_json.encode(task)
    func = data["func"].replace("512", str(columns))
    return task_json.decode(data | {"func": func})


def _records(tasks: list[Task], trace: Trace, machine: str, count: int) -> Iterator[Record]:
    rng = random.Random(0)
    machines = (machine, *MACHINES)
    for k in range(count):
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
    main()
