"""Workers as a tuning session sees them: requests for measurements go in, answers come back in any order.

One machine answers one request after the other (`local.py`); a cluster has several in hand at once (`cluster.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Protocol

from tilewright.errors import MeasureError
from tilewright.measure.interleaved_blocks import RunPlan
from tilewright.measure.local_measurer import QUICK_PLAN
from tilewright.optimize.measurer import Candidate, Measurement
from tilewright.optimize.task import Task


class Effort(StrEnum):
    """How long candidates are timed.

    Attributes:
        QUICK: short blocks, for many candidates.
        CONFIRM: longer ones, for those that seem to win.
        JUDGE: the longest ones, for the last measurement of a winner against the constructed program.
    """

    QUICK = "quick"
    CONFIRM = "confirm"
    JUDGE = "judge"


EFFORT_PLANS: Mapping[Effort, RunPlan] = MappingProxyType(
    {
        Effort.QUICK: QUICK_PLAN,
        Effort.CONFIRM: RunPlan(rounds=7, seconds=0.015, pause=0.0, canary_seconds=0.002),
        Effort.JUDGE: RunPlan(rounds=11, seconds=0.02, pause=0.0, canary_seconds=0.002),
    }
)
"""The blocks of each effort."""


@dataclass(frozen=True, slots=True, eq=False)
class MeasureRequest:
    """Candidates to be timed.

    Attributes:
        task: the kernel, in canonical form.
        candidates: its programs.
        incumbent: the program to be beaten, with which each takes turns; None without one.
        effort: how long they are timed.
    """

    task: Task
    candidates: tuple[Candidate, ...]
    incumbent: Candidate | None = None
    effort: Effort = Effort.QUICK


@dataclass(frozen=True, slots=True, eq=False)
class MeasureAnswer:
    """What became of a request.

    Attributes:
        number: of the request.
        measurements: one per candidate, in their order; empty where there is an error.
        error: why nothing was measured; None where it was.
        seconds: time that machines were busy with it.
    """

    number: int
    measurements: tuple[Measurement, ...]
    error: MeasureError | None
    seconds: float


class MeasureWorkers(Protocol):
    """What measures requests."""

    @property
    def concurrency(self) -> int:
        """How many requests keep all of its machines busy."""
        ...

    def submit(self, number: int, request: MeasureRequest) -> None:
        """Hands a request over, which `wait` answers.

        Args:
            number: of the request, none of those that are not answered yet; smaller ones come first.
            request: what is measured.
        """
        ...

    def wait(self) -> MeasureAnswer:
        """The next answer; there is a request that has none yet.

        Raises:
            MeasureError: there is no machine any more.
        """
        ...
