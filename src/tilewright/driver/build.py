"""The optimizer, machine and convolution algorithm of a compilation, and their record in the artifact."""

from dataclasses import dataclass

from tilewright.driver.options import CompileOptions
from tilewright.errors import OptionError
from tilewright.machine import Target
from tilewright.machine.choice import MachineChoice, choose_machine
from tilewright.machine.model import Machine
from tilewright.machine.shipped import generic_machine
from tilewright.optimize.interface import DEFAULT, MachineOptimizer, Optimizer, Seeded, optimizer_named
from tilewright.runtime.manifest import BuildSpec, MachineSpec
from tilewright.version import __version__


@dataclass(frozen=True, slots=True)
class Build:
    """Resolved options that decide the generated code.

    Attributes:
        optimizer: the preferred optimizer.
        machine: the machine that it constructs programs for; None if the optimizer reads no machine.
        convolutions: the algorithm of convolutions, see `choose_conv_algorithm`.
    """

    optimizer: Optimizer
    machine: MachineChoice | None
    convolutions: str = "direct"

    def machine_for(self, target: Target) -> Machine:
        """The optimizer's machine, or a typical one of the target's instruction set, which the artifact does not
        record."""
        return generic_machine(target) if self.machine is None else self.machine.for_target(target)

    def spec(self) -> BuildSpec:
        """The record of the build in the artifact."""
        seed = self.optimizer.seed if isinstance(self.optimizer, Seeded) else None
        choice = self.machine
        machine = None if choice is None else MachineSpec(choice.machine.name, str(choice.origin), choice.sha256)
        return BuildSpec(__version__, self.optimizer.name, seed, machine, self.convolutions)


def make_build(options: CompileOptions, target: Target) -> Build:
    """Resolves the options for a target: optimizer and machine. The convolution algorithm is the default, direct;
    `choose_conv_algorithm` decides it later.

    Raises:
        OptionError: there is no optimizer of that name, or a machine is given and the optimizer reads no machine.
        MachineError: there is no such machine, its file is wrong, or its architecture is not the target's.
    """
    optimizer = optimizer_named(options.optimizer or DEFAULT)
    if isinstance(optimizer, MachineOptimizer):
        machine = choose_machine(options.machine, target)
        return Build(optimizer.for_machine(machine.for_target(target)), machine)
    if options.machine is not None:
        what = f"the optimizer {optimizer.name!r} reads no description of a machine, so this one would have no effect"
        raise OptionError(what, where="machine", hint="leave it out, or choose the optimizer gensor or roller")
    return Build(optimizer, None)
