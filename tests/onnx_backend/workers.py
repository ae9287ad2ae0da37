"""Cases in worker processes: one that ends or hangs costs its own case only."""

import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

from tests.onnx_backend.cases import Outcome, run_case

Key = tuple[str, str]

_TIMEOUT = 300.0
"""Seconds after which a case counts as hanging."""


def run_all(
    cases: dict[Key, Callable[..., Any]], jobs: int, timeout: float = _TIMEOUT
) -> Iterator[tuple[Key, Outcome]]:
    """Runs cases in forked processes; yields outcomes as they come."""
    keys = list(cases)
    with tempfile.TemporaryDirectory() as folder:
        # where ONNX's runner puts the data that it makes for its light models
        os.environ["ONNX_HOME"] = folder
        workers = [_Worker(cases, keys[k::jobs]) for k in range(jobs)]
        busy = {w.answers: w for w in workers if w.start()}
        while busy:
            ready = wait(list(busy), timeout)
            for connection in ready or list(busy):
                worker = busy.pop(connection)
                yield worker.outcome(hung=not ready)
                if worker.start():
                    busy[worker.answers] = worker


class _Worker:
    """A process that works through its keys, and is replaced where it ends before it is done."""

    answers: Connection

    def __init__(self, cases: dict[Key, Callable[..., Any]], keys: Sequence[Key]) -> None:
        self._cases, self._keys, self._process = cases, list(keys), None

    def start(self) -> bool:
        """Sees to it that a process works on the first key; whether there is one left."""
        if self._process is None and self._keys:
            context: Any = multiprocessing.get_context("fork")
            self.answers, sender = context.Pipe(duplex=False)
            self._process = context.Process(target=_work, args=(self._cases, self._keys, sender), daemon=True)
            self._process.start()
            sender.close()
        elif self._process is not None and not self._keys:
            self._process.join()
            self._process = None
        return bool(self._keys)

    def outcome(self, *, hung: bool) -> tuple[Key, Outcome]:
        """What became of the first key, which is done with then."""
        process: Any = self._process
        key = self._keys.pop(0)
        if not hung:
            try:
                return key, self.answers.recv()
            except EOFError:
                pass
        process.kill()
        process.join()
        self._process = None
        return key, Outcome("crashed", "no answer in time" if hung else f"the process ended with {process.exitcode}")


def _work(cases: dict[Key, Callable[..., Any]], keys: Sequence[Key], answers: Connection) -> None:
    for key in keys:
        answers.send(run_case(cases[key]))
