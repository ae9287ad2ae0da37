"""State graph of a construction: nodes are tile sizes at a level, edges are the actions between them."""

from dataclasses import dataclass
from itertools import pairwise

from tilewright.optimize.construct.roller import GrowthPath
from tilewright.optimize.construct.trajectory import Trajectory
from tilewright.tile.program import L2, LEVELS, TileProgram, size_tuples

Tiles = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class State:
    """A node.

    Attributes:
        level: the memory level that is being tiled.
        sizes: tile sizes per level and axis.
        recorded: whether it takes part in the ranking.
        best: whether it is the program that was ranked first.
    """

    level: str
    sizes: Tiles
    recorded: bool
    best: bool


@dataclass(frozen=True, slots=True)
class Edge:
    """A move between two states, by their numbers.

    Attributes:
        source, target: indices of the states.
        action: the name of the action.
        weight: the action's probability in a walk, its score in greedy growth.
        count: how often the walk took the edge.
        chosen: whether the edge is on the path from the start to the best state.
    """

    source: int
    target: int
    action: str
    weight: float
    count: int
    chosen: bool


@dataclass(frozen=True, slots=True)
class StateGraph:
    """The states in order of the first visit, and the edges between them."""

    axes: tuple[str, ...]
    states: tuple[State, ...]
    edges: tuple[Edge, ...]


@dataclass(frozen=True, slots=True)
class _Visit:
    """A visit of a state, with the action that led there."""

    level: str
    sizes: Tiles
    action: str
    weight: float
    recorded: bool


def graph_of_trajectory(trajectory: Trajectory, best: TileProgram) -> StateGraph:
    """The distinct states of a walk; the chosen path is the walk to the best state without cycles."""
    visits = [_Visit(trajectory.steps[0].level, trajectory.steps[0].sizes, "", 1.0, False)]
    for k, m in enumerate(trajectory.steps):
        last = k + 1 == len(trajectory.steps)
        level = _level_after(m.level, m.action) if last else trajectory.steps[k + 1].level
        sizes = trajectory.final if last else trajectory.steps[k + 1].sizes
        weight = dict(m.probabilities).get(m.action, 1.0)
        visits.append(_Visit(level, sizes, m.action, weight, m.recorded or last))
    return _build_graph(tuple(a.name for a in trajectory.problem.axes), visits, best)


def graph_of_growth(path: GrowthPath, best: TileProgram) -> StateGraph:
    """The states of greedy growth, a single path."""
    names = tuple(a.name for a in path.space.problem.axes)
    start = path.space.sizes(path.space.initial_state()[None])[0]
    level = path.steps[0].level if path.steps else L2
    visits = [_Visit(LEVELS[level], size_tuples(start), "", 1.0, not path.steps)]
    for k, g in enumerate(path.steps):
        last = k + 1 == len(path.steps)
        visits.append(_Visit(LEVELS[g.level], g.sizes, f"tile({names[g.axis]})", g.score, last))
    return _build_graph(names, visits, best)


def _level_after(level: str, action: str) -> str:
    return LEVELS[max(0, LEVELS.index(level) - 1)] if action == "cache" else level


def _build_graph(axes: tuple[str, ...], visits: list[_Visit], best: TileProgram) -> StateGraph:
    numbers: dict[tuple[str, Tiles], int] = {}
    recorded: set[int] = set()
    trail: list[int] = []
    moves: dict[tuple[int, int, str], list[float]] = {}
    for k, v in enumerate(visits):
        here = numbers.setdefault((v.level, v.sizes), len(numbers))
        if v.recorded:
            recorded.add(here)
        # a walk that can do nothing stays where it is
        if k and trail[-1] != here:
            moves.setdefault((trail[-1], here, v.action), []).append(v.weight)
        trail.append(here)
    end = next((k for k, v in enumerate(visits) if v.sizes == best.sizes and trail[k] in recorded), len(trail) - 1)
    direct = _remove_cycles(trail[: end + 1])
    chosen = set(pairwise(direct))
    states = tuple(
        State(level, sizes, number in recorded, number == trail[end] and sizes == best.sizes)
        for (level, sizes), number in numbers.items()
    )
    edges = tuple(
        Edge(a, b, action, weights[0], len(weights), (a, b) in chosen) for (a, b, action), weights in moves.items()
    )
    return StateGraph(axes, states, edges)


def _remove_cycles(trail: list[int]) -> list[int]:
    """A way from the first to the last of a trail that passes no state twice."""
    way: list[int] = []
    for state in trail:
        if state in way:
            del way[way.index(state) :]
        way.append(state)
    return way
