"""Records as a compilation uses them: which program a kernel has, what the cost model estimated, and what is kept.

A measured program of this machine, target and version is taken as it is. One of another version or machine is taken
only where the cost model does not judge it worse than the program that is constructed here. Programs and estimates
that an optimizer constructed are taken where everything that decides them is equal; then nothing is constructed, and
the code is the same byte for byte. What does not fit is skipped with its reason, and the kernel is constructed.
"""

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from typing import TypeVar

from tilewright.codegen.generator_version import generator_version
from tilewright.cost.trees.tree_model import tree_times
from tilewright.driver.kernel_build.build_kernel import BuiltKernel, RecordedProgram
from tilewright.driver.kernel_build.record_source import VARIABLE, RecordSource
from tilewright.driver.private_folder import is_private
from tilewright.errors import RecordError, RecordWarning, ScheduleError, StoreError, TilewrightError, pluralize
from tilewright.gc_policy import raised_gc_threshold
from tilewright.graph.fusion import FusionPattern
from tilewright.machine.model import Machine
from tilewright.measure.records.file_system import is_read_only
from tilewright.measure.records.jsonl import is_lines, open_records
from tilewright.measure.records.maintain import prune
from tilewright.measure.records.record import Proximity, RankedRecord, Record, RecordKind, machine_key
from tilewright.measure.records.store import RecordStore, open_store
from tilewright.optimize.constructions import Estimate
from tilewright.optimize.task import Task
from tilewright.schedule.step import Trace
from tilewright.user_warnings import warn_user
from tilewright.version import sources_have_changed

_T = TypeVar("_T")

MAX_RATIO = 1.1
"""Ratio of the estimates of a recorded and of the constructed program up to which the recorded one is not judged
worse: closer than that the cost model does not tell programs apart."""

MAX_MEASURED_RATIO = 1.5
"""The same for a program that a tuning chose on this type of machine: its measurement, against what was constructed
then, says more than the model, unless the model objects strongly."""

MAX_CANDIDATES = 4
"""Records of a kernel that are looked at."""

_PROXIMITIES = {
    Proximity.EXACT: "a record",
    Proximity.OTHER_VERSION: "a record of another version",
    Proximity.OTHER_MACHINE: "a record of another machine",
}

LINES_SUFFIX = ".jsonl"
"""Suffix of exports."""

PRUNE_BYTES = 1 << 29
"""Size of a store from which a compilation that adds to it removes what other versions constructed."""


