"""Where Gensor's walk converges, by value iteration over the whole graph of a small product (Gensor, Section IV-D).

Eq. 5 is V(i) = max over actions a of pi(a|i) V(j). With pi the normalised probabilities, as printed, V shrinks with
every iteration, as a product of numbers below 1. With pi the benefits themselves V grows, and is bounded where no cycle
gains: the benefit of growing a tile is a quotient of products Q F before and after, so that growing and shrinking back
gain nothing, `cache` is never undone, and V reaches its fixed point after as many iterations as the longest best path
has steps. The state at which the policy rests then has the highest payoff of all states that can be reached. With
`set_vthread` there are cycles that gain (set virtual threads, shrink the tile again), and V has no fixed point.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.cost.analytical import program_times
from tilewright.optimize.construct.gensor import (
    Action,
    Annealing,
    action_probabilities,
    all_actions,
    edge_targets,
    run_walks,
)
from tilewright.optimize.construct.search_space import SearchSpace
from tilewright.optimize.construct.tile_lattice import EdgeKind
from tilewright.tile.program import L2, LEVELS, REGISTER, Sketch

Array = np.ndarray[Any, Any]

MAX_STATES = 200_000
ANNEALING_ITERATION = 10
"""At which `cache` is weighted: half-way, 1.5."""

RELATIVE_TOLERANCE = 1e-9
MAX_VALUE = 1e200
NO_ACTION = -1
"""In a policy: no action gains anything."""


@dataclass(frozen=True, slots=True, eq=False)
class StateGraph:
    """All states that can be reached.

    Attributes:
        actions: the columns.
        states: [node, axis] with `levels` [node]; node 0 is the unscheduled state.
        targets: [node, action], nodes; the node itself where there is no such edge.
        probabilities: [node, action], as walks use them.
        benefits: [node, action], before they are normalised.
    """

    actions: tuple[Action, ...]
    states: Array
    levels: Array
    targets: Array
    probabilities: Array
    benefits: Array


def build_graph(space: SearchSpace, annealing: Annealing) -> StateGraph:
    """The graph of a space.

    Raises:
        ValueError: it has too many states to be listed.
    """
    actions = all_actions(space, annealing)
    numbers: dict[tuple[int, ...], int] = {(*(int(x) for x in space.initial_state()), L2): 0}
    nodes = list(numbers)
    targets: list[Array] = []
    chances: list[Array] = []
    done = 0
    while done < len(nodes):
        part = np.array(nodes[done : done + 4096], np.int64)
        done += len(part)
        state, level = part[:, :-1], part[:, -1]
        reached, exists = edge_targets(space, actions, state, level)
        p = action_probabilities(space, annealing, actions, (state, level), (reached, exists), ANNEALING_ITERATION)
        after = np.repeat(level[:, None], len(actions), axis=1)
        after[:, -1] = np.maximum(level - 1, REGISTER)
        successors = np.arange(len(part))[:, None].repeat(len(actions), axis=1)
        for i, j in np.argwhere((p > 0) & exists):
            key = (*(int(x) for x in reached[i, j]), int(after[i, j]))
            if key not in numbers:
                if len(nodes) == MAX_STATES:
                    raise ValueError(f"the graph has more than {MAX_STATES} states")
                numbers[key] = len(nodes)
                nodes.append(key)
            successors[i, j] = numbers[key]
        self_loops = np.arange(done - len(part), done)[:, None]
        targets.append(np.where((p > 0) & exists, successors, self_loops))
        chances.append(np.where(exists, p, 0.0))
    listed = np.array(nodes, np.int64)
    pi = np.concatenate(chances)
    to = np.concatenate(targets)
    states, levels = listed[:, :-1], listed[:, -1]
    return StateGraph(actions, states, levels, to, pi, _benefits(space, actions, (states, levels), to, pi))


def potential(space: SearchSpace, states: Array, levels: Array) -> Array:
    """1 / (Q F) per state: growing a tile multiplies it by the benefit of doing so."""
    sizes = space.sizes(states)
    rows = np.arange(len(states))
    box = [sizes[rows, levels, k].astype(np.float64) for k in range(states.shape[1])]
    return 1.0 / (space.costs.footprint(box, levels) * space.costs.traffic(box, levels))


def _benefits(
    space: SearchSpace, actions: tuple[Action, ...], here: tuple[Array, Array], to: Array, pi: Array
) -> Array:
    """Benefits from probabilities: what a tile action gains is known, and the others stand in proportion to it."""
    states, levels = here
    value = potential(space, states, levels)
    scale: Array = np.zeros(len(states))
    for j, a in enumerate(actions):
        if a.kind in (EdgeKind.TILE, EdgeKind.INV_TILE):
            known = (pi[:, j] > 0) & (scale == 0)
            scale[known] = value[to[known, j]] / value[known] / pi[known, j]
    return pi * scale[:, None]


@dataclass(frozen=True, slots=True, eq=False)
class ValueIteration:
    """What value iteration came to.

    Attributes:
        values: V per node.
        policy: the best action per node.
        iterations: until nothing changed; None where that did not happen.
    """

    values: Array
    policy: Array
    iterations: int | None


def iterate_values(to: Array, weights: Array, max_iterations: int = 1000) -> ValueIteration:
    """V(i) = max(1, max over actions of weight * V(j)) from V = 1: the highest payoff of any path that begins at i, the
    empty one included. The policy changes only where V grows, so that ties do not send it round in circles."""
    values: Array = np.ones(len(to))
    policy: Array = np.full(len(to), NO_ACTION, np.int64)
    for k in range(1, max_iterations + 1):
        reached = weights * values[to]
        fresh, best = reached.max(axis=1), reached.argmax(axis=1)
        grown = fresh > values * (1.0 + RELATIVE_TOLERANCE)
        if not grown.any():
            return ValueIteration(values, policy, k)
        policy = np.where(grown, best, policy)
        values = np.where(grown, fresh, values)
        if values.max() > MAX_VALUE:
            break
    return ValueIteration(values, policy, None)


def follow_policy(to: Array, policy: Array, max_steps: int = 1000) -> list[int]:
    """The nodes that a policy leads through from the unscheduled state, the one at which it rests last."""
    path = [0]
    while policy[path[-1]] != NO_ACTION and len(path) <= max_steps:
        path.append(int(to[path[-1], policy[path[-1]]]))
    return path


def iterate_printed_equation(to: Array, probabilities: Array, iterations: int = 100) -> tuple[float, float]:
    """Eq. 6 as printed, with probabilities: the logarithm (base 10) of V at the unscheduled state after so many
    iterations, and the part of all states whose best action still changed in the last one."""
    with np.errstate(divide="ignore"):
        weights = np.log10(probabilities)
    values: Array = np.zeros(len(to))
    policy: Array = np.zeros(len(to), np.int64)
    changing = 1.0
    for _ in range(iterations):
        reached = weights + values[to]
        fresh = reached.argmax(axis=1)
        changing = float((fresh != policy).mean())
        policy, values = fresh, reached.max(axis=1)
    return float(values[0]), changing


def run_experiment(space: SearchSpace, form: Sketch, annealing: Annealing, seed: int = 0) -> dict[str, Any]:
    """The whole experiment on one space, as JSON values.

    Times are those of the cost model over the shortest of all states.
    """
    g = build_graph(space, annealing)
    solution = iterate_values(g.targets, g.benefits)
    value, changing = iterate_printed_equation(g.targets, g.probabilities)
    time = program_times(space.problem, form, space.sizes(g.states), space.machine).total
    walked = run_walks(space, annealing, seed)
    recorded = program_times(space.problem, form, walked.recorded_sizes(), space.machine).total
    last = program_times(space.problem, form, space.sizes(walked.states[-1]), space.machine).total
    result: dict[str, Any] = {
        "states": len(g.states), "vthreads": annealing.vthreads, "iterations": solution.iterations,
        "printed_log10": value, "printed_changing": changing,
        "walks_best": float(recorded.min() / time.min()), "walks_last": float(np.median(last) / time.min()),
    }  # fmt: skip
    if solution.iterations is None:
        return result
    path = follow_policy(g.targets, solution.policy)
    gains = [float(g.benefits[i, solution.policy[i]]) for i in path[:-1]]
    final = path[-1]
    return {
        **result, "path": len(path) - 1, "payoff": float(solution.values[0]), "along": float(np.prod(gains)),
        "rests": bool(solution.policy[final] == NO_ACTION), "level": LEVELS[g.levels[final]],
        "final": [[int(x) for x in level] for level in space.sizes(g.states[final : final + 1])[0]],
        "final_time": float(time[final] / time.min()),
    }  # fmt: skip
