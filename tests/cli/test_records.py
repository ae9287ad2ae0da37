"""`tilewright records`: stores are listed, shared, merged, pruned and checked; a model compiles from its export."""

import json
import sqlite3

import pytest
from tests.cli.command import error_of, run
from tests.measure.records.examples import all_kinds, dynamic_task, record, small_task, timing

from tilewright.measure.records.store import open_store


@pytest.fixture
def store(tmp_path):
    path = tmp_path / "records.db"
    with open_store(path, "write") as own:
        own.add([*all_kinds(), record(small_task(32), 3)])
    return path


def records(capsys, store, *arguments):
    code, out, _ = run(capsys, "records", *arguments, "--records", store)
    assert code == 0
    return out


def test_kernels_are_listed_and_shown(capsys, store):
    kernel = small_task().hash
    out = records(capsys, store, "list")
    assert out.splitlines()[0] == f"{store}: 6 records"
    assert kernel[:12] in out
    listed = json.loads(records(capsys, store, "list", "--json"))["kernels"]
    assert {(k["kernel"], k["records"], k["timed"]) for k in listed} == {(kernel, 5, 2), (small_task(32).hash, 1, 1)}
    out = records(capsys, store, "show", kernel[:10])
    assert "split('i0', 4" in out
    assert "crash: signal 11" in out
    assert len(json.loads(records(capsys, store, "show", kernel, "--json"))["records"]) == 5
    out = records(capsys, store, "best", kernel, "--machine", "zen5")
    assert out.splitlines()[0].startswith("other machine: measured 1.00 us, choice by search, zen5")
    assert json.loads(records(capsys, store, "best", kernel, "--json"))[0]["choice"] is True


def test_the_time_of_a_kernel_that_was_only_timed_on_a_busy_machine_is_listed(capsys, tmp_path):
    path = tmp_path / "busy.db"
    with open_store(path, "write") as own:
        own.add([record(result=timing(812.5, is_disturbed=True))])
    (kernel,) = json.loads(records(capsys, path, "list", "--json"))["kernels"]
    assert kernel["best_ns"] == 812.5
    assert " 0.81 us " in records(capsys, path, "list")


def test_times_of_several_sizes_are_shown_with_their_sizes(capsys, tmp_path):
    path = tmp_path / "sizes.db"
    with open_store(path, "write") as own:
        own.add([record(dynamic_task(), result=timing(100.0 * n), sizes={"n0": n}) for n in (8, 32)])
    (kernel,) = json.loads(records(capsys, path, "list", "--json"))["kernels"]
    assert (kernel["timed"], kernel["best_ns"]) == (2, None)
    assert kernel["what"].endswith("out: float32[n0, 8]; n0: 1..64)")
    shown = records(capsys, path, "show", kernel["kernel"])
    assert "measured 0.80 us at n0=8, timing by" in shown
    assert "measured 3.20 us at n0=32, timing by" in shown


@pytest.mark.parametrize("place", ["before", "after"])
def test_the_store_and_the_form_of_the_result_stand_before_or_after_the_action(capsys, store, place):
    options = ("--records", store, "--json")
    arguments = (*options, "list") if place == "before" else ("list", *options)
    code, out, _ = run(capsys, "records", *arguments)
    assert (code, json.loads(out)["records"]) == (0, str(store))


def test_kernels_with_a_program_that_won_are_marked_as_tuned(capsys, tmp_path):
    path, won = tmp_path / "choices.db", timing(900.0, incumbent=1000.0)
    with open_store(path, "write") as own:
        own.add([
            record(small_task(16), is_choice=True),
            record(small_task(32), is_choice=True, result=won),
            record(small_task(48), is_choice=True, result=won),
            record(small_task(48), is_choice=True, created=1.8e9),
            record(small_task(64), is_choice=True),
            record(small_task(64), is_choice=True, result=won, created=1.8e9),
        ])  # fmt: skip
    listed = json.loads(records(capsys, path, "list", "--json"))["kernels"]
    assert {k["kernel"] for k in listed if k["tuned"]} == {small_task(32).hash, small_task(64).hash}
    assert sum(" yes " in line for line in records(capsys, path, "list").splitlines()) == 2


def test_stores_are_exported_imported_and_merged(capsys, store, tmp_path):
    lines, other = tmp_path / "r.jsonl", tmp_path / "other.db"
    assert records(capsys, store, "export", "-o", lines).startswith(str(lines))
    assert records(capsys, store, "export") == lines.read_text()
    assert records(capsys, store, "export", "--kernel", small_task(32).hash[:8]).count("\n") == 3
    assert "added 6 records, 0 known; 6 in" in records(capsys, other, "import", lines)
    assert "added 0 records, 12 known; 6 in" in records(capsys, other, "merge", store, lines)
    assert records(capsys, lines, "list").splitlines()[0] == "memory: 6 records"
    with lines.open("a") as file:
        file.write("{}\n")
    code, out, err = run(capsys, "records", "import", lines, "--records", other)
    assert (code, "1 skipped" in out) == (0, True)
    assert "line 10" in err


