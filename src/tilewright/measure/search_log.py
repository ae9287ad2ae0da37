"""The log of a search: what was measured so far, kept as soon as it is known."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class SearchLog:
    """The programs that a search measured, one JSON line each behind a line that says of what code.

    Args:
        path: of the file, which is made on need; a search goes on with what it holds.

    Attributes:
        fingerprint: hash of the code that the log is of; None if unknown.
        entries: the programs.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
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
