"""Records as lines: what is exported is imported again, and hostile files are skipped or refused with the reason."""

import io
import json
import random
from pathlib import Path
from typing import Any

import pytest
from tests.measure.records.examples import MACHINE, all_kinds, dynamic_task, random_record, record, small_task, split_by

from tilewright.errors import StoreError
from tilewright.measure.records import record_json
from tilewright.measure.records.jsonl import (
    HEADER,
    Imported,
    import_lines,
    is_lines,
    lines_of,
    lines_of_rows,
    open_records,
    write_lines,
)
from tilewright.measure.records.record import Record
from tilewright.measure.records.store import RecordStore, TaskRow, open_store


def imported(text: str | bytes, store: RecordStore | None = None) -> tuple[list[Record], Imported, list[str]]:
    """The records of a store after a file was added, what came of it, and the reasons for what was skipped."""
    skipped: list[str] = []
    data = text.encode() if isinstance(text, str) else text
    own = store or open_store(None)
    result = import_lines(io.BytesIO(data), own, "file 'x'", skipped.append)
    return list(own), result, skipped


def exported(records: list[Record]) -> str:
    return "".join(lines_of(records))


def test_what_is_exported_is_imported_again() -> None:
    rng = random.Random(0)
    records = [*all_kinds(), *(random_record(rng) for _ in range(30)), record(dynamic_task(), sizes={"n0": 3})]
    text = exported(records)
    back, result, skipped = imported(text)
    assert (back, result, skipped) == (records, Imported(len(records), 0, 0), [])
    store = open_store(None)
    store.add(records)
    assert "".join(lines_of_rows(store.rows(), skipped.append)) == text
    assert imported(text, store)[1] == Imported(0, len(records), 0)


def test_files_are_concatenated() -> None:
    one, two = exported([record(nanoseconds=1)]), exported([record(small_task(32), 2), record(nanoseconds=3)])
    back, result, skipped = imported(one + two + one)
    assert [r.nanoseconds for r in back] == [1, 2, 3]
    assert (result, skipped) == (Imported(3, 1, 0), [])


def test_many_records_share_the_text_of_their_kernel() -> None:
    text = exported([record(nanoseconds=1 + k) for k in range(50)])
    assert text.count('"func"') == 1


def test_lines_of_other_writers_are_the_same_records() -> None:
    """Order of fields and spaces say nothing; fields that repeat count once."""
    header, kernel, line = exported([record()]).splitlines()
    fields = json.loads(line)["record"]
    spaced = json.dumps({"record": dict(reversed(fields.items()))}, indent=None, separators=(" , ", " : "))
    repeated = line.removesuffix("}}") + ',"machine":"zen3, 1 cores, 0"}}'
    back, result, _ = imported("\n".join([header, kernel, line, spaced, repeated]))
    assert (result.added, result.known) == (2, 1)
    assert [r.machine for r in back] == [MACHINE, "zen3, 1 cores, 0"]


def fields_of(change: dict[str, Any]) -> str:
    """A file of a record with other fields, between two that are right."""
    lines = exported([record(nanoseconds=1), record(nanoseconds=2), record(nanoseconds=3)]).splitlines()
    fields = json.loads(lines[3])["record"] | change
    lines[3] = json.dumps({"record": {k: v for k, v in fields.items() if v is not ...}})
    return "\n".join(lines)


RESULT = json.loads(exported([record()]).splitlines()[2])["record"]["result"]

