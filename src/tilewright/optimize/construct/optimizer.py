"""The optimizers `roller` and `gensor`: forms, states, ranking by the cost model, lowering of the best.

Reductions with lanes along results or along the reduction, and element-wise work, are tile programs; chains of blocks
that work row by row are programs of several steps (`chains.py`). Where a kernel is both, all are ranked together.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from tilewright.cost.analytical import mean_time
from tilewright.cost.caches import caches
from tilewright.cost.footprint import Numbers
from tilewright.loops.ir import blocks
from tilewright.machine.calibration_store import machine_for
from tilewright.machine.model import Machine
from tilewright.optimize.construct.elementwise_sketches import elementwise_sketches
from tilewright.optimize.construct.gensor import Annealing, WalkBatch, run_walks
from tilewright.optimize.construct.local_search import LocalSearch, growth_trajectory, search_locally
from tilewright.optimize.construct.lower_programs import KernelProgram, lower_first_legal
from tilewright.optimize.construct.reduction_sketches import reduction_sketches
from tilewright.optimize.construct.roller import GrowthPath, grow
from tilewright.optimize.construct.rowwise_programs import best_rowwise_programs, rowwise_problem
from tilewright.optimize.construct.search_space import SearchSpace
from tilewright.optimize.construct.tile_lattice import Indices
from tilewright.optimize.construct.trajectory import Trajectory
from tilewright.optimize.interface import Task
from tilewright.optimize.select_axes import select_axes
from tilewright.schedule.trace import Schedule
from tilewright.tile.problem import Problem, extract_problem
from tilewright.tile.program import Sizes, Sketch, TileProgram

MAX_LOWERING_TRIES = 3
"""Programs that are tried where the best ones can't be lowered."""

MAX_SKETCHES = 2
"""Forms through which walks go: those with the best programs near their greedy paths."""

MAX_SAMPLED_STATES = 256
"""States of a form that other orders of its loops compare by the times of samples: its best ones."""

K_BLOCK_SHRINK_STEPS = 2
"""How often the cut of a reduction is halved or so for the other states that forms are compared by, where there are
more than are kept: programs with short cuts and large tiles are seldom reached by single steps from long ones."""

PRUNE_RATIO = 1.25
"""How much longer than the best state of all a form's best one may take, so that descents begin there."""

RankedProgram = tuple[float, KernelProgram]
"""A program behind its nanoseconds."""


@dataclass(frozen=True, slots=True, eq=False)
class ConstructionResult:
    """What construction found for a kernel.

    Attributes:
        programs: the best ones, best first.
        nanoseconds: what the cost model says of each.
        paths: greedy growth per form.
        histories: walks per form.
        descents: from the best recorded states on, and from where greedy growth was full.
    """

    programs: tuple[KernelProgram, ...]
    nanoseconds: tuple[float, ...]
    paths: tuple[GrowthPath, ...]
    walk_batches: tuple[WalkBatch, ...] = ()
    searches: tuple[LocalSearch, ...] = ()

    def trajectory(self) -> Trajectory | None:
        """The walk that found the best program first, with the descent to it where it is behind one, or the descent
        behind greedy growth; None where it is no tile program, or one of greedy growth alone."""
        best = self.programs[0] if self.programs else None
        if not isinstance(best, TileProgram):
            return None
        for h in self.walk_batches:
            if (h.space.sketch.lane, h.space.sketch.packed) == (best.sketch.lane, best.sketch.packed):
                found = _first_visit(h, best.array)
                if found is not None:
                    return h.trajectory(found[1])
        for d in self.searches:
            if d.sketch == best.sketch and (d.sizes[0] == best.array).all():
                history = next((h for h in self.walk_batches if h.space is d.space), None)
                found = None if history is None else _first_visit(history, d.space.sizes(d.states[:1])[0])
                if history is not None and found is not None:
                    moves = (*history.trajectory(found[1], found[0]).steps, *d.trajectory_steps())
                else:
                    moves = next((growth_trajectory(d, p) for p in self.paths if p.space is d.space), ())
                if moves:
                    return Trajectory(best.problem, best.sketch, moves, best.sizes)
        return None


def _first_visit(walks: WalkBatch, sizes: Sizes) -> tuple[int, int] | None:
    """The first step and walk at which sizes [level, axis] were; None where they never were."""
    states = walks.states
    found = walks.space.sizes(states.reshape(-1, states.shape[2])) == sizes
    places = np.argwhere(found.all(axis=(1, 2)).reshape(states.shape[:2]))
    return (int(places[0][0]), int(places[0][1])) if len(places) else None


def search_spaces(problem: Problem, task: Task, machine: Machine) -> dict[SearchSpace, list[Sketch]]:
    """One space for forms that differ only in the order of loops, which states do not depend on."""
    found: dict[tuple[object, ...], tuple[SearchSpace, list[Sketch]]] = {}
    choices = (
        reduction_sketches(problem, task.target, machine)
        if problem.reduce
        else elementwise_sketches(problem, task.target)
    )
    for form in choices:
        key = (form.lane, form.packed)
        if key not in found:
            found[key] = (SearchSpace.of(problem, form, machine), [])
        found[key][1].append(form)
    return dict(found.values())


