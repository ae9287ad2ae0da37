"""Results of the experiments in one JSON file, by part and name, written as soon as they are known."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.common.report import RESULTS

FILE = RESULTS / "paper_eto.json"


class ResultStore:
    """Results by part and name.

    Args:
        path: of the file; what it holds is gone on with.
    """

    def __init__(self, path: Path = FILE) -> None:
        self.path = path
        self.data: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}

    def get(self, part: str, name: str) -> dict[str, Any] | None:
        """A result; None where there is none."""
        return self.data.get(part, {}).get(name)

    def all(self, part: str) -> Mapping[str, dict[str, Any]]:
        """All results of a part by name."""
        return self.data.get(part, {})

    def put(self, part: str, name: str, result: Mapping[str, Any]) -> None:
        """Keeps a result."""
        self.data.setdefault(part, {})[name] = dict(result)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self.path.with_suffix(".part")
        unfinished.write_text(json.dumps(self.data, indent=1) + "\n")
        unfinished.replace(self.path)
