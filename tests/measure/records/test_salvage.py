"""Salvage of damaged stores: what is read of them is what was written, and the command line exports and verifies it."""

import json
import random
import sqlite3
from pathlib import Path

import pytest
from tests.measure.records.examples import filled, random_record

from tilewright.cli.main import main
from tilewright.errors import StoreError
from tilewright.measure.records.record import Record
from tilewright.measure.records.salvage import salvage
from tilewright.measure.records.store import open_store

COUNT = 300


def _filled(path: Path, seed: int) -> list[Record]:
    rng = random.Random(seed)
    filled(path, [random_record(rng) for _ in range(COUNT)])
    with open_store(path) as store:
        return list(store)


def _overwrite(path: Path, begin: float, end: float, seed: int) -> None:
    """Random bytes in a part of the file."""
    content = bytearray(path.read_bytes())
    low, high = int(begin * len(content)), int(end * len(content))
    content[low:high] = random.Random(seed).randbytes(high - low)
    path.write_bytes(content)


def _salvaged(path: Path) -> tuple[list[Record], list[str]]:
    skipped: list[str] = []
    with salvage(path, skipped.append) as store:
        return list(store), skipped


def test_a_store_without_damage_comes_back_as_a_whole(path: Path) -> None:
    records = _filled(path, 0)
    assert _salvaged(path) == (records, [])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("begin", [0.5, 0.7, 0.9])
def test_records_on_whole_pages_come_back(path: Path, seed: int, begin: float) -> None:
    records = _filled(path, seed)
    _overwrite(path, begin, begin + 0.1, seed)
    left, skipped = _salvaged(path)
    assert left
    assert all(r in records for r in left)
    assert skipped or len(left) == len(records)
    assert all(reason.startswith("record ") for reason in skipped)


def test_records_with_large_numbers_come_back(path: Path) -> None:
    """As in a store of which old records were removed again and again."""
    records = _filled(path, 0)
    with sqlite3.connect(path) as db:
        db.execute("UPDATE records SET id = id + 200000")
    db.close()
    assert _salvaged(path) == (records, [])


@pytest.mark.parametrize("seed", range(4))
def test_a_store_that_was_cut_off_is_read_as_far_as_it_goes(path: Path, seed: int) -> None:
    records = _filled(path, seed)
    content = path.read_bytes()
    path.write_bytes(content[: int(0.9 * len(content))])
    with pytest.raises(StoreError, match="damaged"), open_store(path) as store:
        list(store)
    left, _ = _salvaged(path)
    assert left
    assert all(r in records for r in left)


@pytest.mark.parametrize("begin", [0.1, 0.2])
def test_nothing_but_whole_records_comes_back_wherever_the_damage_is(path: Path, begin: float) -> None:
    records = _filled(path, 0)
    _overwrite(path, begin, 1.0, 1)
    left, _ = _salvaged(path)
    assert all(r in records for r in left)


def test_without_its_tables_nothing_can_be_read(path: Path) -> None:
    _filled(path, 0)
    _overwrite(path, 0.0005, 0.02, 0)
    with pytest.raises(StoreError, match=r"nothing of it can be read; it was left where it is.*`mv \S+ \S+\.damaged`"):
        salvage(path)


def test_other_files_are_no_stores(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE records (id)")
    db.close()
    with pytest.raises(StoreError, match="no store of records"):
        salvage(path)


def test_what_is_left_is_verified_and_exported(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = _filled(path, 2)
    _overwrite(path, 0.7, 0.8, 2)
    assert main(["records", "verify", "--records", str(path), "--json"]) == 3
    checked = json.loads(capsys.readouterr().out)
    assert 0 < checked["records"] < len(records)
    assert "can still be read" in checked["problems"][0]
    output, saved = tmp_path / "left.jsonl", tmp_path / "saved.db"
    assert main(["records", "export", "-o", str(output), "--records", str(path)]) == 3
    assert "damaged" in capsys.readouterr().err
    assert main(["records", "import", str(output), "--records", str(saved)]) == 0
    with open_store(saved) as store:
        assert store.count() == checked["records"]
    lines = output.read_text().splitlines()
    capsys.readouterr()
    assert main(["records", "export", "--records", str(path)]) == 3
    assert capsys.readouterr().out.splitlines() == lines
    assert main(["records", "list", "--records", str(path)]) in (0, 1)
