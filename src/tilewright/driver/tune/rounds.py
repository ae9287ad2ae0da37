"""Rounds of several kernels at once: each is a generator of requests that workers measure.

What a round has changed counts from its turn on, in the order in which rounds were started. So what a session decides
does not depend on which machine was faster, or was lost: only on the measurements, and on how many rounds there are at
once.
"""

from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tilewright.errors import MeasureError
from tilewright.measure.workers.interface import MeasureRequest, MeasureWorkers
from tilewright.optimize.measurer import Measurement

T = TypeVar("T")

Measuring = Generator[MeasureRequest, Sequence[Measurement], T]
"""Work that asks for measurements and is sent them; a `MeasureError` is raised in it where there are none."""


@dataclass(slots=True, eq=False)
class Round:
    """A round of a kernel.

    Attributes:
        number: counts all rounds.
        kernel: position of the kernel.
        trials: candidates that it may measure.
        work: its work.
        seconds: that it has taken, of this process and of machines.
        is_done: whether the work is at its end.
        error: that ended the work; None where nothing did.
    """

    number: int
    kernel: int
    trials: int
    work: Measuring[None]
    seconds: float = 0.0
    is_done: bool = False
    error: MeasureError | None = None


class RoundsInFlight:
    """The rounds that were started and not taken yet.

    Args:
        workers: measure what the rounds ask for.
        clock: seconds of a monotonic clock.
    """

    def __init__(self, workers: MeasureWorkers, clock: Callable[[], float]) -> None:
        self._measure_workers, self._clock = workers, clock
        self._rounds: list[Round] = []
        self._count = 0

    @property
    def has_room(self) -> bool:
        """Whether another round would find a machine."""
        return len(self._rounds) < max(1, self._measure_workers.concurrency)

    @property
    def is_empty(self) -> bool:
        """Whether there are none."""
        return not self._rounds

    @property
    def kernels(self) -> Collection[int]:
        """The positions of their kernels."""
        return {r.kernel for r in self._rounds}

    @property
    def trials(self) -> int:
        """Candidates that they may measure."""
        return sum(r.trials for r in self._rounds)

    def start(self, kernel: int, trials: int, work: Measuring[None]) -> None:
        """Starts a round of a kernel that has none."""
        started = Round(self._count, kernel, trials, work)
        self._count += 1
        self._rounds.append(started)
        self._proceed(started, lambda: next(work))

    def take(self) -> Round:
        """Waits for the end of the oldest round, and takes it out."""
        while not self._rounds[0].is_done:
            answer = self._measure_workers.wait()
            asking = next(r for r in self._rounds if r.number == answer.number)
            asking.seconds += answer.seconds
            error, measured, work = answer.error, answer.measurements, asking.work
            if error is None:
                self._proceed(asking, lambda work=work, measured=measured: work.send(measured))
            else:
                self._proceed(asking, lambda work=work, error=error: work.throw(error))
        return self._rounds.pop(0)

    def _proceed(self, current: Round, resume: Callable[[], MeasureRequest]) -> None:
        """Lets a round work until it asks for measurements or is at its end."""
        begin = self._clock()
        try:
            request = resume()
        except StopIteration:
            current.is_done = True
        except MeasureError as error:
            current.is_done, current.error = True, error
        else:
            self._measure_workers.submit(current.number, request)
        current.seconds += self._clock() - begin
