"""A trace of calls in the format that browsers show (Trace Event Format)."""

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

Result = TypeVar("Result")


class CallTrace:
    """Times of calls, by any thread."""

    def __init__(self) -> None:
        self.start_ns = time.perf_counter_ns()
        self._events: list[dict[str, Any]] = []

    def timed(self, name: str, call: Callable[[], Result]) -> Result:
        """Calls a function and records when, also where it raises."""
        begin = time.perf_counter_ns()
        try:
            return call()
        finally:
            end = time.perf_counter_ns()
            self._events.append({
                "cat": "Session", "pid": os.getpid(), "tid": threading.get_ident(), "ph": "X", "name": name,
                "ts": (begin - self.start_ns) / 1000, "dur": (end - begin) / 1000, "args": {},
            })  # fmt: skip

    def write(self, path: Path) -> None:
        """Writes the trace; times are in microseconds since it began.

        Raises:
            OSError: the file cannot be written.
        """
        path.write_text(json.dumps(self._events, indent=0))
