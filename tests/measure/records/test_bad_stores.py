"""Stores that are missing, damaged, full, read-only or of others say what to do; upkeep of stores."""

import os
import random
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from tests.measure.records.examples import (
    GENERATOR,
    MACHINE,
    OLD_GENERATOR,
    OTHER_MACHINE,
    all_kinds,
    filled,
    random_record,
    record,
    small_task,
    split_by,
)

from tilewright.errors import StoreError
from tilewright.measure.records import connection, file_system, schema
from tilewright.measure.records.maintain import merge, prune, verify_store
from tilewright.measure.records.record import Record, machine_type
from tilewright.measure.records.store import open_store
from tilewright.optimize.constructions import Estimate


def error_of(path: Path, mode: Any = "read") -> str:
    with pytest.raises(StoreError, match=r"\[records\]") as error:
        _read_all(path, mode)
    return str(error.value)


def _read_all(path: Path, mode: Any) -> None:
    with open_store(path, mode) as store:
        assert store.count() == len(list(store))


def test_a_store_that_is_missing(path: Path) -> None:
    assert "there is no such store" in error_of(path)
    assert not path.exists()


def test_other_files_are_no_stores(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"not a store" * 1000)
    assert "no store of records" in error_of(path, "write")
    assert path.read_bytes() == b"not a store" * 1000
    path.unlink()
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE records (id)")
    db.close()
    assert "is no store of records; check the path" in error_of(path, "write")


def test_a_damaged_store_says_what_to_do(path: Path) -> None:
    rng = random.Random(0)
    filled(path, [random_record(rng) for _ in range(300)])
    content = bytearray(path.read_bytes())
    content[8192:40960] = rng.randbytes(40960 - 8192)
    path.write_bytes(content)
    text = error_of(path)
    assert "damaged" in text
    assert "the file was left where it is; `tilewright records verify" in text
    assert f"`mv {path} {path}.damaged` and `tilewright records import --records {path} saved.jsonl`" in text


def test_a_store_of_a_newer_format(path: Path) -> None:
    filled(path, [record()])
    db = sqlite3.connect(path)
    db.execute(f"PRAGMA user_version = {schema.FORMAT + 1}")
    db.close()
    assert f"has format {schema.FORMAT + 1}" in error_of(path, "write")
    assert "update tilewright" in error_of(path)


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER t AFTER INSERT ON records BEGIN DELETE FROM tasks; END",
        "CREATE VIEW v AS SELECT 1",
        "DROP INDEX exact",
    ],
)  # fmt: skip
def test_a_store_with_other_tables_is_refused(path: Path, statement: str) -> None:
    filled(path, [record()])
    db = sqlite3.connect(path)
    db.execute(statement)
    db.close()
    assert "its tables are not those of a store" in error_of(path, "write")


def test_a_full_disk(path: Path) -> None:
    rng = random.Random(0)
    with open_store(path, "write") as store:
        store.add([record()])
        (pages,) = store.query("PRAGMA page_count")[0]
        store.query(f"PRAGMA max_page_count = {pages + 2}")
        with pytest.raises(StoreError, match=r"the disk is full; free some space"):
            store.add([random_record(rng) for _ in range(1000)])
        assert list(store) == [record()]
        assert store.add([record(nanoseconds=2)]) == 1


def test_a_store_that_is_read_only(path: Path) -> None:
    filled(path, [record()])
    with open_store(path) as store, pytest.raises(StoreError, match=r"was opened to be read"):
        store.add([record()])
    with open_store(path, "write") as store:
        store.query("PRAGMA query_only = 1")
        with pytest.raises(StoreError, match=r"is read-only; give a path that you may write to"):
            store.add([record(nanoseconds=2)])


