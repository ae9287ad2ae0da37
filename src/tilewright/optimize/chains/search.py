"""The search for the tiling of a chain (MCFuser, section IV-B, Algorithm 1).

A population of candidates is estimated, the best few are measured, and the search ends when the best measured time
changes by less than epsilon. Otherwise the next population is drawn from this one, with the weight 1 / estimate, and
each of its members gets another tile along one axis. Without a measurer the estimates are the times.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf, prod

import numpy as np
from numpy.typing import NDArray

from tilewright.optimize.chains.expression import ChainTiling
from tilewright.optimize.chains.model import ChainModel, Tiles, Values
from tilewright.optimize.chains.pruning import ChainSpace, all_positions, fits

MAX_DRAWS = 64
"""How many times a population is drawn anew for candidates that fit the fast memory."""

MAX_GENERATIONS = 100
"""A bound on generations, which measured times that never settle would reach."""

Measure = Callable[[Sequence[ChainTiling]], Sequence[float | None]]
"""Nanoseconds of tilings; None for one that cannot be built."""


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """Parameters of the search. The paper measures 8 candidates; it gives neither the population nor epsilon.

    Attributes:
        population: candidates of a generation; a space of at most so many is taken whole.
        measured: the best candidates of a generation, which are measured.
        epsilon: relative change of the best measured time that counts as none.
        patience: generations without a change that end the search. The paper ends it after the first; a population
            without luck does not change the best time either.
        seed: of the random numbers.
    """

    population: int = 512
    measured: int = 8
    epsilon: float = 0.01
    patience: int = 3
    seed: int = 0


MODEL_ALONE = SearchSettings(population=1 << 15, measured=64, patience=5)
"""Where nothing is measured, candidates cost microseconds: spaces of two and three contractions are taken whole, those
of four are searched to a few percent of their best. `measured` is then how many are ranked."""


@dataclass(frozen=True, slots=True)
class RankedTiling:
    """A tiling with its times.

    Attributes:
        tiling: the tiling.
        model: the model of its expression.
        estimate: nanoseconds by the model.
        nanoseconds: measured; the estimate where nothing is measured.
    """

    tiling: ChainTiling
    model: ChainModel
    estimate: float
    nanoseconds: float


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The outcome of a search.

    Attributes:
        ranked: the candidates whose time is known, best first; empty where none fits the fast memory.
        generations: populations that were estimated.
        estimated: candidates that were estimated, with repetitions.
        measured: distinct candidates that were measured.
    """

    ranked: tuple[RankedTiling, ...]
    generations: int
    estimated: int
    measured: int

    @property
    def best(self) -> RankedTiling | None:
        """The best candidate."""
        return self.ranked[0] if self.ranked else None


@dataclass(frozen=True, slots=True)
class _Population:
    """Candidates: the position of each one's expression, and of its tile sizes [candidate, axis]."""

    expressions: NDArray[np.int64]
    positions: Tiles

    def take(self, chosen: NDArray[np.int64] | NDArray[np.bool_]) -> "_Population":
        return _Population(self.expressions[chosen], self.positions[chosen])


@dataclass(slots=True)
class _Times:
    """Times of tilings; each is measured once."""

    measure: Measure | None
    ranked: dict[ChainTiling, RankedTiling] = field(default_factory=dict[ChainTiling, RankedTiling])

    def add(self, tilings: Sequence[tuple[ChainTiling, ChainModel, float]]) -> float:
        """Times of new tilings; the best time among all of these."""
        new = [x for x in tilings if x[0] not in self.ranked]
        times = [x[2] for x in new] if self.measure is None else self.measure([x[0] for x in new])
        for (tiling, model, estimate), time in zip(new, times, strict=True):
            self.ranked[tiling] = RankedTiling(tiling, model, estimate, inf if time is None else time)
        return min((self.ranked[x[0]].nanoseconds for x in tilings), default=inf)


def search(space: ChainSpace, settings: SearchSettings | None = None, measure: Measure | None = None) -> SearchResult:
    """Searches a pruned space; deterministic for a seed and equal times.

    Args:
        space: the space.
        settings: parameters.
        measure: runs tilings; None where nothing may be measured.
    """
    settings = settings or SearchSettings()
    random = np.random.default_rng(settings.seed)
    is_whole = len(space.models) * prod(space.shape) <= settings.population
    population = _all_that_fit(space) if is_whole else _random_population(space, settings.population, random)
    times = _Times(measure)
    best, generations, estimated, unchanged = inf, 0, 0, 0
    while len(population.positions) and generations < MAX_GENERATIONS:
        estimates = _estimates(space, population)
        generations, estimated = generations + 1, estimated + len(estimates)
        newest = times.add(_best_tilings(space, population, estimates, settings.measured, times))
        is_better = np.isfinite(newest) and newest < (1 - settings.epsilon) * best
        unchanged = 0 if is_better or not np.isfinite(best) else unchanged + 1
        best = min(best, newest)
        if is_whole or unchanged == settings.patience:
            break
        population = _mutated(space, population, estimates, random)
    ranked = sorted((x for x in times.ranked.values() if np.isfinite(x.nanoseconds)), key=lambda x: x.nanoseconds)
    return SearchResult(tuple(ranked), generations, estimated, 0 if measure is None else len(times.ranked))


