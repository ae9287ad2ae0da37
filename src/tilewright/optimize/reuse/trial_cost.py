"""Cost of a trial: what the measurement of one program of an operator costs a plan, in programs or in seconds.

A program of a large operator takes longer to measure than one of a small operator. A trial takes constant seconds, in
which a program is built, checked and run in blocks of at least some milliseconds, and a number of calls. Trials of full
searches have more of these than those near a reused program: most of their programs are many times slower than the best
one, and are given up after a call or two.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median

from tilewright.optimize.reuse.loop_vector import LoopVector, OperatorKind

FIXED_SECONDS, FULL_CALLS, REUSE_CALLS = 0.2, 100.0, 50.0
"""Seconds of a trial without its calls, and calls, as the time of the best program, of a trial of full searches and of
reuses: fitted to 56 full searches of 200 programs and 26 reuses of 12 to 38, with one process that builds."""


@dataclass(frozen=True, slots=True)
class TrialCosts:
    """What a trial of each operator costs.

    Attributes:
        unit: of costs, in words.
        fixed: the part that is the same for all operators.
        full_calls: calls of a trial of a full search.
        reuse_calls: calls of a trial near a reused program.
        seconds: predicted seconds of a call, per operator.
    """

    unit: str = "programs"
    fixed: float = 1.0
    full_calls: float = 0.0
    reuse_calls: float = 0.0
    seconds: Mapping[LoopVector, float] = field(default_factory=dict[LoopVector, float])

    @staticmethod
    def in_seconds(predicted: Iterable[tuple[LoopVector | None, float]]) -> "TrialCosts":
        """Costs in seconds, from operators' predicted seconds of a call; those without loop vectors, or of unknown time
        (0), are left out."""
        known = {v: s for v, s in predicted if v is not None and s > 0}
        return TrialCosts("seconds", FIXED_SECONDS, FULL_CALLS, REUSE_CALLS, known)

    def of_full_search(self, operator: LoopVector | float) -> float:
        """The cost of a trial of a full search of an operator, or of one with so many seconds of a call."""
        return self.fixed + self.full_calls * self._call_seconds(operator)

    def of_reuse(self, operator: LoopVector) -> float:
        """The cost of a trial of an operator near a reused program."""
        return self.fixed + self.reuse_calls * self._call_seconds(operator)

    def _call_seconds(self, operator: LoopVector | float) -> float:
        """Seconds of a call: predicted, or else from the iterations of operators of the kind; 0 where none is known."""
        if not isinstance(operator, LoopVector):
            return operator
        if operator in self.seconds:
            return self.seconds[operator]
        return operator.points * self._seconds_per_point(operator.kind)

    def _seconds_per_point(self, kind: OperatorKind) -> float:
        rates = [s / v.points for v, s in self.seconds.items() if v.kind == kind]
        return median(rates) if rates else 0.0


PROGRAMS = TrialCosts()
"""Costs in measured programs, as the paper counts them."""
