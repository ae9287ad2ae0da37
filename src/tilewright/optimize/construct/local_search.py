"""Local search: hill climbing from a walk's best recorded states by the cost model.

Walks follow the benefits of single edges and know neither loop orders nor instruction costs; the states that they
record lie close to good programs, rarely on one. All searches of a sketch run batched in arrays.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tilewright.cost.footprint import Numbers
from tilewright.optimize.construct.gensor import Action
from tilewright.optimize.construct.lock_step import SteppedSearch
from tilewright.optimize.construct.roller import GrowthPath
from tilewright.optimize.construct.search_space import SearchSpace
from tilewright.optimize.construct.tile_lattice import NO_EDGE, NUM_EDGES, VTHREADS, EdgeKind, Indices
from tilewright.optimize.construct.trajectory import TrajectoryStep
from tilewright.tile.program import L1, LEVELS, REGISTER, Sizes, Sketch, size_tuples

MAX_STARTS = 3
"""Recorded states of a sketch from which searches start: its best ones."""

MAX_STEPS = 64
"""Steps of a search at most; it ends by itself, as every step improves the time."""


@dataclass(frozen=True, slots=True, eq=False)
class LocalSearch:
    """One search.

    Attributes:
        space: the search space.
        sketch: the sketch whose programs were compared.
        states: [step, axis], the start first.
        edges: (axis, edge) of every step.
        nanoseconds: the time at the end.
    """

    space: SearchSpace
    sketch: Sketch
    states: Indices
    edges: tuple[tuple[int, int], ...]
    nanoseconds: float

    @property
    def sizes(self) -> Sizes:
        """Sizes of the final state, as a batch of one."""
        return self.space.sizes(self.states[-1:])

    def continued_from(self, others: Iterable["LocalSearch"]) -> "LocalSearch":
        """This search prefixed by the one that ended where it starts, if there is one."""
        previous = next((search for search in others if (search.states[-1] == self.states[0]).all()), None)
        if previous is None:
            return self
        return replace(
            self, states=np.concatenate([previous.states, self.states[1:]]), edges=previous.edges + self.edges
        )

    def trajectory_steps(self) -> tuple[TrajectoryStep, ...]:
        """Its steps as those of a trajectory, each of probability 1."""
        steps: list[TrajectoryStep] = []
        for (axis, edge), state in zip(self.edges, self.states, strict=False):
            vthread = edge >= EdgeKind.VTHREAD
            kind = EdgeKind.VTHREAD if vthread else EdgeKind.TILE if edge < EdgeKind.INV_TILE else EdgeKind.INV_TILE
            label = Action(kind, axis, VTHREADS[edge - kind] if vthread else 1).label(self.space.problem)
            level = LEVELS[REGISTER if vthread else edge % EdgeKind.INV_TILE]
            sizes = size_tuples(self.space.sizes(state[None])[0])
            steps.append(TrajectoryStep(level, sizes, label, ((label, 1.0),), True))
        return tuple(steps)


def growth_trajectory(search: LocalSearch, path: GrowthPath) -> tuple[TrajectoryStep, ...]:
    """The steps of greedy growth to the start of a search, followed by the search's own; empty where growth does not
    lead there. It leads to its states at the end of every level, and from there to smaller K-blocks."""
    space, start, k_block_axis = path.space, search.states[0], search.sketch.k_block_axis
    other_axes = np.arange(len(start)) != (-1 if k_block_axis is None else k_block_axis)
    level_ends = sorted(
        (e for e in path.states if (e[other_axes] == start[other_axes]).all()), key=lambda e: (e != start).any()
    )
    states, edges = [space.initial_state()], list[tuple[int, int]]()

    def step(axis: int, edge: int) -> bool:
        successor = states[-1].copy()
        successor[axis] = space.lattices[axis].successor(successor[axis : axis + 1], np.array([edge]))[0]
        states.append(successor)
        edges.append((axis, edge))
        return successor[axis] != NO_EDGE

    for g in path.steps:
        if not level_ends or (states[-1] == level_ends[0]).all():
            break
        step(g.axis, EdgeKind.TILE + g.level)
    while (states[-1] != start).any():
        # only the K-block may differ; otherwise growth did not lead here
        if not level_ends or k_block_axis is None or not step(k_block_axis, EdgeKind.INV_TILE + L1):
            return ()
    steps = replace(search, states=np.concatenate([np.stack(states), search.states[1:]]),
                  edges=(*edges, *search.edges)).trajectory_steps()  # fmt: skip
    return (*(replace(m, recorded=False) for m in steps[: len(edges)]), *steps[len(edges) :])


def search_locally(
    space: SearchSpace, sketch: Sketch, states: Indices, nanoseconds: Numbers | None = None
) -> SteppedSearch[tuple[LocalSearch, ...]]:
    """Searches from the best states.

    Args:
        space: of the sketch, or of one that differs only in the order of loops.
        sketch: the sketch whose programs are compared.
        states: candidates for starts [state, axis].
        nanoseconds: their times, if known.
    """
    if nanoseconds is None:
        nanoseconds = yield from space.nanoseconds(sketch, states)
    best = np.argsort(nanoseconds, kind="stable")[:MAX_STARTS]
    return (yield from _search_from(space, sketch, states[best], nanoseconds[best]))


def search_locally_from_each(
    space: SearchSpace, sketch: Sketch, groups: Sequence[Indices]
) -> SteppedSearch[tuple[LocalSearch, ...]]:
    """The searches from the best states of every group, as `search_locally` makes them, all at once: formulas cost as
    much for few candidates as for many."""
    states = np.concatenate(groups)
    nanoseconds = yield from space.nanoseconds(sketch, states)
    firsts = np.cumsum([0, *(len(g) for g in groups[:-1])])
    best = np.concatenate(
        [
            first + np.argsort(nanoseconds[first : first + len(group)], kind="stable")[:MAX_STARTS]
            for first, group in zip(firsts, groups, strict=True)
        ]
    )
    return (yield from _search_from(space, sketch, states[best], nanoseconds[best]))


def _search_from(
    space: SearchSpace, sketch: Sketch, current: Indices, nanoseconds: Numbers
) -> SteppedSearch[tuple[LocalSearch, ...]]:
    """Searches from states [state, axis] with their times; both arrays are the searches' own."""
    visited = [[state.copy()] for state in current]
    edges: list[list[tuple[int, int]]] = [[] for _ in current]
    active = np.arange(len(current))
    for _ in range(MAX_STEPS):
        targets, times = yield from _evaluate_neighbours(space, sketch, current[active])
        better = np.flatnonzero(times.min(axis=1) < nanoseconds[active])
        for k in better:
            edge, number = int(times[k].argmin()), active[k]
            current[number], nanoseconds[number] = targets[k, edge], times[k, edge]
            visited[number].append(targets[k, edge])
            edges[number].append(divmod(edge, NUM_EDGES))
        active = active[better]
        if not len(active):
            break
    return tuple(
        LocalSearch(space, sketch, np.stack(number), tuple(path), float(time))
        for number, path, time in zip(visited, edges, nanoseconds, strict=True)
    )


