"""The store of a tuning as records: every measurement is a record, and so is every choice of programs."""

import time
from collections.abc import Callable, Sequence

from tilewright.codegen.generator_version import generator_version
from tilewright.driver.tune.plan import MeasurePoint, PlannedKernel
from tilewright.driver.tune.protocols import KernelChoice, StoredMeasurement
from tilewright.machine.model import Machine
from tilewright.measure.records.record import Proximity, Record, RecordKind, machine_key
from tilewright.measure.records.store import RecordStore
from tilewright.optimize.measurer import Candidate, Failure, Measurement, Timing


class TuningRecords:
    """Measurements and choices of a tuning in a store of records.

    Args:
        store: the store, open for writing.
        machine: the description of this machine.
        optimizer: name of the search, as records state it.
        clock: seconds since the epoch.
    """

    def __init__(
        self, store: RecordStore, machine: Machine, optimizer: str, clock: Callable[[], float] = time.time
    ) -> None:
        self._records, self._machine_key, self._optimizer, self._clock = store, machine_key(machine), optimizer, clock
        self._generator = generator_version()

    def history(self, kernel: PlannedKernel) -> list[StoredMeasurement]:
        """What was measured of a kernel before on this machine by this version."""
        kinds = (RecordKind.TIMING, RecordKind.FAILURE)
        records = self._records.records(
            kernel.task.hash, machine=self._machine_key, generator=self._generator, kinds=kinds
        )
        return [
            StoredMeasurement(Candidate(r.trace), r.sizes, r.result)
            for r in records
            if isinstance(r.result, Timing | Failure) and len(r.traces) == 1
        ]

    def add(self, kernel: PlannedKernel, point: MeasurePoint, measurements: Sequence[Measurement]) -> None:
        """Keeps measurements of a kernel's candidates at a point; durable when it returns."""
        self._records.add([self.record(kernel, point, m) for m in measurements])

    def record(self, kernel: PlannedKernel, point: MeasurePoint, measurement: Measurement) -> Record:
        """A measurement as a record."""
        return Record(
            task=kernel.task,
            traces=(measurement.candidate.trace,),
            result=measurement.result,
            optimizer=self._optimizer,
            machine=self._machine_key,
            generator=self._generator,
            sizes=point.sizes,
            created=self._clock(),
        )

    def chosen(self, kernel: PlannedKernel) -> KernelChoice | None:
        """The newest choice for a kernel on this machine by this version."""
        ranked = self._records.ranked(kernel.task, self._machine_key, self._generator, (RecordKind.CHOICE,))
        best = next(iter(ranked), None)
        if best is None or best.proximity is not Proximity.EXACT:
            return None
        record, timing = best.record, best.record.result
        if not isinstance(timing, Timing):
            return None
        return KernelChoice(tuple(map(Candidate, record.traces)), record.selector, timing, record.worst_ratio or 1.0)

    def choose(self, kernel: PlannedKernel, choice: KernelChoice) -> None:
        """Keeps which programs compilations use for a kernel."""
        is_constructed = choice.programs == kernel.programs and choice.selector == kernel.selector
        self._records.add([
            Record(
                task=kernel.task, traces=tuple(c.trace for c in choice.programs), result=choice.timing,
                optimizer=kernel.optimizer if is_constructed else self._optimizer, machine=self._machine_key,
                generator=self._generator, selector=choice.selector, worst_ratio=choice.worst_ratio, is_choice=True,
                created=self._clock(),
            )
        ])  # fmt: skip
