"""The optimizer, machine and error limit of a compilation, and their record in the artifact."""

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeVar

from tilewright.driver.options import CompileOptions
from tilewright.errors import OptionError
from tilewright.machine import Target
from tilewright.machine.choice import MachineChoice, choose_machine
from tilewright.machine.model import Machine
from tilewright.machine.shipped import generic_machine
from tilewright.optimize.chains.optimizer import ChainOptimizer
from tilewright.optimize.chains.pruning import Variant
from tilewright.optimize.construct.optimizer import Gensor
from tilewright.optimize.construct.variants import MAX_VARIANTS
from tilewright.optimize.interface import DEFAULT, MachineOptimizer, Optimizer, Seeded, optimizer_named
from tilewright.optimize.vortex.optimizer import Vortex
from tilewright.runtime.manifest_meta import BuildSpec, MachineSpec
from tilewright.version import __version__

DIRECT = "direct"
"""Every convolution is the sum of its definition."""

DEFAULT_WINOGRAD = "safe"

UNFUSED = "unfused"
"""Every contraction is a kernel of its own."""

FUSIONS = (*(v.value for v in Variant), UNFUSED)
"""How chains of contractions may be fused: the spaces of MCFuser and of Chimera, or not at all."""

DEFAULT_FUSION = Variant.MCFUSER.value

MAX_ERROR_GROWTH = MappingProxyType({DIRECT: 1.0, "safe": 8.0, "fast": 100.0})
"""Upper bound of the growth of rounding errors over the direct sum, per algorithm that convolutions may use: `DIRECT`
or a value of the option `winograd`. In two dimensions the bound of F(2, 3) is 7.1 and its measured errors grow up to
2.4 times; F(4, 3) has 97 and 12."""


@dataclass(frozen=True, slots=True)
class Build:
    """Resolved options that decide the generated code.

    Attributes:
        optimizer: the preferred optimizer.
        machine: the machine that it constructs programs for; None if the optimizer reads no machine.
        convolutions: the algorithm that convolutions may use, a key of `MAX_ERROR_GROWTH`.
        fusion: how chains of contractions are fused, one of `FUSIONS`.
    """

    optimizer: Optimizer
    machine: MachineChoice | None
    convolutions: str = DIRECT
    fusion: str = UNFUSED

    def chain_optimizer(self, target: Target) -> ChainOptimizer | None:
        """The optimizer of fused chains; None where none are fused."""
        if self.fusion == UNFUSED:
            return None
        return ChainOptimizer(self.fusion, self.machine_for(target))

    @property
    def max_error_growth(self) -> float:
        """By which factor alternatives may increase rounding errors."""
        return MAX_ERROR_GROWTH[self.convolutions]

    def machine_for(self, target: Target) -> Machine:
        """The optimizer's machine, or a typical one of the target's instruction set, which the artifact does not
        record."""
        return generic_machine(target) if self.machine is None else self.machine.for_target(target)

    @property
    def max_variants(self) -> int | None:
        """Programs of a kernel at most; None where the optimizer makes one of every kernel."""
        return self.optimizer.max_variants if isinstance(self.optimizer, Gensor | Vortex) else None

    def spec(self) -> BuildSpec:
        """The record of the build in the artifact."""
        seed = self.optimizer.seed if isinstance(self.optimizer, Seeded) else None
        choice = self.machine
        machine = None if choice is None else MachineSpec(choice.machine.name, str(choice.origin), choice.sha256)
        variants = self.max_variants or 1
        return BuildSpec(__version__, self.optimizer.name, seed, machine, self.convolutions, self.fusion, variants)


