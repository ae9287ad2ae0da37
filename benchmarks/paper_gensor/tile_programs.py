"""Tile programs of one kernel, drawn at random or changed a little: along the edges of the constructors' graph, every
edge as likely as any other."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.paper_gensor.batching import evaluate_by_group
from tilewright.cost.analytical import program_times
from tilewright.machine.model import Machine
from tilewright.optimize.construct.optimizer import problem_for, search_spaces
from tilewright.optimize.construct.search_space import SearchSpace
from tilewright.optimize.construct.tile_lattice import NO_EDGE, EdgeKind, Indices
from tilewright.optimize.interface import Task
from tilewright.schedule.schedule import Schedule
from tilewright.tile.lower import lower_program
from tilewright.tile.program import LEVELS, Sketch, TileProgram

Genes = tuple[int, ...]
"""Identity of a program: here the numbers of its space and sketch, and its sizes, level by level."""

MAX_STEPS = 40
"""Edges that a random program is away from the start at most."""


@dataclass(frozen=True, slots=True, eq=False)
class TilePrograms:
    """All tile programs of a kernel.

    Attributes:
        task: the kernel.
        machine: with one core.
        spaces: with their forms.
    """

    task: Task
    machine: Machine
    spaces: tuple[tuple[SearchSpace, tuple[Sketch, ...]], ...]

    @staticmethod
    def of(task: Task, machine: Machine) -> "TilePrograms | None":
        """The tile programs of a kernel, None where it has none."""
        problem = problem_for(task)
        if problem is None:
            return None
        spaces = tuple((s, tuple(f)) for s, f in search_spaces(problem, task, machine).items())
        return TilePrograms(task, machine, spaces) if spaces else None

    def random(self, count: int, rng: np.random.Generator) -> list[Genes]:
        """Programs at the ends of random walks; each walk has its own liking for growth and its own length."""
        genes: list[Genes] = []
        for k, (space, forms) in enumerate(self.spaces):
            many = -(-count // len(self.spaces))
            start = np.repeat(space.initial_state()[None], many, axis=0)
            states = random_walk(space, start, rng.integers(1, MAX_STEPS, many), rng.uniform(0.4, 1.0, many), rng)
            genes += [self._genes(k, int(rng.integers(len(forms))), state) for state in states]
        return [genes[int(k)] for k in rng.permutation(len(genes))[:count]]

    def mutate(self, parent: Genes, rng: np.random.Generator) -> Genes:
        """A program a few edges from another one, sometimes with its loops in another order."""
        space, forms = self.spaces[parent[0]]
        levels = self._tile_sizes(parent)
        chains = [tuple(level[k] for level in levels) for k in range(len(space.lattices))]
        state = [ladder.id_of((c[0], c[1], c[2])) for ladder, c in zip(space.lattices, chains, strict=True)]
        steps = rng.integers(1, 5, 1)
        moved = random_walk(space, np.array([state], np.int64), steps, np.array([0.5]), rng)[0]
        form = int(rng.integers(len(forms))) if rng.random() < 0.2 else parent[1]
        return self._genes(parent[0], form, moved)

    def _genes(self, space: int, form: int, state: Indices) -> Genes:
        sizes = self.spaces[space][0].sizes(state[None])[0]
        return (space, form, *(int(x) for x in sizes.reshape(-1)))

    def _tile_sizes(self, genes: Genes) -> list[tuple[int, ...]]:
        flat, axes = genes[2:], len(self.spaces[genes[0]][0].lattices)
        return [tuple(flat[k : k + axes]) for k in range(0, len(flat), axes)]

    def program(self, genes: Genes) -> TileProgram:
        """The program.

        Raises:
            IndexError: there is no such space or form.
        """
        space, forms = self.spaces[genes[0]]
        return TileProgram(space.problem, forms[genes[1]], tuple(self._tile_sizes(genes)))

    def sketch_name(self, genes: Genes) -> str:
        """A name of what it shares with programs of other sizes."""
        return f"{genes[0]} {genes[1]}"

    def predicted_times(self, genes_of_programs: Sequence[Genes]) -> list[float]:
        """Nanoseconds by the cost model; programs of one form are asked about together."""
        return evaluate_by_group(
            genes_of_programs, lambda genes: genes[:2], lambda _, alike: self._predict_sketch(alike)
        )

    def _predict_sketch(self, genes_of_programs: Sequence[Genes]) -> np.ndarray:
        programs = [self.program(genes) for genes in genes_of_programs]
        sizes = np.stack([p.array for p in programs])
        return program_times(programs[0].problem, programs[0].sketch, sizes, self.machine).total

    def schedule(self, genes: Genes) -> Schedule:
        """Its loops on one thread; raises ScheduleError where a step of it is not legal."""
        return lower_program(self.program(genes), self.task.func, parallel=False)


def random_walk(
    space: SearchSpace, states: Indices, steps: Indices, growth_probability: "np.ndarray", rng: np.random.Generator
) -> Indices:
    """Where random edges lead.

    Args:
        space: the graph.
        states: [walk, axis]
        steps: edges to be tried, per walk.
        growth_probability: probability of an edge that enlarges a tile, per walk.
    """
    states = states.copy()
    axes = states.shape[1]
    for step in range(int(steps.max())):
        axis = rng.integers(axes, size=len(states))
        kind = np.where(rng.random(len(states)) < growth_probability, EdgeKind.TILE, EdgeKind.INV_TILE)
        edge = kind + rng.integers(len(LEVELS), size=len(states))
        moved = states.copy()
        for a in range(axes):
            mine = np.flatnonzero((axis == a) & (steps > step))
            if len(mine):
                target = space.lattices[a].successor(states[mine, a], edge[mine])
                moved[mine, a] = np.where(target == NO_EDGE, states[mine, a], target)
        legal = space.are_lowerable(space.sizes(moved))
        states = np.where(legal[:, None], moved, states)
    return states
