"""A store of records in a SQLite file: records are added, looked up, read and removed.

What `add` returns from is on the disk, whatever happens to the process. A look-up takes well under a millisecond in a
store of a million records, as it follows an index. Records that can't be read are skipped and reported.
"""

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from tilewright.codegen.generator_version import generator_version
from tilewright.errors import RecordError, StoreError, TaskError
from tilewright.machine.model import Machine
from tilewright.measure.records.columns import ROW_COLUMNS, TASK_COLUMNS, TaskRow, row_of_columns, task_of_columns
from tilewright.measure.records.connection import connect, in_memory, transaction, typed_errors
from tilewright.measure.records.record import (
    Proximity,
    RankedRecord,
    Record,
    RecordKind,
    machine_key,
    machine_type,
)
from tilewright.measure.records.record_json import RecordRow, decode_row, row_of
from tilewright.optimize.task import Task

Skip = Callable[[str], object]
"""Called with the reason why a record is skipped."""

_MEMORY = Path(":memory:")

BATCH = 1000
"""Records per transaction of many."""

_FROM = (
    "records r JOIN texts m ON m.id = r.machine JOIN texts g ON g.id = r.generator"
    " JOIN texts o ON o.id = r.optimizer JOIN texts s ON s.id = r.settings"
)


class RecordStore:
    """An open store; a context manager, which closes it.

    Attributes:
        path: of its file; None for one in memory.
        is_writable: whether records can be added.
    """

    def __init__(self, db: sqlite3.Connection, path: Path | None, is_writable: bool, skip: Skip) -> None:
        """Use `open_store`."""
        self.path, self.is_writable, self._skip = path, is_writable, skip
        self._db, self._lock = db, threading.RLock()
        self._tasks: dict[tuple[str, str], Task] = {}

    def __enter__(self) -> "RecordStore":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file."""
        self._db.close()

    def add(self, records: Iterable[Record]) -> int:
        """Adds records in one step; they are on the disk when it returns.

        Returns:
            How many are new: equal ones are kept once.

        Raises:
            StoreError: the store can't be written; nothing was added.
            RecordError: a value of a record is out of its range; nothing was added.
        """
        return self.add_rows((TaskRow.of(r.task), row_of(r)) for r in records)

    def add_rows(self, rows: Iterable[tuple[TaskRow, RecordRow]]) -> int:
        """Adds records as rows with their tasks; as `add`."""
        digested = [(t, r, r.digest(t.id)) for t, r in rows]
        tasks: dict[tuple[str, str], int] = {}
        texts: dict[str, int] = {}
        with self.changes() as db:
            values: list[tuple[Any, ...]] = []
            for task, row, digest in digested:
                key = (task.hash, task.target)
                if key not in tasks:
                    tasks[key] = _task_id(db, task)
                names = (row.machine, machine_type(row.machine), row.generator, row.optimizer, row.settings)
                for name in names:
                    if name not in texts:
                        texts[name] = _text_id(db, name)
                values.append(
                    (digest, tasks[key], int(row.kind), *(texts[n] for n in names), row.rank, row.created, row.body)
                )
            before = db.total_changes
            db.executemany(
                "INSERT OR IGNORE INTO records (digest, task, kind, machine, type, generator, optimizer, settings,"
                " rank, created, body) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                values,
            )
            return db.total_changes - before

    @contextlib.contextmanager
    def changes(self) -> Generator[sqlite3.Connection]:
        """Changes to the file that happen together, and are on the disk at the end.

        Raises:
            StoreError: the store can't be written.
        """
        if not self.is_writable:
            raise StoreError("was opened to be read", where=self.where, hint="give a store that can be written")
        with self._lock, typed_errors(self.path or _MEMORY), transaction(self._db):
            yield self._db

    @property
    def where(self) -> str:
        """The store in errors."""
        return f"records '{self.path or 'in memory'}'"

    def count(self, kind: RecordKind | None = None) -> int:
        """Number of its records, or of those of a kind."""
        if kind is None:
            return self.query("SELECT count(*) FROM records")[0][0]
        return self.query("SELECT count(*) FROM records WHERE kind = ?", (int(kind),))[0][0]

    def tasks(self) -> list[TaskRow]:
        """The kernels that it has records of."""
        tasks: list[TaskRow] = []
        for columns in self.query(f"SELECT {TASK_COLUMNS} FROM tasks ORDER BY id"):
            try:
                tasks.append(task_of_columns(columns))
            except TaskError as error:
                self._skip(f"a kernel is skipped: {error}")
        return tasks

    def records(
        self,
        task_hash: str | None = None,
        *,
        machine: str | None = None,
        generator: str | None = None,
        optimizer: str | None = None,
        kinds: Sequence[RecordKind] = tuple(RecordKind),
    ) -> Iterator[Record]:
        """Records in the order in which they were added; those that can't be read are skipped.

        Args:
            task_hash: of those of one kernel, for any target.
            machine, generator, optimizer: of those of one key, version or name.
            kinds: of those of some kinds.
        """
        conditions = {"t.hash": task_hash, "m.text": machine, "g.text": generator, "o.text": optimizer}
        where = " AND ".join([*(f"{c} = ?" for c, x in conditions.items() if x is not None), _kinds_clause(kinds)])
        values = tuple(x for x in conditions.values() if x is not None)
        for task, row in self.rows(where, values):
            record = self._decode(row, partial(self.task_of, task), task.hash)
            if record is not None:
                yield record

    def __iter__(self) -> Iterator[Record]:
        return self.records()

    def rows(
        self, where: str = "TRUE", values: Sequence[object] = (), skip: Skip | None = None
    ) -> Iterator[tuple[TaskRow, RecordRow]]:
        """Rows with their tasks, in the order in which they were added, read in parts.

        Args:
            where, values: a condition of SQL.
            skip: called with the reason for every row that is skipped, by default that of the store.
        """
        skip = skip or self._skip
        tasks: dict[int, TaskRow] = {}
        last = 0
        while True:
            found = self.query(
                f"SELECT r.id, r.task, {ROW_COLUMNS} FROM {_FROM} JOIN tasks t ON t.id = r.task"
                f" WHERE r.id > ? AND {where} ORDER BY r.id LIMIT ?",
                (last, *values, BATCH),
            )
            for row_id, task_id, *columns in found:
                last = row_id
                try:
                    if task_id not in tasks:
                        (task,) = self.query(f"SELECT {TASK_COLUMNS} FROM tasks WHERE id = ?", (task_id,))
                        tasks[task_id] = task_of_columns(task)
                    row = row_of_columns(columns)
                except (RecordError, TaskError) as error:
                    skip(f"record {row_id} is skipped: {error}")
                else:
                    yield tasks[task_id], row
            if len(found) < BATCH:
                return

    def best(
        self, task: Task, machine: Machine | str, generator: str | None = None, limit: int = 8
    ) -> list[RankedRecord]:
        """The records that a compilation of a kernel would look at, best first: measured ones before constructed ones,
        each exact > other version > other machine.

        Args:
            task: the kernel, in canonical form.
            machine: the description of the machine, or its `machine_key`.
            generator: the version of the code generator, by default this one.
            limit: how many at most.
        """
        kinds = (_measured_kinds(task), (RecordKind.CONSTRUCTION,))
        each = (self.ranked(task, machine, generator, k) for k in kinds)
        return list(islice((r for records in each for r in records), limit))

    def ranked(
        self,
        task: Task,
        machine: Machine | str,
        generator: str | None = None,
        kinds: Sequence[RecordKind] | None = None,
    ) -> Iterator[RankedRecord]:
        """Records of a kernel, the closest first, and of equally close ones the best first; arguments as of `best`.

        Args:
            kinds: those that are asked for, preferred in their order; by default what was measured: choices, and timed
                programs of kernels of fixed sizes (times at several sizes say nothing together).
        """
        key = machine if isinstance(machine, str) else machine_key(machine)
        kinds = _measured_kinds(task) if kinds is None else kinds
        ids = dict(self.query("SELECT target, id FROM tasks WHERE hash = ?", (task.hash,)))
        own = ids.get(task.target.name)
        here, here_type, version = map(self._text, (key, machine_type(key), generator or generator_version()))
        exact, same = "r.task = ? AND r.kind = ? AND r.machine = ? AND r.generator = ?", "r.task = ? AND r.kind = ?"
        queries: list[tuple[Proximity, str, tuple[object, ...]]] = []
        for kind in map(int, kinds):
            values = (own, kind, here, version)
            queries.append((Proximity.EXACT, exact, values))
            other = f"{same} AND r.type = ? AND NOT (r.machine = ? AND r.generator = ?)"
            queries.append((Proximity.OTHER_VERSION, other, (own, kind, here_type, here or 0, version or 0)))
            for task_id in sorted(ids.values(), key=lambda x: x != own):
                other = f"{same} AND NOT (r.task = ? AND r.type = ?)"
                queries.append((Proximity.OTHER_MACHINE, other, (task_id, kind, own or 0, here_type or 0)))
        for proximity, where, values in sorted(queries, key=lambda q: q[0]):
            for row in self._by_rank(where, values):
                record = self._decode(row, lambda: task, task.hash)
                if record is not None:
                    yield RankedRecord(record, proximity)

    def _by_rank(self, where: str, values: Sequence[object]) -> Iterator[RecordRow]:
        """Rows by rank; more and more at a time, as most look-ups need one."""
        offset, count = 0, 1
        while True:
            sql = f"SELECT {ROW_COLUMNS} FROM {_FROM} WHERE {where} ORDER BY r.rank LIMIT ? OFFSET ?"
            found = self.query(sql, (*values, count, offset))
            for columns in found:
                row = self._row(columns)
                if row is not None:
                    yield row
            if len(found) < count:
                return
            offset, count = offset + count, 4 * count

    def constructed(
        self, task: Task, machine: str, settings: str, kind: RecordKind = RecordKind.CONSTRUCTION
    ) -> Record | None:
        """What an optimizer with these settings has constructed for a kernel on this machine, by this version of the
        code generator; None where nothing is known.

        Args:
            task: the kernel, in canonical form.
            machine: `machine_key` of the description.
            settings: as of the record.
            kind: a program, or an estimate alone.
        """
        for columns in self._query_constructed(ROW_COLUMNS, _FROM, task, machine, settings, kind):
            row = self._row(columns)
            return None if row is None else self._decode(row, lambda: task, task.hash)
        return None

    def has_constructed(self, task: Task, machine: str, settings: str, kind: RecordKind) -> bool:
        """Whether `constructed` has an answer."""
        return bool(self._query_constructed("1", "records r", task, machine, settings, kind))

    def _query_constructed(
        self, columns: str, tables: str, task: Task, machine: str, settings: str, kind: RecordKind
    ) -> list[tuple[Any, ...]]:
        own = self.query("SELECT id FROM tasks WHERE hash = ? AND target = ?", (task.hash, task.target.name))
        ids = [self._text(x) for x in (machine, generator_version(), settings)]
        if not own or None in ids:
            return []
        where = "r.task = ? AND r.kind = ? AND r.machine = ? AND r.generator = ? AND r.settings = ?"
        sql = f"SELECT {columns} FROM {tables} WHERE {where} ORDER BY r.id DESC LIMIT 1"
        return self.query(sql, (own[0][0], int(kind), *ids))

    def query(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """The rows of a query.

        Raises:
            StoreError: the file is damaged.
        """
        with typed_errors(self.path or _MEMORY), self._lock:
            return self._db.execute(sql, values).fetchall()

    def _text(self, text: str) -> int | None:
        rows = self.query("SELECT id FROM texts WHERE text = ?", (text,))
        return rows[0][0] if rows else None

    def task_of(self, row: TaskRow) -> Task:
        """The task of a row.

        Raises:
            TaskError: its text is none.
        """
        key = (row.hash, row.target)
        if key not in self._tasks:
            self._tasks[key] = row.task()
        return self._tasks[key]

    def _row(self, columns: Sequence[Any]) -> RecordRow | None:
        try:
            return row_of_columns(columns)
        except RecordError as error:
            self._skip(f"a record is skipped: {error}")
            return None

    def _decode(self, row: RecordRow, task: Callable[[], Task], name: str) -> Record | None:
        try:
            return decode_row(row, task())
        except (RecordError, TaskError) as error:
            self._skip(f"a record of kernel {name[:12]} is skipped: {error}")
            return None


def _task_id(db: sqlite3.Connection, task: TaskRow) -> int:
    values = (task.hash, task.target)
    db.execute("INSERT OR IGNORE INTO tasks (hash, target, document) VALUES (?, ?, ?)", (*values, task.document))
    return db.execute("SELECT id FROM tasks WHERE hash = ? AND target = ?", values).fetchone()[0]


def _text_id(db: sqlite3.Connection, text: str) -> int:
    db.execute("INSERT OR IGNORE INTO texts (text) VALUES (?)", (text,))
    return db.execute("SELECT id FROM texts WHERE text = ?", (text,)).fetchone()[0]


def _measured_kinds(task: Task) -> tuple[RecordKind, ...]:
    return (RecordKind.CHOICE,) if task.func.symbols else (RecordKind.CHOICE, RecordKind.TIMING)


def _kinds_clause(kinds: Sequence[RecordKind]) -> str:
    return f"r.kind IN ({', '.join(str(int(k)) for k in kinds)})"


def open_store(
    path: Path | str | None, mode: Literal["read", "write"] = "read", skip: Skip = lambda reason: None
) -> RecordStore:
    """Opens a store.

    Args:
        path: its file; None for a store in memory, which is empty.
        mode: "write" makes a file that does not exist, private to the user.
        skip: called with the reason for every record that is skipped.

    Raises:
        StoreError: it does not exist, is no store, damaged, of a newer format, or can't be opened; says what to do.
    """
    if path is None:
        return RecordStore(in_memory(), None, True, skip)
    return RecordStore(connect(Path(path), mode == "write"), Path(path), mode == "write", skip)
