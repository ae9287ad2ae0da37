"""The optimizers `roller` and `gensor`: sketches, states, ranking by the cost model, lowering of the best programs.

Reductions, with lanes along results or along the reduction, and element-wise work become tile programs; row-wise fused
blocks become programs of several stages (`rowwise_programs.py`). Where a kernel is both, all are ranked together.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from tilewright.cost.caches import caches
from tilewright.cost.footprint import Numbers
from tilewright.cost.joint_times import Candidates
from tilewright.loops.ir import blocks
from tilewright.machine.calibration_store import machine_for
from tilewright.machine.model import Machine
from tilewright.optimize.construct.elementwise_sketches import elementwise_sketches
from tilewright.optimize.construct.exchange_register_tiles import best_by_sketch, exchange_register_tiles
from tilewright.optimize.construct.gensor import Annealing, WalkBatch, walk
from tilewright.optimize.construct.local_search import (
    LocalSearch,
    growth_trajectory,
    search_locally,
    search_locally_from_each,
)
from tilewright.optimize.construct.lock_step import SteppedSearch, in_lock_step, run
from tilewright.optimize.construct.lower_programs import lower_all, lower_first_legal
from tilewright.optimize.construct.program_tree import KernelProgram
from tilewright.optimize.construct.reduction_sketches import reduction_sketches
from tilewright.optimize.construct.roller import GrowthPath, growth
from tilewright.optimize.construct.rowwise_programs import best_rowwise_programs, rowwise_problem
from tilewright.optimize.construct.search_space import SearchSpace
from tilewright.optimize.construct.tile_lattice import Indices
from tilewright.optimize.construct.time_model import CostModel
from tilewright.optimize.construct.trajectory import Trajectory
from tilewright.optimize.construct.variants import DEFAULT_MAX_VARIANTS, ProgramVariants, choose_variants, walk_states
from tilewright.optimize.interface import ProgramEstimate, ScheduledPrograms, scheduled
from tilewright.optimize.select_axes import select_axes
from tilewright.optimize.task import Task
from tilewright.schedule.schedule import Schedule
from tilewright.tile.problem import Problem, extract_problem
from tilewright.tile.program import Sizes, Sketch, TileProgram

MAX_LOWERING_TRIES = 3
"""Programs that are tried where the best ones cannot be lowered."""

MAX_SKETCHES = 2
"""Sketches that walks explore: those with the best programs close to their growth paths."""

MAX_SAMPLED_STATES = 256
"""The best states of a sketch, which its other loop orders are compared on by mean time over shape samples."""

MAX_CONTINUED_SEARCHES = 2
"""Sketches whose best search goes on with other register tiles."""

K_BLOCK_SHRINK_STEPS = 2
"""Steps to smaller K-blocks from which sketches are compared as well, where there are more than `MAX_SKETCHES`:
programs with small K-blocks and large tiles are rarely reached by single steps from large K-blocks."""

PRUNE_RATIO = 1.25
"""Sketches are searched further only if their best state takes at most this multiple of the best time of all."""

RankedProgram = tuple[float, KernelProgram]
"""Nanoseconds and the program."""


@dataclass(frozen=True, slots=True, eq=False)
class ConstructionResult:
    """The outcome of construction for a kernel.

    Attributes:
        programs: the best programs, best first.
        nanoseconds: their times by the cost model.
        paths: greedy growth per sketch.
        walk_batches: walks per sketch.
        searches: local searches from the best recorded states and from the ends of greedy growth.
        variants: the programs that serve the ranges of its sizes together; None where the best one serves all.
    """

    programs: tuple[KernelProgram, ...]
    nanoseconds: tuple[float, ...]
    paths: tuple[GrowthPath, ...]
    walk_batches: tuple[WalkBatch, ...] = ()
    searches: tuple[LocalSearch, ...] = ()
    variants: ProgramVariants | None = None

    @property
    def estimate(self) -> float:
        """Nanoseconds of the best program, or of the variants together, by the cost model."""
        return self.nanoseconds[0] / (1.0 if self.variants is None else self.variants.gain)

    def without_search(self) -> "ConstructionResult":
        """The programs and their times alone."""
        return replace(self, paths=(), walk_batches=(), searches=())

    def trajectory(self) -> Trajectory | None:
        """The walk that reached the best program first, extended by the local search to it where there is one, or
        greedy growth and the local search from it; None for row-wise programs, or where greedy growth alone led
        there."""
        best = self.programs[0] if self.programs else None
        if not isinstance(best, TileProgram):
            return None
        for batch in self.walk_batches:
            if (batch.space.sketch.lane, batch.space.sketch.packed) == (best.sketch.lane, best.sketch.packed):
                visit = _first_visit(batch, best.array)
                if visit is not None:
                    return batch.trajectory(visit[1])
        for search in self.searches:
            if search.sketch == best.sketch and (search.sizes[0] == best.array).all():
                origin = next((batch for batch in self.walk_batches if batch.space is search.space), None)
                visit = None if origin is None else _first_visit(origin, search.space.sizes(search.states[:1])[0])
                if origin is not None and visit is not None:
                    steps = (*origin.trajectory(visit[1], visit[0]).steps, *search.trajectory_steps())
                else:
                    steps = next((growth_trajectory(search, p) for p in self.paths if p.space is search.space), ())
                if steps:
                    return Trajectory(best.problem, best.sketch, steps, best.sizes)
        return None


def _first_visit(walks: WalkBatch, sizes: Sizes) -> tuple[int, int] | None:
    """The first step and walk with these sizes [level, axis]; None where no walk visited them."""
    states = walks.states
    matches = walks.space.sizes(states.reshape(-1, states.shape[2])) == sizes
    visits = np.argwhere(matches.all(axis=(1, 2)).reshape(states.shape[:2]))
    return (int(visits[0][0]), int(visits[0][1])) if len(visits) else None


def search_spaces(problem: Problem, task: Task, machine: Machine) -> dict[SearchSpace, list[Sketch]]:
    """One search space per set of sketches that differ only in the order of loops, which states do not depend on."""
    by_packing: dict[tuple[object, ...], tuple[SearchSpace, list[Sketch]]] = {}
    sketches = (
        reduction_sketches(problem, task.target, machine)
        if problem.reduce
        else elementwise_sketches(problem, task.target)
    )
    for sketch in sketches:
        key = (sketch.lane, sketch.packed)
        if key not in by_packing:
            by_packing[key] = (SearchSpace.of(problem, sketch, machine), [])
        by_packing[key][1].append(sketch)
    return dict(by_packing.values())


ScoredStates = tuple[Sketch, Sizes, Numbers]
"""States of a sketch with their nanoseconds."""


def rank_programs(candidates: Sequence[ScoredStates], problem: Problem, count: int) -> list[tuple[float, TileProgram]]:
    """The best programs among states of several sketches with their nanoseconds, best first."""
    programs: list[tuple[float, TileProgram]] = []
    for sketch, sizes, nanoseconds in candidates:
        for k in np.argsort(nanoseconds, kind="stable")[:count]:
            programs.append((float(nanoseconds[k]), TileProgram.of(problem, sketch, sizes[k])))
    # searches from several states often end in the same one
    distinct: dict[tuple[Sketch, tuple[tuple[int, ...], ...]], tuple[float, TileProgram]] = {}
    for time, program in sorted(programs, key=lambda p: p[0]):
        distinct.setdefault((program.sketch, program.sizes), (time, program))
    return list(distinct.values())[:count]


def construction_of(
    ranked: Sequence[RankedProgram],
    task: Task,
    machine: Machine,
    paths: tuple[GrowthPath, ...],
    walk_batches: tuple[WalkBatch, ...] = (),
    searches: tuple[LocalSearch, ...] = (),
) -> ConstructionResult | None:
    """The best of the tile programs and of the kernel's row-wise programs; None where there are none."""
    problem = rowwise_problem(task)
    if problem is not None:
        ranked = sorted(
            [*ranked, *best_rowwise_programs(problem, task.target, machine, MAX_LOWERING_TRIES)], key=lambda p: p[0]
        )[:MAX_LOWERING_TRIES]
    if not ranked:
        return None
    return ConstructionResult(tuple(p for _, p in ranked), tuple(t for t, _ in ranked), paths, walk_batches, searches)


