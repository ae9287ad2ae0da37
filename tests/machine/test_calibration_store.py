"""Calibrations that are kept: where, for which machine, and what happens to damaged ones."""

from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.errors import MachineError
from tilewright.machine import Target, host
from tilewright.machine.calibration_store import (
    cache_folder,
    calibration_path,
    fingerprint,
    load_calibration,
    machine_for,
    save_calibration,
)
from tilewright.machine.shipped import host_machine, machine_named


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder."""
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_folder_follows_the_environment() -> None:
    assert cache_folder({"TILEWRIGHT_CACHE_DIR": "/a", "XDG_CACHE_HOME": "/b"}) == Path("/a")
    assert cache_folder({"XDG_CACHE_HOME": "/b"}) == Path("/b/tilewright")
    assert cache_folder({}) == Path.home() / ".cache" / "tilewright"


def test_without_a_calibration_the_description_counts(folder: Path) -> None:
    assert load_calibration() is None
    assert machine_for(Target.host()) == host_machine()


def test_a_calibration_counts_for_this_machine_alone(folder: Path) -> None:
    mine = replace(host_machine(), name="mine", ghz=1.25)
    path = save_calibration(mine)
    assert path == calibration_path()
    assert path.parent == folder
    assert machine_for(Target.host()) == mine
    other = "x86-64" if Target.host().name != "x86-64" else "aarch64"
    assert machine_for(Target.parse(other)) == machine_named(other)
    assert [p.name for p in folder.iterdir()] == [path.name]


def test_a_changed_machine_has_another_fingerprint() -> None:
    here = host()
    changed = [replace(here, cpus=here.cpus + 1), replace(here, model="other"), replace(here, caches=()),
               replace(here, features=())]  # fmt: skip
    assert len({fingerprint(), *(fingerprint(x) for x in changed)}) == 5
    assert fingerprint(replace(here, memory=1, quota=0.5)) == fingerprint()


def test_a_damaged_calibration_says_what_to_do(folder: Path) -> None:
    save_calibration(host_machine())
    calibration_path().write_text("{")
    with pytest.raises(MachineError, match=r"calibration '.*': is not JSON.*doctor --calibrate"):
        machine_for(Target.host())


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(MachineError, match=r"cannot be written: .*set TILEWRIGHT_CACHE_DIR"):
        save_calibration(host_machine())
