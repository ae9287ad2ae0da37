"""Tuning session: rounds of the kernels that the scheduler picks, until the budget is spent; interrupted at any time.

Where workers have several machines, rounds of several kernels are measured at once (`rounds.py`). The scheduler then
sees the kernels as the rounds left them that were taken so far, whatever else is measured already.

Whatever happens, what was measured is in the store before the next round begins, and so is the choice of every program
that won. A session that goes on learns what the store holds of its kernels. A kernel that is new, because the model has
changed, is tuned like any other; what the store holds of kernels that the model does not have any more stays there.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from tilewright.driver.tune.budget import Budget
from tilewright.driver.tune.kernel_tuning import KernelTuning
from tilewright.driver.tune.plan import PlannedKernel, TuningPlan
from tilewright.driver.tune.protocols import KernelChoice, StartSearch, TuningStore
from tilewright.driver.tune.rounds import Measuring, Round, RoundsInFlight
from tilewright.driver.tune.scheduler import TaskProgress, next_task
from tilewright.errors import SourcesChangedError, TilewrightWarning
from tilewright.measure.workers.interface import MeasureWorkers
from tilewright.optimize.measurer import Timing
from tilewright.user_warnings import warn_user

ROUND_TRIALS, FIRST_TRIALS = 8, 2
"""Candidates of a round; of the first one within a budget of time, which shows how long they take."""

TRIAL_SECONDS = 1.0
"""Time of a trial before the first one has shown how long they take."""

COMPARED_FRACTION = 0.6
"""The part of the end's time that is left for the comparison of the whole model."""

MAX_ERRORS = 3
"""Measurers that fail so many times in a row end the session."""


class EndReason(StrEnum):
    """Why a session ended."""

    TIME = "the time is up"
    TRIALS = "the trials are done"
    SPEEDUP = "the speedup is reached"
    EXHAUSTED = "no kernel has a further program to measure"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class TunedKernel:
    """What a session made of a kernel.

    Attributes:
        kernel: the kernel.
        before: nanoseconds of a call of the constructed programs, as a mean over its points; None where they were not
            measured.
        after: the same with the best programs.
        timing: the measurement by which the best program won; None where the constructed one stays.
        trials: candidates that were measured.
        failures: those that failed.
        disturbed: those that were timed while the machine was too busy for reliable times.
        refusal: why it was not tuned; empty where it was.
        choice: the programs that compilations use; None for the constructed ones.
    """

    kernel: PlannedKernel
    before: float | None
    after: float | None
    timing: Timing | None
    trials: int
    failures: int
    disturbed: int
    refusal: str
    choice: KernelChoice | None

    @property
    def speedup(self) -> float:
        """Before divided by after; 1 where nothing was measured."""
        return self.before / self.after if self.before and self.after else 1.0


@dataclass(frozen=True, slots=True)
class SessionStatus:
    """How far a session is.

    Attributes:
        seconds: since its start.
        seconds_left: of the time of rounds; None without a limit of time.
        trials: candidates that were measured.
        label: the kernel that was worked on last.
        label_speedup: its speedup so far.
        untuned, tuned: nanoseconds of an inference, as the sum over the kernels; predicted ones where there is no
            measurement.
    """

    seconds: float
    seconds_left: float | None
    trials: int
    label: str
    label_speedup: float
    untuned: float
    tuned: float

    @property
    def speedup(self) -> float:
        """Of the sum of the kernels' times."""
        return self.untuned / self.tuned if self.tuned else 1.0


@dataclass(frozen=True, slots=True)
class SessionResult:
    """What a session made of a model.

    Attributes:
        kernels: in the order of the plan.
        timeline: how far it was after every round.
        end: why it ended.
        seconds_per_trial: mean time of a trial; None where there was none.
        challenges, confirmed: programs that seemed to win in short blocks, and those of them that won in longer ones.
    """

    kernels: tuple[TunedKernel, ...]
    timeline: tuple[SessionStatus, ...]
    end: EndReason
    seconds_per_trial: float | None
    challenges: int = 0
    confirmed: int = 0

    @property
    def trial_estimate(self) -> float:
        """Seconds that a trial takes."""
        return self.seconds_per_trial or TRIAL_SECONDS

    @property
    def trials(self) -> int:
        """Candidates that were measured."""
        return sum(k.trials for k in self.kernels)

    @property
    def disturbed(self) -> int:
        """Candidates that were timed while the machine was too busy for reliable times; none of them won."""
        return sum(k.disturbed for k in self.kernels)

    @property
    def improved(self) -> tuple[TunedKernel, ...]:
        """The kernels of the model with a program that won."""
        return tuple(k for k in self.kernels if k.choice is not None and k.kernel.calls)


