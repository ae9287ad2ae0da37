"""Tile programs of a task, drawn at random or changed a little along the edges of the constructors' graph.

A sketch is what loops there are, for reductions S S R S R S (tiles for L2, tiles for L1, K-blocks, register tiles,
points of a K-block, the register tile), with the lane axis, the operands that are packed and the order of the loops.
Its annotations are the tile sizes, among them how far reductions are unrolled.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilewright.cost.analytical import mean_time, program_times
from tilewright.cost.learned.part_features import FeatureRows
from tilewright.cost.learned.tile_features import tile_features
from tilewright.machine.model import Machine
from tilewright.optimize.construct.optimizer import problem_for, search_spaces
from tilewright.optimize.construct.program_tree import KernelProgram, program_tree
from tilewright.optimize.construct.search_space import SearchSpace
from tilewright.optimize.construct.tile_lattice import NO_EDGE, EdgeKind, Indices
from tilewright.optimize.search.batching import evaluate_by_group, rows_by_group
from tilewright.optimize.search.program_family import Genes
from tilewright.optimize.task import Task
from tilewright.tile.problem import Problem
from tilewright.tile.program import LEVELS, Sketch, TileProgram, is_legal
from tilewright.tile.tree import TileTree

MAX_STEPS = 40
"""Edges that a random program is away from the start at most."""

MAX_MUTATION_STEPS = 4
"""Edges that a changed program is away from its parent at most."""

MAX_DRAWS = 4
"""Draws of a register tile, of which the first legal one counts."""

ORDER_RATE, SKETCH_RATE = 0.15, 0.05
"""How often a changed program has its loops in another order, and other lanes or packed operands."""


@dataclass(frozen=True, slots=True, eq=False)
class TilePrograms:
    """All tile programs of a task; genes are the positions of the sketch, and sizes level by level.

    Attributes:
        task: the kernel.
        machine: with the cores that the task has.
        problem: what is computed, with the shape samples of the task.
        spaces: per lane axis and packing the tile sizes, and the orders of loops.
    """

    task: Task
    machine: Machine
    problem: Problem
    spaces: tuple[tuple[SearchSpace, tuple[Sketch, ...]], ...]

    @staticmethod
    def of(task: Task, machine: Machine) -> "TilePrograms | None":
        """The tile programs of a task, None where it has none."""
        problem = problem_for(task)
        if problem is None:
            return None
        at_one_shape = replace(problem, samples=())
        spaces = tuple((s, tuple(f)) for s, f in search_spaces(at_one_shape, task, machine).items())
        return TilePrograms(task, machine, problem, spaces) if spaces else None

    def random(self, count: int, rng: np.random.Generator) -> list[Genes]:
        """Programs at the ends of random walks; each walk has its own liking for growth and its own length.

        Half of them begin with a register tile that is drawn, as one from a single vector rarely comes to large ones.
        """
        genes: list[Genes] = []
        for k, (space, sketches) in enumerate(self.spaces):
            many = -(-count // len(self.spaces))
            start = np.repeat(space.initial_state()[None], many, axis=0)
            start[::2] = with_drawn_register_tiles(space, start[::2], rng)
            states = random_walk(space, start, rng.integers(1, MAX_STEPS, many), rng.uniform(0.4, 1.0, many), rng)
            orders = rng.integers(len(sketches), size=many)
            genes += self._genes_of_states(k, orders, states)
        return [genes[int(k)] for k in rng.permutation(len(genes))[:count]]

    def mutate(self, parents: Sequence[Genes], rng: np.random.Generator) -> list[Genes]:
        """Programs a few edges from others, some with their loops in another order or of another sketch."""
        children: list[Genes] = list(parents)
        targets = np.array([g[0] for g in parents])
        moved = rng.random(len(parents)) < SKETCH_RATE
        targets = np.where(moved, rng.integers(len(self.spaces), size=len(parents)), targets)
        for k, (space, sketches) in enumerate(self.spaces):
            members = np.flatnonzero(targets == k)
            if not len(members):
                continue
            states = np.array([self._closest_state(space, parents[int(n)]) for n in members], np.int64)
            steps = rng.integers(1, MAX_MUTATION_STEPS + 1, len(members))
            states = random_walk(space, states, steps, np.full(len(members), 0.5), rng)
            orders = np.array([parents[int(n)][1] % len(sketches) for n in members])
            is_reordered = rng.random(len(members)) < ORDER_RATE
            orders = np.where(is_reordered, rng.integers(len(sketches), size=len(members)), orders)
            sizes = space.sizes(states)
            is_allowed = is_legal(space.problem, sketches[0], sizes) & space.are_lowerable(sizes)
            moved_genes = self._genes_of_states(k, orders, states)
            for n, genes, allowed in zip(members, moved_genes, is_allowed, strict=True):
                if allowed:
                    children[int(n)] = genes
        return children

    def _closest_state(self, space: SearchSpace, genes: Genes) -> list[int]:
        """The state of a space with the sizes of a program, or those closest to them."""
        levels = self._tile_sizes(genes)
        state: list[int] = []
        for k, lattice in enumerate(space.lattices):
            register, l1, l2 = (level[k] for level in levels)
            tiling = (register, l1, l2)
            if tiling not in lattice.ids and register not in lattice.rules.register_sizes:
                register = min(lattice.rules.register_sizes, key=lambda x: abs(np.log(x / tiling[0])))
            state.append(lattice.ids[tiling] if tiling in lattice.ids else lattice.closest(register, l1, l2))
        return state

    def _genes_of_states(self, space: int, orders: Indices, states: Indices) -> list[Genes]:
        sizes = self.spaces[space][0].sizes(states).reshape(len(states), -1)
        return [(space, int(o), *row) for o, row in zip(orders, sizes.tolist(), strict=True)]

    def _tile_sizes(self, genes: Genes) -> list[tuple[int, ...]]:
        flat, axes = genes[2:], len(self.problem.axes)
        return [tuple(flat[k : k + axes]) for k in range(0, len(flat), axes)]

    def program(self, genes: Genes) -> TileProgram:
        """The program.

        Raises:
            IndexError: there is no such sketch.
        """
        return TileProgram(self.problem, self.spaces[genes[0]][1][genes[1]], tuple(self._tile_sizes(genes)))

    def genes_of(self, program: KernelProgram) -> Genes | None:
        """The genes of a tile program of one of the sketches."""
        if not isinstance(program, TileProgram):
            return None
        for k, (_, sketches) in enumerate(self.spaces):
            if program.sketch in sketches:
                return (k, sketches.index(program.sketch), *(x for level in program.sizes for x in level))
        return None

    def sketch_name(self, genes: Genes) -> str:
        """A name of what it shares with programs of other sizes."""
        return f"{genes[0]} {genes[1]}"

    def describe(self, genes: Genes) -> str:
        """The program's axes with their sizes."""
        return str(self.program(genes))

    def predicted_times(self, genes: Sequence[Genes], parallel: bool) -> list[float]:
        """Nanoseconds by the cost model, for symbolic sizes the mean over the samples; programs of one sketch are asked
        about together."""

        def predict(_: object, alike: list[Genes]) -> np.ndarray:
            programs = [self.program(g) for g in alike]
            sizes = np.stack([p.array for p in programs])
            machine = self.machine if parallel else self.machine.with_cores(1)
            if self.problem.samples:
                return mean_time(self.problem, programs[0].sketch, sizes, machine)
            return program_times(self.problem, programs[0].sketch, sizes, machine).total_with_threads(machine)

        return evaluate_by_group(genes, lambda g: g[:2], predict)

    def features(self, genes: Sequence[Genes], parallel: bool) -> FeatureRows:
        """What a learned model knows of programs, at the representative sizes."""
        machine = self.machine if parallel else self.machine.with_cores(1)

        def rows(_: object, alike: list[Genes]) -> FeatureRows:
            programs = [self.program(g) for g in alike]
            return tile_features(self.problem, programs[0].sketch, np.stack([p.array for p in programs]), machine)

        return rows_by_group(genes, lambda g: g[:2], rows)

    def tree(self, genes: Genes, parallel: bool) -> TileTree:
        """The loops of a program; raises ScheduleError where they are not legal."""
        return program_tree(self.program(genes), self.task, parallel, self.machine.cores)


