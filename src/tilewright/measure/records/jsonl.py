"""Records as JSON lines: one file that is read, compared, kept under version control and concatenated.

    {"format": "tilewright-records", "version": 1}
    {"id": "<hash>", "task": {...}}
    {"record": {"task": "<hash>", "machine": ..., ...}}

A line is a header, a kernel, or a record, which names its kernel by the `id` of a line before. So `cat` of two files is
a file. Reading trusts nothing: lines that are no records are skipped with the reason, and sizes are limited.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tilewright.errors import Defect, RecordError, StoreError, TaskError
from tilewright.measure.records.columns import CheckedTasks, TaskRow
from tilewright.measure.records.record import Record
from tilewright.measure.records.record_json import (
    MAX_BYTES,
    RecordRow,
    body_of_line,
    encode_fields,
    fields_of_row,
    loads_record,
    read_row,
)
from tilewright.measure.records.store import BATCH, RecordStore, Skip, open_store
from tilewright.optimize import task_json
from tilewright.runtime.atomic_write import replace_file

FORMAT = "tilewright-records"
VERSION = 1

HEADER = {"format": FORMAT, "version": VERSION}


@dataclass(frozen=True, slots=True)
class Imported:
    """What came of a file.

    Attributes:
        added: number of records that are new.
        known: number of records that the store had.
        skipped: number of lines that are no records.
    """

    added: int
    known: int
    skipped: int


def lines_of(records: Iterable[Record]) -> Iterator[str]:
    """Records as lines, the header first."""
    tasks = ((TaskRow.of(r.task), r) for r in records)
    return _lines((task, encode_fields(r, task.id)) for task, r in tasks)


def lines_of_rows(rows: Iterable[tuple[TaskRow, RecordRow]], skip: Skip) -> Iterator[str]:
    """Rows of a store as lines, the header first; those that are damaged are skipped."""
    checked = CheckedTasks()

    def fields() -> Iterator[tuple[TaskRow, dict[str, Any]]]:
        for task, row in rows:
            try:
                checked.row(task)
                yield task, fields_of_row(row, task.id)
            except (RecordError, TaskError) as error:
                skip(f"a record of kernel {task.hash[:12]} is skipped: {error}")

    return _lines(fields())


def _lines(entries: Iterable[tuple[TaskRow, dict[str, Any]]]) -> Iterator[str]:
    yield json.dumps(HEADER) + "\n"
    written: set[str] = set()
    for task, fields in entries:
        if fields["task"] not in written:
            written.add(fields["task"])
            yield json.dumps({"id": fields["task"], "task": json.loads(task.document)}) + "\n"
        yield json.dumps({"record": fields}, separators=(",", ":")) + "\n"


def import_lines(
    file: IO[bytes], store: RecordStore, where: str, skip: Skip, progress: Callable[[int], object] = lambda lines: None
) -> Imported:
    """Adds the records of a file to a store.

    Args:
        file: the file.
        store: receives the records.
        where: the file in messages.
        skip: called with the reason for every line that is skipped.
        progress: called with the number of lines so far.

    Raises:
        StoreError: it is no file of records, of a newer version, or the store can't be written. What was added stays.
    """
    reader = _Reader(where)
    pending: list[tuple[TaskRow, RecordRow]] = []
    added = read = skipped = 0
    for number, line in enumerate(_bounded_lines(file), 1):
        try:
            row = reader.line(line, number)
        except (RecordError, TaskError) as error:
            skipped += 1
            skip(f"{where}, line {number}: {error}")
            continue
        if row is not None:
            pending.append(row)
        if len(pending) >= BATCH:
            added, read = added + store.add_rows(pending), read + len(pending)
            pending.clear()
            progress(number)
    added, read = added + store.add_rows(pending), read + len(pending)
    if not reader.has_header:
        raise _no_records(where, "it is empty")
    return Imported(added, read - added, skipped)


class _Reader:
    """Reads lines one after the other; knows the kernels of the lines before."""

    def __init__(self, where: str) -> None:
        self.has_header = False
        self._where = where
        self._tasks: dict[str, TaskRow] = {}

    def line(self, text: bytes, number: int) -> tuple[TaskRow, RecordRow] | None:
        """The record of a line; None for a line that is none.

        Raises:
            RecordError, TaskError: it can't be read.
            StoreError: the first line is not that of a file of records.
        """
        place = f"line {number}"
        try:
            values = loads_record(text)
        except ValueError as error:
            if not self.has_header:
                raise _no_records(self._where, f"its first line can't be read: {error}") from None
            raise RecordError([_defect(str(error))], where=place) from None
        if not self.has_header or (isinstance(values, dict) and "format" in values):
            self._header(values)
            return None
        if isinstance(values, dict) and values.keys() == {"id", "task"} and isinstance(values["id"], str):
            # the hash is computed anew, so that records outlive a change of it
            self._tasks[values["id"]] = TaskRow.of(task_json.decode(values["task"], place))
            return None
        if not isinstance(values, dict) or values.keys() != {"record"}:
            raise RecordError([_defect("expected an object with `record`, or with `id` and `task`")], where=place)
        row = read_row(values["record"], body_of_line(text))
        task = values["record"]["task"]
        if not isinstance(task, str) or task not in self._tasks:
            raise RecordError([_defect("no line before has the kernel that it names")], where=place)
        return self._tasks[task], row

    def _header(self, values: Any) -> None:
        if not isinstance(values, dict) or values.get("format") != FORMAT:
            raise _no_records(self._where, f"its first line is not {json.dumps(HEADER)}")
        version: Any = values.get("version")
        if type(version) is not int or version > VERSION or version < 1:
            what = f"has version {version!r}, this version of tilewright reads {VERSION}"
            raise StoreError(what, where=self._where, hint="update tilewright")
        self.has_header = True


def _defect(what: str) -> Defect:
    return Defect("record", "", what)


def _no_records(where: str, why: str) -> StoreError:
    hint = "give a file that `tilewright records export` wrote, or a store"
    return StoreError(f"holds no records: {why}", where=where, hint=hint)


def _bounded_lines(file: IO[bytes]) -> Iterator[bytes]:
    """The lines of a file; of one that is too long the first bytes, which is more than a record may have."""
    while line := file.readline(MAX_BYTES + 2):
        if not line.endswith(b"\n"):
            rest = line
            while rest and not rest.endswith(b"\n"):
                rest = file.readline(MAX_BYTES)
        if line.strip():
            yield line


def open_records(path: Path | str, skip: Skip = lambda reason: None) -> RecordStore:
    """Opens a store, or the lines of an export as a store in memory, for reading.

    Raises:
        StoreError: it is neither, or can't be read.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            if file.read(16) == b"SQLite format 3\0" or path.stat().st_size == 0:
                return open_store(path, "read", skip)
            file.seek(0)
            store = open_store(None, "write", skip)
            import_lines(file, store, f"file '{path}'", skip)
            return store
    except OSError as error:
        raise StoreError(
            f"can't be read: {error.strerror}", where=f"records '{path}'", hint="check the path"
        ) from error


def open_writable(path: Path | str, skip: Skip = lambda reason: None) -> RecordStore:
    """Opens a store to be written, which is made where there is none.

    Raises:
        StoreError: it is an export, no store, or can't be written.
    """
    if is_lines(path):
        hint = f"import it into a store: tilewright records import {path} --records STORE"
        raise StoreError("is an export, which is not changed", where=f"records '{path}'", hint=hint)
    return open_store(path, "write", skip)


def is_lines(path: Path | str) -> bool:
    """Whether a file that exists holds lines, and is not a store."""
    try:
        with Path(path).open("rb") as file:
            return file.read(1) == b"{"
    except OSError:
        return False


def write_lines(path: Path, lines: Iterable[str]) -> int:
    """Writes lines to a file, which is replaced as a whole; returns its size.

    Raises:
        StoreError: it can't be written.
    """
    try:
        return replace_file(Path(path).resolve(), (line.encode() for line in lines))
    except OSError as error:
        raise StoreError(f"can't be written: {error.strerror}", where=f"file '{path}'") from error
