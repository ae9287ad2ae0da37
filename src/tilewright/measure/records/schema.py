"""The schema of a store's SQLite file; it imports no part of the compiler."""

import sqlite3
from pathlib import Path
from shlex import quote

from tilewright.errors import StoreError

APPLICATION_ID = 0x54574D52
"""Marks a SQLite file as a store of records: "TWMR"."""

FORMAT = 1
"""Version of the schema."""

SCHEMA = """
CREATE TABLE tasks (id INTEGER PRIMARY KEY, hash TEXT NOT NULL, target TEXT NOT NULL, document TEXT NOT NULL,
    UNIQUE (hash, target));
CREATE TABLE texts (id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE);
CREATE TABLE records (id INTEGER PRIMARY KEY, digest BLOB NOT NULL UNIQUE, task INTEGER NOT NULL, kind INTEGER NOT NULL,
    machine INTEGER NOT NULL, type INTEGER NOT NULL, generator INTEGER NOT NULL, optimizer INTEGER NOT NULL,
    settings INTEGER NOT NULL, rank REAL NOT NULL, created REAL NOT NULL,
    body BLOB NOT NULL);
CREATE INDEX exact ON records (task, kind, machine, generator, rank);
CREATE INDEX by_type ON records (task, kind, type, rank);
CREATE INDEX by_task ON records (task, kind, rank);
"""
"""`texts` holds machines, their types, generators, optimizers and settings, which many records share."""

_NAMES = {
    ("tasks", "table"), ("texts", "table"), ("records", "table"),
    ("exact", "index"), ("by_type", "index"), ("by_task", "index"),
}  # fmt: skip
"""Names in the schema with their types."""


def move_aside(path: Path) -> str:
    """The command that keeps a file that is no usable store beside the place of a new one."""
    return f"mv {quote(str(path))} {quote(f'{path}.damaged')}"


def damaged_hint(path: Path) -> str:
    """What to do about a damaged store, which nothing here changes or moves."""
    store = f"--records {quote(str(path))}"
    return (
        f"the file was left where it is; `tilewright records verify {store}` says what can be read of it;"
        f" `tilewright records export {store} -o saved.jsonl` saves that, then `{move_aside(path)}` and"
        f" `tilewright records import {store} saved.jsonl`"
    )


def check_schema(db: sqlite3.Connection, path: Path) -> None:
    """Checks that a file is a store of this format.

    Args:
        db: a connection to it.
        path: the file.

    Raises:
        StoreError: it is not.
    """
    where = f"records '{path}'"
    if db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise StoreError("is no store of records", where=where, hint="check the path")
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version > FORMAT:
        what = f"has format {version}, this version of tilewright reads up to {FORMAT}"
        raise StoreError(
            what, where=where, hint="update tilewright, or export the records with the version that wrote it"
        )
    rows = db.execute("SELECT name, type FROM sqlite_master").fetchall()
    # those that SQLite makes itself are tables and indexes
    if {(n, t) for n, t in rows if not (n.startswith("sqlite_") and t in ("table", "index"))} != _NAMES:
        hint = f"`{move_aside(path)}`, or name another"
        raise StoreError("its tables are not those of a store", where=where, hint=hint)
