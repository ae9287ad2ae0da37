"""From the best states of walks on to the best program nearby: the neighbour that the cost model likes best, until none
is better.

Walks follow the benefits of single edges and know neither loop orders nor instructions; what they record lies near good
programs, rarely on one. All descents of a form run side by side as arrays.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tilewright.cost.analytical import mean_time
from tilewright.cost.footprint import Numbers
from tilewright.optimize.construct.gensor import Action
from tilewright.optimize.construct.roller import GrowthPath
from tilewright.optimize.construct.search_space import SearchSpace
from tilewright.optimize.construct.tile_lattice import NO_EDGE, NUM_EDGES, VTHREADS, EdgeKind, Indices
from tilewright.optimize.construct.trajectory import TrajectoryStep
from tilewright.tile.program import L1, LEVELS, REGISTER, Sizes, Sketch, size_tuples

MAX_STARTS = 3
"""Recorded states of a form from which descents start: its best ones."""

MAX_STEPS = 64
"""Steps of a descent at most; it ends by itself, as every step is better than the one before."""


@dataclass(frozen=True, slots=True, eq=False)
class LocalSearch:
    """One descent.

    Attributes:
        space: in which it went.
        form: whose programs were compared.
        states: [step, axis], the state that it started from first.
        edges: (axis, edge) of every step.
        nanoseconds: of its end.
    """

    space: SearchSpace
    sketch: Sketch
    states: Indices
    edges: tuple[tuple[int, int], ...]
    nanoseconds: float

    @property
    def sizes(self) -> Sizes:
        """Of its end, as a batch of one."""
        return self.space.sizes(self.states[-1:])

    def continued_from(self, others: Iterable["LocalSearch"]) -> "LocalSearch":
        """The descent behind the one that ended where it starts, if there is one."""
        first = next((d for d in others if (d.states[-1] == self.states[0]).all()), None)
        if first is None:
            return self
        return replace(self, states=np.concatenate([first.states, self.states[1:]]), edges=first.edges + self.edges)

    def trajectory_steps(self) -> tuple[TrajectoryStep, ...]:
        """Its steps as those of a walk; each is certain."""
        found: list[TrajectoryStep] = []
        for (axis, edge), state in zip(self.edges, self.states, strict=False):
            vthread = edge >= EdgeKind.VTHREAD
            kind = EdgeKind.VTHREAD if vthread else EdgeKind.TILE if edge < EdgeKind.INV_TILE else EdgeKind.INV_TILE
            label = Action(kind, axis, VTHREADS[edge - kind] if vthread else 1).label(self.space.problem)
            level = LEVELS[REGISTER if vthread else edge % EdgeKind.INV_TILE]
            sizes = size_tuples(self.space.sizes(state[None])[0])
            found.append(TrajectoryStep(level, sizes, label, ((label, 1.0),), True))
        return tuple(found)


def growth_trajectory(search: LocalSearch, path: GrowthPath) -> tuple[TrajectoryStep, ...]:
    """The steps of greedy growth to where a descent starts, and its own; none where growth does not lead there. It does
    to where it was full at a level, and from there to a shorter cut of the reduction."""
    space, start, cut = path.space, search.states[0], search.sketch.k_block_axis
    others = np.arange(len(start)) != (-1 if cut is None else cut)
    ends = sorted((e for e in path.states if (e[others] == start[others]).all()), key=lambda e: (e != start).any())
    states, edges = [space.initial_state()], list[tuple[int, int]]()

    def step(axis: int, edge: int) -> bool:
        after = states[-1].copy()
        after[axis] = space.lattices[axis].successor(after[axis : axis + 1], np.array([edge]))[0]
        states.append(after)
        edges.append((axis, edge))
        return after[axis] != NO_EDGE

    for g in path.steps:
        if not ends or (states[-1] == ends[0]).all():
            break
        step(g.axis, EdgeKind.TILE + g.level)
    while (states[-1] != start).any():
        # whatever else differs, growth did not lead here
        if not ends or cut is None or not step(cut, EdgeKind.INV_TILE + L1):
            return ()
    way = replace(search, states=np.concatenate([np.stack(states), search.states[1:]]),
                  edges=(*edges, *search.edges)).trajectory_steps()  # fmt: skip
    return (*(replace(m, recorded=False) for m in way[: len(edges)]), *way[len(edges) :])


def search_locally(
    space: SearchSpace, sketch: Sketch, states: Indices, nanoseconds: Numbers | None = None
) -> tuple[LocalSearch, ...]:
    """Descents from the best states.

    Args:
        space: of the form, or of one that differs only in the order of loops.
        form: whose programs are compared.
        states: to choose from [state, axis].
        value: their nanoseconds, where they are known.
    """
    nanoseconds = _nanoseconds(space, sketch, states) if nanoseconds is None else nanoseconds
    first = np.argsort(nanoseconds, kind="stable")[:MAX_STARTS]
    here, nanoseconds = states[first], nanoseconds[first]
    ways = [[state.copy()] for state in here]
    edges: list[list[tuple[int, int]]] = [[] for _ in here]
    going = np.arange(len(here))
    for _ in range(MAX_STEPS):
        targets, found = _evaluate_neighbours(space, sketch, here[going])
        better = np.flatnonzero(found.min(axis=1) < nanoseconds[going])
        for k in better:
            edge, way = int(found[k].argmin()), going[k]
            here[way], nanoseconds[way] = targets[k, edge], found[k, edge]
            ways[way].append(targets[k, edge])
            edges[way].append(divmod(edge, NUM_EDGES))
        going = going[better]
        if not len(going):
            break
    return tuple(
        LocalSearch(space, sketch, np.stack(way), tuple(e), float(v))
        for way, e, v in zip(ways, edges, nanoseconds, strict=True)
    )


def _evaluate_neighbours(space: SearchSpace, sketch: Sketch, states: Indices) -> tuple[Indices, Numbers]:
    """The neighbours of states [state, edge, axis], and their nanoseconds; infinitely many where there is none."""
    targets, exists = neighbours(space, states)
    start, edge = np.nonzero(exists)
    found = targets[start, edge]
    good = space.are_lowerable(space.sizes(found))
    value = np.full(exists.shape, np.inf)
    if good.any():
        value[start[good], edge[good]] = _nanoseconds(space, sketch, found[good])
    return targets, value


def neighbours(space: SearchSpace, states: Indices) -> tuple[Indices, npt.NDArray[np.bool_]]:
    """Where every edge of every axis, at every level, leads from states [state, edge, axis], and whether it exists."""
    axes = states.shape[1]
    targets = np.repeat(states[:, None], axes * NUM_EDGES, axis=1)
    exists = np.zeros(targets.shape[:2], np.bool_)
    for axis, ladder in enumerate(space.lattices):
        found = ladder.successors(states[:, axis])
        columns = slice(axis * NUM_EDGES, (axis + 1) * NUM_EDGES)
        exists[:, columns] = found != NO_EDGE
        targets[:, columns, axis] = np.where(found != NO_EDGE, found, states[:, axis, None])
    return targets, exists


def _nanoseconds(space: SearchSpace, sketch: Sketch, states: Indices) -> Numbers:
    return mean_time(space.problem, sketch, space.sizes(states), space.machine)