def _random_population(space: ChainSpace, count: int, random: np.random.Generator) -> _Population:
    """Random candidates that fit the fast memory; all that do where they are too rare to be drawn."""
    drawn = _empty_population(space)
    for _ in range(MAX_DRAWS):
        more = _Population(
            random.integers(len(space.models), size=count),
            np.stack([random.integers(n, size=count) for n in space.shape], axis=1),
        )
        more = more.take(_fits(space, more))
        drawn = _concatenated([drawn, more])
        if len(drawn.positions) >= count:
            break
    return drawn.take(np.arange(min(count, len(drawn.positions)))) if len(drawn.positions) else _all_that_fit(space)


def _empty_population(space: ChainSpace) -> _Population:
    return _Population(np.zeros(0, np.int64), np.zeros((0, len(space.shape)), np.int64))


def _all_that_fit(space: ChainSpace) -> _Population:
    return _concatenated(
        [
            _empty_population(space),
            *(
                every.take(_fits(space, every))
                for k in range(len(space.models))
                for positions in all_positions(space.shape)
                for every in [_Population(np.full(len(positions), k), positions)]
            ),
        ]
    )


def _concatenated(parts: Sequence[_Population]) -> _Population:
    return _Population(
        np.concatenate([p.expressions for p in parts]), np.concatenate([p.positions for p in parts], axis=0)
    )


def _fits(space: ChainSpace, population: _Population) -> NDArray[np.bool_]:
    result = np.zeros(len(population.positions), dtype=bool)
    for k, model in enumerate(space.models):
        own = population.expressions == k
        result[own] = fits(model, space.tiles(population.positions[own]))
    return result


def _estimates(space: ChainSpace, population: _Population) -> Values:
    result = np.zeros(len(population.positions))
    for k, model in enumerate(space.models):
        own = population.expressions == k
        result[own] = model.times(space.tiles(population.positions[own]))
    return result


def _best_tilings(
    space: ChainSpace, population: _Population, estimates: Values, count: int, times: _Times
) -> list[tuple[ChainTiling, ChainModel, float]]:
    """The best distinct tilings that have not failed; of equal estimates, those with larger tiles, whose loops have
    fewer iterations."""
    tiles = space.tiles(population.positions)
    volume = np.prod(tiles.astype(np.float64), axis=1)
    result: dict[ChainTiling, tuple[ChainTiling, ChainModel, float]] = {}
    for k in np.lexsort((-volume, estimates)):
        model = space.models[int(population.expressions[k])]
        tiling = tiling_of(model, tiles[k])
        if tiling not in times.ranked or np.isfinite(times.ranked[tiling].nanoseconds):
            result.setdefault(tiling, (tiling, model, float(estimates[k])))
        if len(result) == count:
            break
    return list(result.values())


def tiling_of(model: ChainModel, tiles: NDArray[np.int64]) -> ChainTiling:
    """The tiling of a candidate, without the loops that have one iteration if the model eliminates them."""
    sizes = tuple((a.name, int(t)) for a, t in zip(model.chain.axes, tiles, strict=True))
    dead = {a.name for a, (_, t) in zip(model.chain.axes, sizes, strict=True) if t >= a.extent and not a.is_symbolic}
    return ChainTiling(model.block.expression(model.chain, frozenset(dead) if model.eliminates else frozenset()), sizes)


def _mutated(space: ChainSpace, population: _Population, estimates: Values, random: np.random.Generator) -> _Population:
    """As many candidates, drawn with the weight 1 / estimate, each with another tile along one axis; those that do not
    fit the fast memory then keep theirs."""
    count = len(estimates)
    weights = 1 / estimates
    parents = population.take(random.choice(count, count, p=weights / weights.sum()))
    changeable = np.flatnonzero(np.asarray(space.shape) > 1)
    if not len(changeable):
        return parents
    axes = random.choice(changeable, count)
    sizes = np.asarray(space.shape)[axes]
    positions = parents.positions.copy()
    rows = np.arange(count)
    positions[rows, axes] = (positions[rows, axes] + 1 + random.integers(sizes - 1)) % sizes
    mutants = _Population(parents.expressions, positions)
    positions = np.where(_fits(space, mutants)[:, None], positions, parents.positions)
    return _Population(parents.expressions, positions)