DEFAULT_ANNEALING = Annealing()


@dataclass(frozen=True, slots=True)
class ProgramConstructor(ABC):
    """An optimizer that constructs programs for a machine.

    Attributes:
        machine: the machine to construct for; by default the description that fits the task's target.
    """

    machine: Machine | None = None

    def for_machine(self, machine: Machine) -> Self:
        """The same optimizer for a machine."""
        return replace(self, machine=machine)

    def construct(self, task: Task) -> ConstructionResult | None:
        """The best programs, best first; None where the kernel has none.

        Raises:
            MachineError: programs cannot be constructed for the machine.
        """
        return run(self._exploration(task))

    def construct_all(self, tasks: Sequence[Task]) -> list[ConstructionResult | None]:
        """`construct` of several tasks, whose searches advance in lock step."""
        return run(in_lock_step([self._exploration(task) for task in tasks]))

    def _exploration(self, task: Task) -> SteppedSearch[ConstructionResult | None]:
        machine = self.machine or machine_for(task.target)
        caches(machine)
        problem = problem_for(task)
        if problem is None:
            return construction_of([], task, machine, ())
        return (yield from self.explore(problem, task, machine))

    @abstractmethod
    def explore(self, problem: Problem, task: Task, machine: Machine) -> SteppedSearch[ConstructionResult | None]:
        """The best programs of a tile problem; None where there are none."""

    def schedule_programs(self, construction: ConstructionResult | None, task: Task) -> ScheduledPrograms | None:
        """The schedules of the variants where all can be lowered, else of the best program that can; None without
        one."""
        variants = None if construction is None else construction.variants
        if variants is not None:
            schedules = lower_all(variants.programs, task, self.machine or machine_for(task.target))
            if schedules is not None:
                # a selector that compares sizes instead of times has no estimates
                pairs = zip(variants.programs, variants.estimates, strict=True) if variants.estimates else ()
                return ScheduledPrograms(
                    schedules, variants.selector, tuple(ProgramEstimate(str(p), time) for p, time in pairs)
                )
        return scheduled(best_schedule(construction, task, self.machine))

    def optimize(self, task: Task) -> Schedule | None:
        """The schedule of the best program; None where there is none."""
        return best_schedule(self.construct(task), task, self.machine)