def make_build(options: CompileOptions, target: Target, has_layouts: bool) -> Build:
    """Resolves the options for a target: optimizer, machine, the algorithm that convolutions may use, and how chains
    are fused.

    Args:
        options: which code to generate.
        target: its target.
        has_layouts: whether layouts are planned.

    Raises:
        OptionError: an option has no such value, or has no effect.
        MachineError: there is no such machine, its file is wrong, or its architecture is not the target's.
    """
    optimizer = optimizer_named(options.optimizer or DEFAULT)
    if isinstance(optimizer, MachineOptimizer):
        machine = choose_machine(options.machine, target)
        build = Build(with_variants(optimizer, options.variants).for_machine(machine.for_target(target)), machine)
    elif options.machine is not None:
        what = f"the optimizer {optimizer.name!r} reads no description of a machine, so this one would have no effect"
        raise OptionError(what, where="machine", hint="leave it out, or choose the optimizer gensor or roller")
    else:
        build = Build(with_variants(optimizer, options.variants), None)
    return replace(
        build, convolutions=_conv_algorithm(options, build, has_layouts), fusion=_fusion(options, build, has_layouts)
    )


SomeOptimizer = TypeVar("SomeOptimizer", bound=Optimizer)


def with_variants(optimizer: SomeOptimizer, variants: int | None) -> SomeOptimizer:
    """The optimizer with at most so many programs per kernel.

    Raises:
        OptionError: it is no number of programs, or the optimizer makes one program of every kernel.
    """
    if variants is None:
        return optimizer
    if type(variants) is not int or not 1 <= variants <= MAX_VARIANTS:
        hint = "1 makes one program serve all sizes"
        raise OptionError(f"expected 1 to {MAX_VARIANTS}, got {variants!r}", where="variants", hint=hint)
    if not isinstance(optimizer, Gensor | Vortex):
        what = f"the optimizer {optimizer.name!r} makes one program of every kernel, so this has no effect"
        raise OptionError(what, where="variants", hint="leave it out, or choose the optimizer gensor or vortex")
    return replace(optimizer, max_variants=variants)


def _fusion(options: CompileOptions, build: Build, has_layouts: bool) -> str:
    """How chains of contractions are fused.

    Not at all if the optimizer has no machine, as nothing estimates times then, and if layouts are planned, as those
    are chosen for kernels of single contractions.
    """
    fusion = options.fusion
    if fusion is not None and fusion not in FUSIONS:
        hint = f"use one of {', '.join(FUSIONS)}"
        raise OptionError(f"there is no {fusion!r}", where="fusion", hint=hint)
    if fusion not in (None, UNFUSED) and has_layouts:
        what = f"a plan of layouts excludes fused chains, so {fusion!r} would have no effect"
        raise OptionError(what, where="fusion", hint="leave out one of the two")
    if fusion not in (None, UNFUSED) and build.machine is None:
        what = f"the optimizer {build.optimizer.name!r} reads no description of a machine to estimate by"
        raise OptionError(what, where="fusion", hint="leave it out, or choose the optimizer gensor or roller")
    return UNFUSED if has_layouts or build.machine is None else fusion or DEFAULT_FUSION


def _conv_algorithm(options: CompileOptions, build: Build, has_layouts: bool) -> str:
    """The algorithm that convolutions may use.

    It is `DIRECT` if the optimizer has no machine, as nothing estimates times then, and if layouts are planned, as a
    plan names values that Winograd replaces.
    """
    exact, winograd = options.exact, options.winograd
    if not isinstance(exact, bool):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may have no types
        raise OptionError(f"expected True or False, got {exact!r}", where="argument 'exact'")
    if winograd is not None and winograd not in MAX_ERROR_GROWTH.keys() - {DIRECT}:
        names = [n for n in MAX_ERROR_GROWTH if n != DIRECT]
        raise OptionError(f"there is no {winograd!r}", where="winograd", hint=f"use {' or '.join(names)}")
    if winograd is not None and (exact or has_layouts):
        reason = "exact allows no" if exact else "a plan of layouts excludes"
        what = f"{reason} fast convolutions, so {winograd!r} would have no effect"
        raise OptionError(what, where="winograd", hint="leave out one of the two")
    if winograd is not None and build.machine is None:
        what = f"the optimizer {build.optimizer.name!r} reads no description of a machine to estimate by"
        raise OptionError(what, where="winograd", hint="leave it out, or choose the optimizer gensor or roller")
    return DIRECT if exact or has_layouts or build.machine is None else winograd or DEFAULT_WINOGRAD
