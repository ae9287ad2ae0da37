"""Gensor: an annealed Markov walk over the state graph of tile programs; the cost model ranks the recorded states.

In every state each edge has a benefit: for `tile` and `inv_tile` the traffic saved per memory paid, for `cache` the
time saved by loading the tile from the nearer level, for `set_vthread` the stalls removed. Normalised benefits are the
probabilities of the edges. The temperature halves with every step; states are recorded while it is high enough, and the
last one always. Several walks run batched in arrays.

On a CPU a virtual thread is a sub-tile of the register tile, interleaved with the others: `set_vthread(d, V)` makes the
register tile V times as long along d in one step.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, lru_cache
from math import exp, log, prod

import numpy as np
import numpy.typing as npt

from tilewright.cost.footprint import Numbers
from tilewright.machine.model import Machine
from tilewright.optimize.construct.lock_step import SteppedSearch, run
from tilewright.optimize.construct.search_space import SearchSpace
from tilewright.optimize.construct.state_costs import StateCosts
from tilewright.optimize.construct.tile_lattice import NO_EDGE, VTHREADS, EdgeKind, Indices
from tilewright.optimize.construct.trajectory import Trajectory, TrajectoryStep
from tilewright.tile.problem import Problem
from tilewright.tile.program import L1, L2, LEVELS, REGISTER, Sizes, size_tuples


class Reading(StrEnum):
    """The reading of the benefit of growing a tile (Gensor, Eq. 1).

    Attributes:
        INTENDED: (Q/Q') / (F'/F), as the text around the equation says: traffic saved per memory paid.
        PRINTED: (Q F') / (Q' F), as the equation is printed: growth of memory counts in favour.
    """

    INTENDED = "intended"
    PRINTED = "printed"


@dataclass(frozen=True, slots=True)
class Annealing:
    """Parameters of the walks.

    Attributes:
        walks: number of walks in a batch.
        start, end: powers of two of the first temperature and of that at which walks end.
        reading: of Eq. 1.
        vthreads: whether `set_vthread` is among the actions.
    """

    walks: int = 32
    start: int = 70
    end: int = -30
    reading: Reading = Reading.INTENDED
    vthreads: bool = True

    @property
    def iterations(self) -> int:
        """Steps of a walk."""
        return self.start - self.end

    def temperature(self, iteration: int) -> float:
        """The temperature of a step."""
        return 2.0 ** (self.start - iteration)


def record_probability(temperature: float) -> float:
    """The probability that a state is recorded: 1 - 1 / (1 + exp(-0.5 (-log T - 10)))."""
    return 1.0 - 1.0 / (1.0 + exp(min(700.0, -0.5 * (-log(temperature) - 10.0))))


def cache_weight(iteration: int) -> float:
    """The weight of the benefit of `cache`; it rises, so that walks reach the innermost level in the end."""
    return 3.0 / (1.0 + exp(-(log(5.0) / 10.0) * (iteration - 10)))


@dataclass(frozen=True, slots=True, eq=False)
class Action:
    """An edge of the state graph along one axis, or `cache` (axis None)."""

    kind: EdgeKind | None
    axis: int | None
    vthreads: int = 1

    def label(self, problem: Problem) -> str:
        """Its name, as in `tile(v_i)`."""
        if self.kind is None or self.axis is None:
            return "cache"
        name = problem.axes[self.axis].name
        names = {EdgeKind.TILE: "tile", EdgeKind.INV_TILE: "inv_tile"}
        return f"{names[self.kind]}({name})" if self.kind in names else f"set_vthread({name}, {self.vthreads})"


# without slots, because cached properties need a place
@dataclass(frozen=True, eq=False)
class WalkBatch:
    """All walks of a sketch.

    Attributes:
        space: the search space.
        actions: the columns of `probabilities`.
        states: [step, walk, axis], one more than there are steps.
        levels: [step, walk]
        chosen: [step, walk], positions in `actions`.
        probabilities: [step, walk, action]
        recorded: [step, walk], whether the state after the step was recorded.
    """

    space: SearchSpace
    actions: tuple[Action, ...]
    states: Indices
    levels: Indices
    chosen: Indices
    probabilities: Numbers
    recorded: npt.NDArray[np.bool_]

    @cached_property
    def _recorded_states(self) -> Indices:
        states = np.concatenate([self.states[1:][self.recorded], self.states[-1]])
        # one number per state sorts faster than rows do, in the same order
        bases = [len(lattice.tilings) for lattice in self.space.lattices]
        if prod(bases) >= 1 << 62:
            return np.unique(states, axis=0)
        keys = np.ravel_multi_index(tuple(states.T), bases)
        return states[np.unique(keys, return_index=True)[1]]

    def recorded_states(self) -> Indices:
        """All recorded states and the last ones [state, axis], without duplicates."""
        return self._recorded_states

    def recorded_sizes(self) -> Sizes:
        """Their sizes."""
        return self.space.sizes(self.recorded_states())

    def trajectory(self, number: int, steps: int | None = None) -> Trajectory:
        """The steps of one walk, or the first ones."""
        labels = [a.label(self.space.problem) for a in self.actions]
        sizes = self.space.sizes(self.states[:, number])
        trajectory: list[TrajectoryStep] = []
        steps = len(self.chosen) if steps is None else steps
        for k in range(steps):
            probabilities = self.probabilities[k, number]
            possible = tuple((labels[j], float(probabilities[j])) for j in np.flatnonzero(probabilities))
            level, action = LEVELS[self.levels[k, number]], labels[self.chosen[k, number]]
            recorded = bool(self.recorded[k, number])
            trajectory.append(TrajectoryStep(level, size_tuples(sizes[k]), action, possible, recorded))
        return Trajectory(self.space.problem, self.space.sketch, tuple(trajectory), size_tuples(sizes[steps]))


def run_walks(space: SearchSpace, annealing: Annealing, seed: int) -> WalkBatch:
    """A batch of walks through a search space."""
    return run(walk(space, annealing, seed))


def walk(space: SearchSpace, annealing: Annealing, seed: int) -> SteppedSearch[WalkBatch]:
    """Runs a batch of walks through a search space."""
    rng = np.random.default_rng(seed)
    actions = all_actions(space, annealing)
    count, steps = annealing.walks, annealing.iterations
    state = np.repeat(space.initial_state()[None], count, axis=0)
    level = np.full(count, L2, np.int64)
    states, levels = [state], [level]
    chosen, probabilities = [], []
    recorded = np.zeros((steps, count), np.bool_)
    visited = _VisitedStates(space, annealing, actions)
    for i in range(steps):
        ids = yield from visited.ids(state, level)
        p = visited.probabilities(ids, i)
        pick = (p.cumsum(axis=1) < rng.random(count)[:, None]).sum(axis=1)
        pick = np.minimum(pick, len(actions) - 1)
        recorded[i] = rng.random(count) < record_probability(annealing.temperature(i))
        state = visited.successors(ids, pick)
        level = np.where(pick == len(actions) - 1, np.maximum(level - 1, REGISTER), level)
        states.append(state)
        levels.append(level)
        chosen.append(pick)
        probabilities.append(p)
    return WalkBatch(
        space,
        actions,
        np.stack(states),
        np.stack(levels),
        np.stack(chosen).astype(np.int64),
        np.stack(probabilities),
        recorded,
    )


def all_actions(space: SearchSpace, annealing: Annealing) -> tuple[Action, ...]:
    """All actions, `cache` last."""
    actions = [Action(kind, a) for a in range(len(space.problem.axes)) for kind in (EdgeKind.TILE, EdgeKind.INV_TILE)]
    if annealing.vthreads:
        actions += [Action(EdgeKind.VTHREAD, a, v) for a in space.problem.spatial for v in VTHREADS]
    return (*actions, Action(None, None))


def edge_targets(
    space: SearchSpace, actions: tuple[Action, ...], state: Indices, level: Indices
) -> tuple[Indices, npt.NDArray[np.bool_]]:
    """The state that every action leads to [walk, action, axis], and whether there is such an edge."""
    rows = np.array([lattice.successors(state[:, axis]) for axis, lattice in enumerate(space.lattices)])
    axis, column, vthread = _action_columns(actions)
    next_tilings = rows[axis, np.arange(len(level))[:, None], column + np.where(vthread, 0, level[:, None])]
    exists = (next_tilings != NO_EDGE) & ((vthread == 0) | (level == REGISTER)[:, None])
    targets = np.repeat(state[:, None], len(actions), axis=1)
    targets[:, np.arange(len(axis)), axis] = np.where(exists, next_tilings, state[:, axis])
    return targets, np.concatenate([exists, (level > REGISTER)[:, None]], axis=1)


@lru_cache(maxsize=16)
def _action_columns(actions: tuple[Action, ...]) -> tuple[Indices, Indices, Indices]:
    """Per action except `cache` its axis, its first column in the axis' table, and whether that is its only column."""
    columns = [(a.axis, *_action_column(a)) for a in actions if a.axis is not None]
    axis, column, vthread = (np.array(x, np.int64) for x in zip(*columns, strict=True))
    return axis, column, vthread


