"""A tuning that prints what its store has acknowledged: `python -m tests.fuzz_tuning.child STORE SEED TRIALS`.

Every line on standard output is a JSON list: "storing" with the key of a measurement, "measured" with the same and the
monotonic clock once it is on the disk, "end".
"""

import json
import sys
import time
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, cast

from tests.optimize.computations import KERNELS
from tests.optimize.tasks import task_of

from tilewright.driver.tune.budget import Budget
from tilewright.driver.tune.draw_sizes import ModelSizes
from tilewright.driver.tune.plan import MeasurePoint, PlannedKernel, TuningPlan
from tilewright.driver.tune.protocols import Search
from tilewright.driver.tune.record_store import TuningRecords
from tilewright.driver.tune.session import Instruments, TuningSession
from tilewright.machine import Target
from tilewright.machine.choice import choose_machine
from tilewright.machine.model import Machine
from tilewright.measure.local_measurer import LocalMeasurer, MeasureOptions
from tilewright.measure.records.record import Record
from tilewright.measure.records.record_json import encode_fields
from tilewright.measure.records.store import RecordStore, open_store
from tilewright.measure.workers.interface import Effort
from tilewright.measure.workers.local import LocalWorkers
from tilewright.optimize.construct.optimizer import Roller
from tilewright.optimize.measurer import Candidate, Measurement
from tilewright.optimize.search.start_search import start_search


def key_of(record: Record) -> str:
    """Identifies a measurement: the kernel, the program, the sizes, the result and when it was stored; a program may
    take the same time twice."""
    fields = encode_fields(record, record.task.hash)
    kept = {name: fields[name] for name in ("task", "programs", "sizes", "result", "choice", "created")}
    return sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:24]


def say(*values: Any) -> None:
    """Prints a line at once."""
    print(json.dumps(values), flush=True)


class AcknowledgedRecords(TuningRecords):
    """Records of a tuning that prints the keys of those that it stores, and again once they are on the disk."""

    def __init__(self, store: RecordStore, machine: Machine, optimizer: str) -> None:
        super().__init__(store, machine, optimizer, lambda: self._added_at)
        self._added_at = time.time()

    def add(self, kernel: PlannedKernel, point: MeasurePoint, measurements: Sequence[Measurement]) -> None:
        self._added_at = time.time()
        keys = [key_of(self.record(kernel, point, m)) for m in measurements]
        for key in keys:
            say("storing", key)
        super().add(kernel, point, measurements)
        for key in keys:
            say("measured", key, time.monotonic())


def kernels(machine: Machine) -> tuple[PlannedKernel, ...]:
    """Small kernels with the programs that roller constructs."""
    result: list[PlannedKernel] = []
    for name in ("matmul", "matvec", "convolution"):
        task = task_of(KERNELS[name], Target.host().name).canonical()
        schedule = Roller(machine).optimize(task)
        if schedule is not None:
            points, programs = (MeasurePoint(task, {}, 1.0, 0),), (Candidate(schedule.trace),)
            result.append(PlannedKernel(task, name, (name,), 1, 1e3, 1e5, name, "roller", programs, None, points))
    return tuple(result)


def main() -> None:
    """Tunes small kernels with two workers that build."""
    store, seed, trials = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    machine = choose_machine(None, Target.host()).for_target(Target.host())
    plan = TuningPlan(cast(Any, None), machine, kernels(machine), ModelSizes(({},), (1.0,)))

    def start(kernel: PlannedKernel, history: Sequence[Measurement]) -> Search:
        return start_search(kernel.task, machine, "random", seed, kernel.programs, history)

    with open_store(store, "write") as records, LocalMeasurer(MeasureOptions(builders=2)) as measurer:
        workers = LocalWorkers(dict.fromkeys(Effort, measurer))
        tools = Instruments(workers, AcknowledgedRecords(records, machine, "random"))
        session = TuningSession(plan, tools, start, Budget(None, trials), time.monotonic)
        result = session.finish(session.run().end)
    say("end", result.trials)


if __name__ == "__main__":
    main()
