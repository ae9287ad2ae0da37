"""Compilation of branches and of bodies of loops: each is a program of its own, compiled like the model's."""

from dataclasses import dataclass

from tilewright.driver.considered_chain import ConsideredChain
from tilewright.driver.kernel_build.kernels import BoundUnit
from tilewright.graph.alternatives import Evaluation
from tilewright.graph.partition import Partition
from tilewright.graph.program import Program


@dataclass(frozen=True, slots=True, eq=False)
class CompiledBody:
    """A branch of a conditional or the body of a loop before object code.

    Attributes:
        lowered: tensor expressions as the operators define them.
        alternatives: equivalent stages that were considered for parts of the program.
        chains: chains of contractions that were considered for kernels of their own.
        partition: the program after inlining, grouped into kernels.
        units: kernels bound to functions, views, fallbacks and control flow, in order of execution.
    """

    lowered: Program
    alternatives: tuple[Evaluation, ...]
    chains: tuple[ConsideredChain, ...]
    partition: Partition
    units: tuple[BoundUnit, ...]
