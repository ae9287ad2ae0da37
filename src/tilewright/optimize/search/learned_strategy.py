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

MIN_OBSERVATIONS = 12
"""Programs measured from which on a model is learned."""

FIRST_BATCH = 16
"""Programs of the first batches."""

MAX_GROWTH = 0.25
"""A batch's programs over those measured, once that is more than the first batches have: what is learned from a few
measurements decides about few programs."""

FIRST_RANDOM_SHARE = 0.5
"""Share of random programs where nothing was measured and no start is given."""


@dataclass(frozen=True, slots=True)
class LearnedStrategy:
    """The best of a batch are what evolution finds best by the analytical model, and a model learned from all programs
    measured that corrects it; some are random.

    The model is learned anew where more is known, so that it depends on the observations alone.

    Attributes:
        space: the programs.
        starts: programs that populations begin with, beside the fastest measured and random ones.
        evolution: parameters of the evolution.
        boosting: parameters of the model.
        models: the model by the number of observations that it was learned from; the last one alone.
    """

    space: ProgramSpace
    starts: Sequence[ProgramId] = ()
    evolution: EvolutionSettings = field(default_factory=EvolutionSettings)
    boosting: BoostingSettings = field(default_factory=BoostingSettings)
    models: dict[int, RankingModel] = field(default_factory=dict[int, RankingModel])

    def max_batch(self, observed: int) -> int:
        """See `search.strategies.SearchStrategy`."""
        return max(FIRST_BATCH, int(MAX_GROWTH * observed))

    def propose(
        self, observations: Sequence[Observation], tried: Collection[ProgramId], count: int, rng: np.random.Generator
    ) -> list[ProgramId]:
        """See `search.strategies.SearchStrategy`."""
        model = self._model(observations)
        first = first_population(self.space, observations, self.starts, self.evolution.population, rng)

        def score(programs: Sequence[ProgramId]) -> Numbers:
            if model is None:
                return scores_of_times(self.space.predicted_times(programs))
            return np.maximum(model.scores(self.space.features(programs)), 0.0)

        ranked = evolve(self.space, first, score, tried, rng, self.evolution)
        share = RANDOM_SHARE if observations or self.starts else FIRST_RANDOM_SHARE
        drawn = draw_untried(self.space, tried, ceil(share * count) if count > 1 else 0, rng)
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
            self.models[len(observations)] = train([measured], True, self.boosting)
        return self.models[len(observations)]