def test_pruning_and_verification(capsys, store):
    assert records(capsys, store, "verify") == "6 records, 4 programs verified: all right\n"
    # what other versions constructed, their failures, and all but one timed program
    assert records(capsys, store, "prune", "--keep", "1") == "removed 3 records, 3 left\n"
    db = sqlite3.connect(store)
    db.execute("UPDATE records SET body = x'00' WHERE id = 1")
    db.commit()
    db.close()
    code, out, _ = run(capsys, "records", "verify", "--records", store)
    assert code == 3
    assert "damaged" in out


@pytest.mark.parametrize("value", ["'abc'", "9e999"])
def test_records_that_can_not_be_read_are_listed_and_verified(capsys, store, value):
    db = sqlite3.connect(store)
    db.execute(f"UPDATE records SET rank = {value} WHERE id = 2")
    db.execute("UPDATE tasks SET hash = x'00ff', document = x'ff' WHERE id = 2")
    db.commit()
    db.close()
    listed = json.loads(records(capsys, store, "list", "--json"))["kernels"]
    assert [(k["kernel"], k["records"]) for k in listed] == [(small_task().hash, 4)]
    assert "6 records, 2 of which can't be read" in records(capsys, store, "list")
    code, out, _ = run(capsys, "records", "verify", "--records", store)
    assert code == 3
    assert "rank: expected a finite number" in out
    assert "hash: expected a text" in out


def test_files_of_another_kind_are_named(capsys, folder, store, tmp_path):
    model, lines = folder / "mlp.onnx", tmp_path / "r.jsonl"
    before = model.read_bytes()
    assert "is no store of records" in error_of(capsys, "compile", model, "--records", model)
    assert model.read_bytes() == before
    records(capsys, store, "export", "-o", lines)
    reason = f"is an export, which is not changed; import it into a store: tilewright records import {lines}"
    assert reason in error_of(capsys, "tune", model, "--trials", "1", "--records", lines)
    assert reason in error_of(capsys, "records", "prune", "--records", lines)


def test_an_export_is_shipped_with_a_model(capsys, folder, store, tmp_path):
    model, lines = folder / "mlp.onnx", tmp_path / "mlp.jsonl"
    records(capsys, store, "export", "--model", model, "-o", lines)
    outputs = []
    for flags in (("--frozen", "--records", lines), ("--no-records",)):
        outputs.append(tmp_path / f"{flags[0]}.tw")
        code, out, _ = run(capsys, "compile", model, "-o", outputs[-1], "--json", "--no-cache", *flags)
        assert code == 0
        assert (json.loads(out)["constructed_kernels"] == 0) is (flags[0] == "--frozen")
    assert outputs[0].read_bytes() == outputs[1].read_bytes()
    other = ("--shape", "batch:4", "-o", tmp_path / "other.tw", "--frozen", "--records", lines)
    assert "there are no records of" in error_of(capsys, "compile", model, *other)


@pytest.mark.parametrize("name", ["\udcff.db", "a b%3F.db"])
def test_any_file_name_is_taken(capsys, store, tmp_path, name):
    other = tmp_path / name
    assert "added 6 records" in records(capsys, other, "merge", store)
    assert records(capsys, other, "verify") == "6 records, 4 programs verified: all right\n"
    assert records(capsys, other, "list").startswith(str(other).replace("\udcff", "\\udcff"))
    assert other.exists()


def test_rejected(capsys, folder, store, tmp_path, monkeypatch):
    for arguments, reason in (
        (("show", "ffff"), "there are 0 kernels whose hash begins with 'ffff'"),
        (("prune", "--keep", "-1"), "expected a number of at least 0"),
        (("export", "--exact", "--jobs", "2"), "export: --exact, --jobs have no effect without --model"),
        (("import", tmp_path / "none"), "can't be read"),
        (("import", tmp_path / ("x" * 300)), "can't be read: File name too long"),
        (("best", small_task().hash, "--machine", "x" * 300), "there is no machine 'xxx"),
    ):
        assert reason in error_of(capsys, "records", *arguments, "--records", store)
    for arguments, reason in (
        (("show",), "the following arguments are required: HASH"),
        (("import",), "the following arguments are required: FILE"),
        (("list", "x"), "unrecognized arguments: x"),
        (("list", "-o", "x"), "unrecognized arguments: -o x"),
        (("prune", "--keep", "x"), "argument --keep: invalid int value: 'x'"),
        (("export", "--kernel", "a", "--model", "b"), "argument --model: not allowed with argument --kernel"),
    ):
        code, _, err = run(capsys, "records", *arguments, "--records", store)
        assert (code, reason in err) == (2, True)
    assert "there is no such store" in error_of(capsys, "records", "prune", "--records", tmp_path / "none.db")
    assert not (tmp_path / "none.db").exists()
    assert "can't be written: File name too long" in error_of(capsys, "records", "merge", store, "--records", "x" * 300)
    assert records(capsys, store, "prune", "--keep", 10**30).endswith("left\n")
    assert "File name too long" in error_of(capsys, "compile", folder / "mlp.onnx", "--records", "x" * 300)
    assert "TILEWRIGHT_RECORDS turns them off" in error_of(capsys, "records", "list")
    both = ("--records", store, "--no-records")
    assert "--no-records: it excludes --records" in error_of(capsys, "compile", folder / "mlp.onnx", *both)
    monkeypatch.setenv("TILEWRIGHT_RECORDS", "")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert run(capsys, "records", "list")[1] == "memory: 0 records\nno records\n"
