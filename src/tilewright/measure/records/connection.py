"""Connections to the SQLite file of a store: its schema, how it is opened, and errors that say what to do.

Many processes may write one store: it has a write-ahead log, where readers and a writer do not wait for each other. A
network file system has no shared memory for that, so there a rollback journal takes its place. Files on read-only media
are opened as immutable, without locks. A file that others have made may hold anything: triggers and views are refused,
and its values are checked where they are read.
"""

import contextlib
import os
import sqlite3
import time
from collections.abc import Generator
from pathlib import Path
from urllib.parse import quote

from tilewright.errors import DamagedStoreError, StoreError
from tilewright.measure.records.columns import decode_text
from tilewright.measure.records.file_system import is_network, is_read_only
from tilewright.measure.records.record_json import MAX_BYTES
from tilewright.measure.records.schema import APPLICATION_ID, FORMAT, SCHEMA, check_schema, damaged_hint, move_aside

LOCK_SECONDS = 60.0
"""How long a writer waits for others."""


def connect(path: Path, writable: bool) -> sqlite3.Connection:
    """A connection to a store.

    Args:
        path: its file; a writable one that does not exist is made, private to the user, with its folders.
        writable: whether to write; otherwise nothing is changed.

    Raises:
        StoreError: it is no store, damaged, of a newer format, or can't be opened.
    """
    with typed_errors(path):
        if writable:
            _create_file(path)
        elif not os.path.isfile(path):
            raise StoreError("there is no such store", where=f"records '{path}'", hint="check the path")
        db = _open(path, writable)
        try:
            db.execute("PRAGMA trusted_schema = OFF")
            db.execute("PRAGMA cell_size_check = ON")
            db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 32 * MAX_BYTES)
            if writable and _is_empty(db):
                _create_schema(db)
            check_schema(db, path)
            if writable:
                _set_journal(db, "DELETE" if is_network(path) else "WAL")
        except BaseException:
            db.close()
            raise
    return db


def in_memory() -> sqlite3.Connection:
    """A store that ends with its connection."""
    db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    _create_schema(db)
    return db


def _create_file(path: Path) -> None:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        if error.errno and os.path.isfile(path) and not os.access(path, os.W_OK):
            raise _read_only(path) from error
        raise StoreError(f"can't be written: {error.strerror}", where=f"records '{path}'", hint=_ELSEWHERE) from error


def _open(path: Path, writable: bool) -> sqlite3.Connection:
    if not writable and is_read_only(path):
        return _open_mode(path, "ro&immutable=1")
    db = _open_mode(path, "rw" if writable else "ro")
    if not writable:
        try:
            db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except sqlite3.OperationalError:
            # a log that this process may not make; without one nobody writes at present
            db.close()
            log = path.with_name(f"{path.name}-wal")
            if log.exists() and log.stat().st_size:
                raise
            return _open_mode(path, "ro&immutable=1")
    return db


def _open_mode(path: Path, mode: str) -> sqlite3.Connection:
    uri = f"file:{quote(os.fsencode(path.absolute()))}?mode={mode}"
    db = sqlite3.connect(uri, LOCK_SECONDS, uri=True, isolation_level=None, check_same_thread=False)
    db.text_factory = decode_text
    return db


def open_for_salvage(path: Path) -> sqlite3.Connection:
    """A connection that reads a damaged store as far as possible, without its end if need be, and changes nothing."""
    db = _open_mode(path, "ro")
    db.execute("PRAGMA trusted_schema = OFF")
    db.execute("PRAGMA cell_size_check = ON")
    # SQLite refuses a file that is shorter than its header says, except for this
    db.execute("PRAGMA writable_schema = ON")
    db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 32 * MAX_BYTES)
    return db


def _is_empty(db: sqlite3.Connection) -> bool:
    return not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]


def _create_schema(db: sqlite3.Connection) -> None:
    """Makes the tables, unless another process has just made them."""
    with transaction(db):
        if _is_empty(db):
            for statement in SCHEMA.split(";"):
                db.execute(statement)
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            db.execute(f"PRAGMA user_version = {FORMAT}")


def _set_journal(db: sqlite3.Connection, mode: str) -> None:
    """Sets the journal; waits for other processes that do so, which SQLite itself does not."""
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            if db.execute("PRAGMA journal_mode").fetchone()[0].upper() != mode:
                db.execute(f"PRAGMA journal_mode = {mode}")
            db.execute("PRAGMA synchronous = FULL")
            db.execute("PRAGMA wal_autocheckpoint = 4000")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorname.startswith("SQLITE_BUSY") and time.monotonic() < deadline:
                time.sleep(0.01)
                continue
            raise


@contextlib.contextmanager
def transaction(db: sqlite3.Connection) -> Generator[None]:
    """All changes or none; durable at the end."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


_ELSEWHERE = "give another path (--records, TILEWRIGHT_RECORDS)"


def _read_only(path: Path) -> StoreError:
    hint = "give a path that you may write to (--records, TILEWRIGHT_RECORDS), or merge it into a store of yours"
    return StoreError("is read-only", where=f"records '{path}'", hint=hint)


@contextlib.contextmanager
def typed_errors(path: Path) -> Generator[None]:
    """Errors of SQLite as those of the package.

    Raises:
        StoreError: what is wrong with the store, and what to do.
    """
    try:
        yield
    except sqlite3.Error as error:
        name, where = getattr(error, "sqlite_errorname", None) or "", f"records '{path}'"
        if name.startswith("SQLITE_READONLY"):
            raise _read_only(path) from error
        if name.startswith("SQLITE_FULL"):
            what, hint = "the disk is full", "free some space; `tilewright records prune` makes the store smaller"
        elif name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            what, hint = f"other processes have kept it locked for {LOCK_SECONDS:.0f} s", "try again when they are done"
        elif name.startswith("SQLITE_NOTADB"):
            what = "is no store of records"
            aside = f"it was left where it is: `{move_aside(path)}`, and a new one is made"
            hint = f"check the path; if it was a store, its beginning is damaged, and {aside}"
        elif name.startswith(("SQLITE_CORRUPT", "SQLITE_ERROR")):
            what = f"it is damaged or no store of records: {error}"
            raise DamagedStoreError(what, where=where, hint=damaged_hint(path)) from error
        elif name.startswith("SQLITE_IOERR"):
            what, hint = f"it can't be read or written: {error}", "check the disk and its free space"
        else:
            what, hint = f"it can't be used: {error}", _ELSEWHERE
        raise StoreError(what, where=where, hint=hint) from error
