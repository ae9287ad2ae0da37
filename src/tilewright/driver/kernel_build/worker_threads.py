"""Worker processes that share the tasks of a compilation with this process, each behind a thread that waits for it.

The threads encode and send tasks, which are immutable, and receive answers; all else is done by the thread that
compiles, so nothing of the compiler needs locks.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from tilewright.driver.kernel_build.early_workers import MODULE
from tilewright.errors import MeasureError
from tilewright.measure.started_program import StartedProgram, start_error
from tilewright.measure.worker_process import WorkerProcess, encode_request

TASK_SECONDS = 600.0
"""Longest time of one task in a worker; this process takes it over then."""

MAX_QUEUED_BYTES = 16 << 10
"""Tasks up to this size are sent while the worker is busy with another one, so that it never waits for this process.

A pipe takes 64 KiB before it blocks. A larger task would block this thread until the worker reads, and the worker may
meanwhile wait for this thread to read a large answer: for ever.
"""

MIN_WAITING = 3
"""Where fewer tasks than this are waiting, no worker takes one ahead."""

Request = dict[str, Any]
NumberedAnswer = tuple[int, Any]
"""The number of a group of tasks and a worker's answer; None where this process is to do them."""


class ThisProcess(Enum):
    """This process as the owner of tasks."""

    OWNER = auto()


class TaskQueue:
    """The numbers of groups of tasks that wait for a process, and answers.

    Args:
        owners: by group who has its construction already, and is to do it before all others; None where any process may
            take it.
    """

    def __init__(self, owners: Sequence["WorkerThread | ThisProcess | None"]) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[int] = deque(k for k, owner in enumerate(owners) if owner is None)
        self._owned: dict[WorkerThread | ThisProcess, deque[int]] = {ThisProcess.OWNER: deque()}
        for k, owner in enumerate(owners):
            if owner is not None:
                self._owned.setdefault(owner, deque()).append(k)
        self._answers: deque[NumberedAnswer] = deque()

    def take(self, worker: "WorkerThread", ahead: bool) -> int | None:
        """A task for a worker; None where none is left. `ahead` of the end of another one only while many wait."""
        with self._changed:
            owned = self._owned.get(worker)
            if owned:
                return owned.popleft()
            return self._waiting.popleft() if len(self._waiting) >= (MIN_WAITING if ahead else 1) else None

    def give_back(self, worker: "WorkerThread", numbers: Sequence[int]) -> None:
        """Tasks of a worker that has failed; those that only it was to do go to all."""
        with self._changed:
            self._waiting.extendleft([*numbers, *self._owned.pop(worker, ())][::-1])
            self._changed.notify()

    def put_answer(self, number: int, value: Any) -> None:
        """The answer of a worker."""
        with self._changed:
            self._answers.append((number, value))
            self._changed.notify()

    def next_for_this_process(self) -> NumberedAnswer:
        """An answer, or a task that this process is to do; waits where workers have all that is left."""
        own = self._owned[ThisProcess.OWNER]
        with self._changed:
            while not self._answers and not own and not self._waiting:
                self._changed.wait()
            return self._answers.popleft() if self._answers else ((own or self._waiting).popleft(), None)


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """Tasks that a compilation needs at one time.

    Attributes:
        queue: the numbers of their groups.
        request: the request of a group.
        keys: of the constructions of the tasks of groups.
    """

    queue: TaskQueue
    request: Callable[[int], Request]
    keys: Sequence[Sequence[str]]


class WorkerThread:
    """A worker process, and the thread that talks to it.

    Attributes:
        constructed: keys of tasks that it has constructed.
    """

    def __init__(self, setup: Request, started: StartedProgram | None = None) -> None:
        """Starts both, or the thread alone where the process has been `started`; the first request is `setup`.

        Raises:
            MeasureError: no process or no thread can be started.
        """
        self.constructed: set[str] = set()
        self._process = WorkerProcess(module=MODULE, wait=False, started=started)
        self._setup = setup
        self._changed = threading.Condition()
        self._job: Job | None = None
        self._unsent: tuple[int, bytes] | None = None
        self._is_busy = self._has_ended = False
        self._thread = threading.Thread(target=self._main, daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # containers limit the number of threads
            self._process.close()
            raise start_error(str(error)) from error

    @property
    def is_alive(self) -> bool:
        """Whether it takes tasks, now or as soon as it has started."""
        return not self._has_ended

    def begin(self, job: Job) -> None:
        """Takes tasks of a job in the background until none is left."""
        with self._changed:
            self._job = job
            if self._has_ended:
                job.queue.give_back(self, ())
            self._changed.notify_all()

    def finish(self) -> None:
        """Leaves the job; waits for tasks that it has taken."""
        with self._changed:
            self._job = None
            while self._is_busy:
                self._changed.wait()

    def kill(self) -> None:
        """Ends the process, whatever it does; the thread ends with it."""
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()
        self._process.kill()

    def close(self) -> None:
        """Ends process and thread, and waits for both; after an interrupt of the wait they end by themselves."""
        self.kill()
        self._thread.join()

    def _main(self) -> None:
        sent: deque[int] = deque()
        try:
            self._process.await_ready()
            self._process.ask(self._setup, TASK_SECONDS)
            while (job := self._next_job()) is not None and self._serve(job, sent):
                with self._changed:
                    self._is_busy = False
                    self._job = None if self._job is job else self._job
                    self._changed.notify_all()
        except (MeasureError, OSError, ValueError):
            pass  # the process has ended: others do its tasks
        finally:
            with self._changed:
                self._has_ended, self._is_busy = True, False
                if self._job is not None:
                    unsent = [] if self._unsent is None else [self._unsent[0]]
                    self._job.queue.give_back(self, [*sent, *unsent])
                self._changed.notify_all()
            self._process.close()  # here, as no other thread may close a pipe that this one waits for

    def _next_job(self) -> Job | None:
        """Waits for a job; None at the end."""
        with self._changed:
            while self._job is None and not self._has_ended:
                self._changed.wait()
            self._is_busy = not self._has_ended
            return self._job if self._is_busy else None

    def _serve(self, job: Job, sent: deque[int]) -> bool:
        """Takes tasks until none is left; whether the process is still alive then."""
        while self._send(job, sent):
            answer = self._process.receive(time.monotonic() + TASK_SECONDS, TASK_SECONDS)
            if not self._process.is_alive:
                return False
            number = sent.popleft()
            self.constructed.update(job.keys[number])
            job.queue.put_answer(number, answer.get("value"))
        return True

    def _send(self, job: Job, sent: deque[int]) -> bool:
        """Sends tasks until the process has enough; whether it has any. A large one waits until it has none."""
        while len(sent) < 2:
            if self._unsent is None:
                number = job.queue.take(self, bool(sent))
                if number is None:
                    break
                self._unsent = number, encode_request(job.request(number))
            number, line = self._unsent
            if sent and len(line) > MAX_QUEUED_BYTES:
                break
            self._unsent = None
            sent.append(number)
            self._process.send_encoded(line)
        return bool(sent)


def start_workers(count: int, setup: Request, workers: list[WorkerThread], started: list[StartedProgram]) -> None:
    """Starts so many workers, or those that can be started, and adds each to `workers` at once: an interrupt loses
    none. Processes that have been `started` are taken out of it first."""
    with suppress(MeasureError):
        for _ in range(count):
            workers.append(WorkerThread(setup, started[-1] if started else None))
            # not before another one has it to end
            del started[-1:]
