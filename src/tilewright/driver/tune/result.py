"""The result of a tuning: kernels before and after, its course, and the comparison at its end."""

from dataclasses import dataclass

from tilewright.driver.tune.budget import MAX_COMPILE_FRACTION, Budget
from tilewright.driver.tune.compare_model import ModelComparison
from tilewright.driver.tune.plan import TuningPlan
from tilewright.driver.tune.session import EndReason, SessionResult
from tilewright.optimize.reuse.plan import ReusePlan

MIN_OVERRUN = 1.1
"""Times the budget from which on a tuning says what took longer."""


@dataclass(frozen=True, slots=True, eq=False)
class TuningResult:
    """What a tuning did. `tilewright.report.tuning` prints it as a table, as JSON and as an HTML page.

    Attributes:
        model: name of the model.
        plan: the kernels, and the untuned compilation.
        budget: as it was asked for.
        variant: name of the search.
        seed: of its random numbers.
        records: path of the store that holds the records.
        session: what was measured, and what won.
        reuse: which kernels started from which others' programs; None where they did not.
        reuse_kernels: per step of it the position of its kernel in the session; None where it has none.
        comparison: the tuned model in turns with the untuned one, at some sizes; empty where nothing won, or where it
            was not made.
        is_reverted: whether the tuned model was slower as a whole, so that all kernels stay as they were.
        note: why there is no comparison; empty where there is one.
        compile_seconds: time of the untuned compilation.
        end_seconds: time of the end: the last measurements, the compilation with the tuned programs, the comparison.
        seconds: time of all.
    """

    model: str
    plan: TuningPlan
    budget: Budget
    variant: str
    seed: int
    records: str
    session: SessionResult
    comparison: tuple[ModelComparison, ...]
    is_reverted: bool
    note: str
    compile_seconds: float
    end_seconds: float
    seconds: float
    reuse: ReusePlan | None = None
    reuse_kernels: tuple[int | None, ...] = ()

    @property
    def predicted_speedup(self) -> float:
        """The speedup of the model as its kernels' times predict it."""
        return self.session.timeline[-1].speedup if self.session.timeline else 1.0

    @property
    def overrun(self) -> str:
        """What the tuning took beyond its budget of time, and what for; empty where that is less than a tenth."""
        budget = self.budget.with_default_time.seconds
        if budget is None or self.seconds < MIN_OVERRUN * budget:
            return ""
        beyond = f"{self.seconds - budget:.1f} s beyond the budget of {budget:g} s"
        rounds = self.seconds - self.compile_seconds - self.end_seconds
        end = "the end (last measurements, compilation with the tuned programs, comparison)"
        return (
            f"{beyond}: the untuned compilation took {self.compile_seconds:.1f} s, the rounds {rounds:.1f} s,"
            f" {end} {self.end_seconds:.1f} s"
        )

    @property
    def advice(self) -> str:
        """What a budget that was too small could do, and what it takes; empty where there were trials, or where it
        ended for another reason than the time."""
        budget = self.budget.with_default_time
        if self.session.trials or budget.seconds is None or self.session.end is not EndReason.TIME:
            return ""
        between = self.seconds + self.session.trial_estimate + budget.end_seconds
        # of which `Budget.without_compilation` leaves `between`
        least = between + min(self.compile_seconds, between * MAX_COMPILE_FRACTION / (1 - MAX_COMPILE_FRACTION))
        spent = f"the untuned compilation took {self.compile_seconds:.1f} s of {budget.seconds:g} s"
        return f"the budget was too small for a trial: {spent}; a first trial needs about {least:.0f} s in all"
