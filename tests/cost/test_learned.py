"""The learned model: features of programs as rows, and what trees make of measurements."""

from dataclasses import replace

import numpy as np
import pytest
from benchmarks.common.statistics import rank_correlation
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.optimize.search_tasks import MACHINE, search_task

from tilewright.cost.learned import ranking_model
from tilewright.cost.learned.part_features import FeatureRows
from tilewright.cost.learned.ranking_model import BoostingSettings, MeasuredPrograms, train
from tilewright.cost.learned.tile_features import NAMES, least_time, tile_features
from tilewright.errors import OptionError
from tilewright.optimize.construct.optimizer import problem_for
from tilewright.optimize.search.program_space import ProgramId, ProgramSpace
from tilewright.optimize.search.tile_programs import TilePrograms

SMALL = BoostingSettings(rounds=60, max_depth=4)
KINDS = ("product", "convolution", "rows", "sums", "transposed")


def drawn(kind: str, count: int, seed: int = 0) -> tuple[ProgramSpace, list[ProgramId]]:
    space = ProgramSpace.of(search_task(kind), MACHINE)
    assert space is not None
    return space, space.random(count, np.random.default_rng(seed))


@pytest.mark.parametrize("kind", KINDS)
def test_every_program_has_rows_of_all_features(kind: str) -> None:
    space, programs = drawn(kind, 40)
    features = space.features(programs)
    assert features.count == len(programs)
    assert features.rows.shape == (len(features.programs), len(NAMES))
    assert len(set(NAMES)) == len(NAMES)
    assert np.isfinite(features.rows).all()
    assert set(features.programs.tolist()) == set(range(len(programs)))
    assert (np.diff(features.programs) >= 0).all()
    # several programs differ in several features
    assert (np.ptp(features.rows, axis=0) > 0).sum() > 5


@pytest.mark.parametrize("kind", KINDS)
def test_features_do_not_depend_on_what_else_is_asked_for(kind: str) -> None:
    space, programs = drawn(kind, 24)
    together = space.features(programs)
    order = np.random.default_rng(1).permutation(len(programs))
    shuffled = space.features([programs[k] for k in order])
    assert np.allclose(together.take(order.tolist()).rows, shuffled.rows, rtol=1e-5, atol=1e-6)
    alone = space.features(programs[3:4])
    assert np.allclose(together.take([3]).rows, alone.rows, rtol=1e-5, atol=1e-6)
    assert alone.predicted[0] == pytest.approx(together.predicted[3])


def test_no_program_is_predicted_to_be_faster_than_the_least_time() -> None:
    task = replace(search_task("product"), threads=1)
    problem = problem_for(task)
    space = ProgramSpace.of(task, MACHINE)
    assert problem is not None
    assert space is not None
    programs = space.random(60, np.random.default_rng(0))
    assert min(space.predicted_times(programs)) >= least_time(problem, MACHINE.with_cores(1))


def test_remainders_are_rows_of_their_own() -> None:
    space, programs = drawn("convolution", 300)
    tiled = [k for k, f in enumerate(space.families) if isinstance(f, TilePrograms)]
    features = space.features([p for p in programs if p.family in tiled])
    counts = np.bincount(features.programs)
    flags = features.rows[:, NAMES.index("is_remainder")]
    assert set(counts.tolist()) == {1, 2}
    assert flags.sum() == (counts == 2).sum()


def synthetic(count: int, seed: int) -> FeatureRows:
    """Programs of one to three rows of random features."""
    rng = np.random.default_rng(seed)
    owners = np.repeat(np.arange(count), rng.integers(1, 4, count))
    return FeatureRows.of(rng.random((len(owners), 6)), owners, rng.random(len(owners)), rng.uniform(100, 200, count))


@settings(max_examples=30)
@given(st.integers(1, 12), st.lists(st.integers(0, 11), min_size=1, max_size=20), st.integers(0, 99))
def test_programs_are_taken_and_joined_with_their_rows(count: int, picked: list[int], seed: int) -> None:
    features = synthetic(count, seed)
    order = [k % count for k in picked]
    taken = features.take(order)
    joined = FeatureRows.concat([features.take([k]) for k in order])
    for a, b in ((taken.rows, joined.rows), (taken.programs, joined.programs), (taken.weights, joined.weights)):
        assert (a == b).all()
    assert (taken.predicted == features.predicted[order]).all()
    assert np.allclose(taken.mean(np.ones(len(taken.rows))), 1.0)
    sums = [features.rows[features.programs == k].sum() for k in order]
    assert np.allclose([taken.rows[taken.programs == n].sum() for n in range(len(order))], sums)


