"""Rounds of a tuning that is killed: what it acknowledged is in the store afterwards, and the next round goes on."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from tests.fuzz_tuning.child import key_of

from tilewright.measure.records.record import RecordKind
from tilewright.measure.records.store import open_store

ROOT = Path(__file__).parents[2]

LEAVE_SECONDS = 240.0
"""Longest time in which the workers of a killed tuning end; they may be stopped for a while on a shared machine."""

TRIALS = 1_000_000


@dataclass
class KilledTuning:
    """A tuning of one store that is killed again and again.

    Attributes:
        folder: of the store, of the list of acknowledged measurements, and of temporary files.
        begun: keys of the measurements that some round began to store.
        acknowledged: keys of those that it acknowledged, once they were on the disk.
        problems: what went wrong.
    """

    folder: Path
    begun: set[str] = field(default_factory=set)
    acknowledged: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store, self._list = self.folder / "records.db", self.folder / "acknowledged.txt"
        (self.folder / "tmp").mkdir(parents=True, exist_ok=True)
        if self._list.exists():
            self.acknowledged = set(self._list.read_text().split())
        if self.store.exists():
            # of a round in which the campaign was stopped
            self.begun = set(self._read_store([])[0])

    def run(self, seconds: float | None, seed: int, trials: int = TRIALS) -> float | None:
        """One round, killed after so many seconds; None lets it end.

        Returns:
            Seconds until its first measurement was acknowledged; None where none was.
        """
        command = [sys.executable, "-m", "tests.fuzz_tuning.child", str(self.store), str(seed), str(trials)]
        errors = self.folder / "errors.txt"
        start = time.monotonic()
        with errors.open("w") as log:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT, env=self._env()
            )
        workers: list[psutil.Process] = []
        output = ""
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            workers = psutil.Process(process.pid).children(recursive=True)
            process.kill()
            output, _ = process.communicate()
        if process.returncode not in (0, -9):
            self.problems.append(f"it ended with status {process.returncode}: {errors.read_text()[-2000:]}")
        first = self._collect(output)
        _, alive = psutil.wait_procs(workers, LEAVE_SECONDS)
        self.problems += [f"worker {w.pid} is left" for w in alive]
        self.check()
        return None if first is None else first - start

    def _env(self) -> Mapping[str, str]:
        return {
            **os.environ,
            "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
            "TMPDIR": str(self.folder / "tmp"),
            "XDG_CACHE_HOME": str(self.folder / "cache"),
        }

    def _collect(self, output: str) -> float | None:
        """Takes over what a round acknowledged; the time of the first measurement."""
        # a line without its end was not acknowledged
        lines = [json.loads(line) for line in output.splitlines(keepends=True) if line.endswith("\n")]
        measured = [(key, at) for what, *values in lines if what == "measured" for key, at in [values]]
        self.begun |= {key for what, key, *_ in lines if what == "storing"}
        self.acknowledged |= {key for key, _ in measured}
        self._list.write_text("\n".join(sorted(self.acknowledged)))
        return measured[0][1] if measured else None

    def check(self) -> int:
        """Checks the store against what was begun and acknowledged; the number of its measurements.

        A round that is killed after its last measurements were stored does not acknowledge these.
        """
        if not self.store.exists():
            if self.acknowledged:
                self.problems.append("there is no store")
            return 0
        stored, integrity = self._read_store(self.problems)
        if integrity != [("ok",)]:
            self.problems.append(f"integrity check: {integrity[:3]}")
        missing = self.acknowledged - set(stored)
        if missing:
            self.problems.append(f"{len(missing)} acknowledged measurements are not in the store")
        if unknown := set(stored) - self.begun:
            self.problems.append(f"{len(unknown)} measurements in the store are of no round")
        return len(stored)

    def _read_store(self, skipped: list[str]) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Keys of the measurements in the store, and SQLite's check of it; `skipped` takes what can't be read."""
        with open_store(self.store, "read", skipped.append) as store:
            keys = [key_of(r) for r in store.records(kinds=(RecordKind.TIMING, RecordKind.FAILURE))]
            return keys, store.query("PRAGMA integrity_check")
