"""The interface of optimizers: from a kernel's untransformed loops to a schedule, or None where one does not apply."""

from dataclasses import dataclass
from importlib import import_module
from typing import Protocol, runtime_checkable

from tilewright.errors import OptionError
from tilewright.expr.nodes import Expr
from tilewright.machine.model import Machine
from tilewright.optimize.task import Task
from tilewright.schedule.schedule import Schedule


class Optimizer(Protocol):
    """An optimizer: stateless, and deterministic for equal tasks."""

    @property
    def name(self) -> str:
        """Its name in options, reports and artifacts."""
        ...

    def optimize(self, task: Task) -> Schedule | None:
        """The schedule for a task, or None where the optimizer does not apply to it."""
        ...


@dataclass(frozen=True, slots=True)
class ProgramEstimate:
    """What the selector of a kernel takes one of its programs for.

    Attributes:
        program: the program in words.
        picoseconds: its estimated time, an int64 expression over the symbols of the task's function.
    """

    program: str
    picoseconds: Expr


@dataclass(frozen=True, slots=True)
class ScheduledPrograms:
    """What an optimizer made of a task.

    Attributes:
        schedules: of one program, or of several, of which one runs at every call.
        selector: the index of the one that runs, over the symbols of the task's function; None for a single one.
        estimates: by which the selector chooses, one per program; empty where it chooses otherwise.
    """

    schedules: tuple[Schedule, ...]
    selector: Expr | None = None
    estimates: tuple[ProgramEstimate, ...] = ()


def scheduled(schedule: Schedule | None) -> ScheduledPrograms | None:
    """A single program."""
    return None if schedule is None else ScheduledPrograms((schedule,))


@runtime_checkable
class MachineOptimizer(Optimizer, Protocol):
    """An optimizer whose programs depend on the description of a machine."""

    def for_machine(self, machine: Machine) -> Optimizer:
        """The same optimizer for a machine."""
        ...


@runtime_checkable
class Seeded(Protocol):
    """An optimizer that draws random numbers from a seed."""

    @property
    def seed(self) -> int:
        """The seed of the random numbers."""
        ...


_REGISTRY: dict[str, str] = {
    "rule": "tilewright.optimize.rule:Rule",
    "roller": "tilewright.optimize.construct.optimizer:Roller",
    "gensor": "tilewright.optimize.construct.optimizer:Gensor",
    "vortex": "tilewright.optimize.vortex.optimizer:Vortex",
    "dietcode": "tilewright.optimize.vortex.dietcode:DietCode",
    "vortex-static1": "tilewright.optimize.vortex.optimizer:static1",
    "vortex-static2": "tilewright.optimize.vortex.optimizer:static2",
}
"""Optimizers by name, as module:class or module:function that makes one, imported on first use."""

DEFAULT = "gensor"
"""The optimizer of a compilation that names none."""

FALLBACK = "rule"
"""The optimizer that applies to every kernel, for kernels to which the chosen one does not apply."""


def optimizer_named(name: str) -> Optimizer:
    """The optimizer of this name.

    Raises:
        OptionError: there is none.
    """
    if name not in _REGISTRY:
        hint = f"use one of {', '.join(_REGISTRY)}"
        raise OptionError(f"there is no optimizer {name!r}", where="optimizer", hint=hint)
    module, _, attribute = _REGISTRY[name].partition(":")
    return getattr(import_module(module), attribute)()
