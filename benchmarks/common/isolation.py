"""One process per model: its memory is returned, and a crash or a hang becomes one failed row instead of the run's end.

The child appends events to a file, one JSON object per line, as it goes; the parent reads whatever is there afterwards.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Event = dict[str, Any]
Emit = Callable[[Event], None]

MAX_MESSAGE_LENGTH = 240


def run_isolated(module: str, arguments: list[str], timeout: float) -> list[Event]:
    """Run `python -m <module> <arguments> --events FILE` and return its events.

    A child that fails, is killed by a signal or takes more than `timeout` seconds adds an event {"error": text}.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "events.jsonl"
        file.touch()
        command = [sys.executable, "-m", module, *arguments, "--events", str(file)]
        start = time.monotonic()
        try:
            done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=timeout, check=False)
            failure = "" if done.returncode == 0 else _failure(done.returncode, done.stderr)
        except subprocess.TimeoutExpired:
            failure = f"no end after {time.monotonic() - start:.0f} s"
        events = [json.loads(line) for line in file.read_text().splitlines()]
    return [*events, {"error": failure}] if failure else events


def _failure(status: int, stderr: str) -> str:
    lines = [line for line in stderr.splitlines() if line.strip()]
    cause = f"killed by signal {-status}" if status < 0 else f"exit status {status}"
    return one_line(f"{cause}: {lines[-1].strip()}" if lines else cause)


def event_writer(path: Path) -> Emit:
    """Return a function that appends one event to `path`, flushed at once so that a crash loses none."""

    def emit(event: Event) -> None:
        with path.open("a") as file:
            file.write(json.dumps(event) + "\n")

    return emit


def error_text(error: BaseException) -> str:
    """Return an exception in one short line."""
    return one_line(f"{type(error).__name__}: {error}")


def one_line(text: str) -> str:
    """Return `text` on one line, cut to what a table cell can hold."""
    line = " ".join(text.split())
    return line if len(line) <= MAX_MESSAGE_LENGTH else line[:MAX_MESSAGE_LENGTH] + " ..."
