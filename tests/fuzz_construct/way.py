"""How a random operator is compiled: optimizer, target, machine, and what convolutions may be computed by."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from unittest.mock import patch

from tests.codegen.native import TARGETS
from tests.fuzz_construct.builder import Builder, RandomModel

import tilewright.driver.compile as pipeline
from tilewright.driver.compilation import Compilation
from tilewright.driver.compile import make_compilation
from tilewright.driver.options import CompileOptions
from tilewright.graph.alternatives import Evaluation, KernelCost, Rewrite, apply_alternatives, choose
from tilewright.graph.densify_operands import dense_copies
from tilewright.graph.program import Program
from tilewright.graph.winograd.rewrite import winograd_forms
from tilewright.machine import Target
from tilewright.machine.model import Machine
from tilewright.machine.shipped import shipped_machines
from tilewright.optimize.construct.gensor import Annealing, Reading
from tilewright.optimize.construct.optimizer import Gensor, Roller

OPTIMIZERS = ("gensor", "roller")

SMALL = "small caches"
"""A machine whose caches are so small that small operators too are walked in tiles of all levels."""

MACHINES = (SMALL, *(name for name, machine in shipped_machines().items() if machine.arch == Target.host().arch))
"""Descriptions of processors, also of others than the target's: they change what is chosen, not what it means."""


@dataclass(frozen=True)
class Way:
    """How an operator is compiled.

    Attributes:
        optimizer: that constructs.
        target: whose instructions are used.
        driver: whether by the driver; else kernel by kernel.
        machine: whose description is used; None is the one that fits the target.
        annealing, seed: of `gensor`, where kernels are constructed one by one.
        exact, winograd: the driver's options.
        forced: whether all convolutions are computed by minimal filtering that can be, not only where it pays.
    """

    optimizer: str
    target: str
    driver: bool
    machine: str | None
    annealing: Annealing
    seed: int
    exact: bool
    winograd: str | None
    forced: bool

    @staticmethod
    def drawn(b: Builder) -> "Way":
        """From recorded choices."""
        optimizer = b.choice("optimizer", OPTIMIZERS)
        target = b.choice("target", TARGETS)
        driver = not b.flag("by kernel", 0.6)
        machine = b.choice("machine", MACHINES) if b.flag("other machine", 0.5) else None
        exact = b.flag("exact", 0.15)
        winograd = None if exact else b.choice("winograd", ("default", "safe", "fast"))
        annealing, seed = Annealing(), 0
        if not driver:
            seed = b.number("walk seed", 0, 999)
            reading = Reading.PRINTED if b.flag("as printed", 0.2) else Reading.INTENDED
            annealing = Annealing(walks=b.number("walks", 1, 6), reading=reading, vthreads=not b.flag("single", 0.2))
        allowed = None if winograd == "default" else winograd
        forced = not exact and b.flag("forced", 0.5)
        return Way(optimizer, target, driver, machine, annealing, seed, exact, allowed, forced)

    def described(self) -> Machine | None:
        """The description itself."""
        if self.machine == SMALL:
            machine = shipped_machines()["x86-64-v4"]
            cut = (replace(x, bytes=size) for x, size in zip(machine.levels, (2048, 16384, 131072), strict=False))
            return replace(machine, name="small", levels=(*cut, machine.levels[-1]))
        return None if self.machine is None else shipped_machines()[self.machine]

    def constructor(self) -> Gensor | Roller:
        """The optimizer itself."""
        machine = self.described()
        return Gensor(machine, self.annealing, self.seed) if self.optimizer == "gensor" else Roller(machine)

    def compiled(self, model: RandomModel) -> Compilation:
        """What the driver makes of an operator."""
        always = patch.object(pipeline, "choose", _choose_minimal_filtering)
        with always if self.forced else nullcontext():
            options = CompileOptions(
                target=self.target, optimizer=self.optimizer, machine=self.described(), exact=self.exact,
                winograd=self.winograd,
            )  # fmt: skip
            return make_compilation(model.model, options)


def _choose_minimal_filtering(
    program: Program, _: Sequence[Rewrite], cost: KernelCost, max_error_growth: float, *_prepare: object
) -> tuple[Program, tuple[Evaluation, ...]]:
    """The last Winograd form of every convolution that has one; other alternatives are chosen as usual."""
    forms = {a.before[-1].output: a for a in winograd_forms(program, max_error_growth)}
    return choose(apply_alternatives(program, list(forms.values())), [dense_copies], cost, max_error_growth)