def with_drawn_register_tiles(space: SearchSpace, states: Indices, rng: np.random.Generator) -> Indices:
    """States with register tiles of which every size along an axis of results is as likely as any other, and tiles of
    one register tile each; one whose draws all give an illegal program stays as it is.

    Args:
        space: the graph.
        states: [state, axis]
        rng: draws the sizes.
    """
    states, is_left = states.copy(), np.ones(len(states), bool)
    for _ in range(MAX_DRAWS):
        drawn = states.copy()
        for k, (axis, lattice) in enumerate(zip(space.problem.axes, space.lattices, strict=True)):
            if not axis.is_reduction or k == space.sketch.lane:
                sizes = rng.choice(lattice.rules.register_sizes, len(states))
                drawn[:, k] = [lattice.closest(int(n), int(n), int(n)) for n in sizes]
        sizes = space.sizes(drawn)
        is_legal_draw = is_left & is_legal(space.problem, space.sketch, sizes) & space.are_lowerable(sizes)
        states = np.where(is_legal_draw[:, None], drawn, states)
        is_left &= ~is_legal_draw
    return states


def random_walk(
    space: SearchSpace, states: Indices, steps: Indices, growth_probability: "np.ndarray", rng: np.random.Generator
) -> Indices:
    """Where random edges lead.

    Args:
        space: the graph.
        states: [walk, axis]
        steps: edges to be tried, per walk.
        growth_probability: probability of an edge that enlarges a tile, per walk.
        rng: draws the edges.
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
