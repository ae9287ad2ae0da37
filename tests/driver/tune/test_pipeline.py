"""Tuning of whole models: the winners are what the next compilation takes, and results stay right."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper
from tests.driver.models import array, model, value

import tilewright
from tilewright.driver.compile import make_compilation
from tilewright.driver.kernel_build.build_resources import build_resources
from tilewright.driver.options import CompileOptions
from tilewright.driver.tune import pipeline
from tilewright.driver.tune.compare_model import ModelComparison
from tilewright.driver.tune.session import EndReason
from tilewright.errors import OptionError
from tilewright.measure.interleaved_blocks import BlockTimes
from tilewright.measure.records.record import RecordKind
from tilewright.measure.records.store import open_store
from tilewright.measure.workers.interface import Effort
from tilewright.measure.workers.local import LocalWorkers
from tilewright.optimize.measurer import Candidate, Measurement, Timing
from tilewright.optimize.task import Task

UNFUSED: dict[str, Any] = {"fusion": "unfused", "jobs": 1, "cache": False}


def two_products(rows: int | str) -> Any:
    """Two products with a softmax between them: three kernels where chains are not fused."""
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["h"], name="first"),
        helper.make_node("Softmax", ["h"], ["s"], name="softmax", axis=-1),
        helper.make_node("MatMul", ["s", "w2"], ["y"], name="second"),
    ]
    constants = {"w1": array(1, 24, 40), "w2": array(2, 40, 20)}
    return model(nodes, [value("x", [rows, 24])], [value("y", [rows, 20])], constants)


@dataclass
class DecreasingTimes:
    """Every program that is new is faster than all before it.

    Attributes:
        nanoseconds: by the program.
    """

    nanoseconds: dict[Candidate, float] = field(default_factory=dict)

    def measure(
        self, task: Task, candidates: Sequence[Candidate], incumbent: Candidate | None = None
    ) -> list[Measurement]:
        return [Measurement(c, self._timing(c, incumbent)) for c in candidates]

    def _timing(self, candidate: Candidate, incumbent: Candidate | None) -> Timing:
        beside = None if incumbent is None else self.nanoseconds.setdefault(incumbent, 1000.0)
        ns = self.nanoseconds.setdefault(candidate, 1000.0 * 0.9 ** len(self.nanoseconds))
        return Timing(ns, 0.0, ns, 5, 5, 0.0, False, beside)


def comparison_of(untuned: float, tuned: float) -> tuple[ModelComparison, ...]:
    times = [BlockTimes(t, 0.001, t, 9, 5, 5) for t in (untuned, tuned)]
    return (ModelComparison({}, times[0], times[1], 0.0),)


@pytest.fixture
def measured_by_fake(monkeypatch: pytest.MonkeyPatch) -> DecreasingTimes:
    times = DecreasingTimes()
    monkeypatch.setattr(pipeline, "_make_workers", lambda *args: LocalWorkers(dict.fromkeys(Effort, times)))
    monkeypatch.setattr(pipeline, "compare_models", lambda *args: comparison_of(1.0, 0.8))
    return times


@pytest.mark.parametrize("rows", [16, "batch"])
def test_compilations_take_what_won_and_results_stay_right(
    measured_by_fake: DecreasingTimes, tmp_path: Path, rows: int | str
) -> None:
    proto, store = two_products(rows), tmp_path / "records.db"
    shapes = {"batch": "1..64"} if rows == "batch" else None
    result = tilewright.tune(proto, trials=24, shapes=shapes, search="evolution", records=store, **UNFUSED)
    assert result.session.improved
    assert result.comparison[0].is_faster
    compilation = make_compilation(
        proto, CompileOptions(shapes=shapes, fusion="unfused"), resources=build_resources(1, False, records=store)
    )
    by_task = {k.task.hash: k for k in compilation.kernels}
    for k in result.session.improved:
        assert k.choice is not None
        assert {p.trace for p in by_task[k.kernel.task.hash].programs} == {p.trace for p in k.choice.programs}
    feeds = {"x": array(7, 16, 24)}
    tuned, untuned = (tilewright.compile(proto, shapes=shapes, records=r, **UNFUSED) for r in (store, False))
    np.testing.assert_allclose(tuned.run(feeds)["y"], untuned.run(feeds)["y"], rtol=1e-4, atol=1e-5)


def test_a_model_that_is_slower_as_a_whole_stays_as_it_was(
    measured_by_fake: DecreasingTimes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "compare_models", lambda *args: comparison_of(0.8, 1.0))
    proto, store = two_products(8), tmp_path / "records.db"
    result = tilewright.tune(proto, trials=8, search="evolution", records=store, **UNFUSED)
    assert result.is_reverted
    options = CompileOptions(fusion="unfused")
    compilations = [make_compilation(proto, options, resources=build_resources(1, False, records=r))
                    for r in (store, False)]  # fmt: skip
    traces = [[p.trace for k in c.kernels for p in k.programs] for c in compilations]
    assert traces[0] == traces[1]


def test_an_interrupted_comparison_keeps_what_won(
    measured_by_fake: DecreasingTimes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: object) -> tuple[ModelComparison, ...]:
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline, "compare_models", interrupted)
    store = tmp_path / "records.db"
    result = tilewright.tune(two_products(8), trials=8, search="evolution", records=store, **UNFUSED)
    assert result.session.end is EndReason.INTERRUPTED
    assert result.session.improved
    assert not result.is_reverted
    assert result.note == "interrupted before the whole model was compared"


def test_a_small_model_is_tuned_on_this_machine(tmp_path: Path) -> None:
    """Real measurements; what they say depends on the machine, that everything is kept does not."""
    proto, store = two_products(16), tmp_path / "records.db"
    first = tilewright.tune(proto, trials=3, search="evolution", records=store, **UNFUSED)
    with open_store(store) as records:
        count = records.count(RecordKind.TIMING) + records.count(RecordKind.FAILURE)
        choices = records.count(RecordKind.CHOICE)
    assert first.session.end is EndReason.TRIALS
    assert count >= 3 + choices
    second = tilewright.tune(proto, trials=2, search="evolution", records=store, **UNFUSED)
    assert second.session.trials == 2
    with open_store(store) as records:
        programs = [(r.task.hash, r.trace) for r in records.records(kinds=[RecordKind.TIMING, RecordKind.FAILURE])]
    assert len(set(programs)) >= 5 - first.session.disturbed  # those are timed again


def test_a_budget_too_small_for_a_trial_says_what_it_takes(tmp_path: Path) -> None:
    result = tilewright.tune(two_products(8), budget=0.1, records=tmp_path / "records.db", jobs=1, cache=False)
    assert result.session.trials == 0
    assert "too small for a trial" in result.advice


def test_bad_arguments_name_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proto = two_products("batch")
    with pytest.raises(OptionError, match="expected a time"):
        tilewright.tune(proto, budget="soon")
    with pytest.raises(OptionError, match="there is no search 'luck'"):
        tilewright.tune(proto, trials=1, search="luck", records=tmp_path / "r.db", jobs=1, cache=False)
    with pytest.raises(OptionError, match="there is no plan 'none'"):
        tilewright.tune(proto, trials=1, plan="none", records=tmp_path / "r.db", jobs=1, cache=False)
    monkeypatch.setenv("TILEWRIGHT_RECORDS", "off")
    with pytest.raises(OptionError, match="needs a store"):
        tilewright.tune(proto, trials=1, jobs=1, cache=False)
