"""The comparison of the tuned model with the untuned one: how long it takes, and the least that it measures."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from tilewright.driver.tune import compare_model
from tilewright.driver.tune.compare_model import MIN_ROUNDS, ROUNDS, TUNED, UNTUNED, ModelComparison, compare_models
from tilewright.driver.tune.draw_sizes import ModelSizes
from tilewright.measure.engine_comparison import ComparisonResult, comparison_result
from tilewright.measure.interleaved_blocks import CANARY, BlockTimes, RunPlan, run_in_turns
from tilewright.runtime import Executable

NUM_SHAPES = 3


class Ready:
    """A model that takes anything."""

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        return {}


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[RunPlan]:
    """The plans of the comparisons, whose blocks take no time."""
    plans: list[RunPlan] = []

    def compare(executables: Mapping[str, Any], feeds: object, plan: RunPlan, *functions: Any) -> ComparisonResult:
        plans.append(plan)
        blocks = run_in_turns(tuple(executables), block, RunPlan(plan.rounds, plan.seconds, 0.0), *functions)
        return comparison_result(tuple(executables), blocks, 0.0)

    def block(name: str, seconds: float) -> Sequence[float]:
        return {CANARY: [0.01], UNTUNED: [2.0], TUNED: [1.0]}[name]

    cases = [({"batch": k}, {"x": k}) for k in range(NUM_SHAPES)]
    monkeypatch.setattr(compare_model, "compare_executables", compare)
    monkeypatch.setattr(compare_model, "_random_cases", lambda *args: cases)
    return plans


def compared(seconds: float) -> tuple[ModelComparison, ...]:
    model = cast(Executable, Ready())
    return compare_models(model, model, None, ModelSizes((), ()), time.monotonic() + seconds)


def test_with_time_all_shapes_are_compared_in_all_rounds(plans: list[RunPlan]) -> None:
    results = compared(1e6)
    assert [(c.speedup, c.untuned.blocks, c.tuned.blocks) for c in results] == [(2.0, ROUNDS, ROUNDS)] * NUM_SHAPES
    assert {p.seconds for p in plans} == {compare_model.MAX_BLOCK_SECONDS}


def test_without_time_one_shape_is_compared_in_the_fewest_rounds(plans: list[RunPlan]) -> None:
    (result,) = compared(-1.0)
    assert (result.speedup, result.untuned.blocks, result.tuned.blocks) == (2.0, MIN_ROUNDS, MIN_ROUNDS)
    assert {p.seconds for p in plans} == {compare_model.MIN_BLOCK_SECONDS}


@pytest.mark.parametrize("undisturbed", [MIN_ROUNDS - 1, MIN_ROUNDS])
def test_blocks_of_a_busy_machine_alone_make_no_model_slower(undisturbed: int) -> None:
    untuned = BlockTimes(1.0, 0.01, 1.0, 50, ROUNDS, ROUNDS)
    tuned = replace(untuned, median=2.0, undisturbed=undisturbed)
    assert ModelComparison({}, untuned, tuned, 0.0).is_slower == (undisturbed >= MIN_ROUNDS)
