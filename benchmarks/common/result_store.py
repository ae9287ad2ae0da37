"""Incremental results of a benchmark: one JSON file by part and name, written as soon as they are known.

Several processes may add to one file, such as those that measure different operators on different processors.
"""

import fcntl
import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
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
        self.data = self._read()

    def get(self, part: str, name: str) -> dict[str, Any] | None:
        """A result; None where there is none."""
        return self.data.get(part, {}).get(name)

    def all(self, part: str) -> Mapping[str, dict[str, Any]]:
        """All results of a part by name."""
        return self.data.get(part, {})

    def put(self, part: str, name: str, result: Mapping[str, Any]) -> None:
        """Keeps a result, and takes over what other processes have added to the file meanwhile."""
        with file_lock(self.path):
            for other, results in self._read().items():
                self.data.setdefault(other, {}).update(results)
            self.data.setdefault(part, {})[name] = dict(result)
            unfinished = self.path.with_suffix(".part")
            unfinished.write_text(json.dumps(self.data, indent=1) + "\n")
            unfinished.replace(self.path)

    def _read(self) -> dict[str, dict[str, Any]]:
        read: dict[str, dict[str, Any]] = json.loads(self.path.read_text()) if self.path.exists() else {}
        return {part: {name: r for name, r in results.items() if part == CIRCUMSTANCES or "source" in r}
                for part, results in read.items()}  # fmt: skip


@contextmanager
def file_lock(path: Path) -> Generator[None]:
    """Waits until no other process works on the file, and keeps others away until the end.

    The lock is a file of its own beside it, as the file itself may be replaced. A process that ends lets go of it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(path.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
