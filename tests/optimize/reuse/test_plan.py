"""Plans of reuse: order, costs in programs and in seconds, independent parts, budgets, and how they are shown."""

import json
from dataclasses import replace

import numpy as np
import pytest
from benchmarks.paper_eto.operator_sets import loop_vector, operator_sets
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.optimize.reuse.plan import (
    PROCESSOR_COSTS,
    Operator,
    ReusePlan,
    StepKind,
    costs_in_seconds,
    plan_reuse,
    replan,
)
from tilewright.optimize.reuse.reuse_graph import BridgeChoice, SearchCosts
from tilewright.optimize.reuse.search_cost import PROCESSOR_SEARCH, SearchFeature
from tilewright.optimize.reuse.trial_cost import FIXED_SECONDS, FULL_CALLS, REUSE_CALLS, TrialCosts


def _of_set(name: str) -> list[Operator]:
    operators = enumerate(operator_sets()[name])
    return [Operator(f"op{k}", o.vector, float(o.frequency * o.vector.points)) for k, o in operators]


def _assert_complete(plan: ReusePlan, count: int) -> None:
    tuned = [s.operator for s in plan.steps if s.kind is not StepKind.RECORDED and not s.is_bridge]
    assert sorted(k for k in tuned if k is not None) == list(range(count))
    for k, step in enumerate(plan.steps):
        assert (step.kind is StepKind.REUSE) == (step.source is not None)
        if step.source is not None:
            source = plan.steps[step.source]
            assert step.source < k
            assert step.vector is not None
            assert source.vector is not None
            assert step.vector.can_reuse(source.vector)


@pytest.mark.parametrize("name", ["BERT-Base", "ResNet50", "DCGAN"])
def test_every_operator_is_tuned_once_after_its_source(name: str) -> None:
    operators = _of_set(name)
    plan = plan_reuse(operators)
    _assert_complete(plan, len(operators))
    assert plan.cost < plan.full_cost == 200 * len(operators)
    flat = [k for tree in plan.subtrees() for k in tree]
    assert sorted(flat) == list(range(len(plan.steps)))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.integers(1, 30), min_size=4, max_size=4), min_size=1, max_size=6))
def test_bridges_never_make_a_plan_dearer(shapes: list[list[int]]) -> None:
    operators = [Operator(f"op{k}", loop_vector("BMM", "x".join(map(str, s)))) for k, s in enumerate(shapes)]
    plans = [plan_reuse(operators, bridges=choice) for choice in (BridgeChoice.NONE, BridgeChoice.ONE_HOP)]
    for plan in plans:
        _assert_complete(plan, len(operators))
    assert plans[1].cost <= plans[0].cost + 1e-6
    assert not any(s.is_bridge for s in plans[0].steps)


def test_subtrees_are_independent() -> None:
    operators = [Operator(f"op{k}", loop_vector("BMM", s)) for k, s in enumerate(("1x8x8x8", "1x16x8x8"))]
    operators += [Operator("other", loop_vector("C2D", "1x8x8x8x8x3x3")), Operator("gather", None)]
    plan = plan_reuse(operators)
    labels = [{plan.steps[k].label for k in tree} for tree in plan.subtrees()]
    assert sorted(labels, key=len) == [{"other"}, {"gather"}, {"op0", "op1"}]
    assert plan.steps[-1].vector is None


def test_recorded_programs_of_other_models_are_sources() -> None:
    operators = [Operator("new", loop_vector("BMM", "1x8x8x16"))]
    recorded = [Operator("gather", None), Operator("old", loop_vector("BMM", "1x8x8x8"))]
    plan = plan_reuse(operators, recorded)
    assert [(s.kind, s.label, s.operator) for s in plan.steps] == [
        (StepKind.RECORDED, "old", 1),
        (StepKind.REUSE, "new", 0),
    ]
    assert plan.budgets(1000)[0] == 0
    assert "old [1x8x8x8]: recorded\n  new [1x8x8x16]: from old" in plan.text()