@dataclass(frozen=True, slots=True)
class Roller(ProgramConstructor):
    """The optimizer `roller`: the ends of the growth paths of all sketches."""

    name: str = "roller"

    def explore(self, problem: Problem, task: Task, machine: Machine) -> SteppedSearch[ConstructionResult | None]:
        """The ends of the growth paths."""
        sketches = search_spaces(problem, task, machine)
        paths = yield from in_lock_step([growth(space) for space in sketches])
        ends = [(sketch, p.final_sizes()) for p in paths for sketch in sketches[p.space]]
        times = yield [Candidates(problem, sketch, sizes, machine) for sketch, sizes in ends]
        candidates = [(*end, nanoseconds) for end, nanoseconds in zip(ends, times, strict=True)]
        return construction_of(rank_programs(candidates, problem, MAX_LOWERING_TRIES), task, machine, tuple(paths))


@dataclass(frozen=True, slots=True)
class Gensor(ProgramConstructor):
    """The optimizer `gensor`: the best states of all walks and local searches.

    Attributes:
        annealing: parameters of the walks.
        seed: of the random numbers.
        max_variants: the largest number of programs of a kernel whose sizes are symbols.
    """

    annealing: Annealing = DEFAULT_ANNEALING
    seed: int = 0
    max_variants: int = DEFAULT_MAX_VARIANTS
    name: str = "gensor"

    def explore(self, problem: Problem, task: Task, machine: Machine) -> SteppedSearch[ConstructionResult | None]:
        """The best states of walks and searches."""
        # walks and first searches use representative sizes; mean times over samples rank their results
        sketches = search_spaces(replace(problem, samples=()), task, machine)
        paths = yield from in_lock_step([growth(space) for space in sketches])
        selected, searches = paths, list[LocalSearch]()
        if len(paths) > MAX_SKETCHES and problem.samples:
            estimates = yield from in_lock_step([_estimate_path(p, sketches[p.space], problem) for p in paths])
            selected = _select_paths([paths[k] for k in np.argsort(estimates, kind="stable")], problem)
        elif len(paths) > MAX_SKETCHES:
            searches_by_path = yield from in_lock_step([_search_near_path(p, sketches[p.space]) for p in paths])
            estimates = [min(search.nanoseconds for search in path_searches) for path_searches in searches_by_path]
            selected = [paths[k] for k in np.argsort(estimates, kind="stable")[:MAX_SKETCHES]]
            searches = [search for path_searches in searches_by_path for search in path_searches]
        walk_batches = yield from in_lock_step([walk(p.space, self.annealing, self.seed) for p in selected])
        if problem.samples:
            searches = yield from _search_at_samples(walk_batches, sketches, problem)
            candidates = [_final_state(search) for search in searches]
        else:
            near_walks = yield from in_lock_step(
                [_search_near_walks(walks, sketch) for walks in walk_batches for sketch in sketches[walks.space]]
            )
            searches = [*(search for _, walk_searches in near_walks for search in walk_searches), *searches]
            best_searches = best_by_sketch(searches, MAX_CONTINUED_SEARCHES)
            searches += yield from in_lock_step([exchange_register_tiles(search) for search in best_searches])
            candidates = [recorded for recorded, _ in near_walks] + [_final_state(search) for search in searches]
        best = rank_programs(candidates, problem, MAX_LOWERING_TRIES)
        result = construction_of(best, task, machine, tuple(paths), tuple(walk_batches), tuple(searches))
        single = None if result is None else result.programs[0]
        if result is None or not isinstance(single, TileProgram) or not problem.samples:
            return result
        states: list[tuple[Sketch, Sizes]] = []
        for walks in walk_batches:
            states += yield from walk_states(walks, sketches[walks.space])
        states += [(search.sketch, search.space.sizes(search.states)) for search in searches]
        variants = choose_variants(single, states, task, CostModel(machine), self.max_variants)
        return replace(result, variants=variants)


