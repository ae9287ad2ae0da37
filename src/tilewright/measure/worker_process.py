"""Worker processes as their parent sees them: started, asked, stopped at a time limit, replaced where they die.

They are started as programs and speak JSON, so they work wherever a program can be started: from Jupyter, from daemonic
workers of `multiprocessing`, from scripts without a `__main__` guard, and after threads exist.
"""

import json
import os
import selectors
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

from tilewright.errors import SourcesChangedError
from tilewright.measure.isolation import describe_status
from tilewright.measure.started_program import StartedProgram, close_all, start_error, start_program
from tilewright.measure.worker import Reply, failed
from tilewright.optimize.measurer import FailureKind
from tilewright.version import source_hash

MODULE = "tilewright.measure.worker"

START_SECONDS = 60.0
"""Longest time that a worker may take to start; imports take half a second on an idle machine."""

MESSAGE_BYTES = 400
"""What is shown of the last output of a worker that died."""

MAX_OTHER_LINES = 1000
"""Lines that others may print before a worker is ready, as modules that Python imports at its start do."""

_OUT_OF_MEMORY_WORDS = ("out of memory", "MemoryError", "bad_alloc", "Cannot allocate memory")


def encode_request(request: Mapping[str, Any]) -> bytes:
    """A request as a worker reads it: a line of JSON."""
    return json.dumps(request).encode() + b"\n"


