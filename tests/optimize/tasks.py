"""Tasks of programs, and the constructing optimizers on the machine of a target."""

from tests.optimize.programs import Program, scheduled

from tilewright.machine import Target
from tilewright.machine.shipped import machine_named
from tilewright.optimize.construct.gensor import Annealing
from tilewright.optimize.construct.optimizer import (
    Gensor,
    Roller,
)
from tilewright.optimize.interface import Optimizer
from tilewright.optimize.task import Task

MACHINES = {"x86-64-v4": "zen5", "x86-64-v3": "zen3", "x86-64": "x86-64"}
QUICK = Annealing(walks=3)


def optimizers(target: str, seed: int = 0) -> list[Optimizer]:
    """Both constructing optimizers, on the machine of a target."""
    machine = machine_named(MACHINES[target])
    return [Roller(machine), Gensor(machine, QUICK, seed)]


def task_of(program: Program, target: str = "x86-64-v4") -> Task:
    """The task of a program."""
    kernel, func, _ = scheduled(program, target)
    pairs = zip(kernel.params, kernel.arguments, strict=True)
    return Task(
        func, frozenset(p.name for p, a in pairs if a.name in program.constants), Target.parse(target), kernel.fusion
    )