ScoredStates = tuple[Sketch, Sizes, Numbers]
"""States of a form with their nanoseconds."""


def rank_programs(candidates: list[ScoredStates], problem: Problem, count: int) -> list[RankedProgram]:
    """The best programs among states of several forms, with their nanoseconds, best first."""
    programs: list[tuple[float, TileProgram]] = []
    for form, sizes, total in candidates:
        for k in np.argsort(total, kind="stable")[:count]:
            programs.append((float(total[k]), TileProgram.of(problem, form, sizes[k])))
    # descents from several states often end at one
    different: dict[tuple[Sketch, tuple[tuple[int, ...], ...]], RankedProgram] = {}
    for time, program in sorted(programs, key=lambda p: p[0]):
        different.setdefault((program.sketch, program.sizes), (time, program))
    return list(different.values())[:count]


def _construction(
    ranked: list[RankedProgram],
    task: Task,
    machine: Machine,
    paths: tuple[GrowthPath, ...],
    walk_batches: tuple[WalkBatch, ...] = (),
    searches: tuple[LocalSearch, ...] = (),
) -> ConstructionResult | None:
    """The best of the tile programs that were found and of the programs of the chain that a kernel is; None without
    any."""
    chain = rowwise_problem(task)
    if chain is not None:
        ranked = sorted(
            [*ranked, *best_rowwise_programs(chain, task.target, machine, MAX_LOWERING_TRIES)], key=lambda p: p[0]
        )[:MAX_LOWERING_TRIES]
    if not ranked:
        return None
    return ConstructionResult(tuple(p for _, p in ranked), tuple(t for t, _ in ranked), paths, walk_batches, searches)


DEFAULT_ANNEALING = Annealing()


@dataclass(frozen=True, slots=True)
class Roller:
    """The optimizer `roller`.

    Attributes:
        machine: what is constructed for; by default the description that fits the task's target.
    """

    machine: Machine | None = None
    name: str = "roller"

    def for_machine(self, machine: Machine) -> "Roller":
        """The same optimizer for a machine."""
        return replace(self, machine=machine)

    def construct(self, task: Task) -> ConstructionResult | None:
        """The programs of all forms, best first; None where the kernel has none.

        Raises:
            MachineError: programs can't be constructed for the machine.
        """
        machine = self.machine or machine_for(task.target)
        caches(machine)
        problem = problem_for(task)
        if problem is None:
            return _construction([], task, machine, ())
        found = search_spaces(problem, task, machine)
        paths = [grow(space) for space in found]
        ends = [(form, p.final_sizes()) for p in paths for form in found[p.space]]
        candidates = [(form, sizes, mean_time(problem, form, sizes, machine)) for form, sizes in ends]
        return _construction(rank_programs(candidates, problem, MAX_LOWERING_TRIES), task, machine, tuple(paths))

    def optimize(self, task: Task) -> Schedule | None:
        """The schedule of the best program; None where there is none."""
        return best_schedule(self.construct(task), task, self.machine)


@dataclass(frozen=True, slots=True)
class Gensor:
    """The optimizer `gensor`.

    Attributes:
        machine: what is constructed for; by default the description that fits the task's target.
        annealing: how walks are made.
        seed: of what is drawn.
    """

    machine: Machine | None = None
    annealing: Annealing = DEFAULT_ANNEALING
    seed: int = 0
    name: str = "gensor"

    def for_machine(self, machine: Machine) -> "Gensor":
        """The same optimizer for a machine."""
        return replace(self, machine=machine)

    def construct(self, task: Task) -> ConstructionResult | None:
        """The best states of all walks and descents, best first; None where the kernel has none.

        Raises:
            MachineError: programs can't be constructed for the machine.
        """
        machine = self.machine or machine_for(task.target)
        caches(machine)
        problem = problem_for(task)
        if problem is None:
            return _construction([], task, machine, ())
        # walks and first descents at representative sizes: the times of samples decide between what they find
        found = search_spaces(replace(problem, samples=()), task, machine)
        paths = [grow(space) for space in found]
        kept, ends = paths, list[LocalSearch]()
        if len(paths) > MAX_SKETCHES and problem.samples:
            kept = _select_paths(sorted(paths, key=lambda p: _estimate_path(p, found[p.space], problem)), problem)
        elif len(paths) > MAX_SKETCHES:
            near_paths = [_search_near_path(p, found[p.space]) for p in paths]
            promise = [min(d.nanoseconds for d in listed) for listed in near_paths]
            kept = [paths[k] for k in np.argsort(promise, kind="stable")[:MAX_SKETCHES]]
            ends = [d for listed in near_paths for d in listed]
        histories = [run_walks(p.space, self.annealing, self.seed) for p in kept]
        if problem.samples:
            ends = _search_at_samples(histories, found, problem)
            candidates = [_final_state(d) for d in ends]
        else:
            near = [_search_near_walks(h, form) for h in histories for form in found[h.space]]
            ends = [*(d for _, listed in near for d in listed), *ends]
            candidates = [recorded for recorded, _ in near] + [_final_state(d) for d in ends]
        best = rank_programs(candidates, problem, MAX_LOWERING_TRIES)
        return _construction(best, task, machine, tuple(paths), tuple(histories), tuple(ends))

    def optimize(self, task: Task) -> Schedule | None:
        """The schedule of the best program; None where there is none."""
        return best_schedule(self.construct(task), task, self.machine)


