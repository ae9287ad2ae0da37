"""Salvage of a damaged store: the records on those pages of its file that are still whole.

Records are read one by one, by their numbers. Those that lie on damaged pages, or whose kernel or texts do, are skipped
with the reason, and so are those that are not what their digest says; indexes are not needed. A file that was cut off
is read as far as it goes.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from tilewright.errors import DamagedStoreError, RecordError, StoreError, TaskError
from tilewright.measure.records.columns import TASK_COLUMNS, RecordRow, TaskRow, row_of_columns, task_of_columns
from tilewright.measure.records.connection import open_for_salvage, typed_errors
from tilewright.measure.records.schema import check_schema, move_aside
from tilewright.measure.records.store import BATCH, RecordStore, Skip, open_store

LEAST_ROW_BYTES = 64
"""A record takes at least so many bytes."""

LARGEST_ID = 10_000_000
"""The largest number of a record that is believed, as looking up so many takes a minute. A store that is pruned again
and again has far larger numbers than records."""

_BY_ID = (
    "SELECT digest, task, machine, generator, optimizer, settings, kind, rank, created, body FROM records WHERE id = ?"
)

_LAST = ("SELECT max(id) FROM records", "SELECT max(id) FROM records INDEXED BY by_task")


def salvage(path: Path | str, skip: Skip = lambda reason: None) -> RecordStore:
    """The records of a damaged store that can still be read, as a store in memory.

    Args:
        path: the file of the store.
        skip: called with the reason for every record that is skipped.

    Raises:
        StoreError: not even its tables can be read, or it is no store of this format.
    """
    path = Path(path)
    with closing(open_for_salvage(path)) as db:
        try:
            with typed_errors(path):
                check_schema(db, path)
        except DamagedStoreError as error:
            hint = f"it was left where it is: move the file away (`{move_aside(path)}`), and a new one is made"
            raise StoreError("nothing of it can be read", where=error.where, hint=hint) from error
        store = open_store(None, "write", skip)
        pending: list[tuple[TaskRow, RecordRow]] = []
        for row in _readable_rows(db, path.stat().st_size // LEAST_ROW_BYTES, skip):
            pending.append(row)
            if len(pending) >= BATCH:
                store.add_rows(pending)
                pending.clear()
        store.add_rows(pending)
    return store


def _readable_rows(db: sqlite3.Connection, most: int, skip: Skip) -> Iterator[tuple[TaskRow, RecordRow]]:
    """The readable records, of at most so many numbers."""
    tasks: dict[int, TaskRow] = {}
    texts: dict[int, Any] = {}
    for number in range(1, _last_number(db, most) + 1):
        try:
            found = db.execute(_BY_ID, (number,)).fetchone()
            if found is None:
                continue
            digest, task, *text_ids = found[:6]
            if task not in tasks:
                tasks[task] = task_of_columns(_existing_row(db, f"SELECT {TASK_COLUMNS} FROM tasks WHERE id = ?", task))
            for text in text_ids:
                if text not in texts:
                    (texts[text],) = _existing_row(db, "SELECT text FROM texts WHERE id = ?", text)
            row = row_of_columns([*(texts[text] for text in text_ids), *found[6:]])
            if row.digest(tasks[task].id) != digest:
                raise StoreError("it is damaged", where="the store")
            yield tasks[task], row
        except (sqlite3.Error, StoreError, RecordError, TaskError) as error:
            skip(f"record {number} is skipped: {error}")


def _last_number(db: sqlite3.Connection, most: int) -> int:
    """The largest number of a record, by the table, or by an index of it; `most` where neither can be read."""
    for query in _LAST:
        with suppress(sqlite3.Error):
            last = db.execute(query).fetchone()[0]
            if isinstance(last, int) and last <= max(LARGEST_ID, most):
                return last
    return most


def _existing_row(db: sqlite3.Connection, sql: str, number: object) -> tuple[Any, ...]:
    row = db.execute(sql, (number,)).fetchone()
    if row is None:
        raise StoreError("its kernel or a text of it is lost", where="the store")
    return row