class WorkerProcess:
    """One worker.

    Args:
        memory_bytes: memory of what it does itself; None without a limit.
        module: the program, which serves requests as `measure.worker` does.
        started: the program where it has been started already, which is no longer the caller's then.
        wait: whether to wait until it is ready; otherwise `await_ready` has to be called first.

    Raises:
        MeasureError: it cannot be started, or its memory not be limited.
        SourcesChangedError: it runs other sources than this process.
    """

    def __init__(
        self,
        memory_bytes: int | None = None,
        module: str = MODULE,
        wait: bool = True,
        started: StartedProgram | None = None,
    ) -> None:
        self._started = started or start_program(module)
        self._received = b""
        if wait:
            self.await_ready()
        if memory_bytes is not None:
            self._limit_memory(memory_bytes)

    def await_ready(self) -> None:
        """Waits until it can be asked; one that never will be is closed.

        Raises:
            MeasureError: it does not start.
            SourcesChangedError: it runs other sources than this process.
        """
        try:
            own, message = source_hash(), self._ready_message()
            if message is None:
                raise start_error(self._last_output() or "it gave no answer")
            if own is None or message["ready"] != own:
                raise SourcesChangedError
        except BaseException:
            self.close()
            raise

    def _limit_memory(self, size: int) -> None:
        try:
            answer = self.ask({"do": "limit", "bytes": size}, START_SECONDS)
            if "failure" in answer:
                raise start_error(f"its memory can't be limited: {answer['failure'][1]}")
        except BaseException:
            self.close()
            raise

    def _ready_message(self) -> Reply | None:
        end = time.monotonic() + START_SECONDS
        for _ in range(MAX_OTHER_LINES):
            line = self._line(end)
            if line is None:
                return None
            with suppress(ValueError):
                message = json.loads(line)
                if isinstance(message, dict) and "ready" in message:
                    return message
        return None

    @property
    def is_alive(self) -> bool:
        """Whether it can be asked."""
        return self._started.is_running()

    def ask(self, request: Mapping[str, Any], seconds: float) -> Reply:
        """Sends a request and waits for the answer; a worker that dies or takes too long gives a failure and ends."""
        self.send(request)
        return self.receive(time.monotonic() + seconds, seconds)

    def send(self, request: Mapping[str, Any]) -> None:
        """Sends a request, which `receive` answers."""
        self.send_encoded(encode_request(request))

    def send_encoded(self, line: bytes) -> None:
        """Sends a request of `encode_request`, which `receive` answers."""
        pipe = self._started.process.stdin
        if pipe is not None:
            with suppress(OSError):  # of a worker that died: its answer says so
                pipe.write(line)
                pipe.flush()

    def receive(self, end: float, seconds: float) -> Reply:
        """The answer, or a failure at the time `end` of the monotonic clock, `seconds` after the request."""
        line = self._line(end)
        if line is not None:
            try:
                return json.loads(line)
            except ValueError:
                self.close()
                return failed(FailureKind.CRASH, f"its answer is no JSON: {line[:MESSAGE_BYTES]!r}")
        if time.monotonic() >= end and self.is_alive:
            self.close()
            return failed(FailureKind.TIMEOUT, f"it was not done after {seconds:g} s")
        status = self._started.wait()
        output = self._last_output()
        self.close()
        if any(word in output for word in _OUT_OF_MEMORY_WORDS):
            return failed(FailureKind.OUT_OF_MEMORY, output)
        return failed(FailureKind.CRASH, f"{describe_status(status)}; {output}" if output else describe_status(status))

    def fileno(self) -> int:
        """The descriptor that becomes readable when an answer comes."""
        pipe = self._started.process.stdout
        return -1 if pipe is None else pipe.fileno()

    def _line(self, end: float) -> bytes | None:
        """The next line of the worker; None where it died or time ran out."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.fileno(), selectors.EVENT_READ)
            while b"\n" not in self._received:
                # what came in time counts, also where it is read later
                if not selector.select(max(0.0, end - time.monotonic())):
                    return None
                part = os.read(self.fileno(), 1 << 20)
                if not part:
                    return None
                self._received += part
        line, _, self._received = self._received.partition(b"\n")
        return line

    def _last_output(self) -> str:
        """The end of what the worker printed, on one line."""
        errors = self._started.errors
        size = errors.seek(0, os.SEEK_END)
        errors.seek(max(0, size - MESSAGE_BYTES))
        return " ".join(errors.read().decode(errors="replace").split())

    def kill(self) -> None:
        """Ends the worker and what it started; another thread that waits for it gets a failure."""
        self._started.kill()

    def close(self) -> None:
        """Ends the worker and what it started, and frees what this process has of it."""
        self._started.close()


class WorkerPool:
    """Workers that are started on need and replaced where they die; a context manager.

    Args:
        count: number of workers.
        memory_bytes: memory of what each of them does itself; None without a limit.
    """

    def __init__(self, count: int, memory_bytes: int | None = None) -> None:
        self._count, self._memory_bytes = count, memory_bytes
        # what an interrupt leaves neither idle nor busy is closed, too
        self._open_workers: set[WorkerProcess] = set()
        self._idle: list[WorkerProcess] = []
        self._busy: dict[WorkerProcess, tuple[int, float]] = {}

    def ask_all(self, requests: Sequence[Mapping[str, Any]], seconds: float) -> list[Reply]:
        """The answers to requests, in their order; each may take so many seconds.

        Raises:
            MeasureError: no worker can be started.
        """
        answers = dict(self.answers(requests, seconds))
        return [answers[k] for k in range(len(requests))]

    def answers(
        self, requests: Sequence[Mapping[str, Any]], seconds: float, ahead: int | None = None
    ) -> Iterator[tuple[int, Reply]]:
        """The answers to requests with their positions, as they come; each may take so many seconds.

        Args:
            requests: what is asked.
            seconds: time of each.
            ahead: at most so many workers are given something to do while the caller works on an answer; None for all.

        Raises:
            MeasureError: no worker can be started.
        """
        waiting, done = list(enumerate(requests))[::-1], deque[tuple[int, Reply]]()
        ahead = self._count if ahead is None else ahead
        try:
            while waiting or self._busy or done:
                while waiting and len(self._busy) < min(self._count, ahead if done else self._count):
                    self._assign(*waiting.pop(), seconds)
                is_full = len(self._busy) > ahead
                for worker in self._ready(wait=is_full or not done) if self._busy else ():
                    number, end = self._busy[worker]
                    done.append((number, worker.receive(end, seconds)))
                    del self._busy[worker]
                    if worker.is_alive:
                        self._idle.append(worker)
                    else:
                        self._close(worker)  # it may have ended after a proper answer
                if done and len(self._busy) <= ahead:
                    yield done.popleft()
        finally:
            # left over only where an error or an interrupt ended the loop
            close_all(list(self._busy))
            self._open_workers.difference_update(self._busy)
            self._busy.clear()

    def _assign(self, number: int, request: Mapping[str, Any], seconds: float) -> None:
        # one that died meanwhile must not look like a failure of this request
        while self._idle and not self._idle[-1].is_alive:
            self._close(self._idle.pop())
        worker = self._idle.pop() if self._idle else self._start()
        worker.send(request)
        self._busy[worker] = number, time.monotonic() + seconds

    def _start(self) -> WorkerProcess:
        worker = WorkerProcess(self._memory_bytes)
        self._open_workers.add(worker)
        return worker

    def _close(self, worker: WorkerProcess) -> None:
        worker.close()
        self._open_workers.discard(worker)

    def _ready(self, wait: bool) -> Iterator[WorkerProcess]:
        """The workers that answered, died, or ran out of time; waits until there is one if that is asked for."""
        with selectors.DefaultSelector() as selector:
            for worker in self._busy:
                selector.register(worker.fileno(), selectors.EVENT_READ, worker)
            end = min(end for _, end in self._busy.values())
            left = max(0.0, end - time.monotonic()) if wait else 0.0
            answered = [key.data for key, _ in selector.select(left)]
        now = time.monotonic()
        late = [w for w, (_, end) in self._busy.items() if end <= now]
        return iter(dict.fromkeys([*answered, *late]))

    def close(self) -> None:
        """Ends all workers."""
        close_all(list(self._open_workers))
        self._open_workers.clear()
        self._idle.clear()
        self._busy.clear()

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()
