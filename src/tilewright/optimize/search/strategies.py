"""Strategies of searches: which programs of a space are measured next, by what is known of others."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Protocol

import numpy as np

from tilewright.cost.footprint import Numbers
from tilewright.optimize.search.evolution import EvolutionSettings, evolve
from tilewright.optimize.search.program_space import ProgramId, ProgramSpace

RANDOM_SHARE = 0.05
"""Share of a batch that is drawn at random, whatever scores say (Ansor's epsilon)."""

MEASURED_SHARE = 0.2
"""Share of the first population that are the fastest programs measured."""

PARENTS = 12
"""The fastest programs, whose descendants are measured without being ranked."""

MAX_EMPTY_DRAWS = 20
"""Draws without a new program after which a space counts as exhausted."""


@dataclass(frozen=True, slots=True)
class Observation:
    """A program that was measured.

    Attributes:
        program: the program.
        nanoseconds: its time; None where it failed.
    """

    program: ProgramId
    nanoseconds: float | None


class SearchStrategy(Protocol):
    """Chooses programs."""

    def max_batch(self, observed: int) -> int | None:
        """The most programs that are asked for at once where so many were measured; None without a limit."""
        ...

    def propose(
        self,
        observations: Sequence[Observation],
        tried: Collection[ProgramId],
        count: int,
        rng: np.random.Generator,
    ) -> list[ProgramId]:
        """Distinct programs that were not tried, at most `count`; none where no program is left."""
        ...


@dataclass(frozen=True, slots=True)
class RandomStrategy:
    """Programs drawn at random."""

    space: ProgramSpace

    def max_batch(self, observed: int) -> int | None:
        """None: what was measured changes little."""
        return None

    def propose(
        self, observations: Sequence[Observation], tried: Collection[ProgramId], count: int, rng: np.random.Generator
    ) -> list[ProgramId]:
        """See `SearchStrategy`."""
        return draw_untried(self.space, tried, count, rng)


@dataclass(frozen=True, slots=True)
class EvolutionStrategy:
    """Half of a batch is what evolution finds best by the analytical cost model, the other half are descendants of the
    fastest programs measured, and a few random ones: the model alone decides nothing.

    Attributes:
        space: the programs.
        starts: programs that populations begin with, beside the fastest measured and random ones.
        settings: of the evolution.
    """

    space: ProgramSpace
    starts: Sequence[ProgramId] = ()
    settings: EvolutionSettings = field(default_factory=EvolutionSettings)

    def max_batch(self, observed: int) -> int | None:
        """None: what was measured changes little."""
        return None

    def propose(
        self, observations: Sequence[Observation], tried: Collection[ProgramId], count: int, rng: np.random.Generator
    ) -> list[ProgramId]:
        """See `SearchStrategy`."""
        first = first_population(self.space, observations, self.starts, self.settings.population, rng)
        ranked = evolve(self.space, first, self._score, tried, rng, self.settings)
        chosen = dict.fromkeys(draw_untried(self.space, tried, ceil(RANDOM_SHARE * count) if count > 1 else 0, rng))
        chosen |= dict.fromkeys(alternating(ranked, self._descendants(observations, tried, count, rng)))
        more = draw_untried(self.space, {*tried, *chosen}, count - len(chosen), rng)
        return [*chosen, *more][:count]

    def _descendants(
        self, observations: Sequence[Observation], tried: Collection[ProgramId], count: int, rng: np.random.Generator
    ) -> list[ProgramId]:
        """Changed copies of the fastest programs that were not tried."""
        parents = fastest(observations, PARENTS)
        if not parents:
            return []
        children = self.space.mutate([parents[int(k)] for k in rng.integers(len(parents), size=4 * count)], rng)
        return [p for p in dict.fromkeys(children) if p not in tried]

    def _score(self, programs: Sequence[ProgramId]) -> Numbers:
        return scores_of_times(self.space.predicted_times(programs))


def alternating(first: Sequence[ProgramId], second: Sequence[ProgramId]) -> list[ProgramId]:
    """The members of both in turns, as long as both have some, then the rest."""
    pairs = [p for pair in zip(first, second, strict=False) for p in pair]
    shorter = min(len(first), len(second))
    return [*pairs, *first[shorter:], *second[shorter:]]


def scores_of_times(nanoseconds: Sequence[float]) -> Numbers:
    """Scores from 0 to 1: the least time over each; 0 where a time is infinite."""
    times = np.asarray(nanoseconds, np.float64)
    least = times.min(initial=np.inf)
    return np.where(np.isfinite(times), least / times, 0.0) if np.isfinite(least) else np.zeros(len(times))


def fastest(observations: Sequence[Observation], count: int) -> list[ProgramId]:
    """The programs with the least times, best first."""
    timed = [(o.nanoseconds, k, o.program) for k, o in enumerate(observations) if o.nanoseconds is not None]
    return [program for _, _, program in sorted(timed, key=lambda x: x[:2])[:count]]


def first_population(
    space: ProgramSpace,
    observations: Sequence[Observation],
    starts: Sequence[ProgramId],
    count: int,
    rng: np.random.Generator,
) -> list[ProgramId]:
    """Programs that evolution begins with: the fastest measured, the given ones, and random ones."""
    known = [*fastest(observations, int(MEASURED_SHARE * count)), *starts]
    return [*known, *space.random(max(1, count - len(known)), rng)]


def draw_untried(
    space: ProgramSpace, tried: Collection[ProgramId], count: int, rng: np.random.Generator
) -> list[ProgramId]:
    """Random programs that were not tried, at most `count`; fewer where none is left."""
    drawn: dict[ProgramId, None] = {}
    empty_draws = 0
    while len(drawn) < count and empty_draws < MAX_EMPTY_DRAWS:
        fresh = [p for p in space.random(max(32, 2 * count), rng) if p not in tried and p not in drawn]
        empty_draws = 0 if fresh else empty_draws + 1
        drawn |= dict.fromkeys(fresh[: count - len(drawn)])
    return list(drawn)
