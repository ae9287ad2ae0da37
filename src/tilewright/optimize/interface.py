"""What an optimizer is: a function from a kernel's untransformed loops to a schedule, or None where it does not
apply."""

from dataclasses import dataclass
from importlib import import_module
from typing import Protocol, runtime_checkable

from tilewright.errors import OptionError
from tilewright.loops.ir import Func
from tilewright.machine import Target
from tilewright.machine.model import Machine
from tilewright.schedule.schedule import Schedule
from tilewright.tile.shape_samples import ShapeSamples


@dataclass(frozen=True, slots=True)
class Task:
    """One kernel to be optimized.

    Attributes:
        func: the untransformed loops.
        constants: names of parameters whose data is known at compile time, so that their layout is free.
        target: the machine.
        samples: sizes of the function's symbols that count; by default those of their ranges.
    """

    func: Func
    constants: frozenset[str]
    target: Target
    samples: ShapeSamples | None = None


class Optimizer(Protocol):
    """An optimizer; stateless, deterministic for equal tasks."""

    name: str

    def optimize(self, task: Task) -> Schedule | None:
        """The schedule for a task, or None where the optimizer does not apply to it."""
        ...


@runtime_checkable
class MachineOptimizer(Optimizer, Protocol):
    """An optimizer that reads the description of a machine, so that its programs depend on it."""

    def for_machine(self, machine: Machine) -> Optimizer:
        """The same optimizer for a machine."""
        ...


@runtime_checkable
class Seeded(Protocol):
    """An optimizer that draws at random from a seed."""

    @property
    def seed(self) -> int:
        """What the draws depend on."""
        ...


_REGISTRY: dict[str, str] = {
    "rule": "tilewright.optimize.rule:Rule",
    "roller": "tilewright.optimize.construct.optimizer:Roller",
    "gensor": "tilewright.optimize.construct.optimizer:Gensor",
}
"""Optimizers by name, as module:class, imported when they are asked for."""

DEFAULT = "gensor"
"""The optimizer of a compilation that names none."""

FALLBACK = "rule"
"""The one that applies to every kernel, and so takes those to which the chosen one does not apply."""


def optimizer_named(name: str) -> Optimizer:
    """The optimizer of that name.

    Raises:
        OptionError: there is none.
    """
    if name not in _REGISTRY:
        hint = f"use one of {', '.join(_REGISTRY)}"
        raise OptionError(f"there is no optimizer {name!r}", where="optimizer", hint=hint)
    module, _, attribute = _REGISTRY[name].partition(":")
    return getattr(import_module(module), attribute)()
