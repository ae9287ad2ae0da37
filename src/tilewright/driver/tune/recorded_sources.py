"""Recorded programs that a model's kernels may start from: those that tunings chose for kernels of other models.

A choice counts whatever machine it was made on: what is reused are ranges of features, and every program near it is
measured here.
"""

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass

from tilewright.machine.model import Machine
from tilewright.measure.records.record import Record, RecordKind, machine_type
from tilewright.measure.records.store import RecordStore
from tilewright.optimize.reuse.loop_vector import LoopVector
from tilewright.optimize.reuse.recognize import tile_program_of
from tilewright.optimize.reuse.reusable_task import ReusableTask
from tilewright.optimize.reuse.reuse_search import ReuseSource

MAX_CHOICES = 256
"""The newest choices of a store that are looked at."""


@dataclass(frozen=True, slots=True, eq=False)
class RecordedSource:
    """A recorded program that others may start from.

    Attributes:
        label: what it is of, for people.
        source: the program and its task.
    """

    label: str
    source: ReuseSource

    @property
    def vector(self) -> LoopVector:
        """The loop vector of its task."""
        return self.source.reusable.vector


def recorded_sources(store: RecordStore, machine: Machine, vectors: Collection[LoopVector]) -> list[RecordedSource]:
    """The programs of a store that operators may start from, of one loop vector the newest; not those of the operators
    themselves, which tunings go on with anyway.

    Args:
        store: the store.
        machine: the machine that is tuned on.
        vectors: the loop vectors of the operators.
    """
    newest: dict[str, Record] = {}
    for record in deque(store.records(kinds=(RecordKind.CHOICE,)), maxlen=MAX_CHOICES):
        newest[record.task.hash] = record
    sources: dict[LoopVector, RecordedSource] = {}
    for record in newest.values():
        source = _source_of(record, machine, vectors)
        if source is not None:
            sources[source.vector] = source
    return list(sources.values())


def _source_of(record: Record, machine: Machine, vectors: Collection[LoopVector]) -> RecordedSource | None:
    """The source that a record is; None where no operator may start from it, or it is no tile program."""
    if len(record.traces) != 1 or record.task.func.symbols:
        return None
    reusable = ReusableTask.of(record.task, machine)
    if reusable is None or reusable.vector in vectors or not any(v.can_reuse(reusable.vector) for v in vectors):
        return None
    program = tile_program_of(reusable, record.trace)
    return None if program is None else RecordedSource(
        f"record {reusable.task.hash[:8]} of {machine_type(record.machine)}", ReuseSource(reusable, program)
    )
