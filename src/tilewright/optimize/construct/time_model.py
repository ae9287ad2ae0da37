"""Models that predict the times of tile programs, for the choice between programs at the shapes of a kernel."""

from dataclasses import dataclass
from typing import Protocol, Self

from tilewright.cost.analytical import sample_times
from tilewright.cost.footprint import Numbers
from tilewright.machine.model import Machine
from tilewright.tile.problem import Problem
from tilewright.tile.program import Sizes, Sketch


class TimeModel(Protocol):
    """Predicts times of programs on a machine."""

    @property
    def machine(self) -> Machine:
        """The machine."""
        ...

    def sample_times(self, problem: Problem, sketch: Sketch, sizes: Sizes) -> Numbers:
        """Nanoseconds of candidates [candidate, level, axis] at a problem's samples [sample, candidate]."""
        ...

    def on_one_core(self) -> Self:
        """The same for a single thread."""
        ...


@dataclass(frozen=True, slots=True)
class CostModel:
    """The analytical cost model of tile programs."""

    machine: Machine

    def sample_times(self, problem: Problem, sketch: Sketch, sizes: Sizes) -> Numbers:
        """Nanoseconds of candidates at a problem's samples [sample, candidate]."""
        return sample_times(problem, sketch, sizes, self.machine)

    def on_one_core(self) -> "CostModel":
        """The same for a single thread."""
        return CostModel(self.machine.with_cores(1))