def test_read_only_media_are_opened_immutable(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(path, [record()])
    monkeypatch.setattr(connection, "is_read_only", lambda p: True)
    with open_store(path) as store:
        assert list(store) == [record()]
    assert [p.name for p in path.parent.iterdir()] == ["records.db"], "no log is constructed beside it"


def test_network_file_systems_have_no_write_ahead_log(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_store(path, "write") as store:
        assert store.query("PRAGMA journal_mode") == [("wal",)]
    monkeypatch.setattr(connection, "is_network", lambda p: True)
    with open_store(path, "write") as store:
        assert store.query("PRAGMA journal_mode") == [("delete",)]
        assert store.add([record()]) == 1


MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:30 / /home rw shared:2 - nfs4 server:/home rw
31 30 0:31 / /home/a\\040b rw - tmpfs tmpfs rw
32 22 0:32 / /data rw - fuse.sshfs user@host: rw
33 22 0:33 / /disk rw - fuse.fuseblk /dev/sdb rw
34 22 0:34 / /over rw - cifs //host/x rw
35 34 0:35 / /over rw - xfs /dev/sdc rw
"""


@pytest.mark.parametrize(
    ("place", "expected"),
    [("/x/y", False), ("/home/u/r.db", True), ("/home/a b/r.db", False), ("/homes/r.db", False), ("/data/r.db", True),
     ("/disk/r.db", False), ("/over/r.db", False)],
)  # fmt: skip
def test_network_file_systems_are_told_by_their_mounts(place: str, expected: bool) -> None:
    assert file_system.is_network(Path(place), MOUNTS) is expected
    assert file_system.is_network(Path(place), "") is False


def test_damaged_records_are_skipped_with_the_reason(path: Path) -> None:
    filled(path, [record(nanoseconds=1), record(nanoseconds=2), record(small_task(32), 3), record(nanoseconds=4)])
    db = sqlite3.connect(path)
    db.execute("UPDATE records SET body = x'00' WHERE id = 1")
    db.execute("UPDATE records SET kind = 77 WHERE id = 2")
    db.execute("UPDATE tasks SET document = replace(document, '32', '64') WHERE id = 2")
    db.commit()
    db.close()
    skipped: list[str] = []
    with open_store(path, "read", skipped.append) as store:
        assert list(store) == [record(nanoseconds=4)]
        assert [x.record.nanoseconds for x in store.best(small_task(), MACHINE, GENERATOR)] == [4]
        problems = verify_store(store).problems
    assert "damaged" in skipped[0]
    assert "another one" in skipped[1]
    assert len(problems) == 3


def test_a_store_of_others_is_checked_before_it_is_merged(path: Path, tmp_path: Path) -> None:
    filled(path, [record(nanoseconds=1), record(nanoseconds=2), record(small_task(32), 3)])
    db = sqlite3.connect(path)
    db.execute("UPDATE records SET body = x'00' WHERE id = 1")
    db.execute("UPDATE tasks SET document = '{}' WHERE id = 2")
    db.commit()
    db.close()
    skipped: list[str] = []
    with open_store(path) as source, open_store(tmp_path / "own.db", "write") as own:
        result = merge(source, own, skipped.append)
        assert (result.added, result.known, result.skipped) == (1, 0, 2)
        assert list(own) == [record(nanoseconds=2)]
        assert merge(source, own).known == 1
    assert len(skipped) == 2


def test_merging_keeps_equal_records_once(path: Path, tmp_path: Path) -> None:
    rng = random.Random(1)
    records = [random_record(rng) for _ in range(30)]
    filled(path, records[:20])
    with open_store(path) as source, open_store(filled(tmp_path / "own.db", records[10:]), "write") as own:
        result = merge(source, own)
        assert (result.added, result.known, result.skipped) == (10, 10, 0)
        assert sorted(r.created for r in own) == sorted(r.created for r in records)


def test_pruning_keeps_what_compilations_use(path: Path) -> None:
    constructed = {"result": Estimate((5.0,)), "settings": "gensor"}
    stay = [
        record(is_choice=True, created=3e9),
        record(is_choice=True, machine=OTHER_MACHINE),
        record(nanoseconds=3.0),
        record(nanoseconds=4.0),
        record(**constructed),
        all_kinds()[4],
    ]
    go = [
        record(is_choice=True, created=1e9),
        record(nanoseconds=5.0),
        record(generator=OLD_GENERATOR, **constructed),
        record(result=all_kinds()[4].result, generator=OLD_GENERATOR),
    ]
    with open_store(filled(path, [*go, *stay]), "write") as store:
        assert prune(store, 2, GENERATOR) == len(go)
        assert list(store) == stay
        assert prune(store, 2, GENERATOR) == 0


def test_pruning_leaves_no_kernels_or_texts_without_records(path: Path) -> None:
    old = record(small_task(32), result=Estimate((5.0,)), settings="gensor, seed 7", generator=OLD_GENERATOR)
    with open_store(filled(path, [old, record()]), "write") as store:
        assert prune(store, generator=GENERATOR) == 1
        assert [t.hash for t in store.tasks()] == [small_task().hash]
        texts = {text for (text,) in store.query("SELECT text FROM texts")}
        assert texts == {MACHINE, machine_type(MACHINE), GENERATOR, "search", ""}
        assert list(store) == [record()]
        assert store.add([old]) == 1


def test_verification_replays_programs(path: Path) -> None:
    # the kernel has no loop j
    illegal = Record(small_task(), (split_by(4, "j"),), Estimate((1.0,)), "gensor", MACHINE, GENERATOR)
    with open_store(filled(path, [*all_kinds(), illegal])) as store:
        verification = verify_store(store)
    assert (verification.records, verification.programs) == (6, 3)
    (problem,) = verification.problems
    assert "record 6" in problem
    assert "'j'" in problem


def test_a_store_without_permission_to_write_its_log(path: Path) -> None:
    """A reader that may not make the log beside the file reads it without one."""
    filled(path, [record()])
    copy = path.with_name("copy.db")
    shutil.copy(path, copy)
    os.chmod(copy, 0o400)
    with open_store(copy) as store:
        assert list(store) == [record()]
