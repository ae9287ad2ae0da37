"""Programs of one chain of blocks (softmax, layer norm, padding with its window), random ones and changed ones."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.paper_gensor.batching import evaluate_by_group
from benchmarks.paper_gensor.tile_programs import Genes
from tilewright.cost.rowwise import rowwise_times
from tilewright.machine.model import Machine
from tilewright.optimize.construct.program_tree import lower_kernel
from tilewright.optimize.construct.rowwise_programs import (
    RowwiseProblem,
    rows_per_block_options,
    rowwise_problem,
    scored_stages,
)
from tilewright.optimize.interface import Task
from tilewright.schedule.schedule import Schedule
from tilewright.tile.program import TileProgram
from tilewright.tile.rowwise import RowBlocking, RowwiseProgram

Choice = tuple[RowBlocking, list[list[tuple[float, TileProgram]]]]
"""How rows are cut, and per step its programs with their cycles for one group."""


@dataclass(frozen=True, slots=True, eq=False)
class RowwisePrograms:
    """All programs of a chain. Genes are the number of the choice, and per step the number of its program.

    Attributes:
        task: the kernel.
        machine: with one core.
        choices: one per number of rows of a group.
    """

    task: Task
    machine: Machine
    choices: tuple[Choice, ...]

    @staticmethod
    def of(task: Task, machine: Machine) -> "RowwisePrograms | None":
        """The programs of the chain that a kernel is, None where it is none."""
        chain: RowwiseProblem | None = rowwise_problem(task)
        if chain is None:
            return None
        return RowwisePrograms(
            task, machine, tuple(scored_stages(chain, task.target, machine, n) for n in rows_per_block_options(chain))
        )

    def random(self, count: int, rng: np.random.Generator) -> list[Genes]:
        """Programs with rows and steps drawn independently."""
        return [self._clamped_genes(int(rng.integers(len(self.choices))), None, rng) for _ in range(count)]

    def mutate(self, parent: Genes, rng: np.random.Generator) -> Genes:
        """A program with another tile for one or two steps, or for other groups of rows."""
        if rng.random() < 0.3:
            return self._clamped_genes(int(rng.integers(len(self.choices))), parent, rng)
        steps = self.choices[parent[0]][1]
        genes = list(parent)
        for _ in range(int(rng.integers(1, 3))):
            k = int(rng.integers(len(steps)))
            genes[k + 1] = int(rng.integers(len(steps[k])))
        return tuple(genes)

    def _clamped_genes(self, choice: int, parent: Genes | None, rng: np.random.Generator) -> Genes:
        """Genes of a choice: a parent's programs as far as it has as many, else random ones."""
        steps = self.choices[choice][1]
        if parent is None:
            return (choice, *(int(rng.integers(len(s))) for s in steps))
        return (choice, *(min(g, len(s) - 1) for g, s in zip(parent[1:], steps, strict=True)))

    def program(self, genes: Genes) -> RowwiseProgram:
        """The program.

        Raises:
            IndexError: a step has no such program.
        """
        rows, steps = self.choices[genes[0]]
        return RowwiseProgram(rows, tuple(s[g][1] for g, s in zip(genes[1:], steps, strict=True)))

    def sketch_name(self, genes: Genes) -> str:
        """A name of what it shares with programs of other sizes."""
        return f"chain {genes[0]}"

    def predicted_times(self, genes_of_programs: Sequence[Genes]) -> list[float]:
        """Nanoseconds by the cost model; programs that cut rows alike are asked about together."""
        return evaluate_by_group(genes_of_programs, lambda genes: genes[0], self._predict_choice)

    def _predict_choice(self, choice: int, genes_of_programs: Sequence[Genes]) -> np.ndarray:
        rows, steps = self.choices[choice]
        work = [np.array([s[genes[n + 1]][0] for genes in genes_of_programs]) for n, s in enumerate(steps)]
        return rowwise_times(rows, [s[0][1].problem for s in steps], work, self.machine).total

    def schedule(self, genes: Genes) -> Schedule:
        """Its loops on one thread; raises ScheduleError where a step of it is not legal."""
        return lower_kernel(self.program(genes), self.task, parallel=False)