Report = Callable[[SessionStatus], None]


@dataclass(frozen=True, slots=True)
class Instruments:
    """What kernels are measured with.

    Attributes:
        workers: measure candidates.
        store: keeps every measurement.
    """

    workers: MeasureWorkers
    store: TuningStore


class TuningSession:
    """A tuning session.

    Args:
        plan: the kernels.
        instruments: what they are measured with.
        start_search: starts the search of a kernel.
        budget: when it ends.
        clock: seconds of a monotonic clock.
        started: time of that clock at which the budget began, by default now.
        report: is told after every round how far it is.
        schedule: picks the kernel of the next round; None ends the session.
    """

    def __init__(
        self,
        plan: TuningPlan,
        instruments: Instruments,
        start_search: StartSearch,
        budget: Budget,
        clock: Callable[[], float],
        started: float | None = None,
        report: Report | None = None,
        schedule: Callable[[Sequence[TaskProgress]], int | None] = next_task,
    ) -> None:
        self._measure_workers = instruments.workers
        self._make_kernel: Callable[[PlannedKernel], KernelTuning] = lambda kernel: KernelTuning(
            kernel, instruments.store, start_search
        )
        self._kernels = [self._make_kernel(k) for k in plan.kernels]
        self._budget, self._clock = budget.with_default_time, clock
        self._started = clock() if started is None else started
        self._report, self._next_task = report, schedule
        self._timeline: list[SessionStatus] = []
        self._progress = [k.progress() for k in self._kernels]
        self._trials, self._trial_seconds = 0, 0.0
        self._errors = 0

    @property
    def kernels(self) -> tuple[KernelTuning, ...]:
        """The states of the kernels, in the order of the plan."""
        return tuple(self._kernels)

    def add(self, kernel: PlannedKernel) -> int:
        """Takes a kernel in, after all others; gives its position."""
        self._kernels.append(self._make_kernel(kernel))
        self._progress.append(self._kernels[-1].progress())
        return len(self._kernels) - 1

    def run(self) -> SessionResult:
        """Tunes until the budget is spent, Ctrl-C is pressed, or a worker can't start as the compiler's sources have
        changed.

        Raises:
            MeasureError: nothing can be measured here.
        """
        try:
            end = self._tune()
        except (KeyboardInterrupt, SourcesChangedError) as error:
            end = _interruption(error)
        return self.result(end)

    def finish(self, end: EndReason) -> SessionResult:
        """Times the best programs against the constructed ones once more; those that do not win are given up.

        Those with the largest gain are first; Ctrl-C, or the end of a budget of time, leaves the others as they are.

        Args:
            end: why `run` ended.
        """
        improved = [k for k, tuning in enumerate(self._kernels) if tuning.is_improved]
        waiting = sorted(improved, key=lambda k: self._gain_of(self._kernels[k]), reverse=True)
        flight = RoundsInFlight(self._measure_workers, self._clock)
        try:
            while waiting or not flight.is_empty:
                while waiting and flight.has_room:
                    k = waiting.pop(0)
                    if not self._must_compare():
                        flight.start(k, 0, self._kernels[k].finish(self._must_compare))
                if not flight.is_empty and (error := flight.take().error) is not None:
                    raise error
        except (KeyboardInterrupt, SourcesChangedError) as error:
            end = _interruption(error)
        if self._timeline:
            self._tell(None)
        return self.result(end)

    @staticmethod
    def _gain_of(kernel: KernelTuning) -> float:
        """Nanoseconds of an inference that a kernel's programs gain."""
        return kernel.kernel.calls * (kernel.best[0] - kernel.best[-1])

    def result(self, end: EndReason) -> SessionResult:
        """What there is so far."""
        kernels = tuple(
            TunedKernel(
                k.kernel,
                k.best[0] if k.best else None,
                k.best[-1] if k.best else None,
                next((t for t in k.timings if t is not None), None),
                k.trials,
                k.failures,
                k.disturbed,
                k.refusal,
                k.choice(),
            )
            for k in self._kernels
        )
        return SessionResult(
            kernels,
            tuple(self._timeline),
            end,
            self._trial_seconds / self._trials if self._trials else None,
            sum(k.challenges for k in self._kernels),
            sum(k.confirmed for k in self._kernels),
        )

    def _tune(self) -> EndReason:
        flight, begin = RoundsInFlight(self._measure_workers, self._clock), self._clock()
        while True:
            end = self._start_rounds(flight)
            if flight.is_empty:
                return end or EndReason.EXHAUSTED
            self._take(flight.take())
            self._trial_seconds = self._clock() - begin

    def _start_rounds(self, flight: RoundsInFlight) -> EndReason | None:
        """Starts rounds while there are machines for them; why it could not, None where it did."""
        while flight.has_room:
            count = self._affordable_trials(flight.trials)
            if isinstance(count, EndReason):
                return count
            busy = flight.kernels
            chosen = self._next_task([replace(p, is_busy=k in busy) for k, p in enumerate(self._progress)])
            if chosen is None:
                return EndReason.EXHAUSTED
            flight.start(chosen, count, self._work_on(self._kernels[chosen], count))
        return None

    def _work_on(self, kernel: KernelTuning, count: int) -> Measuring[None]:
        """A round of a kernel."""
        if not kernel.baseline and not kernel.refusal:
            yield from kernel.start(self._is_late)
        if kernel.baseline and not kernel.is_finished and not self._is_late():
            yield from kernel.round(count)

    def _take(self, taken: Round) -> None:
        """Lets what a round has changed count; a kernel that cannot be measured gets no further one."""
        kernel = self._kernels[taken.kernel]
        kernel.seconds += taken.seconds
        self._errors = 0 if taken.error is None else self._errors + 1
        if isinstance(taken.error, SourcesChangedError):
            raise taken.error
        if taken.error is not None:
            kernel.refusal = kernel.refusal or str(taken.error)
            if self._errors >= MAX_ERRORS:
                raise taken.error
        before, self._progress[taken.kernel] = self._progress[taken.kernel], kernel.progress()
        self._trials += kernel.trials - before.trials
        self._tell(kernel)

    def _affordable_trials(self, in_flight: int) -> int | EndReason:
        """How many candidates the next round may measure beside those in flight; why there is none."""
        budget, count = self._budget, ROUND_TRIALS
        if budget.speedup is not None and self._status(None).speedup >= budget.speedup and self._trials:
            return EndReason.SPEEDUP
        if budget.trials is not None:
            count = min(count, budget.trials - self._trials - in_flight)
            if count < 1:
                return EndReason.TRIALS
        left = self._seconds_left()
        if left is not None:
            trials = self._trials
            per_trial = self._trial_seconds / trials if trials else TRIAL_SECONDS
            count = min(count if trials else FIRST_TRIALS, int(left / max(per_trial, 1e-9)) - in_flight)
            if count < 1:
                return EndReason.TIME
        return count

    def _seconds_left(self) -> float | None:
        """Time that is left for rounds."""
        if self._budget.seconds is None:
            return None
        return self._budget.seconds - self._budget.end_seconds - (self._clock() - self._started)

    def _must_compare(self) -> bool:
        """Whether what is left of the time is needed for the comparison of the whole model."""
        left = self._seconds_left()
        return left is not None and left <= -self._budget.end_seconds * (1 - COMPARED_FRACTION)

    def _is_late(self) -> bool:
        """Whether the time of rounds is up."""
        left = self._seconds_left()
        return left is not None and left <= 0

    def _tell(self, kernel: KernelTuning | None) -> None:
        status = self._status(kernel)
        self._timeline.append(status)
        if self._report is not None:
            self._report(status)

    def _status(self, kernel: KernelTuning | None) -> SessionStatus:
        untuned = tuned = 0.0
        for k in self._kernels:
            before = k.best[0] if k.best else (k.kernel.predicted or 0.0)
            untuned += k.kernel.calls * before
            tuned += k.kernel.calls * (k.best[-1] if k.best else before)
        left = self._seconds_left()
        return SessionStatus(
            self._clock() - self._started,
            None if left is None else max(0.0, left),
            self._trials,
            "" if kernel is None else kernel.kernel.label,
            1.0 if kernel is None else kernel.speedup,
            untuned,
            tuned,
        )


def _interruption(error: KeyboardInterrupt | SourcesChangedError) -> EndReason:
    """The end of a session by an interrupt, or by changed sources, of which the user is told."""
    if isinstance(error, SourcesChangedError):
        warn_user(str(error), TilewrightWarning)
    return EndReason.INTERRUPTED
