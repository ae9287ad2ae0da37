"""Results that grow: one JSON file of what was measured, and per operator a log of the programs that a search tried."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.common.report import RESULTS

FILE = RESULTS / "paper_gensor.json"
LOGS = Path("build/paper_gensor")


class Store:
    """Results by experiment and operator, written as soon as they are known.

    Args:
        path: of the file; what it holds is gone on with.
    """

    def __init__(self, path: Path = FILE) -> None:
        self.path = path
        self.data: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}

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


class Log:
    """The programs that a search for an operator measured, one JSON line each.

    Args:
        name: the operator's.
        folder: of the logs.
    """

    def __init__(self, name: str, folder: Path = LOGS) -> None:
        self.path = folder / f"{name}.jsonl"
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        self.entries: list[dict[str, Any]] = [json.loads(line) for line in lines]

    def add(self, entry: Mapping[str, Any]) -> None:
        """Keeps a program."""
        self.entries.append(dict(entry))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps(entry) + "\n")

    def clear(self) -> None:
        """Forgets everything."""
        self.entries.clear()
        self.path.unlink(missing_ok=True)
