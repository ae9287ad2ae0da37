"""What a tuning session is handed: starts of searches, and a store that keeps what was measured."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tilewright.driver.tune.plan import MeasurePoint, PlannedKernel
from tilewright.expr.nodes import Expr
from tilewright.optimize.measurer import Candidate, Failure, Measurement, Timing
from tilewright.optimize.search.interface import Search

StartSearch = Callable[[PlannedKernel, Sequence[Measurement]], Search]
"""Starts the search of a kernel, given what was measured of it before."""


@dataclass(frozen=True, slots=True)
class StoredMeasurement:
    """What a store holds of a candidate at some sizes."""

    candidate: Candidate
    sizes: Mapping[str, int]
    result: Timing | Failure


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """The programs that a tuning chose for a kernel.

    Attributes:
        programs: one, or several, of which one runs at every call.
        selector: the index of the one that runs, over the task's symbols; None for one.
        timing: the measurement that decided: a program in turns with the one that it replaced, or the constructed one
            by itself.
        worst_ratio: of the points, the largest time as a multiple of that of the best program measured there.
    """

    programs: tuple[Candidate, ...]
    selector: Expr | None
    timing: Timing
    worst_ratio: float


class TuningStore(Protocol):
    """Where measurements are kept; what was added is durable when the call returns."""

    def history(self, kernel: PlannedKernel) -> Sequence[StoredMeasurement]:
        """What was measured of a kernel before on this machine by this version."""
        ...

    def add(self, kernel: PlannedKernel, point: MeasurePoint, measurements: Sequence[Measurement]) -> None:
        """Keeps measurements of a kernel's candidates at a point."""
        ...

    def chosen(self, kernel: PlannedKernel) -> KernelChoice | None:
        """What was chosen for a kernel before; None where nothing was."""
        ...

    def choose(self, kernel: PlannedKernel, choice: KernelChoice) -> None:
        """Keeps which programs compilations use for a kernel; the newest choice counts."""
        ...
