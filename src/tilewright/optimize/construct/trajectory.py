"""The recorded steps of construction, printed for inspection."""

from dataclasses import dataclass

from tilewright.tile.problem import Problem
from tilewright.tile.program import LEVELS, Sketch


@dataclass(frozen=True, slots=True)
class TrajectoryStep:
    """One step.

    Attributes:
        level: the level that was being scheduled.
        sizes: the state before the step, per level and axis.
        action: the action taken.
        probabilities: of the possible actions, in the order of the axes.
        recorded: whether the state after the step was recorded.
    """

    level: str
    sizes: tuple[tuple[int, ...], ...]
    action: str
    probabilities: tuple[tuple[str, float], ...]
    recorded: bool


@dataclass(frozen=True, slots=True)
class Trajectory:
    """The steps that led to a program.

    Attributes:
        problem, sketch: what was constructed.
        steps: the steps.
        final: the last state's sizes.
    """

    problem: Problem
    sketch: Sketch
    steps: tuple[TrajectoryStep, ...]
    final: tuple[tuple[int, ...], ...]

    def __str__(self) -> str:
        names = [a.name for a in self.problem.axes]
        lines = [f"axes {' '.join(names)}; sizes per level {', '.join(LEVELS)}"]
        for k, m in enumerate(self.steps):
            likely = sorted(m.probabilities, key=lambda p: -p[1])[:4]
            shown = ", ".join(f"{name} {p:.2f}" for name, p in likely)
            mark = "*" if m.recorded else " "
            lines.append(f"{k:3d}{mark} {m.level:8s} {_sizes_text(m.sizes)}  {m.action}  ({shown})")
        return "\n".join([*lines, f"end  {_sizes_text(self.final)}"])


def _sizes_text(sizes: tuple[tuple[int, ...], ...]) -> str:
    return " | ".join(" ".join(map(str, level)) for level in sizes)
