"""The state of a store of records, as far as it decides what a compilation becomes or keeps.

It imports no part of the compiler, unlike the store itself.
"""

import os
import sqlite3
from pathlib import Path
from urllib.parse import quote

_MEASURED_KINDS = "(0, 1)"
"""Choices and timings (`measure.records.record.RecordKind`), which decide programs."""

RecordState = tuple[int, int, str, int, str]
"""Number of measured records, number and digest of the last of them, number and digest of the last record."""


def record_state(path: Path) -> RecordState | None:
    """The state of a store; None where there is none that can be read.

    Measured records decide programs. Rows are only added and removed, and numbers grow, so as long as their number and
    the last one are the same all of them are.
    """
    if not os.path.isfile(path):
        return None
    try:
        db = sqlite3.connect(f"file:{quote(os.fsencode(path.absolute()))}?mode=ro", 1.0, uri=True)
        try:
            measured = f"kind IN {_MEASURED_KINDS}"
            count, last = db.execute(f"SELECT count(*), max(id) FROM records WHERE {measured}").fetchone()
            newest = db.execute("SELECT max(id) FROM records").fetchone()[0]
            return int(count), int(last or 0), _digest(db, last), int(newest or 0), _digest(db, newest)
        finally:
            db.close()
    except (sqlite3.Error, ValueError, TypeError):
        return None


def has_records_of(state: RecordState | None, path: Path) -> bool:
    """Whether a store has the measured records that it had in an earlier state, and those kept then.

    Args:
        state: the earlier one; None where there was no store.
        path: the store.
    """
    now = record_state(path)
    if state is None or now is None:
        return state is now
    return state[:3] == now[:3] and _digest_at(path, state[3]) == state[4]


def _digest_at(path: Path, number: int) -> str:
    try:
        db = sqlite3.connect(f"file:{quote(os.fsencode(path.absolute()))}?mode=ro", 1.0, uri=True)
        try:
            return _digest(db, number)
        finally:
            db.close()
    except sqlite3.Error:
        return "unknown"


def _digest(db: sqlite3.Connection, number: int | None) -> str:
    """The digest of a record; "" where there is none."""
    row = None if number is None else db.execute("SELECT digest FROM records WHERE id = ?", (number,)).fetchone()
    return "" if row is None else bytes(row[0]).hex()
