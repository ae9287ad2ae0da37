"""The program space of a task: what its searches draw from, change, score and lower.

A program is a sketch, which says what loops there are, and annotations: tile sizes, how far loops are unrolled, where
operands are copied to, and whether threads share the work. Scoring needs no loops: families (`tile_programs.py`,
`rowwise_programs.py`, `chain_programs.py`) give arrays of sizes to the cost model.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilewright.cost.learned.part_features import FeatureRows
from tilewright.graph.fusion import FusionPattern
from tilewright.machine.model import Machine
from tilewright.optimize.construct.program_tree import KernelProgram
from tilewright.optimize.search.batching import evaluate_by_group, rows_by_group
from tilewright.optimize.search.chain_programs import ChainPrograms
from tilewright.optimize.search.program_family import Genes, ProgramFamily
from tilewright.optimize.search.rowwise_programs import RowwisePrograms
from tilewright.optimize.search.tile_programs import TilePrograms
from tilewright.optimize.task import Task
from tilewright.schedule.schedule import Schedule
from tilewright.tile.lower_tree import lower_tree
from tilewright.tile.tree import TileTree

SERIAL_RATE = 0.1
"""How often a random program of a task with threads runs on one of them."""

PARALLEL_MUTATION_RATE = 0.01
"""How often a changed program differs from its parent in whether threads share the work (Ansor's rate)."""


@dataclass(frozen=True, slots=True)
class ProgramId:
    """A program of a space.

    Attributes:
        family: number of its family.
        genes: what tells it from the others of the family.
        parallel: whether threads share the work.
    """

    family: int
    genes: Genes
    parallel: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class ProgramSpace:
    """All programs of a task.

    Attributes:
        task: the kernel in canonical form.
        machine: with the cores that the task has.
        families: those that it has.
    """

    task: Task
    machine: Machine
    families: tuple[ProgramFamily, ...]

    @staticmethod
    def of(task: Task, machine: Machine) -> "ProgramSpace | None":
        """The programs of a kernel; None where it has none, as gathers, and chains that can't be tiled.

        Args:
            task: the kernel.
            machine: the machine; of its cores as many count as the task has threads.
        """
        task = task.canonical()
        machine = task.machine_of_threads(machine)
        is_fused_chain = task.fusion.pattern is FusionPattern.CHAIN
        kinds = (ChainPrograms,) if is_fused_chain else (TilePrograms, RowwisePrograms)
        present = tuple(f for f in (kind.of(task, machine) for kind in kinds) if f is not None)
        return ProgramSpace(task, machine, present) if present else None

    @property
    def has_threads(self) -> bool:
        """Whether threads may share the work."""
        return self.task.threads != 1 and self.machine.cores > 1

    def random(self, count: int, rng: np.random.Generator) -> list[ProgramId]:
        """Random programs, as many of each family."""
        many = -(-count // len(self.families))
        drawn = [(k, genes) for k, f in enumerate(self.families) for genes in f.random(many, rng)]
        is_parallel = (rng.random(len(drawn)) >= SERIAL_RATE) & self.has_threads
        programs = [ProgramId(k, genes, bool(p)) for (k, genes), p in zip(drawn, is_parallel, strict=True)]
        return [programs[int(k)] for k in rng.permutation(len(programs))[:count]]

    def mutate(self, parents: Sequence[ProgramId], rng: np.random.Generator) -> list[ProgramId]:
        """Per parent a program that differs a little from it."""
        children = list(parents)
        flipped = (rng.random(len(parents)) < PARALLEL_MUTATION_RATE) & self.has_threads
        for k, family in enumerate(self.families):
            members = [n for n, p in enumerate(parents) if p.family == k]
            if members:
                genes = family.mutate([parents[n].genes for n in members], rng)
                for n, g in zip(members, genes, strict=True):
                    children[n] = replace(parents[n], genes=g, parallel=parents[n].parallel ^ bool(flipped[n]))
        return children

    def predicted_times(self, programs: Sequence[ProgramId]) -> list[float]:
        """Nanoseconds by the cost model; infinite where it has none."""

        def predict(group: tuple[int, bool], alike: list[ProgramId]) -> np.ndarray:
            return np.array(self.families[group[0]].predicted_times([p.genes for p in alike], group[1]))

        return evaluate_by_group(programs, lambda p: (p.family, p.parallel), predict)

    def features(self, programs: Sequence[ProgramId]) -> FeatureRows:
        """What a learned model knows of programs; at least one."""

        def rows(group: tuple[int, bool], alike: list[ProgramId]) -> FeatureRows:
            return self.families[group[0]].features([p.genes for p in alike], group[1])

        return rows_by_group(programs, lambda p: (p.family, p.parallel), rows)

    def id_of(self, program: KernelProgram, parallel: bool) -> ProgramId | None:
        """A constructed program as one of the space; None where it is none."""
        for k, family in enumerate(self.families):
            genes = family.genes_of(program)
            if genes is not None:
                return ProgramId(k, genes, parallel and self.has_threads)
        return None

    def sketch_name(self, program: ProgramId) -> str:
        """A name of what a program shares with others that differ in annotations alone."""
        return f"{program.family} {self.families[program.family].sketch_name(program.genes)}"

    def describe(self, program: ProgramId) -> str:
        """A line about a program for people."""
        return self.families[program.family].describe(program.genes)

    def tree(self, program: ProgramId) -> TileTree:
        """The program's loops as a tree; raises ScheduleError where they are not legal."""
        return self.families[program.family].tree(program.genes, program.parallel)

    def schedule(self, program: ProgramId) -> Schedule:
        """The program's loops.

        Raises:
            ScheduleError: the program can't be lowered.
        """
        return lower_tree(self.tree(program), self.task.func)
