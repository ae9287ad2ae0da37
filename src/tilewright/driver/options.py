"""How a model is built: the optimizer, and the machine that it constructs for; what an artifact records of both."""

import os
from dataclasses import dataclass

from tilewright.errors import OptionError
from tilewright.machine import Target
from tilewright.machine.choice import MachineChoice, choose_machine
from tilewright.machine.model import Machine
from tilewright.machine.shipped import generic_machine
from tilewright.optimize.interface import DEFAULT, MachineOptimizer, Optimizer, Seeded, optimizer_named
from tilewright.runtime.manifest import BuildSpec, MachineSpec
from tilewright.version import __version__

MachineOption = Machine | str | os.PathLike[str]
"""A description, the name of one that comes with the package, or a file."""


@dataclass(frozen=True, slots=True)
class Build:
    """The choices that decide which code comes out.

    Attributes:
        optimizer: the preferred one.
        machine: what it constructs for; None where it reads no description of a machine.
        convolutions: what they may be computed by (`choose_conv_algorithm`).
    """

    optimizer: Optimizer
    machine: MachineChoice | None
    convolutions: str = "direct"

    def machine_for(self, target: Target) -> Machine:
        """The machine that code for a target is expected to run on: what the optimizer constructs for, else a typical
        one of the target's instruction set, which is no choice that would have to be recorded."""
        return generic_machine(target) if self.machine is None else self.machine.for_target(target)

    def spec(self) -> BuildSpec:
        """What the artifact records."""
        seed = self.optimizer.seed if isinstance(self.optimizer, Seeded) else None
        chosen = self.machine
        machine = None if chosen is None else MachineSpec(chosen.machine.name, str(chosen.origin), chosen.sha256)
        return BuildSpec(__version__, self.optimizer.name, seed, machine, self.convolutions)


def make_build(optimizer: str | None, machine: MachineOption | None, target: Target) -> Build:
    """The choices for a target.

    Args:
        optimizer: name of the preferred optimizer.
        machine: what it constructs for; by default the description that fits the target.
        target: what code is generated for.

    Raises:
        OptionError: there is no optimizer of that name, or it reads no description of a machine and one is given.
        MachineError: there is no such machine, its file is wrong, or it is of another architecture than the target.
    """
    found = optimizer_named(optimizer or DEFAULT)
    if isinstance(found, MachineOptimizer):
        chosen = choose_machine(machine, target)
        return Build(found.for_machine(chosen.for_target(target)), chosen)
    if machine is not None:
        what = f"the optimizer {found.name!r} reads no description of a machine, so this one would have no effect"
        raise OptionError(what, where="machine", hint="leave it out, or choose the optimizer gensor or roller")
    return Build(found, None)