def test_budgets_follow_costs_and_weights() -> None:
    operators = _of_set("ResNet50")
    plan = plan_reuse(operators)
    for trials in (40, 300, 10_000):
        budgets = plan.budgets(trials)
        assert all(n >= 1 for n in budgets)
        assert abs(sum(budgets) - min(trials, plan.cost)) <= len(budgets)
    even = plan_reuse([Operator(o.label, o.vector) for o in operators])
    heavy = max(range(len(operators)), key=lambda k: operators[k].weight)
    position = [s.operator for s in plan.steps].index(heavy)
    per_cost = [n / s.cost for n, s in zip(plan.budgets(1e9), plan.steps, strict=True)]
    assert per_cost[position] > np.mean(per_cost)
    assert even.cost == pytest.approx(plan.cost)


def test_heavy_subtrees_come_first() -> None:
    vectors = [loop_vector("BMM", "1x8x8x8"), loop_vector("C2D", "1x8x8x8x8x3x3")]
    plans = [plan_reuse([Operator("a", vectors[0], w), Operator("b", vectors[1], 5.0)]) for w in (1.0, 9.0)]
    assert [[s.label for s in p.steps] for p in plans] == [["b", "a"], ["a", "b"]]


def test_plans_are_shown_as_text_and_as_json() -> None:
    plan = plan_reuse(_of_set("BERT-Base"), costs=SearchCosts(full=200, sizes=PROCESSOR_COSTS.sizes))
    lines = plan.text().splitlines()
    assert len(lines) == len(plan.steps) + 1
    assert "full search, 200 programs" in lines[0]
    assert lines[-1].startswith(f"{plan.cost:.0f} programs estimated; 1000 programs by full searches")
    data = json.loads(json.dumps(plan.data()))
    assert [s["source"] for s in data["steps"]] == [s.source for s in plan.steps]
    assert any(s["bridge"] for s in data["steps"])


def test_costs_are_estimated_anew_once_the_sketch_of_a_kind_is_known() -> None:
    operators = _of_set("BERT-Base")
    first = plan_reuse(operators)
    root = next(s.operator for s in first.steps if s.kind is StepKind.FULL and s.operator is not None)
    frozen = PROCESSOR_SEARCH.frozen([SearchFeature.THREADS])
    again = replan(operators, {root: frozen})
    assert sorted(s.operator for s in again.steps if s.kind is not StepKind.RECORDED and s.operator is not None) == [
        k for k in range(len(operators)) if k != root
    ]
    reused = {s.operator: s.cost for s in again.steps if s.kind is StepKind.REUSE}
    same = {s.operator: s.cost for s in replan(operators, {root: PROCESSOR_SEARCH}).steps if s.kind is StepKind.REUSE}
    assert reused.keys() == same.keys()
    assert all(reused[k] < same[k] for k in reused)
    assert again.cost < first.cost


def test_a_plan_of_nothing_is_empty() -> None:
    assert plan_reuse([]) == ReusePlan((), 0.0, 0.0)
    assert plan_reuse([]).budgets(10) == ()


def test_a_small_budget_reaches_every_operator() -> None:
    plan = plan_reuse(_of_set("BERT-Base"))
    budgets = plan.budgets(40)
    assert min(budgets) >= 40 * 0.4 / len(plan.steps) - 1
    assert max(budgets) < 40 * 0.8


SECONDS_PER_POINT = 2e-11
"""Of a multiply-add, on one core."""


def _with_times(operators: list[Operator]) -> list[Operator]:
    return [replace(o, seconds=SECONDS_PER_POINT * o.vector.points) for o in operators if o.vector is not None]


def _seconds_of(plan: ReusePlan) -> float:
    """What the steps of a plan cost in seconds."""
    seconds = 0.0
    for s in plan.steps:
        assert s.vector is not None
        calls = REUSE_CALLS if s.kind is StepKind.REUSE else FULL_CALLS
        seconds += s.programs * (FIXED_SECONDS + calls * SECONDS_PER_POINT * s.vector.points)
    return seconds


