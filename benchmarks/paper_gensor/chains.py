"""Programs of one chain of blocks (softmax, layer norm, padding with its window), random ones and changed ones."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.paper_gensor.groups import by_group
from benchmarks.paper_gensor.tiles import Genes
from tilewright.cost.chain import time_of
from tilewright.machine.model import Machine
from tilewright.optimize.construct.chains import ChainProblem, chain_problem, lower_chain, scored_steps, together_of
from tilewright.optimize.interface import Task
from tilewright.schedule.trace import Schedule
from tilewright.tile.chain import ChainProgram, Rows
from tilewright.tile.program import TileProgram

Choice = tuple[Rows, list[list[tuple[float, TileProgram]]]]
"""How rows are cut, and per step its programs with their cycles for one group."""


@dataclass(frozen=True, slots=True, eq=False)
class Chains:
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
    def of(task: Task, machine: Machine) -> "Chains | None":
        """The programs of the chain that a kernel is, None where it is none."""
        chain: ChainProblem | None = chain_problem(task)
        if chain is None:
            return None
        return Chains(task, machine, tuple(scored_steps(chain, task.target, machine, n) for n in together_of(chain)))

    def random(self, count: int, rng: np.random.Generator) -> list[Genes]:
        """Programs with rows and steps drawn independently."""
        return [self._fitted(int(rng.integers(len(self.choices))), None, rng) for _ in range(count)]

    def changed(self, parent: Genes, rng: np.random.Generator) -> Genes:
        """A program with another tile for one or two steps, or for other groups of rows."""
        if rng.random() < 0.3:
            return self._fitted(int(rng.integers(len(self.choices))), parent, rng)
        steps = self.choices[parent[0]][1]
        found = list(parent)
        for _ in range(int(rng.integers(1, 3))):
            k = int(rng.integers(len(steps)))
            found[k + 1] = int(rng.integers(len(steps[k])))
        return tuple(found)

    def _fitted(self, choice: int, parent: Genes | None, rng: np.random.Generator) -> Genes:
        """Genes of a choice: a parent's programs as far as it has as many, else random ones."""
        steps = self.choices[choice][1]
        if parent is None:
            return (choice, *(int(rng.integers(len(s))) for s in steps))
        return (choice, *(min(g, len(s) - 1) for g, s in zip(parent[1:], steps, strict=True)))

    def program(self, genes: Genes) -> ChainProgram:
        """The program.

        Raises:
            IndexError: a step has no such program.
        """
        rows, steps = self.choices[genes[0]]
        return ChainProgram(rows, tuple(s[g][1] for g, s in zip(genes[1:], steps, strict=True)))

    def form(self, genes: Genes) -> str:
        """A name of what it shares with programs of other sizes."""
        return f"chain {genes[0]}"

    def predicted(self, every: Sequence[Genes]) -> list[float]:
        """Nanoseconds by the cost model; programs that cut rows alike are asked about together."""
        return by_group(every, lambda genes: genes[0], self._nanoseconds)

    def _nanoseconds(self, choice: int, every: Sequence[Genes]) -> np.ndarray:
        rows, steps = self.choices[choice]
        work = [np.array([s[genes[n + 1]][0] for genes in every]) for n, s in enumerate(steps)]
        return time_of(rows, [s[0][1].problem for s in steps], work, self.machine).total

    def schedule(self, genes: Genes) -> Schedule:
        """Its loops on one thread; raises ScheduleError where a step of it is not legal."""
        return lower_chain(self.program(genes), self.task, parallel=False)
