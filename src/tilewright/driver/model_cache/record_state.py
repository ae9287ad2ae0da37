"""The state of a store of records, as far as it decides what a compilation becomes or keeps.

It imports no part of the compiler, unlike the store itself. A store that a compilation would refuse has no state, so
that it is a compilation that says why.
"""

import os
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote

from tilewright.driver.kernel_build.record_source import RecordSource
from tilewright.driver.private_folder import is_private
from tilewright.errors import StoreError
from tilewright.measure.records.schema import check_schema

_MEASURED_KINDS = "(0, 1)"
"""Choices and timings (`measure.records.record.RecordKind`), which decide programs."""

MeasuredState = tuple[int, str]
"""Number of measured records, and the hash of their digests in the order of their numbers."""


@dataclass(frozen=True, slots=True)
class RecordState:
    """What of a store decides.

    Attributes:
        measured: the records that decide programs.
        newest: number and digest of the last record; (0, "") where there is none.
    """

    measured: MeasuredState
    newest: tuple[int, str]


NO_RECORDS = RecordState((0, sha256().hexdigest()), (0, ""))
"""The state of a store that does not exist."""


def record_state(source: RecordSource) -> RecordState | None:
    """The state of a store; None where there is one that can't be read, or that a compilation does not use.

    Numbers are given again after records were pruned, so all measured records have a part in the hash.
    """
    path = source.path
    try:
        statuses = os.stat(path), os.stat(path.parent)
    except FileNotFoundError:
        return NO_RECORDS
    except OSError:
        return None
    if source.is_default and not all(map(is_private, statuses)):
        return None
    try:
        with closing(_opened(path)) as db:
            check_schema(db, path)
            rows = db.execute(f"SELECT digest FROM records WHERE kind IN {_MEASURED_KINDS} ORDER BY id").fetchall()
            newest = db.execute("SELECT max(id) FROM records").fetchone()[0]
            digests = [bytes(digest) for (digest,) in rows]
            measured = len(digests), sha256(b"".join(digests)).hexdigest()
            return RecordState(measured, (int(newest or 0), _digest(db, newest)))
    except (sqlite3.Error, StoreError, ValueError, TypeError):
        return None


def has_records_of(state: RecordState | None, source: RecordSource) -> bool:
    """Whether a store has the measured records that it had in an earlier state, and the one that was the last then.

    Args:
        state: the earlier one; None where it is not known.
        source: the store.
    """
    now = record_state(source)
    if state is None or now is None or state.measured != now.measured:
        return False
    if state.newest == (0, ""):
        return True
    try:
        with closing(_opened(source.path)) as db:
            return _digest(db, state.newest[0]) == state.newest[1]
    except sqlite3.Error:
        return False


def _opened(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(os.fsencode(path.absolute()))}?mode=ro", 1.0, uri=True)


def _digest(db: sqlite3.Connection, number: int | None) -> str:
    """The digest of a record; "" where there is none."""
    row = None if number is None else db.execute("SELECT digest FROM records WHERE id = ?", (number,)).fetchone()
    return "" if row is None else bytes(row[0]).hex()
