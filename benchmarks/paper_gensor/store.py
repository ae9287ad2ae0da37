"""Incremental results: one JSON file of measurements by experiment and operator."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.common.report import RESULTS

FILE = RESULTS / "paper_gensor.json"
LOGS = Path("build/paper_gensor")
"""Folder of the searches' logs."""

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
