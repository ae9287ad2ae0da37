"""From the best states of walks on to the best program nearby: the neighbour that the cost model likes best, until none
is better.

Walks follow the benefits of single edges and know neither loop orders nor instructions; what they record lies near good
programs, rarely on one. All descents of a form run side by side as arrays.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tilewright.cost.analytical import expected
from tilewright.optimize.construct.gensor import Action
from tilewright.optimize.construct.ladder import EDGES, NONE, VTHREADS, Indices, Kind
from tilewright.optimize.construct.roller import Path
from tilewright.optimize.construct.space import Space
from tilewright.optimize.construct.walk import Move
from tilewright.tile.footprint import Numbers
from tilewright.tile.program import L1, LEVELS, REGISTER, Form, Sizes, literal_sizes

STARTS = 3
"""Recorded states of a form from which descents start: its best ones."""

STEPS = 64
"""Steps of a descent at most; it ends by itself, as every step is better than the one before."""


@dataclass(frozen=True, slots=True, eq=False)
class Descent:
    """One descent.

    Attributes:
        space: in which it went.
        form: whose programs were compared.
        states: [step, axis], the state that it started from first.
        edges: (axis, edge) of every step.
        nanoseconds: of its end.
    """

    space: Space
    form: Form
    states: Indices
    edges: tuple[tuple[int, int], ...]
    nanoseconds: float

    @property
    def sizes(self) -> Sizes:
        """Of its end, as a batch of one."""
        return self.space.sizes(self.states[-1:])

    def behind(self, others: Iterable["Descent"]) -> "Descent":
        """The descent behind the one that ended where it starts, if there is one."""
        first = next((d for d in others if (d.states[-1] == self.states[0]).all()), None)
        if first is None:
            return self
        return replace(self, states=np.concatenate([first.states, self.states[1:]]), edges=first.edges + self.edges)

    def moves(self) -> tuple[Move, ...]:
        """Its steps as those of a walk; each is certain."""
        found: list[Move] = []
        for (axis, edge), state in zip(self.edges, self.states, strict=False):
            vthread = edge >= Kind.VTHREAD
            kind = Kind.VTHREAD if vthread else Kind.TILE if edge < Kind.INV_TILE else Kind.INV_TILE
            label = Action(kind, axis, VTHREADS[edge - kind] if vthread else 1).label(self.space.problem)
            level = LEVELS[REGISTER if vthread else edge % Kind.INV_TILE]
            sizes = literal_sizes(self.space.sizes(state[None])[0])
            found.append(Move(level, sizes, label, ((label, 1.0),), True))
        return tuple(found)


def moves_from_growth(descent: Descent, path: Path) -> tuple[Move, ...]:
    """The steps of greedy growth to where a descent starts, and its own; none where growth does not lead there. It does
    to where it was full at a level, and from there to a shorter cut of the reduction."""
    space, start, cut = path.space, descent.states[0], descent.form.chunked
    others = np.arange(len(start)) != (-1 if cut is None else cut)
    ends = sorted((e for e in path.states if (e[others] == start[others]).all()), key=lambda e: (e != start).any())
    states, edges = [space.start()], list[tuple[int, int]]()

    def step(axis: int, edge: int) -> bool:
        after = states[-1].copy()
        after[axis] = space.ladders[axis].step_from(after[axis : axis + 1], np.array([edge]))[0]
        states.append(after)
        edges.append((axis, edge))
        return after[axis] != NONE

    for g in path.steps:
        if not ends or (states[-1] == ends[0]).all():
            break
        step(g.axis, Kind.TILE + g.level)
    while (states[-1] != start).any():
        # whatever else differs, growth did not lead here
        if not ends or cut is None or not step(cut, Kind.INV_TILE + L1):
            return ()
    way = replace(descent, states=np.concatenate([np.stack(states), descent.states[1:]]),
                  edges=(*edges, *descent.edges)).moves()  # fmt: skip
    return (*(replace(m, recorded=False) for m in way[: len(edges)]), *way[len(edges) :])


def descents(space: Space, form: Form, states: Indices, value: Numbers | None = None) -> tuple[Descent, ...]:
    """Descents from the best states.

    Args:
        space: of the form, or of one that differs only in the order of loops.
        form: whose programs are compared.
        states: to choose from [state, axis].
        value: their nanoseconds, where they are known.
    """
    value = _nanoseconds(space, form, states) if value is None else value
    first = np.argsort(value, kind="stable")[:STARTS]
    here, value = states[first], value[first]
    ways = [[state.copy()] for state in here]
    edges: list[list[tuple[int, int]]] = [[] for _ in here]
    going = np.arange(len(here))
    for _ in range(STEPS):
        targets, found = _around(space, form, here[going])
        better = np.flatnonzero(found.min(axis=1) < value[going])
        for k in better:
            edge, way = int(found[k].argmin()), going[k]
            here[way], value[way] = targets[k, edge], found[k, edge]
            ways[way].append(targets[k, edge])
            edges[way].append(divmod(edge, EDGES))
        going = going[better]
        if not len(going):
            break
    return tuple(
        Descent(space, form, np.stack(way), tuple(e), float(v)) for way, e, v in zip(ways, edges, value, strict=True)
    )


def _around(space: Space, form: Form, states: Indices) -> tuple[Indices, Numbers]:
    """The neighbours of states [state, edge, axis], and their nanoseconds; infinitely many where there is none."""
    targets, exists = neighbours(space, states)
    start, edge = np.nonzero(exists)
    found = targets[start, edge]
    good = space.possible(space.sizes(found))
    value = np.full(exists.shape, np.inf)
    if good.any():
        value[start[good], edge[good]] = _nanoseconds(space, form, found[good])
    return targets, value


def neighbours(space: Space, states: Indices) -> tuple[Indices, npt.NDArray[np.bool_]]:
    """Where every edge of every axis, at every level, leads from states [state, edge, axis], and whether it exists."""
    axes = states.shape[1]
    targets = np.repeat(states[:, None], axes * EDGES, axis=1)
    exists = np.zeros(targets.shape[:2], np.bool_)
    for axis, ladder in enumerate(space.ladders):
        found = ladder.rows(states[:, axis])
        columns = slice(axis * EDGES, (axis + 1) * EDGES)
        exists[:, columns] = found != NONE
        targets[:, columns, axis] = np.where(found != NONE, found, states[:, axis, None])
    return targets, exists


def _nanoseconds(space: Space, form: Form, states: Indices) -> Numbers:
    return expected(space.problem, form, space.sizes(states), space.machine)