def problem_for(task: Task) -> Problem | None:
    """The tile problem of a task; None for element-wise work with select axes, which is left to the rule."""
    problem = extract_problem(task.func, task.constants, task.samples)
    if problem is None or not problem.spatial:
        return None
    return problem if problem.reduce or not select_axes(blocks(task.func.body)[-1]) else None


def _select_paths(paths: list[GrowthPath], problem: Problem) -> list[GrowthPath]:
    """The first of the ranked paths, and the first one with a static lane axis, if there is one: for symbolic shapes,
    tiles for the middle of the ranges say little about the cost of lanes beyond a small axis."""
    static_lanes = [p for p in paths if problem.axes[p.space.sketch.lane].is_static]
    selected = paths[:MAX_SKETCHES]
    return [*selected, *(p for p in static_lanes[:1] if problem.samples and all(p is not x for x in selected))]


def _search_near_path(path: GrowthPath, sketches: list[Sketch]) -> SteppedSearch[list[LocalSearch]]:
    """Local searches from the ends of a growth path's levels, and from there with smaller K-blocks."""
    ends = np.unique(path.states, axis=0)
    smaller_k_blocks = path.space.shrink_k_block(ends, K_BLOCK_SHRINK_STEPS)
    starts = [ends, smaller_k_blocks] if len(smaller_k_blocks) else [ends]
    by_sketch = yield from in_lock_step([search_locally_from_each(path.space, sketch, starts) for sketch in sketches])
    return [search for searches in by_sketch for search in searches]


