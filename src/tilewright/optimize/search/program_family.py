"""The protocol of a family of programs: how a search draws, mutates, scores and lowers the programs of one kind."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from tilewright.cost.learned.part_features import FeatureRows
from tilewright.optimize.construct.program_tree import KernelProgram
from tilewright.tile.tree import TileTree

Genes = tuple[int, ...]
"""What a program is within its family: a sketch and annotations, as whole numbers."""


class ProgramFamily(Protocol):
    """The programs of one kind that a task has."""

    def random(self, count: int, rng: np.random.Generator) -> list[Genes]:
        """Programs drawn at random, at most `count`; some may be equal."""
        ...

    def mutate(self, parents: Sequence[Genes], rng: np.random.Generator) -> list[Genes]:
        """Per parent a program that differs a little from it."""
        ...

    def sketch_name(self, genes: Genes) -> str:
        """A name of what a program shares with those that differ in annotations alone."""
        ...

    def describe(self, genes: Genes) -> str:
        """A line about a program for people."""
        ...

    def predicted_times(self, genes: Sequence[Genes], parallel: bool) -> list[float]:
        """Nanoseconds by the cost model; infinite where it has none.

        Args:
            genes: the programs.
            parallel: whether threads share the work.
        """
        ...

    def features(self, genes: Sequence[Genes], parallel: bool) -> FeatureRows:
        """What a learned model knows of programs; arguments as of `predicted_times`."""
        ...

    def tree(self, genes: Genes, parallel: bool) -> TileTree:
        """The loops of a program; raises ScheduleError where they are not legal."""
        ...

    def genes_of(self, program: KernelProgram) -> Genes | None:
        """The genes of a constructed program; None where it is none of the family."""
        ...