def _evaluate_neighbours(space: SearchSpace, sketch: Sketch, states: Indices) -> SteppedSearch[tuple[Indices, Numbers]]:
    """The neighbours of states [state, edge, axis] and their nanoseconds; infinite where there is none."""
    targets, exists = neighbours(space, states)
    start, edge = np.nonzero(exists)
    candidates = targets[start, edge]
    lowerable = space.are_lowerable(space.sizes(candidates))
    nanoseconds = np.full(exists.shape, np.inf)
    if lowerable.any():
        times = yield from space.nanoseconds(sketch, candidates[lowerable])
        nanoseconds[start[lowerable], edge[lowerable]] = times
    return targets, nanoseconds


def neighbours(space: SearchSpace, states: Indices) -> tuple[Indices, npt.NDArray[np.bool_]]:
    """The state that every edge of every axis, at every level, leads to [state, edge, axis], and whether the edge
    exists."""
    axes = states.shape[1]
    targets = np.repeat(states[:, None], axes * NUM_EDGES, axis=1)
    exists = np.zeros(targets.shape[:2], np.bool_)
    for axis, lattice in enumerate(space.lattices):
        successors = lattice.successors(states[:, axis])
        columns = slice(axis * NUM_EDGES, (axis + 1) * NUM_EDGES)
        exists[:, columns] = successors != NO_EDGE
        targets[:, columns, axis] = np.where(successors != NO_EDGE, successors, states[:, axis, None])
    return targets, exists
