"""Incremental results: one JSON file of measurements, and a log of searched programs per operator."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.common.report import RESULTS

FILE = RESULTS / "paper_gensor.json"
LOGS = Path("build/paper_gensor")
CIRCUMSTANCES = "circumstances"


class ResultStore:
    """Results by experiment and operator, written as soon as they are known.

    Args:
        path: of the file; what it holds is gone on with, as far as it says of what sources it is.
    """

    def __init__(self, path: Path = FILE) -> None:
        self.path = path
        read: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}
        self.data = {part: {name: r for name, r in found.items() if part == CIRCUMSTANCES or "source" in r}
                     for part, found in read.items()}  # fmt: skip

    def get(self, experiment: str, name: str) -> dict[str, Any] | None:
        """The result of an experiment for an operator, None where there is none."""
        return self.data.get(experiment, {}).get(name)

    def all(self, experiment: str) -> Mapping[str, dict[str, Any]]:
        """All results of an experiment by operator."""
        return self.data.get(experiment, {})

    def put(self, experiment: str, name: str, result: Mapping[str, Any]) -> None:
        """Keeps a result."""
        self.data.setdefault(experiment, {})[name] = dict(result)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(self.data, indent=1) + "\n")
        part.replace(self.path)


class SearchLog:
    """The programs that a search for an operator measured, one JSON line each behind a line that says of what code.

    Args:
        name: the operator's.
        folder: of the logs.

    Attributes:
        fingerprint: hash of the code that the log is of; None if unknown.
        entries: the programs.
    """

    def __init__(self, name: str, folder: Path = LOGS) -> None:
        self.path = folder / f"{name}.jsonl"
        text = self.path.read_text() if self.path.exists() else ""
        lines = text.splitlines()
        if text and not text.endswith("\n"):
            # a run was stopped while it wrote
            with self.path.open("a") as file:
                file.write("\n")
        read: list[dict[str, Any]] = [_parse_line(line) for line in lines]
        self.fingerprint: str | None = read[0].get("made") if read else None
        self.entries = [e for e in read[1:] if e] if self.fingerprint else []

    def append(self, entry: Mapping[str, Any]) -> None:
        """Keeps a program."""
        self.entries.append(dict(entry))
        self._write(entry)

    def clear(self, fingerprint: str) -> None:
        """Forgets everything; what follows is of other code."""
        self.entries.clear()
        self.path.unlink(missing_ok=True)
        self.fingerprint = fingerprint
        self._write({"made": fingerprint})

    def _write(self, line: Mapping[str, Any]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def _parse_line(line: str) -> dict[str, Any]:
    try:
        return json.loads(line)
    except json.JSONDecodeError:
        return {}