class KernelRecords:
    """The records of one compilation.

    Attributes:
        skipped: why records were not used.
    """

    def __init__(self, source: RecordSource, machine: Machine, settings: str) -> None:
        """Opens the store.

        Args:
            source: which one.
            machine: the machine that programs are constructed for.
            settings: the optimizer with everything else that decides what it constructs.

        Raises:
            StoreError: a store that the user named can't be used.
        """
        self.skipped: list[str] = []
        self.is_frozen = source.frozen
        self._description, self._key, self._settings = machine, machine_key(machine), settings
        self._where = f"records '{source.path}'"
        self._must_serve = source.frozen or not source.is_default
        self._records = self._open(source)
        self._pending: list[Record] = []
        self._used_records = source.used

    @property
    def has_store(self) -> bool:
        """Whether there are records at all."""
        return self._records is not None

    def candidates(self, task: Task) -> list[RankedRecord]:
        """Programs of a task that may be taken, those to be preferred first: measured ones; with frozen records those
        that were constructed as well, whatever for."""

        def look_up(store: RecordStore) -> list[RankedRecord]:
            measured = list(islice(store.ranked(task, self._key), MAX_CANDIDATES))
            if measured or not self.is_frozen:
                return measured
            own = store.constructed(task, self._key, self._settings)
            if own is not None:
                return [RankedRecord(own, Proximity.EXACT)]
            return list(islice(store.ranked(task, self._key, kinds=[RecordKind.CONSTRUCTION]), 1))

        return self._answer(look_up, [])

    def choose(
        self, candidates: Sequence[RankedRecord], constructed: Estimate | None, label: str
    ) -> RecordedProgram | None:
        """The program that is taken; None where none is.

        Args:
            candidates: of a kernel.
            constructed: the estimate of what is constructed here, by which others are judged; None for no judgement.
            label: the kernel, in reasons.
        """
        for x in candidates:
            reason = ""
            if constructed is not None and x.proximity is not Proximity.EXACT:
                reason = self.judge(x, constructed)
            if not reason:
                return program_of(self._note(x.record))
            self.skip(f"{label or 'a kernel'}: {_PROXIMITIES[x.proximity]}: {reason}")
        return None

    def fail(self, where: str, program: RecordedProgram, error: Exception) -> None:
        """Notes that a program can't be built.

        Raises:
            StoreError: records alone are to be used.
        """
        reason = f"a recorded program by {program.optimizer} can't be built: {error}"
        if self.is_frozen:
            raise StoreError(reason, where=where, hint="compile without `frozen`, or give other records") from error
        self.skip(f"{where}: {reason}")
        warn_user(f"{where}: {reason}; it is constructed", RecordWarning)

    def refuse(self, labels: Sequence[str]) -> None:
        """Refuses a compilation of kernels that have no record.

        Raises:
            StoreError: names them.
        """
        what = f"there are no records of {pluralize(len(labels), 'kernel')}: {', '.join(labels)}"
        how = "without `frozen` (--frozen) and with cache=False (--no-cache)"
        hint = f"compile {how} first, for the same options, machine and version"
        raise StoreError(what, where=self._where, hint=hint)

    def judge(self, ranked: RankedRecord, constructed: Estimate) -> str:
        """Why a program of another version or machine is not taken; empty where it is.

        Args:
            ranked: the record.
            constructed: the estimate of the program that is constructed here.
        """
        record = ranked.record
        is_own_type = ranked.proximity is Proximity.OTHER_VERSION and record.is_choice
        if not constructed.nanoseconds:
            return "" if is_own_type else "nothing is constructed here that it could be compared with"
        times = self._estimated_times(record)
        if not times:
            return "" if is_own_type else "the cost model can't estimate it, as it has no tile tree"
        ratio, limit = min(times) / constructed.nanoseconds[0], MAX_MEASURED_RATIO if is_own_type else MAX_RATIO
        return "" if ratio <= limit else f"the cost model expects {ratio:.2f} of the time of the constructed program"

    def _estimated_times(self, record: Record) -> list[float]:
        """Nanoseconds of the programs of a record on this machine by the cost model; none where it has no answer."""
        task = record.task
        try:
            times = tree_times(record.trees, task.func, self._description, task.constants, task.samples)
        except (ScheduleError, ValueError, KeyError, IndexError):
            # the trees are those of another kernel
            return []
        factor = self._description.cost.chain_time_ratio if task.fusion.pattern is FusionPattern.CHAIN else 1.0
        return [] if None in times else [t * factor for t in times if t is not None]

    def constructed(self, task: Task) -> RecordedProgram | None:
        """The program that an earlier compilation constructed for a task; None where there is none."""
        record = self._answer(lambda store: store.constructed(task, self._key, self._settings), None)
        return None if record is None else program_of(self._note(record))

    def estimate(self, task: Task) -> Estimate | None:
        """What an earlier compilation estimated for a task; None where nothing is known."""

        def look_up(store: RecordStore) -> Record | None:
            record = store.constructed(task, self._key, self._settings, RecordKind.ESTIMATE)
            if record is None and self.is_frozen:
                others = store.ranked(task, self._key, kinds=[RecordKind.ESTIMATE])
                record = next((x.record for x in others), None)
            return record

        record = self._answer(look_up, None)
        if record is None or not isinstance(record.result, Estimate):
            return Estimate((), "there is no record of it") if self.is_frozen else None
        self._note(record)
        return record.result

    def keep_estimate(self, task: Task, estimate: Estimate) -> None:
        """Keeps an estimate that is not known yet."""
        if self._keeps(task, RecordKind.ESTIMATE):
            self._pending.append(self._note(self._record(task, (), estimate, "")))

    def keep_program(self, task: Task, built: BuiltKernel, estimate: Estimate | None) -> None:
        """Keeps a constructed program that is not known yet, with its estimate where there is one."""
        if self._keeps(task, RecordKind.CONSTRUCTION):
            traces = tuple(p.trace for p in built.programs)
            record = self._record(task, traces, estimate or Estimate(()), built.optimizer)
            record = replace(record, selector=built.selector, estimates=built.estimates)
            self._pending.append(self._note(record))

    def _keeps(self, task: Task, kind: RecordKind) -> bool:
        def lacks(store: RecordStore) -> bool:
            return store.is_writable and not store.has_constructed(task, self._key, self._settings, kind)

        return not self.is_frozen and self._answer(lacks, False)

    def _record(self, task: Task, traces: tuple[Trace, ...], result: Estimate, optimizer: str) -> Record:
        return Record(
            task, traces, result, optimizer, self._key, generator_version(), self._settings,
            created=float(int(time.time())),
        )  # fmt: skip

    def _note(self, record: Record) -> Record:
        if self._used_records is not None:
            self._used_records.append(record)
        return record

    def skip(self, reason: str) -> None:
        """Notes that a record is not used."""
        self.skipped.append(reason)

    def close(self) -> None:
        """Writes what was kept, where that is possible and the version is that which made it, and closes the store."""
        store = self._records
        if store is None:
            return
        try:
            if self._pending and not sources_have_changed():
                store.add(self._pending)
                if store.path is not None and store.path.stat().st_size > PRUNE_BYTES:
                    prune(store)
        except (StoreError, RecordError, sqlite3.Error, OSError) as error:
            warn_user(f"records are not kept: {error}", RecordWarning)
        self._drop(store)

    def _drop(self, store: RecordStore) -> None:
        self._records = None
        with contextlib.suppress(sqlite3.Error):
            store.close()

    def _answer(self, use: Callable[[RecordStore], _T], otherwise: _T) -> _T:
        """What the store answers.

        Args:
            use: asks it.
            otherwise: the answer where there is no store. A damaged one that nobody named counts as none from then
                on, with a warning: it must not stop a compilation that would succeed without it.

        Raises:
            StoreError: a store that the user named can't be used.
        """
        store = self._records
        if store is None:
            return otherwise
        try:
            return use(store)
        except (StoreError, sqlite3.Error) as error:
            if self._must_serve:
                raise
            self._drop(store)
            self._note_failure(error)
            return otherwise

    def _note_failure(self, error: Exception) -> None:
        self.skip(f"compiled without records: {error}")
        warn_user(f"compiled without records: {error}", RecordWarning)

    def _open(self, source: RecordSource) -> RecordStore | None:
        try:
            return _open_source(source, self.skip)
        except TilewrightError as error:
            if self._must_serve:
                raise
            self._note_failure(error)
            return None


def program_of(record: Record) -> RecordedProgram:
    """The program of a record."""
    return RecordedProgram(record.optimizer, record.traces, record.selector, record.estimates, record.is_tuned)


def _open_source(source: RecordSource, skip: Callable[[str], object]) -> RecordStore | None:
    """A store, writable where that is possible; None where the user's own can't be made.

    Raises:
        StoreError: it can't be used.
    """
    path = source.path
    if os.path.exists(path):
        if source.is_default and not all(is_private(os.stat(p)) for p in (path, path.parent)):
            what, hint = "others can write it", f"make it private (chmod go-w), or set {VARIABLE}"
            raise StoreError(what, where=f"records '{path}'", hint=hint)
        if is_lines(path):
            with raised_gc_threshold():
                return open_records(path, skip)
        is_writable = os.access(path, os.W_OK) and os.access(path.parent, os.W_OK) and not is_read_only(path)
        return open_store(path, "write" if is_writable and not source.frozen else "read", skip)
    if source.frozen or path.suffix == LINES_SUFFIX:
        raise StoreError("there are no such records", where=f"records '{path}'", hint="check the path")
    try:
        return open_store(path, "write", skip)
    except StoreError:
        if source.is_default:
            return None
        raise
