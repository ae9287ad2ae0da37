"""Runs all hostile cases, in processes with limits: each ends as it should, in time, and opens no file of others."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.hostile.cases import CASES

import tilewright
from tilewright.machine.calibration_store import machine_for, save_calibration
from tilewright.machine.target import Target

ROOT = Path(__file__).parents[2]
SECONDS = 60
"""Time for one case on a busy machine. They take less than 5 s on a quiet one; beside other guests of a virtual machine
one took 15. What hangs would take hours."""

MODULES = sorted({c.run.__module__ for c in CASES.values()})


def ended(tmp_path: Path, names: list[str], seconds: float = SECONDS) -> dict[str, dict]:
    """What came of cases that one process ran.

    It finds no calibration of this machine, which the compiler reads where somebody made one.
    """
    paths = [str(Path(tilewright.__file__).parents[1]), str(ROOT)]
    command = [sys.executable, "-m", "tests.hostile.worker", str(tmp_path), str(seconds), *names]
    cache = {"TILEWRIGHT_CACHE_DIR": str(tmp_path / "cache")}
    environment = {**os.environ, **cache, "PYTHONPATH": os.pathsep.join(paths)}
    process = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert process.returncode == 0, process.stderr[-2000:]
    return {r["case"]: r for r in map(json.loads, process.stdout.splitlines())}


@pytest.mark.parametrize("module", MODULES)
def test_cases(module, tmp_path):
    names = [n for n, c in CASES.items() if c.run.__module__ == module]
    results = ended(tmp_path, names)
    assert list(results) == names
    assert {n: r["opened"] for n, r in results.items() if r["opened"]} == {}
    assert {n: r["outcome"] for n, r in results.items()} == {n: CASES[n].outcome for n in names}
    assert {n: r["text"] for n, r in results.items() if CASES[n].message not in r["text"]} == {}


def test_a_calibration_of_this_machine_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "own"))
    save_calibration(machine_for(Target.host()))
    results = ended(tmp_path, ["squares"])
    assert (results["squares"]["outcome"], results["squares"]["opened"]) == ("works", [])


def test_the_watch_sees_other_files(tmp_path):
    results = ended(tmp_path, ["reads_beside_the_model", "takes_for_ever"], 1)
    assert [Path(p).name for p in results["reads_beside_the_model"]["opened"]] == ["secret.bin"]
    assert results["takes_for_ever"]["outcome"] == "TooSlow"
