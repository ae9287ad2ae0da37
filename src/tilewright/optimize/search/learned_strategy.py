"""The strategy of searches that learn: evolution ranked by a model of the programs measured so far."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from math import ceil

import numpy as np

from tilewright.cost.footprint import Numbers
from tilewright.cost.learned.ranking_model import BoostingSettings, MeasuredPrograms, RankingModel, train
from tilewright.optimize.search.evolution import EvolutionSettings, evolve
from tilewright.optimize.search.program_space import ProgramId, ProgramSpace
from tilewright.optimize.search.strategies import (
    RANDOM_SHARE,
    Observation,
    draw_untried,
    first_population,
    scores_of_times,
)

MIN_OBSERVATIONS = 24
"""Programs measured from which on a model is learned."""


@dataclass(frozen=True, slots=True)
class LearnedStrategy:
    """The best of a batch are what evolution finds best by a model learned from all programs measured; some are random.

    The model is learned anew where more is known, so that it depends on the observations alone.

    Attributes:
        space: the programs.
        has_prior: whether the analytical model counts: it ranks before anything is learned, and the learned model
            corrects it. Without it the first programs are random.
        starts: programs that populations begin with, beside the fastest measured and random ones.
        evolution: parameters of the evolution.
        boosting: parameters of the model.
        models: the model by the number of observations that it was learned from; the last one alone.
    """

    space: ProgramSpace
    has_prior: bool
    starts: Sequence[ProgramId] = ()
    evolution: EvolutionSettings = field(default_factory=EvolutionSettings)
    boosting: BoostingSettings = field(default_factory=BoostingSettings)
    models: dict[int, RankingModel] = field(default_factory=dict[int, RankingModel])

    def propose(
        self, observations: Sequence[Observation], tried: Collection[ProgramId], count: int, rng: np.random.Generator
    ) -> list[ProgramId]:
        """See `search.strategies.SearchStrategy`."""
        model = self._model(observations)
        if model is None and not self.has_prior:
            return draw_untried(self.space, tried, count, rng)
        first = first_population(self.space, observations, self.starts, self.evolution.population, rng)

        def score(programs: Sequence[ProgramId]) -> Numbers:
            if model is None:
                return scores_of_times(self.space.predicted_times(programs))
            return np.maximum(model.scores(self.space.features(programs)), 0.0)

        ranked = evolve(self.space, first, score, tried, rng, self.evolution)
        drawn = draw_untried(self.space, tried, ceil(RANDOM_SHARE * count) if count > 1 else 0, rng)
        chosen = list(dict.fromkeys([*drawn, *ranked]))[:count]
        return [*chosen, *draw_untried(self.space, {*tried, *chosen}, count - len(chosen), rng)]

    def _model(self, observations: Sequence[Observation]) -> RankingModel | None:
        """The model of the programs measured; None where they are too few."""
        timed = sum(o.nanoseconds is not None for o in observations)
        if timed < MIN_OBSERVATIONS:
            return None
        if len(observations) not in self.models:
            self.models.clear()
            measured = MeasuredPrograms(
                self.space.features([o.program for o in observations]),
                np.array([np.inf if o.nanoseconds is None else o.nanoseconds for o in observations]),
            )
            self.models[len(observations)] = train([measured], self.has_prior, self.boosting)
        return self.models[len(observations)]