def _action_column(action: Action) -> tuple[int, bool]:
    """The first column of an action in the lattices' tables, and whether it is the only one, the same for all
    levels."""
    if action.kind is EdgeKind.VTHREAD:
        return int(action.kind) + VTHREADS.index(action.vthreads), True
    return int(action.kind or 0), False


def action_probabilities(
    space: SearchSpace,
    annealing: Annealing,
    actions: tuple[Action, ...],
    current: tuple[Indices, Indices],
    successors: tuple[Indices, npt.NDArray[np.bool_]],
    iteration: int,
) -> Numbers:
    """The probability of every action [walk, action]; all on the last column where no action is possible."""
    edges = Edges(space, annealing, actions, current, successors)
    return _to_probabilities(edges.answer([edges])[0], edges.exists, iteration)


@dataclass(frozen=True, slots=True, eq=False)
class Edges:
    """Edges of states at levels, whose benefits are asked for.

    Attributes:
        space, annealing, actions: of the walks.
        current: the states [state, axis] and the level of each.
        successors: the state that every action leads to [state, action, axis], and whether there is such an edge.
    """

    space: SearchSpace
    annealing: Annealing
    actions: tuple[Action, ...]
    current: tuple[Indices, Indices]
    successors: tuple[Indices, npt.NDArray[np.bool_]]

    @property
    def exists(self) -> npt.NDArray[np.bool_]:
        """Which actions have an edge [state, action]."""
        return self.successors[1]

    @property
    def structure(self) -> Hashable:
        """All that benefits depend on except sizes."""
        return self.annealing, self.space.structure

    def answer(self, alike: Sequence["Edges"]) -> list[Numbers]:
        """The benefit of every action [state, action]; 0 where there is no such edge or its state cannot be lowered.

        The benefit of `cache` (the last column) is not weighted yet.
        """
        counts, actions = [len(x.exists) for x in alike], self.actions
        starts, targets = (np.concatenate(x) for x in zip(*[x._sizes() for x in alike], strict=True))
        level, exists = np.concatenate([x.current[1] for x in alike]), np.concatenate([x.exists for x in alike])
        count, many = exists.shape
        costs = self.space.costs_with([x.space for x in alike], counts)
        costs_of_all = costs.select(np.concatenate([np.arange(count), np.repeat(np.arange(count), many)]))
        sizes, at = np.concatenate([starts, targets]), np.concatenate([level, np.repeat(level, many)])
        boxes = list(np.ascontiguousarray(sizes[np.arange(len(at)), at].T).astype(np.float64))
        F, Q = costs_of_all.footprint(boxes, at), costs_of_all.traffic(boxes, at)
        F0, Q0 = F[:count, None], Q[:count, None]
        F1, Q1 = F[count:].reshape(count, many), Q[count:].reshape(count, many)
        growth = F1 / F0 if self.annealing.reading is Reading.INTENDED else F0 / F1
        benefit = (Q0 / Q1) / growth
        if self.annealing.vthreads and (level == REGISTER).any():
            for v in VTHREADS:
                benefit[:, _vthread_actions(actions, v)] = _stalls_removed(costs, starts, v)[:, None]
        fits = (F1 <= 1.0) | (F1 <= F0)
        fits &= costs_of_all.are_lowerable(sizes)[count:].reshape(count, many)
        benefit[:, -1] = _cache_benefit(costs, starts, level)
        return np.split(np.where(exists & fits, benefit, 0.0), np.cumsum(counts)[:-1])

    def _sizes(self) -> tuple[Sizes, Sizes]:
        """The sizes of the states, and of those that actions lead to."""
        (states, _), (targets, _) = self.current, self.successors
        sizes = self.space.sizes(np.concatenate([states, targets.reshape(-1, targets.shape[2])]))
        return sizes[: len(states)], sizes[len(states) :]


