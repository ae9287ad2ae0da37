"""A model that ranks programs, learned from measurements by gradient-boosted trees (XGBoost).

The label of a program is the best time of its task over its own, from 0 (failed) to 1 (the fastest), so that tasks of
all sizes are learned from together. A program's score is the mean of what the trees predict for its rows, and where the
analytical model counts as known, its own guess of the label on top: the trees then learn what it gets wrong. The loss
is the squared error with the label as weight: slow programs need not be told apart (Ansor, OSDI 2020, section 5.2).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from tilewright.cost.footprint import Numbers
from tilewright.cost.learned.part_features import FeatureRows
from tilewright.errors import OptionError

MIN_LABEL_WEIGHT = 0.02
"""The least weight of a program."""


@dataclass(frozen=True, slots=True)
class BoostingSettings:
    """Parameters of the trees. Those of Ansor (TVM 0.8) but for fewer and flatter trees: there are hundreds of programs
    here, not tens of thousands, and a batch waits for the training.

    Attributes:
        rounds: number of trees.
        max_depth: levels of a tree.
        learning_rate: weight of a tree.
        min_split_gain: the least gain of a split.
        columns: share of the features that a tree may use.
        seed: of what is drawn.
        threads: that train.
    """

    rounds: int = 120
    max_depth: int = 6
    learning_rate: float = 0.1
    min_split_gain: float = 0.001
    columns: float = 0.6
    seed: int = 0
    threads: int = 1


@dataclass(frozen=True, slots=True)
class MeasuredPrograms:
    """Programs of one task that were measured.

    Attributes:
        features: of the programs.
        nanoseconds: their times; infinite for those that failed [program].
    """

    features: FeatureRows
    nanoseconds: Numbers

    @property
    def labels(self) -> Numbers:
        """The best time over each."""
        return _best_over_each(self.nanoseconds)


@dataclass(frozen=True, slots=True)
class RankingModel:
    """A trained model.

    Attributes:
        booster: XGBoost's trees.
        has_prior: whether the analytical model's guess is added.
    """

    booster: Any
    has_prior: bool

    def scores(self, features: FeatureRows) -> Numbers:
        """A score per program, the higher the better; comparable between programs of one task and one call."""
        xgboost = load_xgboost()
        if not features.count:
            return np.zeros(0)
        raw = self.booster.predict(xgboost.DMatrix(features.rows), output_margin=True)
        return features.mean(raw) + (_guess(features) if self.has_prior else 0.0)


def train(tasks: Sequence[MeasuredPrograms], has_prior: bool, settings: BoostingSettings | None = None) -> RankingModel:
    """A model of the programs of tasks.

    Args:
        tasks: what was measured, task by task; at least one program.
        has_prior: whether the analytical model's guess is a part of the score.
        settings: of the trees.

    Raises:
        OptionError: XGBoost is not installed.
    """
    xgboost, settings = load_xgboost(), settings or BoostingSettings()
    features = FeatureRows.concat([t.features for t in tasks])
    labels = np.concatenate([t.labels for t in tasks])
    prior = np.concatenate([_guess(t.features) if has_prior else np.zeros(t.features.count) for t in tasks])
    targets, weights = labels - prior, np.maximum(labels, MIN_LABEL_WEIGHT)
    programs = features.programs

    def gradients(raw: Numbers, _: object) -> tuple[Numbers, Numbers]:
        errors = (features.mean(raw) - targets) * weights
        return 2.0 * errors[programs] * features.weights, 2.0 * weights[programs] * features.weights

    parameters = {
        "max_depth": settings.max_depth, "eta": settings.learning_rate, "gamma": settings.min_split_gain,
        "min_child_weight": 0, "colsample_bytree": settings.columns, "seed": settings.seed,
        "nthread": settings.threads, "tree_method": "hist", "base_score": 0.0, "verbosity": 0,
        "disable_default_eval_metric": True,
    }  # fmt: skip
    data = xgboost.DMatrix(features.rows, label=np.zeros(len(features.rows)))
    return RankingModel(xgboost.train(parameters, data, settings.rounds, obj=gradients), has_prior)


def load_xgboost() -> Any:
    """The module XGBoost, imported on first use.

    Raises:
        OptionError: it is not installed.
    """
    try:
        return import_module("xgboost")
    except ImportError as error:
        hint = "pip install xgboost-cpu, or choose the search 'evolution' (--search evolution)"
        what = f"searches with a learned model need XGBoost, which can't be imported: {error}"
        raise OptionError(what, where="search", hint=hint) from error


def _guess(features: FeatureRows) -> Numbers:
    """The label by the analytical model: the least predicted time over each, of the programs of one task."""
    return _best_over_each(np.where(np.isfinite(features.predicted), features.predicted, np.inf))


def _best_over_each(times: Numbers) -> Numbers:
    """The least time over each; 0 where all are infinite."""
    best = times.min(initial=np.inf)
    return best / times if np.isfinite(best) else np.zeros(len(times))
