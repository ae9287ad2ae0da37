"""Stores whose values others have chosen: every column is checked where it is read, and reasons are given."""

import io
import json
import sqlite3
from pathlib import Path

import pytest
from tests.measure.records.examples import MACHINE, all_kinds, record, small_task

from tilewright.errors import RecordError, StoreError
from tilewright.measure.records.jsonl import import_lines, lines_of, lines_of_rows
from tilewright.measure.records.maintain import merge, verify_store
from tilewright.measure.records.record_json import encode_fields, read_row
from tilewright.measure.records.store import open_store


def changed(path: Path, *statements: str) -> Path:
    """A store of three records, the last of another kernel, after statements."""
    with open_store(path, "write") as store:
        store.add([record(nanoseconds=1), record(nanoseconds=2), record(small_task(32), 3)])
    db = sqlite3.connect(path)
    for statement in statements:
        db.execute(statement)
    db.commit()
    db.close()
    return path


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("UPDATE records SET rank = 'abc' WHERE id = 3", "rank: expected a finite number, got 'abc'"),
        ("UPDATE records SET rank = 9e999 WHERE id = 3", "rank: expected a finite number, got inf"),
        ("UPDATE records SET created = 'abc' WHERE id = 3", "created: expected seconds within"),
        ("UPDATE records SET created = 1e300 WHERE id = 3", "created: expected seconds within"),
        ("UPDATE records SET created = x'00' WHERE id = 3", "created: expected seconds within"),
        ("UPDATE records SET kind = 77 WHERE id = 3", "there is no kind 77"),
        ("UPDATE records SET body = 'abc' WHERE id = 3", "body: expected bytes, got 'abc'"),
        ("UPDATE tasks SET hash = x'00ff' WHERE id = 2", "hash: expected a text, got b"),
        ("UPDATE tasks SET target = x'00ff' WHERE id = 2", "target: expected a text, got b"),
        ("UPDATE tasks SET document = x'00ff' WHERE id = 2", "document: expected a text, got b"),
        ("UPDATE tasks SET document = CAST(x'ff' AS TEXT) WHERE id = 2", "document: expected a text"),
        ("UPDATE tasks SET document = '{}x' WHERE id = 2", "JSON"),
    ],
)  # fmt: skip
def test_a_value_of_another_type_hides_its_row_alone(path: Path, tmp_path: Path, change: str, reason: str) -> None:
    skipped: list[str] = []
    unmerged: list[str] = []
    with open_store(changed(path, change), "read", skipped.append) as store:
        assert [r.nanoseconds for r in store] == [1, 2]
        assert store.best(small_task(32), MACHINE) == [] or "UPDATE tasks" in change
        assert len(store.tasks()) in (1, 2)
        verification = verify_store(store)
        assert len(list(lines_of_rows(store.rows(), skipped.append))) == 4
        with open_store(tmp_path / "own.db", "write") as own:
            merged = merge(store, own, unmerged.append)
    assert "kind" in change or reason in skipped[0], "kinds are selected by the query"
    (problem,) = verification.problems
    assert reason in problem
    assert (merged.added, merged.skipped) == (2, 1)
    assert reason in unmerged[0]


@pytest.mark.parametrize("text", ["x'ff41'", "CAST(x'ff41' AS TEXT)", "CAST(x'eda080' AS TEXT)"])
def test_texts_that_are_no_utf8_hide_their_rows_alone(path: Path, text: str) -> None:
    changed(path, f"INSERT INTO texts (id, text) VALUES (99, {text})", "UPDATE records SET optimizer = 99 WHERE id = 2")
    skipped: list[str] = []
    with open_store(path, "read", skipped.append) as store:
        assert [r.nanoseconds for r in store] == [1, 3]
        assert [x.record.nanoseconds for x in store.best(small_task(), MACHINE)] == [1]
    assert len(skipped) == 2
    assert "optimizer: expected a text" in skipped[0]


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER sqliteXevil AFTER INSERT ON records BEGIN DELETE FROM tasks; END",
        "CREATE TRIGGER tasks AFTER INSERT ON records BEGIN DELETE FROM tasks; END",
        "CREATE VIEW sqliteXview AS SELECT 1",
        "CREATE TABLE sqliteXtable (x)",
    ],
)
def test_names_like_those_of_sqlite_are_refused(path: Path, statement: str) -> None:
    changed(path, statement)
    for mode in ("read", "write"):
        with pytest.raises(StoreError, match="its tables are not those of a store"):
            open_store(path, mode)


def test_statistics_of_sqlite_are_no_other_tables(path: Path) -> None:
    with open_store(changed(path, "ANALYZE")) as store:
        assert store.count() == 3


@pytest.mark.parametrize("field", ["machine", "generator", "optimizer", "settings"])
def test_a_lone_surrogate_in_a_name_is_refused(field: str) -> None:
    with pytest.raises(RecordError, match=rf"{field}: expected a text"):
        read_row(encode_fields(record(), "") | {field: "\ud800x"})


def test_a_lone_surrogate_elsewhere_is_refused() -> None:
    fields = encode_fields(all_kinds()[4], "")
    text = json.dumps(fields)
    assert "signal 11" in text
    with pytest.raises(RecordError, match="lone surrogate"):
        read_row(json.loads(text.replace("signal 11", "\\ud800")))
    read_row(json.loads(text.replace("signal 11", "\\ud83d\\ude00")))


@pytest.mark.parametrize("bad", [b'"\\ud800x"', b'"\xed\xa0\x80x"'])
@pytest.mark.parametrize("place", [b'"machine":"' + MACHINE.encode() + b'"', b'"signal 11"'])
def test_a_line_with_a_lone_surrogate_is_skipped(path: Path, place: bytes, bad: bytes) -> None:
    lines = "".join(lines_of([all_kinds()[4], record(nanoseconds=2)])).encode()
    replacement = b'"machine":' + bad if place.startswith(b'"machine"') else bad
    assert place in lines
    skipped: list[str] = []
    with open_store(path, "write") as store:
        result = import_lines(io.BytesIO(lines.replace(place, replacement, 1)), store, "file 'x'", skipped.append)
        assert [r.nanoseconds for r in store] == [2]
    assert (result.added, result.skipped) == (1, 1)
    assert "line 3" in skipped[0]
