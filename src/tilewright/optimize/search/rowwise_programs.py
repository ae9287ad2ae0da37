"""Row-wise programs of a task (softmax, layer norm, padding with its window), drawn at random or changed a little.

A sketch is the number of rows of a block; annotations are the register tiles of the stages.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tilewright.cost.learned.part_features import FeatureRows
from tilewright.cost.learned.rowwise_features import rowwise_features
from tilewright.cost.rowwise import rowwise_times
from tilewright.machine.model import Machine
from tilewright.optimize.construct.program_tree import KernelProgram, program_tree
from tilewright.optimize.construct.rowwise_programs import (
    RowwiseProblem,
    rows_per_block_options,
    rowwise_problem,
    scored_stages,
)
from tilewright.optimize.search.batching import evaluate_by_group
from tilewright.optimize.search.program_family import Genes
from tilewright.optimize.task import Task
from tilewright.tile.program import TileProgram
from tilewright.tile.rowwise import RowBlocking, RowwiseProgram
from tilewright.tile.tree import TileTree

Choice = tuple[RowBlocking, list[list[tuple[float, TileProgram]]]]
"""How rows are cut, and per stage its programs with their cycles for one block of rows."""


@dataclass(frozen=True, slots=True, eq=False)
class RowwisePrograms:
    """All row-wise programs of a task; genes are the number of the choice, and per stage the number of its program.

    Attributes:
        task: the kernel.
        machine: with the cores that the task has.
        choices: one per number of rows of a block.
        rows: features of programs, on one thread and on several, as far as they were asked for.
    """

    task: Task
    machine: Machine
    choices: tuple[Choice, ...]
    rows: dict[tuple[Genes, bool], FeatureRows] = field(default_factory=dict[tuple[Genes, bool], FeatureRows])

    @staticmethod
    def of(task: Task, machine: Machine) -> "RowwisePrograms | None":
        """The row-wise programs of a task, None where it has none."""
        problem: RowwiseProblem | None = rowwise_problem(task)
        if problem is None:
            return None
        options = rows_per_block_options(problem)
        return RowwisePrograms(
            task, machine, tuple(scored_stages(problem, task.target, machine, n) for n in options)
        )

    def random(self, count: int, rng: np.random.Generator) -> list[Genes]:
        """Programs with rows and stages drawn independently."""
        return [self._clamped_genes(int(rng.integers(len(self.choices))), None, rng) for _ in range(count)]

    def mutate(self, parents: Sequence[Genes], rng: np.random.Generator) -> list[Genes]:
        """Programs with another tile for one or two stages, or for other blocks of rows."""
        return [self._mutate(parent, rng) for parent in parents]

    def _mutate(self, parent: Genes, rng: np.random.Generator) -> Genes:
        if rng.random() < 0.3:
            return self._clamped_genes(int(rng.integers(len(self.choices))), parent, rng)
        stages = self.choices[parent[0]][1]
        genes = list(parent)
        for _ in range(int(rng.integers(1, 3))):
            k = int(rng.integers(len(stages)))
            genes[k + 1] = int(rng.integers(len(stages[k])))
        return tuple(genes)

    def _clamped_genes(self, choice: int, parent: Genes | None, rng: np.random.Generator) -> Genes:
        """Genes of a choice: a parent's programs as far as it has as many, else random ones."""
        stages = self.choices[choice][1]
        if parent is None:
            return (choice, *(int(rng.integers(len(s))) for s in stages))
        return (choice, *(min(g, len(s) - 1) for g, s in zip(parent[1:], stages, strict=True)))

    def program(self, genes: Genes) -> RowwiseProgram:
        """The program.

        Raises:
            IndexError: a stage has no such program.
        """
        rows, stages = self.choices[genes[0]]
        return RowwiseProgram(rows, tuple(s[g][1] for g, s in zip(genes[1:], stages, strict=True)))

    def genes_of(self, program: KernelProgram) -> Genes | None:
        """The genes of a row-wise program."""
        if not isinstance(program, RowwiseProgram):
            return None
        for k, (rows, stages) in enumerate(self.choices):
            if rows.rows_per_block != program.blocking.rows_per_block or len(stages) != len(program.stages):
                continue
            tiles = [(p.sketch, p.sizes) for p in program.stages]
            options = [[(p.sketch, p.sizes) for _, p in stage] for stage in stages]
            if all(t in o for t, o in zip(tiles, options, strict=True)):
                return (k, *(o.index(t) for t, o in zip(tiles, options, strict=True)))
        return None

    def sketch_name(self, genes: Genes) -> str:
        """A name of what it shares with programs of other sizes."""
        return f"rows {self.choices[genes[0]][0].rows_per_block}"

    def describe(self, genes: Genes) -> str:
        """The program's rows and stages."""
        return str(self.program(genes))

    def predicted_times(self, genes: Sequence[Genes], parallel: bool) -> list[float]:
        """Nanoseconds by the cost model, at the representative sizes; programs that cut rows alike are asked about
        together."""
        machine = self.machine if parallel else self.machine.with_cores(1)

        def predict(choice: int, alike: list[Genes]) -> np.ndarray:
            rows, stages = self.choices[choice]
            work = [np.array([s[g[n + 1]][0] for g in alike]) for n, s in enumerate(stages)]
            times = rowwise_times(rows, [s[0][1].problem for s in stages], work, machine)
            return times.total_with_threads(machine)

        return evaluate_by_group(genes, lambda g: g[0], predict)

    def features(self, genes: Sequence[Genes], parallel: bool) -> FeatureRows:
        """What a learned model knows of programs, at the representative sizes; kept, as there are few programs."""
        machine = self.machine if parallel else self.machine.with_cores(1)
        for g in genes:
            if (g, parallel) not in self.rows:
                self.rows[g, parallel] = rowwise_features(self.program(g), machine)
        return FeatureRows.concat([self.rows[g, parallel] for g in genes])

    def tree(self, genes: Genes, parallel: bool) -> TileTree:
        """The loops of a program; raises ScheduleError where they are not legal."""
        return program_tree(self.program(genes), self.task, parallel, self.machine.cores)