@pytest.mark.parametrize("bridges", [BridgeChoice.NONE, BridgeChoice.ONE_HOP])
def test_a_plan_in_seconds_searches_what_is_quick_to_measure_in_full(bridges: BridgeChoice) -> None:
    operators = _with_times(_of_set("BERT-Base"))
    by_programs = plan_reuse(operators, bridges=bridges)
    by_seconds = plan_reuse(operators, bridges=bridges, costs=costs_in_seconds(operators))
    assert by_seconds.steps != by_programs.steps
    assert by_seconds.cost == pytest.approx(_seconds_of(by_seconds))
    assert by_seconds.cost < 0.8 * _seconds_of(by_programs)
    assert by_programs.cost == by_programs.programs <= by_seconds.programs
    roots = [max(s.vector.points for s in p.steps if s.kind is StepKind.FULL and s.vector is not None)
             for p in (by_programs, by_seconds)]  # fmt: skip
    # the product of 128x768x3072 or a smaller one
    assert roots[1] < roots[0] == 128 * 768 * 3072


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.integers(1, 30), min_size=4, max_size=4), min_size=1, max_size=6), st.floats(0.1, 10.0))
def test_trials_of_one_cost_give_the_plan_of_programs(shapes: list[list[int]], cost: float) -> None:
    operators = [Operator(f"op{k}", loop_vector("BMM", "x".join(map(str, s)))) for k, s in enumerate(shapes)]
    plan = plan_reuse(operators)
    equal = plan_reuse(operators, costs=replace(PROCESSOR_COSTS, trial=TrialCosts("units", cost)))
    assert plan.cost == plan.programs
    assert equal.cost == pytest.approx(cost * plan.cost)
    assert equal.cost == pytest.approx(cost * equal.programs)


def test_a_bridge_takes_the_time_of_its_iterations() -> None:
    small, large = loop_vector("BMM", "1x8x8x8"), loop_vector("BMM", "1x16x16x16")
    costs = TrialCosts.in_seconds([(large, 8e-3), (None, 1.0)])
    assert costs.of_full_search(small) == pytest.approx(FIXED_SECONDS + FULL_CALLS * 1e-3)
    assert costs.of_reuse(small) == pytest.approx(FIXED_SECONDS + REUSE_CALLS * 1e-3)
    assert costs.of_full_search(8e-3) == costs.of_full_search(large)
    # nothing is known of other kinds
    assert costs.of_reuse(loop_vector("C2D", "1x8x8x8x8x3x3")) == FIXED_SECONDS


def test_an_operator_of_unknown_time_is_not_taken_to_be_free() -> None:
    small, large = loop_vector("BMM", "1x8x8x8"), loop_vector("BMM", "1x16x16x16")
    costs = TrialCosts.in_seconds([(large, 8e-3), (small, 0.0)])
    assert costs.of_reuse(small) == pytest.approx(FIXED_SECONDS + REUSE_CALLS * 1e-3)
    bridge = loop_vector("BMM", "1x8x8x16")
    assert costs.of_reuse(bridge) == pytest.approx(FIXED_SECONDS + REUSE_CALLS * 2e-3)


def test_seconds_are_shown_beside_programs_and_budgets_stay_programs() -> None:
    operators = [*_with_times(_of_set("BERT-Base")), Operator("gather", None, seconds=1e-3)]
    plan = plan_reuse(operators, costs=costs_in_seconds(operators))
    *lines, last = plan.text().splitlines()
    assert lines[-1] == f"gather: full search, 200 programs, {200 * (FIXED_SECONDS + FULL_CALLS * 1e-3):.0f} seconds"
    assert all(" programs, " in line and line.endswith(" seconds") for line in lines)
    assert last.startswith(f"{plan.programs:.0f} programs, {plan.cost:.0f} seconds estimated; 1200 programs, ")
    assert last.endswith("times as many seconds)")
    data = plan.data()
    assert data["unit"] == "seconds"
    assert data["cost"] == round(plan.cost, 1) != data["programs"] == round(plan.programs, 1)
    assert abs(sum(plan.budgets(1e9)) - plan.programs) <= len(plan.steps)


def test_a_plan_of_the_rest_keeps_its_unit() -> None:
    operators = _with_times(_of_set("BERT-Base"))
    costs = costs_in_seconds(operators)
    again = replan(operators, {0: PROCESSOR_SEARCH}, costs=costs)
    assert again.unit == "seconds"
    assert again.full_programs == 200 * (len(operators) - 1)
    assert again.cost < plan_reuse(operators, costs=costs).cost
