"""Tuning in the order of a plan of reuse: sources first, the others near their programs, then the task scheduler."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.driver.tune.fakes import (
    Clock,
    CountingSearch,
    FakeMeasurer,
    MemoryStore,
    instruments,
    planned,
    program,
)
from tests.optimize.computations import Program, product
from tests.optimize.tasks import task_of

from tilewright.driver.tune import pipeline
from tilewright.driver.tune.budget import Budget
from tilewright.driver.tune.consecutive_searches import ConsecutiveSearches
from tilewright.driver.tune.draw_sizes import ModelSizes
from tilewright.driver.tune.plan import MeasurePoint, PlannedKernel, TuningPlan
from tilewright.driver.tune.recorded_sources import RecordedSource
from tilewright.driver.tune.reuse_order import ReuseOrder
from tilewright.driver.tune.reuse_schedule import ReuseSchedule
from tilewright.driver.tune.scheduler import TaskProgress
from tilewright.driver.tune.session import TRIAL_SECONDS, TuningSession
from tilewright.machine.shipped import machine_named
from tilewright.optimize.construct.optimizer import Roller
from tilewright.optimize.measurer import Candidate, Measurement, Timing
from tilewright.optimize.reuse.plan import StepKind
from tilewright.optimize.reuse.recognize import tile_program_of
from tilewright.optimize.reuse.reusable_task import ReusableTask
from tilewright.optimize.reuse.reuse_graph import BridgeChoice
from tilewright.optimize.reuse.reuse_search import ReuseSource
from tilewright.optimize.reuse.trial_cost import FIXED_SECONDS, REUSE_CALLS

MACHINE = machine_named("zen5")
ROLLER = Roller(MACHINE)


def kernel_of(rows: int, columns: int) -> PlannedKernel:
    task = task_of(Program([product(rows, columns, 64)], {}, frozenset({"w"}))).canonical()
    schedule = ROLLER.optimize(task)
    assert schedule is not None
    points, programs = (MeasurePoint(task, {}, 1.0, 0),), (Candidate(schedule.trace),)
    return replace(planned(), task=task, nodes=(f"{rows}x{columns}",), programs=programs, points=points)


@pytest.fixture(scope="module")
def plan() -> TuningPlan:
    compilation = SimpleNamespace(build=SimpleNamespace(optimizer=ROLLER))
    kernels = (kernel_of(128, 256), kernel_of(64, 128), kernel_of(256, 64))
    return TuningPlan(cast(Any, compilation), MACHINE, kernels, ModelSizes(({},), (1.0,)))


def test_every_kernel_has_a_step_after_that_of_its_source(plan: TuningPlan) -> None:
    order = ReuseOrder.of(plan, bridges=BridgeChoice.NONE)
    assert sorted(k for k in order.kernel_of if k is not None) == [0, 1, 2]
    assert [s.kind for s in order.reuse.steps].count(StepKind.REUSE) >= 1
    assert all(s.source is None or s.source < k for k, s in enumerate(order.reuse.steps))


def test_costs_are_seconds_by_predicted_times(plan: TuningPlan) -> None:
    slow, *others = plan.kernels
    order = ReuseOrder.of(replace(plan, kernels=(replace(slow, predicted=1e8), *others)), bridges=BridgeChoice.NONE)
    assert order.reuse.unit == "seconds"
    (step,) = [s for s in order.reuse.steps if s.operator == 0]
    # a tenth of a second per call: no full search, which would take 200 of more than 10 s
    assert step.kind is StepKind.REUSE
    assert step.cost == pytest.approx(step.programs * (FIXED_SECONDS + 0.1 * REUSE_CALLS))


def test_bridges_are_kernels_without_calls(plan: TuningPlan) -> None:
    order = ReuseOrder.of(plan)
    bridges = [k for s, k in zip(order.reuse.steps, order.kernel_of, strict=True) if s.is_bridge]
    for k in bridges:
        assert k is not None
        assert order.plan.kernels[k].calls == 0
        assert order.plan.kernels[k].label.startswith("bridge [")
    assert order.plan.kernels[:3] == plan.kernels


def test_sources_are_tuned_before_what_starts_from_them(plan: TuningPlan) -> None:
    order, clock, asked = ReuseOrder.of(plan, bridges=BridgeChoice.NONE), Clock(), list[str]()

    def full_search(kernel: PlannedKernel, history: Sequence[Measurement]) -> CountingSearch:
        asked.append(kernel.label)
        return CountingSearch(0)

    class Equal(FakeMeasurer):
        def _answer(self, candidate: Candidate, incumbent: Candidate | None, sizes: object) -> Timing:
            self.clock.now += 1.0
            return Timing(100.0, 0.0, 100.0, 5, 5, 0.0, False, None if incumbent is None else 100.0)

    schedule = ReuseSchedule(order, full_search, 30)
    tools = instruments(Equal(lambda number, sizes: 1.0, clock), MemoryStore())
    labels: list[str] = []
    session = TuningSession(order.plan, tools, schedule.start_search, Budget(trials=60), clock,
                      report=lambda s: labels.append(s.label), schedule=schedule.next)  # fmt: skip
    schedule.bind(session)
    session.run()
    # the first kernel is tuned, so the rest was planned anew, with it as a source
    assert len(schedule.plans) >= 2
    left = [s.label for s in schedule.plans[1].steps if s.kind is not StepKind.RECORDED]
    assert labels[0] not in left
    assert len(left) == len(order.plan.kernels) - 1
    sources = [order.reuse.steps[s.source].label for s in order.reuse.steps if s.source is not None]
    first = {label: labels.index(label) for label in dict.fromkeys(labels)}
    for step in order.reuse.steps:
        if step.source is not None:
            assert first[order.reuse.steps[step.source].label] < first[step.label]
            # the reuse search proposes programs of its own before the full one begins
            kernel = next(k for k in session.kernels if k.kernel.label == step.label)
            assert kernel.trials > 0
    assert sources
    assert asked[0] in sources


def test_bridges_of_later_plans_are_added_to_the_session(plan: TuningPlan) -> None:
    """The first plan has none; the rest is planned with them."""
    order = replace(ReuseOrder.of(plan, bridges=BridgeChoice.NONE), bridges=BridgeChoice.ONE_HOP)
    schedule = ReuseSchedule(order, lambda kernel, history: CountingSearch(0), 30)
    tools = instruments(FakeMeasurer(lambda number, sizes: 100.0, clock := Clock()), MemoryStore())
    session = TuningSession(order.plan, tools, schedule.start_search, Budget(trials=60), clock, schedule=schedule.next)
    schedule.bind(session)
    with pytest.MonkeyPatch.context() as patch:
        timing = Timing(100.0, 0.0, 100.0, 5, 5, 0.0, False, 100.0)
        patch.setattr(FakeMeasurer, "_answer", lambda self, candidate, incumbent, sizes: timing)
        session.run()
    bridges = [s for s in schedule.plans[1].steps if s.is_bridge]
    added = session.kernels[len(plan.kernels) :]
    assert [t.kernel.calls for t in added] == [0] * len(bridges)
    assert len(added) >= 1


def test_kernels_start_from_recorded_programs(plan: TuningPlan) -> None:
    """A record of 128 x 128: no kernel needs a full search from which it could start."""
    recorded = kernel_of(128, 128)
    reusable = ReusableTask.of(recorded.task, MACHINE)
    assert reusable is not None
    source = tile_program_of(reusable, recorded.programs[0].trace)
    assert source is not None
    order = ReuseOrder.of(
        plan, lambda vectors: [RecordedSource("record", ReuseSource(reusable, source))], BridgeChoice.NONE
    )
    steps = order.reuse.steps
    (position,) = [k for k, s in enumerate(steps) if s.kind is StepKind.RECORDED]
    assert order.kernel_of[position] is None
    started = [k for s, k in zip(steps, order.kernel_of, strict=True) if s.source == position]
    schedule = ReuseSchedule(order, lambda kernel, history: CountingSearch(0), 30)
    for k in started:
        assert k is not None
        search = schedule.start_search(order.plan.kernels[k], [])
        assert isinstance(search, ConsecutiveSearches)
        assert search.ask(2)
    assert started


def test_a_second_search_learns_what_the_first_one_was_told() -> None:
    timing = Timing(1.0, 0.0, 1.0, 1, 1, 0.0, False)
    first, second = CountingSearch(3), CountingSearch(5)

    def following(history: Sequence[Measurement]) -> CountingSearch:
        second.tell(history)
        return second

    search = ConsecutiveSearches(first, following, [Measurement(program(0), timing)])
    first.tell([Measurement(program(0), timing)])
    candidates = list(search.ask(2))
    search.tell([Measurement(c, timing) for c in candidates])
    assert candidates == [program(1), program(2)]
    assert list(search.ask(9)) == [program(3), program(4)]
    assert list(search.ask(9)) == []


def test_a_budget_of_time_is_shared_out_over_the_plan(plan: TuningPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    """Full searches of 200 programs each would take longer than all of it."""
    trials: list[float] = []
    monkeypatch.setattr(pipeline, "ReuseSchedule", lambda order, searches, count: trials.append(count) or _Unbound())
    order = ReuseOrder.of(plan, bridges=BridgeChoice.NONE)
    tools = instruments(FakeMeasurer(lambda number, sizes: 1.0, Clock()), MemoryStore())
    for budget in (Budget(60.0), Budget(60.0, 7), Budget(None, 1000)):
        pipeline._make_session(plan, order, tools, pipeline.TuneOptions(budget=budget), 0.0, None)
    assert trials == [60.0 / TRIAL_SECONDS, 7, 1000]
    assert all(n <= 120 for n in order.reuse.budgets(trials[0]))


class _Unbound:
    """A schedule that is never asked."""

    start_search = next = None

    def bind(self, kernels: object) -> None:
        """Nothing to see."""


def test_independent_branches_are_under_way_at_once_and_dependent_ones_are_not(plan: TuningPlan) -> None:
    order = ReuseOrder.of(plan, bridges=BridgeChoice.NONE)
    schedule = ReuseSchedule(order, lambda kernel, history: CountingSearch(0), 60)
    tasks = [TaskProgress(1.0, (100.0,), 1.0, k.label) for k in order.plan.kernels]
    under_way: list[int] = []
    while (chosen := schedule.next(tasks)) is not None:
        under_way.append(chosen)
        tasks[chosen] = replace(tasks[chosen], is_busy=True)
    roots = [k for s, k in zip(order.reuse.steps, order.kernel_of, strict=True) if s.source is None]
    assert sorted(under_way) == sorted(k for k in roots if k is not None)
    assert len(under_way) < len(tasks)
    for k in under_way:
        tasks[k] = replace(tasks[k], is_busy=False, is_finished=True)
    following = schedule.next(tasks)
    assert following is not None
    assert following not in under_way