BAD_FIELDS: dict[str, tuple[dict[str, Any], str]] = {
    "missing": ({"machine": ...}, "machine: it is missing"),
    "unknown field": ({"shell": "rm"}, "there is no such field"),
    "kernel": ({"task": "0" * 64}, "no line before"),
    "kernel of another type": ({"task": [1]}, "no line before"),
    "long text": ({"machine": "m" * 5000}, "at most 300 characters"),
    "text of another type": ({"generator": 5}, "expected a text"),
    "no programs": ({"programs": []}, "has steps"),
    "programs of another type": ({"programs": "split"}, "expected a list"),
    "many programs": ({"programs": [[]] * 1000}, "at most 64"),
    "many steps": ({"programs": [[["split", {}]] * 20_000]}, "at most 10000 steps"),
    "step of another type": ({"programs": [["split"]]}, "step 1"),
    "primitive": ({"programs": [[["exec", {}]]]}, "there is no primitive 'exec'"),
    "primitive of another type": ({"programs": [[[{}, {}]]]}, "there is no primitive"),
    "set without a selector": ({"programs": [[], []]}, "there are several programs"),
    "selector of another type": ({"selector": 3}, "selector"),
    "estimates": ({"estimates": [["a", 5]]}, "as texts"),
    "number of estimates": ({"estimates": [["a", "1"], ["b", "2"]]}, "one per program"),
    "trees": ({"trees": [{}, {}]}, "one per program"),
    "sizes": ({"sizes": {"n0": 1 << 60}}, "expected sizes"),
    "sizes of another type": ({"sizes": [1]}, "expected sizes"),
    "negative time": ({"result": RESULT | {"nanoseconds": -1}}, "nanoseconds is impossible"),
    "time of zero": ({"result": RESULT | {"nanoseconds": 0}}, "nanoseconds is impossible"),
    "eternal time": ({"result": RESULT | {"nanoseconds": 1e300}}, "nanoseconds is impossible"),
    "blocks": ({"result": RESULT | {"blocks": 0.5}}, "blocks is impossible"),
    "result": ({"result": {"kind": "promise"}}, "whose kind is one of"),
    "kind of another type": ({"result": {"kind": []}}, "whose kind is one of"),
    "fields of a result": ({"result": {"kind": "timing"}}, "expected the fields"),
    "failure": ({"result": {"kind": "failure", "failure": "sad", "message": ""}}, "expected one of"),
    "estimate": ({"result": {"kind": "estimate", "nanoseconds": ["a"], "refusal": ""}}, "nanoseconds"),
    "estimate as a choice": (
        {"choice": True, "result": {"kind": "estimate", "nanoseconds": [1], "refusal": ""}}, "has been timed"
    ),
    "choice": ({"choice": 1}, "true or false"),
    "ratio": ({"worst_ratio": 0}, "positive number"),
    "created": ({"created": -5}, "expected seconds"),
    "huge": ({"selector": "n0" + " " * (1 << 21)}, "exceeds"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_FIELDS)
def test_a_record_that_is_none_is_skipped_with_the_reason(name: str) -> None:
    change, reason = BAD_FIELDS[name]
    back, result, skipped = imported(fields_of(change))
    assert [r.nanoseconds for r in back] == [1, 3]
    assert result == Imported(2, 0, 1)
    assert "line 4" in skipped[0]
    assert reason in skipped[0]
    assert len(skipped[0]) < 1000


@pytest.mark.parametrize(
    "line",
    [b"[]", b"{", b"\xff\xfe", b"NaN", b'{"record": 5}', b'{"id": 5, "task": {}}', b'{"id": "x", "task": {}}',
     b"[" * 100_000, b'{"record": {}, "record": {}}', b'{"a": ' + b"1" * 5000 + b"}", b"x" * (3 << 20)],
)  # fmt: skip
def test_lines_that_are_no_records_are_skipped(line: bytes) -> None:
    lines = exported([record(nanoseconds=1), record(nanoseconds=2)]).encode().splitlines()
    back, result, skipped = imported(b"\n".join([*lines[:3], line, *lines[3:]]))
    assert [r.nanoseconds for r in back] == [1, 2]
    assert (result.skipped, len(skipped)) == (1, 1)


def test_arguments_that_do_not_fit_are_skipped_where_the_record_is_read() -> None:
    split = ["split", {"loop": "i0", "factor": "rm -rf", "names": 5}]
    for change in (
        {"programs": [[split]]},
        {"selector": "n0 // (n0 - 9)"},
        {"sizes": {"n7": 3}},
        {"trees": [{"format": "tilewright-tree"}]},
    ):
        skipped: list[str] = []
        store = open_store(None, "write", skipped.append)
        import_lines(io.BytesIO(fields_of(change).encode()), store, "x", skipped.append)
        assert skipped == []
        assert [r.nanoseconds for r in store] == [1, 3]
        assert len(skipped) == 1


@pytest.mark.parametrize("text", ["n0 // (0 - 1)", "n0 // (n0 - 9)", "n0 < 3", "n0 +", "x", "(" * 5000, "a0[0]"])
def test_selectors_are_indices_that_can_be_computed(text: str) -> None:
    skipped: list[str] = []
    store = open_store(None, "write", skipped.append)
    fields = record_json.encode_fields(record(dynamic_task()), "") | {"selector": text}
    store.add_rows([(TaskRow.of(dynamic_task()), record_json.read_row(fields))])
    assert list(store) == []
    assert "selector" in skipped[0]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "it is empty"),
        ("{}", "first line is not"),
        ("hello", "first line can't be read"),
        ("5", "first line is not"),
        (json.dumps(HEADER | {"version": 2}), "update tilewright"),
        (json.dumps(HEADER | {"version": "1"}), "has version"),
    ],
)
def test_files_that_hold_no_records_are_refused(text: str, reason: str) -> None:
    with pytest.raises(StoreError, match=r"\[records\] file 'x'") as error:
        imported(text)
    assert reason in str(error.value)


def test_stores_and_exports_are_opened_alike(tmp_path: Path) -> None:
    store, lines = tmp_path / "r.db", tmp_path / "r.jsonl"
    with open_store(store, "write") as own:
        own.add(all_kinds())
        assert write_lines(lines, lines_of_rows(own.rows(), print)) == lines.stat().st_size
    assert (is_lines(store), is_lines(lines), is_lines(tmp_path / "none")) == (False, True, False)
    for path in (store, lines):
        with open_records(path) as records:
            assert list(records) == all_kinds()
    with pytest.raises(StoreError, match="can't be read"):
        open_records(tmp_path / "none")
    with pytest.raises(StoreError, match="can't be written"):
        write_lines(tmp_path / "no" / "folder", [])


def test_programs_are_kept_step_by_step() -> None:
    trace = (*split_by(8), *split_by(2, "i0_i"))
    back, _, _ = imported(exported([Record(small_task(), (trace,), record().result, "s", "m", "g")]))
    assert back[0].trace == trace
