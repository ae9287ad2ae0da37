"""Chains of a program that were considered for kernels of their own."""

from dataclasses import dataclass

from tilewright.graph.chains.choose import ChainEvaluation
from tilewright.optimize.chains.optimizer import ChainConstruction
from tilewright.optimize.task import Task


@dataclass(frozen=True, slots=True, eq=False)
class ConsideredChain:
    """A chain of contractions that was considered for a kernel of its own.

    Attributes:
        evaluation: the times with and without, and the choice.
        task: the fused kernel's; None where there is none.
        construction: what the optimizer of chains made of it; None where it was not asked.
    """

    evaluation: ChainEvaluation
    task: Task | None
    construction: ChainConstruction | None