@lru_cache(maxsize=16)
def _vthread_actions(actions: tuple[Action, ...], vthreads: int) -> list[int]:
    """The positions of the actions that make this number of virtual threads."""
    return [j for j, action in enumerate(actions) if action.kind is EdgeKind.VTHREAD and action.vthreads == vthreads]


def _to_probabilities(benefit: Numbers, exists: npt.NDArray[np.bool_], iteration: int) -> Numbers:
    """Normalises benefits to probabilities."""
    weighted = benefit.copy()
    weighted[:, -1] *= cache_weight(iteration)
    weighted[:, -1] = np.where(exists[:, -1], np.maximum(weighted[:, -1], 1e-9), 0.0)
    total = weighted.sum(axis=1, keepdims=True)
    stay = np.zeros_like(weighted)
    stay[:, -1] = 1.0
    return np.where(total > 0, weighted / np.maximum(total, 1e-300), stay)


class _VisitedStates:
    """The table of visited (state, level) pairs with their edges and benefits: walks revisit many states."""

    def __init__(self, space: SearchSpace, annealing: Annealing, actions: tuple[Action, ...]) -> None:
        self._space, self._annealing, self._actions = space, annealing, actions
        self._ids: dict[bytes, int] = {}
        # capacity for every step of every walk: [state, action]
        shape = (annealing.walks * annealing.iterations, len(actions))
        self._targets: Indices = np.empty((*shape, len(space.problem.axes)), np.int64)
        self._exists = np.empty(shape, np.bool_)
        self._benefits: Numbers = np.empty(shape)

    def ids(self, state: Indices, level: Indices) -> SteppedSearch[Indices]:
        """The numbers of states at levels; new ones are entered."""
        keys = [row.tobytes() for row in np.concatenate([state, level[:, None]], axis=1)]
        new = {key: k for k, key in enumerate(keys) if key not in self._ids}
        if new:
            rows = list(new.values())
            current = (state[rows], level[rows])
            successors = edge_targets(self._space, self._actions, *current)
            (benefits,) = yield [Edges(self._space, self._annealing, self._actions, current, successors)]
            first = len(self._ids)
            self._ids |= {key: first + k for k, key in enumerate(new)}
            added = slice(first, len(self._ids))
            self._targets[added], self._exists[added] = successors
            self._benefits[added] = benefits
        return np.array([self._ids[key] for key in keys], np.int64)

    def probabilities(self, ids: Indices, iteration: int) -> Numbers:
        """The probabilities of all actions [walk, action]."""
        return _to_probabilities(self._benefits[ids], self._exists[ids], iteration)

    def successors(self, ids: Indices, actions: Indices) -> Indices:
        """The states that actions lead to [walk, axis]."""
        return self._targets[ids, actions]


