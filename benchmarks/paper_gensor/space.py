"""Programs of the constructors' space, drawn at random or changed a little: along the edges of the same graph, every
edge as likely as any other."""

from dataclasses import dataclass

import numpy as np

from tilewright.cost.analytical import times
from tilewright.driver.offline import split_offline
from tilewright.loops.ir import Func
from tilewright.machine.model import Machine
from tilewright.machine.stored import machine_for
from tilewright.optimize.construct.ladder import NONE, Indices, Kind
from tilewright.optimize.construct.optimizer import spaces
from tilewright.optimize.construct.space import Space
from tilewright.optimize.interface import Task
from tilewright.tile.lower import lower
from tilewright.tile.problem import problem_of
from tilewright.tile.program import LEVELS, Form, TileProgram

STEPS = 40
"""Edges that a random program is away from the start at most."""


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A program, and where in the space it is: number of the space, form, state."""

    space: int
    form: int
    state: tuple[int, ...]
    program: TileProgram

    @property
    def key(self) -> str:
        """Equal for equal programs."""
        return f"{self.program.form} {self.program.sizes}"


@dataclass(frozen=True, slots=True, eq=False)
class Programs:
    """All programs of a task on one thread.

    Attributes:
        task: the kernel.
        machine: with one core.
        spaces: with their forms.
    """

    task: Task
    machine: Machine
    spaces: tuple[tuple[Space, tuple[Form, ...]], ...]

    @staticmethod
    def of(task: Task) -> "Programs":
        """The programs of a task that can be constructed."""
        problem = problem_of(task.func, task.constants)
        assert problem is not None
        machine = machine_for(task.target).with_cores(1)
        return Programs(task, machine, tuple((s, tuple(f)) for s, f in spaces(problem, task, machine).items()))

    def random(self, count: int, rng: np.random.Generator) -> list[Candidate]:
        """Programs at the ends of random walks; each walk has its own liking for growth and its own length."""
        found: list[Candidate] = []
        for k, (space, forms) in enumerate(self.spaces):
            many = -(-count // len(self.spaces))
            start = np.repeat(space.start()[None], many, axis=0)
            states = wandered(space, start, rng.integers(1, STEPS, many), rng.uniform(0.4, 1.0, many), rng)
            found += [self.candidate(k, int(rng.integers(len(forms))), state) for state in states]
        return [found[int(k)] for k in rng.permutation(len(found))[:count]]

    def changed(self, parent: Candidate, rng: np.random.Generator) -> Candidate:
        """A program a few edges from another one, sometimes with its loops in another order."""
        space, forms = self.spaces[parent.space]
        steps = rng.integers(1, 5, 1)
        state = wandered(space, np.array([parent.state], np.int64), steps, np.array([0.5]), rng)[0]
        form = int(rng.integers(len(forms))) if rng.random() < 0.2 else parent.form
        return self.candidate(parent.space, form, state)

    def candidate(self, space: int, form: int, state: Indices) -> Candidate:
        """The program of a state."""
        where, forms = self.spaces[space]
        sizes = where.sizes(state[None])[0]
        program = TileProgram.of(where.problem, forms[form], sizes)
        return Candidate(space, form, tuple(int(x) for x in state), program)

    def predicted(self, candidates: list[Candidate]) -> list[float]:
        """Nanoseconds by the cost model; programs of one form are asked about together."""
        found = [0.0] * len(candidates)
        by_form: dict[tuple[int, int], list[int]] = {}
        for k, c in enumerate(candidates):
            by_form.setdefault((c.space, c.form), []).append(k)
        for own in by_form.values():
            first = candidates[own[0]].program
            sizes = np.stack([candidates[k].program.array for k in own])
            for k, ns in zip(own, times(first.problem, first.form, sizes, self.machine).total, strict=True):
                found[k] = float(ns)
        return found

    def predicted_program(self, program: TileProgram) -> float:
        """Nanoseconds of one program by the cost model."""
        return float(times(program.problem, program.form, program.array[None], self.machine).total[0])

    def func(self, program: TileProgram) -> Func:
        """What runs: the program's loops without what is packed at compile time.

        Raises:
            ScheduleError: the program can't be lowered.
        """
        return split_offline(lower(program, self.task.func, parallel=False).func, self.task.constants).func


def wandered(space: Space, states: Indices, steps: Indices, growing: "np.ndarray", rng: np.random.Generator) -> Indices:
    """Where random edges lead.

    Args:
        space: the graph.
        states: [walk, axis]
        steps: edges to be tried, per walk.
        growing: how likely an edge is one that makes a tile larger, per walk.
    """
    states = states.copy()
    axes = states.shape[1]
    for step in range(int(steps.max())):
        axis = rng.integers(axes, size=len(states))
        kind = np.where(rng.random(len(states)) < growing, Kind.TILE, Kind.INV_TILE)
        edge = kind + rng.integers(len(LEVELS), size=len(states))
        moved = states.copy()
        for a in range(axes):
            mine = np.flatnonzero((axis == a) & (steps > step))
            if len(mine):
                target = space.ladders[a].step_from(states[mine, a], edge[mine])
                moved[mine, a] = np.where(target == NONE, states[mine, a], target)
        legal = space.possible(space.sizes(moved))
        states = np.where(legal[:, None], moved, states)
    return states