def problem_for(task: Task) -> Problem | None:
    """The problem that tile programs are for; cases of element-wise work that are decided while code is generated are
    left to the rule."""
    problem = extract_problem(task.func, task.constants, task.samples)
    if problem is None or not problem.spatial:
        return None
    return problem if problem.reduce or not select_axes(blocks(task.func.body)[-1]) else None


def _select_paths(paths: list[GrowthPath], problem: Problem) -> list[GrowthPath]:
    """The first of the paths, which are in order, and the first one whose lanes are full at all sizes, if there is one:
    where sizes are symbols, tiles of the middle of their ranges tell little of what lanes beyond a small axis cost."""
    full = [p for p in paths if problem.axes[p.space.sketch.lane].is_static]
    first = paths[:MAX_SKETCHES]
    return [*first, *(p for p in full[:1] if problem.samples and all(p is not x for x in first))]


def _search_near_path(path: GrowthPath, sketches: list[Sketch]) -> list[LocalSearch]:
    """Descents from where a greedy path was full at a level, and from there with a shorter cut of the reduction."""
    ends = np.unique(path.states, axis=0)
    shorter = path.space.shrink_k_block(ends, K_BLOCK_SHRINK_STEPS)
    starts = [ends, shorter] if len(shorter) else [ends]
    return [d for form in sketches for states in starts for d in search_locally(path.space, form, states)]


def _estimate_path(path: GrowthPath, sketches: list[Sketch], problem: Problem) -> float:
    """The time at samples of the best program near where a greedy path was full at a level, of one order of loops."""
    near = np.stack([d.states[-1] for d in search_locally(path.space, sketches[0], path.states)])
    return float(mean_time(problem, sketches[0], path.space.sizes(near), path.space.machine).min())


def _search_near_walks(walks: WalkBatch, sketch: Sketch) -> tuple[ScoredStates, tuple[LocalSearch, ...]]:
    """The recorded states of walks, and descents from the best ones, for one order of loops."""
    space, states = walks.space, walks.recorded_states()
    sizes = space.sizes(states)
    value = mean_time(space.problem, sketch, sizes, space.machine)
    return (sketch, sizes, value), search_locally(space, sketch, states, value)


def _search_at_samples(
    walk_batches: list[WalkBatch], sketches: Mapping[SearchSpace, list[Sketch]], problem: Problem
) -> list[LocalSearch]:
    """Descents by the times of samples, for forms that are promising by them: from recorded states, and from where
    descents at representative sizes end."""
    found: list[tuple[SearchSpace, Sketch, tuple[LocalSearch, ...], Indices, Numbers]] = []
    for history in walk_batches:
        space, states = history.space, history.recorded_states()
        before: tuple[LocalSearch, ...] = ()
        for form in sketches[space]:
            # other orders begin where the first one ended, too
            first = tuple(d.continued_from(before) for d in search_locally(space, form, states))
            before += first
            states = np.unique(np.concatenate([states, *(d.states[-1:] for d in first)]), axis=0)
            value = mean_time(problem, form, space.sizes(states), space.machine)
            # the other orders of loops compare the best states of the first one
            best = np.argsort(value, kind="stable")[:MAX_SAMPLED_STATES]
            states = states[best]
            found.append((space, form, before, states, value[best]))
    limit = PRUNE_RATIO * min((float(value[0]) for *_, value in found), default=0.0)
    ends: list[LocalSearch] = []
    for space, form, before, states, value in found:
        if value[0] <= limit:
            more = search_locally(replace(space, problem=problem), form, states, value)
            ends += [replace(d, space=space).continued_from(before) for d in more]
    return ends


def _final_state(d: LocalSearch) -> ScoredStates:
    return d.sketch, d.sizes, np.array([d.nanoseconds])


def best_schedule(
    construction: ConstructionResult | None, task: Task, machine: Machine | None = None
) -> Schedule | None:
    """The schedule of the best program that can be lowered; None without one."""
    return (
        None
        if construction is None
        else lower_first_legal(construction.programs, task, machine or machine_for(task.target)).schedule
    )