def _stalls_removed(costs: StateCosts, sizes: Sizes, v: int) -> Numbers:
    """Eq. 3 on a CPU: each accumulator is a dependency chain of multiply-adds; with a chains and a latency of P
    operations the pipes wait ceil(P / a) times as long."""
    machine = costs.machine
    latency_ops = machine.fma_cycles * machine.fma_pipes
    chains = sizes[:, REGISTER, list(costs.problem.spatial)].prod(axis=1) / costs.sketch.lanes
    return np.ceil(latency_ops / chains) / np.ceil(latency_ops / (v * chains))


def _cache_benefit(costs: StateCosts, sizes: Sizes, level: Indices) -> Numbers:
    """Eq. 2: (L_low + S/B_low) / (L_high + S/B_high), where low is the level of the tile and high the next nearer
    one."""
    machine = costs.machine
    ratio: Numbers = np.ones(len(sizes))
    if (level == REGISTER).all():
        return ratio
    box = [sizes[np.arange(len(sizes)), level, k].astype(np.float64) for k in range(sizes.shape[2])]
    S = np.maximum(costs.bytes_read(box), 1.0)
    for cache in (L1, L2):
        low_latency, low_gbs = _latency_and_bandwidth(machine, cache)
        high_latency, high_gbs = _latency_and_bandwidth(machine, cache - 1)
        ratio = np.where(level == cache, (low_latency + S / low_gbs) / (high_latency + S / high_gbs), ratio)
    return ratio


def _latency_and_bandwidth(machine: Machine, level: int) -> tuple[float, float]:
    """Latency in nanoseconds and bandwidth in bytes per nanosecond of a tile level."""
    if level == REGISTER:
        return 1.0 / machine.ghz, machine.vector_bits / 8 * 2 * machine.fma_pipes * machine.ghz
    x = machine.levels[level - 1]
    return x.latency_ns, x.core_gbs
