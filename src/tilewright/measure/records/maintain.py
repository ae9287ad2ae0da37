"""Upkeep of stores: union of several, removal of what no compilation will use, and checks of every record."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tilewright.codegen.generator_version import generator_version
from tilewright.errors import RecordError, ScheduleError, StoreError, TaskError, VerifyError
from tilewright.measure.records.columns import CheckedTasks, TaskRow
from tilewright.measure.records.jsonl import Imported
from tilewright.measure.records.record import Record, RecordKind
from tilewright.measure.records.record_json import RecordRow, checked_row, decode_row
from tilewright.measure.records.replay import replay_checked
from tilewright.measure.records.store import BATCH, RecordStore, Skip
from tilewright.version import source_hash

KEEP = 16
"""Timed programs that are kept of a kernel on a type of machine, the fastest."""

MAX_KEPT = 1 << 62
"""Programs beyond which a limit is none: SQLite counts to 2^63."""


def merge(source: RecordStore, store: RecordStore, skip: Skip = lambda reason: None) -> Imported:
    """Adds the records of a store to another one; equal ones are kept once, those that can't be read are skipped.

    Raises:
        StoreError: one of them can't be read or written. What was added stays.
    """
    added = count = skipped = 0
    pending: list[tuple[TaskRow, RecordRow]] = []
    checked = CheckedTasks()
    unread: list[str] = []
    for task, row in source.rows(skip=unread.append):
        try:
            pending.append((checked.row(task), checked_row(row)))
        except (RecordError, TaskError) as error:
            skipped += 1
            skip(f"a record of kernel {task.hash[:12]} is skipped: {error}")
            continue
        count += 1
        if len(pending) == BATCH:
            added += store.add_rows(pending)
            pending.clear()
    added += store.add_rows(pending)
    for reason in unread:
        skip(reason)
    return Imported(added, count - added, skipped + len(unread))


def prune(store: RecordStore, keep: int = KEEP, generator: str | None = None) -> int:
    """Removes what no compilation uses: what other versions constructed, failures of other versions, choices that newer
    ones replace, all but the fastest timed programs per kernel and type of machine, and kernels without a record.

    Args:
        store: the store.
        keep: timed programs that stay.
        generator: the version whose constructed records stay, by default this one.

    Returns:
        The number of records that were removed.

    Raises:
        StoreError: the store can't be written, or which version this process runs is not known.
    """
    if generator is None and source_hash() is None:
        what = "can't be pruned: the package's sources have changed since the import, or are newer than the clock"
        raise StoreError(what, where=store.where, hint="start this program again")
    keep = min(keep, MAX_KEPT)
    constructed, estimate, failure = (
        int(k) for k in (RecordKind.CONSTRUCTION, RecordKind.ESTIMATE, RecordKind.FAILURE)
    )
    best = (
        "DELETE FROM records WHERE id IN (SELECT id FROM (SELECT id, row_number() OVER"
        " (PARTITION BY task, type, kind ORDER BY rank) AS place FROM records WHERE kind = ?) WHERE place > ?)"
    )
    with store.changes() as db:
        before = db.total_changes
        db.execute(
            "DELETE FROM records WHERE kind IN (?, ?, ?) AND generator NOT IN (SELECT id FROM texts WHERE text = ?)",
            (constructed, estimate, failure, generator or generator_version()),
        )
        db.execute(best, (int(RecordKind.CHOICE), 1))
        db.execute(best, (int(RecordKind.TIMING), keep))
        removed = db.total_changes - before
        db.execute("DELETE FROM tasks WHERE id NOT IN (SELECT task FROM records)")
        names = (f"SELECT {name} FROM records" for name in ("machine", "type", "generator", "optimizer", "settings"))
        db.execute(f"DELETE FROM texts WHERE id NOT IN ({' UNION '.join(names)})")
    if removed:
        store.query("VACUUM")
    return removed


@dataclass(frozen=True, slots=True)
class Verification:
    """What is wrong with the records of a store.

    Attributes:
        records: number of records that were checked.
        programs: number of programs that were replayed and verified.
        problems: what is wrong; empty where all is right.
    """

    records: int
    programs: int
    problems: tuple[str, ...]


def verify_store(store: RecordStore, progress: Callable[[int, int], object] = lambda done, total: None) -> Verification:
    """Checks the file, and replays and verifies the program of every record but those of failures.

    Raises:
        StoreError: the file can't be read at all.
    """
    problems = [f"{store.where}: {text}" for (text,) in store.query("PRAGMA integrity_check") if text != "ok"]
    total, records, programs = store.count(), 0, 0
    unreadable: set[TaskRow] = set()
    unread: list[str] = []
    for task, row in store.rows(skip=unread.append):
        progress(records, total)
        records += 1
        try:
            record = decode_row(row, store.task_of(task))
            if record.kind is not RecordKind.FAILURE:
                for _ in check_programs(record):
                    programs += 1
        except TaskError as error:
            if task not in unreadable:
                problems.append(str(error))
            unreadable.add(task)
        except (RecordError, ScheduleError, VerifyError) as error:
            problems.append(f"record {records}, of kernel {task.hash[:12]} by {row.optimizer}: {error}")
    problems += unread
    if lost := total - records - len(unread):
        problems.append(f"{store.where}: {lost} of {total} records name texts or kernels that are missing")
    return Verification(records, programs, tuple(problems))


def check_programs(record: Record) -> Iterator[None]:
    """Replays and verifies the programs of a record, one after the other.

    Raises:
        ScheduleError, VerifyError: one does not fit its kernel.
    """
    for trace in record.traces:
        replay_checked(record.task.func, trace)
        yield
