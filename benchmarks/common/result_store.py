"""Incremental results of a benchmark: one JSON file by part and name, written as soon as they are known."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CIRCUMSTANCES = "circumstances"
"""The part that says on what machine and by what command others were measured."""


class ResultStore:
    """Results by part and name.

    Args:
        path: of the file; what it holds is gone on with, as far as it says of what sources it is.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        read: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}
        self.data = {part: {name: r for name, r in results.items() if part == CIRCUMSTANCES or "source" in r}
                     for part, results in read.items()}  # fmt: skip

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
