"""Columns of a store's rows, whose types and ranges are checked where they are read: others may have written them.

SQLite keeps a value of any type in any column, and texts that are no UTF-8. `decode_text` reads the latter as lone
surrogates, so that one bad text does not hide the rows beside it; the checks here refuse them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from tilewright.errors import Defect, RecordError, TaskError
from tilewright.layout.json_document import abbreviate
from tilewright.measure.records.record import RecordKind
from tilewright.measure.records.record_json import MAX_SECONDS, RecordRow, is_encodable
from tilewright.optimize import task_json
from tilewright.optimize.task import Task

TASK_COLUMNS = "hash, target, document"
"""Columns of a task, as `task_of_columns` takes them."""

ROW_COLUMNS = "m.text, g.text, o.text, s.text, r.kind, r.rank, r.created, r.body"
"""Columns of a record, as `row_of_columns` takes them; m, g, o and s are its texts."""

IS_LISTED = (
    f"typeof(r.rank) = 'real' AND abs(r.rank) < 9e999 AND typeof(r.created) = 'real'"
    f" AND r.created BETWEEN 0 AND {MAX_SECONDS!r} AND typeof(t.hash) = 'text' AND typeof(t.target) = 'text'"
)
"""Condition of rows r of records and t of tasks whose numbers and names can be listed."""

_TEXTS = ("machine", "generator", "optimizer", "settings")


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A kernel that a store has records of: its hash, its target, and its text as `task_json` writes it."""

    hash: str
    target: str
    document: str

    @property
    def id(self) -> str:
        """What exports and digests of records name it by."""
        return f"{self.hash} {self.target}"

    @classmethod
    def of(cls, task: Task) -> "TaskRow":
        """The row of a task."""
        return cls(task.hash, task.target.name, task_json.dumps(task))

    def task(self) -> Task:
        """The task.

        Raises:
            TaskError: the text is none of this hash.
        """
        task = task_json.loads(self.document, f"task {self.hash[:12]}")
        if (task.hash, task.target.name) != (self.hash, self.target):
            raise TaskError([Defect("task", "", "its text is that of another one")], where=f"task {self.hash[:12]}")
        return task


class CheckedTasks:
    """Rows of tasks that others may have written as this version writes them; each is read once."""

    def __init__(self) -> None:
        self._checked_rows: dict[TaskRow, TaskRow | TaskError] = {}

    def row(self, task: TaskRow) -> TaskRow:
        """The row of a task.

        Raises:
            TaskError: the text is none of this hash.
        """
        if task not in self._checked_rows:
            try:
                self._checked_rows[task] = TaskRow.of(task.task())
            except TaskError as error:
                self._checked_rows[task] = error
        row = self._checked_rows[task]
        if isinstance(row, TaskError):
            raise row
        return row


def decode_text(text: bytes) -> str:
    """A text of the file; bytes that are no UTF-8 become lone surrogates."""
    return str(text, "utf-8", "surrogateescape")


def task_of_columns(columns: Sequence[Any]) -> TaskRow:
    """The task in a query's columns.

    Raises:
        TaskError: one is no text; lists every problem.
    """
    named = zip(TASK_COLUMNS.split(", "), columns, strict=True)
    problems = [Defect("task", name, f"expected a text, got {abbreviate(x)}") for name, x in named if not _is_utf8(x)]
    if problems:
        raise TaskError(problems, where="the store")
    return TaskRow(*columns)


def row_of_columns(columns: Sequence[Any]) -> RecordRow:
    """The record in a query's columns.

    Raises:
        RecordError: a value is of another type or out of its range; lists every problem.
    """
    kind, rank, created, body = columns[4:]
    problems = [
        Defect("record", name, f"expected a text, got {abbreviate(text)}")
        for name, text in zip(_TEXTS, columns[:4], strict=True)
        if not _is_utf8(text)
    ]
    if type(kind) is not int or kind not in tuple(RecordKind):
        problems.append(Defect("record", "kind", f"there is no kind {abbreviate(kind)}"))
    if type(rank) is not float or not isfinite(rank):
        problems.append(Defect("record", "rank", f"expected a finite number, got {abbreviate(rank)}"))
    if type(created) is not float or not 0 <= created <= MAX_SECONDS:
        what = f"expected seconds within 0..{MAX_SECONDS:g}, got {abbreviate(created)}"
        problems.append(Defect("record", "created", what))
    if type(body) is not bytes:
        problems.append(Defect("record", "body", f"expected bytes, got {abbreviate(body)}"))
    if problems:
        raise RecordError(problems)
    machine, generator, optimizer, settings = columns[:4]
    return RecordRow(machine, generator, optimizer, settings, RecordKind(kind), rank, created, body)


def _is_utf8(value: object) -> bool:
    return isinstance(value, str) and is_encodable(value)
