"""The optimizer `vortex`: contractions get the programs of the machine's library that the analyser prefers.

A kernel of static sizes gets the best one. A kernel of dynamic sizes gets a few, chosen greedily for the least worst
regret over its range, and every call runs the one with the cheapest estimate for its sizes. Kernels that are no
contractions are constructed as `gensor` does.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from tilewright.cost.analytical import geomean_over_samples, mean_time
from tilewright.cost.footprint import Numbers
from tilewright.machine.model import Machine
from tilewright.optimize.construct.lock_step import SteppedSearch
from tilewright.optimize.construct.optimizer import (
    MAX_LOWERING_TRIES,
    ConstructionResult,
    Gensor,
    ProgramConstructor,
    ScoredStates,
    rank_programs,
)
from tilewright.optimize.construct.reduction_sketches import reduction_sketches
from tilewright.optimize.construct.time_model import CostModel, TimeModel
from tilewright.optimize.construct.variants import COARSE_STEP, DEFAULT_MAX_VARIANTS, States, choose_variants
from tilewright.optimize.task import Task
from tilewright.optimize.vortex.analyser import Analyser, RegisterTileSource
from tilewright.optimize.vortex.candidates import candidate_sizes, is_contraction
from tilewright.optimize.vortex.combined_model import CombinedModel, shortlist
from tilewright.optimize.vortex.library import Library, library
from tilewright.optimize.vortex.register_tiles import RegisterTileTimes
from tilewright.optimize.vortex.static_levels import fix_cache_buffer, fix_register_tile
from tilewright.tile.problem import Problem, problems_at


class Levels(StrEnum):
    """Which levels of the library have several candidates.

    Attributes:
        ALL: every level.
        STATIC1: all but the register tile.
        STATIC2: all but the register tile and its cache buffer.
    """

    ALL = "all"
    STATIC1 = "static1"
    STATIC2 = "static2"


class Estimator(StrEnum):
    """What estimates the times of candidates.

    Attributes:
        COMBINED: the hybrid analyser, and of what it leaves its mean with the cost model.
        HYBRID: the hybrid analyser.
        ANALYTICAL: the same without measurements.
        COST_MODEL: the project's cost model.
    """

    COMBINED = "combined"
    HYBRID = "hybrid"
    ANALYTICAL = "analytical"
    COST_MODEL = "cost model"


@dataclass(frozen=True, slots=True)
class Vortex(ProgramConstructor):
    """The optimizer `vortex`.

    Attributes:
        max_variants: the largest number of programs of a kernel whose sizes are symbols.
        levels: which levels of the library have several candidates.
        estimator: what judges the candidates.
    """

    max_variants: int = DEFAULT_MAX_VARIANTS
    levels: Levels = Levels.ALL
    estimator: Estimator = Estimator.COMBINED
    name: str = "vortex"

    def explore(self, problem: Problem, task: Task, machine: Machine) -> SteppedSearch[ConstructionResult | None]:
        """The best programs of the library for a contraction; of other problems those of `gensor`."""
        states = self.states(problem, task, machine) if is_contraction(problem) else []
        if not states:
            gensor = Gensor(machine, max_variants=self.max_variants)
            return (yield from gensor.explore(problem, task, machine))
        model = self.time_model(machine)
        if isinstance(model, CombinedModel):
            states = shortlist(states, _problems_over_range(problem, task), model.analyser)
        scored = [_score_states(x, problem, model) for x in states]
        programs = tuple(p for _, p in rank_programs(scored, problem, MAX_LOWERING_TRIES))
        # estimates of all optimizers are the cost model's, so that alternatives of a model can be compared
        times = tuple(float(mean_time(problem, p.sketch, p.array[None], machine)[0]) for p in programs)
        variants = choose_variants(programs[0], states, task, model, self.max_variants, worst_regret)
        return ConstructionResult(programs, times, (), variants=variants)

    def states(self, problem: Problem, task: Task, machine: Machine) -> list[States]:
        """The programs of the library for every sketch of a contraction."""
        candidates = self.library(machine, problem.bits)
        sketches = reduction_sketches(problem, task.target, machine)
        states = [(x, candidate_sizes(candidates, problem, x, machine)) for x in sketches]
        return [(x, sizes) for x, sizes in states if len(sizes)]

    def library(self, machine: Machine, element_bits: int) -> Library:
        """The machine's library, with the levels fixed that are."""
        every = library(machine, element_bits)
        if self.levels is Levels.ALL:
            return every
        fix = fix_register_tile if self.levels is Levels.STATIC1 else fix_cache_buffer
        return fix(every, RegisterTileTimes.of(machine, element_bits))

    def time_model(self, machine: Machine) -> TimeModel:
        """What judges the candidates."""
        if self.estimator is Estimator.COST_MODEL:
            return CostModel(machine)
        is_measured = self.estimator is not Estimator.ANALYTICAL
        analyser = Analyser(machine, RegisterTileSource.MEASURED if is_measured else RegisterTileSource.COMPUTED)
        return CombinedModel(analyser, CostModel(machine)) if self.estimator is Estimator.COMBINED else analyser


def static1() -> Vortex:
    """The optimizer with one register tile for all kernels."""
    return Vortex(levels=Levels.STATIC1, name="vortex-static1")


def static2() -> Vortex:
    """The optimizer with one register tile and one cache buffer for all kernels."""
    return Vortex(levels=Levels.STATIC2, name="vortex-static2")


WORST_REGRET_POWER = 8
"""Of the mean that stands for the worst regret: with the maximum itself, a program that serves one of several bad
shapes would gain nothing, and the greedy choice would end."""


def worst_regret(regrets: Numbers) -> Numbers:
    """Over the last axis, the shapes: a mean that is close to the worst regret."""
    return (regrets**WORST_REGRET_POWER).mean(axis=-1) ** (1 / WORST_REGRET_POWER)


def _problems_over_range(problem: Problem, task: Task) -> tuple[Problem, ...]:
    """The problem at shapes over its range, or at its own sizes where these are static."""
    if task.samples is None or not problem.samples:
        return (problem,)
    shapes = task.samples.grid[::COARSE_STEP]
    return tuple(p for p in problems_at(task.func, task.constants, shapes) if p is not None) or problem.samples


def _score_states(states: States, problem: Problem, model: TimeModel) -> ScoredStates:
    """States with their nanoseconds: at static sizes, or their geometric means over samples of the range."""
    sketch, sizes = states
    samples = problem if problem.samples else replace(problem, samples=(problem,))
    times = model.sample_times(samples, sketch, sizes)
    cost = model.machine.cost
    return sketch, sizes, geomean_over_samples(times, cost) if len(times) > 1 else np.asarray(times[0])