def _estimate_path(path: GrowthPath, sketches: list[Sketch], problem: Problem) -> SteppedSearch[float]:
    """The best mean time over shape samples near the ends of a growth path's levels, for one loop order."""
    space, sketch = path.space, sketches[0]
    searches = yield from search_locally(space, sketch, path.states)
    final_sizes = space.sizes(np.stack([search.states[-1] for search in searches]))
    (nanoseconds,) = yield [Candidates(problem, sketch, final_sizes, space.machine)]
    return float(nanoseconds.min())


def _search_near_walks(walks: WalkBatch, sketch: Sketch) -> SteppedSearch[tuple[ScoredStates, tuple[LocalSearch, ...]]]:
    """The recorded states of walks, and local searches from the best ones, for one loop order."""
    space, states = walks.space, walks.recorded_states()
    nanoseconds = yield from space.nanoseconds(sketch, states)
    searches = yield from search_locally(space, sketch, states, nanoseconds)
    return (sketch, space.sizes(states), nanoseconds), searches


def _search_at_samples(
    walk_batches: list[WalkBatch], sketches: Mapping[SearchSpace, list[Sketch]], problem: Problem
) -> SteppedSearch[list[LocalSearch]]:
    """Local searches by mean time over shape samples, for sketches within `PRUNE_RATIO`: from recorded states, and from
    the ends of searches at representative sizes."""
    candidates: list[tuple[SearchSpace, Sketch, tuple[LocalSearch, ...], Indices, Numbers]] = []
    at_samples: dict[SearchSpace, SearchSpace] = {}
    for batch in walk_batches:
        space, states = batch.space, batch.recorded_states()
        at_samples[space] = replace(space, problem=problem)
        searches: tuple[LocalSearch, ...] = ()
        for sketch in sketches[space]:
            # later loop orders also start where the earlier ones ended
            local = yield from search_locally(space, sketch, states)
            new_searches = tuple(search.continued_from(searches) for search in local)
            searches += new_searches
            states = np.unique(np.concatenate([states, *(search.states[-1:] for search in new_searches)]), axis=0)
            nanoseconds = yield from at_samples[space].nanoseconds(sketch, states)
            # later loop orders start from the best states of the earlier ones
            best = np.argsort(nanoseconds, kind="stable")[:MAX_SAMPLED_STATES]
            states = states[best]
            candidates.append((space, sketch, searches, states, nanoseconds[best]))
    limit = PRUNE_RATIO * min((float(nanoseconds[0]) for *_, nanoseconds in candidates), default=0.0)
    ends: list[LocalSearch] = []
    for space, sketch, searches, states, nanoseconds in candidates:
        if nanoseconds[0] <= limit:
            sampled_searches = yield from search_locally(at_samples[space], sketch, states, nanoseconds)
            ends += [replace(search, space=space).continued_from(searches) for search in sampled_searches]
    return ends


def _final_state(search: LocalSearch) -> ScoredStates:
    return search.sketch, search.sizes, np.array([search.nanoseconds])


def best_schedule(
    construction: ConstructionResult | None, task: Task, machine: Machine | None = None
) -> Schedule | None:
    """The schedule of the best program that can be lowered; None without one."""
    return (
        None
        if construction is None
        else lower_first_legal(construction.programs, task, machine or machine_for(task.target)).schedule
    )