def hidden_time(features: FeatureRows) -> np.ndarray:
    """Times by a rule that the analytical model does not know."""
    return 1000.0 * features.mean(np.where(features.rows[:, 2] > 0.5, 3.0, 1.0) + features.rows[:, 4])


@pytest.mark.parametrize("has_prior", [False, True])
def test_a_rule_is_learned_for_programs_and_tasks_that_were_not_measured(has_prior: bool) -> None:
    """Tasks of other sizes differ by a factor in all times. The prior is noise here, which features do not show."""
    tasks = [MeasuredPrograms(f := synthetic(200, k), hidden_time(f) * 10.0**k) for k in range(3)]
    model = train(tasks, has_prior, SMALL)
    other = synthetic(60, 9)
    scores, times = model.scores(other).tolist(), hidden_time(other)
    assert rank_correlation(scores, (-times).tolist()) > (0.65 if has_prior else 0.85)
    assert rank_correlation((-other.predicted).tolist(), (-times).tolist()) < 0.5


def test_the_prior_ranks_alike_where_nothing_contradicts_it() -> None:
    features = synthetic(60, 0)
    model = train([MeasuredPrograms(features, features.predicted * 7.0)], True, SMALL)
    other = synthetic(40, 1)
    assert rank_correlation(model.scores(other).tolist(), (-other.predicted).tolist()) > 0.98


def test_failures_are_the_worst() -> None:
    features = synthetic(60, 3)
    fails = features.rows[np.searchsorted(features.programs, np.arange(60)), 0] > 0.5
    times = np.where(fails, np.inf, features.predicted)
    scores = train([MeasuredPrograms(features, times)], False, SMALL).scores(features)
    assert scores[fails].mean() < 0.75 * scores[~fails].mean()
    nothing = train([MeasuredPrograms(features, np.full(60, np.inf))], False, SMALL).scores(features)
    assert np.isfinite(nothing).all()


def test_equal_measurements_make_equal_models() -> None:
    task = MeasuredPrograms(f := synthetic(50, 4), hidden_time(f))
    first, second = (train([task], True, SMALL).scores(f) for _ in range(2))
    assert (first == second).all()
    assert len(train([task], True, SMALL).scores(f.take([]))) == 0


def test_the_model_ranks_programs_by_what_was_measured_of_others() -> None:
    """Times that the analytical model has wrong: all programs with many rows in registers take ten times as long."""
    space, programs = drawn("product", 160)
    features = space.features(programs)
    first = np.searchsorted(features.programs, np.arange(len(programs)))
    slow = features.rows[first, NAMES.index("rows_register")] > 1.5
    assert 20 < slow.sum() < 140
    times = features.predicted * np.where(slow, 10.0, 1.0)
    model = train([MeasuredPrograms(features.take(range(80)), times[:80])], True, SMALL)
    scores = model.scores(features.take(range(80, 160)))
    learned = rank_correlation(scores.tolist(), (-times[80:]).tolist())
    assert learned > rank_correlation((-features.predicted[80:]).tolist(), (-times[80:]).tolist()) + 0.1


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(ranking_model, "import_module", refuse)
    with pytest.raises(OptionError, match=r"need XGBoost.*No module named 'xgboost'.*pip install xgboost-cpu"):
        train([MeasuredPrograms(synthetic(4, 0), np.ones(4))], False)


def test_one_sketch_is_scored_at_once() -> None:
    """Features are those of `tile_features`, whatever the order of the candidates' sketches."""
    space, programs = drawn("transposed", 30)
    (family,) = (space.families[k] for k in {p.family for p in programs})
    assert isinstance(family, TilePrograms)
    chosen = [p for p in programs if p.genes[:2] == programs[0].genes[:2] and p.parallel]
    tiles = [family.program(p.genes) for p in chosen]
    sizes = np.stack([t.array for t in tiles])
    direct = tile_features(tiles[0].problem, tiles[0].sketch, sizes, MACHINE)
    assert np.allclose(direct.rows, space.features(chosen).rows)
