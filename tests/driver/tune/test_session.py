"""Sessions with a measurer and a clock of their own: budgets, noise, interruption, resumption, changed models."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.driver.tune.fakes import (
    CONSTRUCTED,
    Clock,
    CountingSearch,
    FakeMeasurer,
    MemoryStore,
    Times,
    instruments,
    number_of,
    planned,
    program,
)

from tilewright.driver.tune.budget import Budget
from tilewright.driver.tune.plan import PlannedKernel, TuningPlan
from tilewright.driver.tune.session import COMPARED_FRACTION, ROUND_TRIALS, EndReason, SessionStatus, TuningSession
from tilewright.errors import MeasureError, SourcesChangedError, TilewrightWarning
from tilewright.optimize.measurer import Candidate, Measurement, Timing
from tilewright.optimize.task import Task
from tilewright.tile.shape_samples import value_of


def falling(number: int, sizes: Mapping[str, int]) -> float:
    """The constructed program takes 100 ns, the k-th one 200 - k."""
    return 100.0 if number == CONSTRUCTED else 200.0 - number


@dataclass
class SessionBench:
    """A session's surroundings; the searches have `programs` programs each."""

    times: Times = falling
    programs: int = 150
    store: MemoryStore = field(default_factory=MemoryStore)
    clock: Clock = field(default_factory=Clock)
    options: dict[str, Any] = field(default_factory=dict)
    searches: dict[str, CountingSearch] = field(default_factory=dict)
    statuses: list[SessionStatus] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.measurer = FakeMeasurer(self.times, self.clock, **self.options)

    def start_search(self, kernel: PlannedKernel, history: Sequence[Measurement]) -> CountingSearch:
        search = CountingSearch(self.programs)
        search.tell(history)
        self.searches[kernel.task.hash] = search
        return search

    def session(self, budget: Budget, *kernels: PlannedKernel) -> TuningSession:
        plan = cast(TuningPlan, SimpleNamespace(kernels=kernels or (planned(),)))
        tools = instruments(self.measurer, self.store)
        return TuningSession(plan, tools, self.start_search, budget, self.clock, report=self.statuses.append)


def test_the_fastest_program_wins_and_is_kept() -> None:
    bench = SessionBench()
    result = bench.session(Budget(trials=1000)).run()
    (kernel,) = result.kernels
    assert result.end is EndReason.EXHAUSTED
    assert (result.trials, kernel.failures) == (150, 0)
    assert kernel.before == 100.0
    assert kernel.after == pytest.approx(51.0)
    (choice,) = bench.store.choices.values()
    assert choice.programs == (program(149),)
    assert choice.selector is None
    assert result.timeline[-1].speedup == pytest.approx(100 / 51)


def test_a_number_of_trials_is_kept_exactly() -> None:
    bench = SessionBench()
    result = bench.session(Budget(trials=2 * ROUND_TRIALS + 3)).run()
    assert result.end is EndReason.TRIALS
    assert result.trials == 2 * ROUND_TRIALS + 3


def test_time_is_kept_with_what_the_end_needs() -> None:
    bench = SessionBench()
    budget = Budget(seconds=60.0)
    result = bench.session(budget).run()
    assert result.end is EndReason.TIME
    assert 30.0 < bench.clock() <= 60.0 - budget.end_seconds + 1.0
    assert all(s.seconds_left is not None for s in bench.statuses)


def test_a_budget_too_small_for_a_trial_measures_nothing() -> None:
    bench = SessionBench()
    result = bench.session(Budget(seconds=1.5)).run()
    assert (result.end, result.trials, result.seconds_per_trial) == (EndReason.TIME, 0, None)
    assert bench.store.measured == {}


def test_it_ends_where_the_speedup_is_reached() -> None:
    bench = SessionBench()
    result = bench.session(Budget(trials=1000, speedup=1.2)).run()
    assert result.end is EndReason.SPEEDUP
    assert 1.2 <= result.timeline[-1].speedup < 1.4


def test_without_a_limit_the_default_time_is_one() -> None:
    bench = SessionBench(programs=10**6)
    assert bench.session(Budget(speedup=1000.0)).run().end is EndReason.TIME


def test_noise_alone_wins_nothing() -> None:
    """All programs take the same time; measurements vary by 3 %, which the spread states."""
    bench = SessionBench(times=lambda number, sizes: 100.0, options={"noise": 0.03, "spread": 0.06})
    result = bench.session(Budget(trials=150)).run()
    assert result.improved == ()
    assert [c.programs for c in bench.store.choices.values()] == [planned().programs]


def test_a_program_that_seems_to_win_is_timed_again() -> None:
    bench = SessionBench(programs=ROUND_TRIALS)
    session = bench.session(Budget(trials=1000))

    def lucky(number: int, sizes: Mapping[str, int]) -> float:
        return 100.0 if number == CONSTRUCTED else 50.0 if bench.measurer.count <= 1 + ROUND_TRIALS else 120.0

    bench.measurer.times = lucky
    assert session.run().improved == ()


def test_failures_are_kept_and_counted() -> None:
    bench = SessionBench(times=lambda number, sizes: None if number % 2 == 0 else falling(number, sizes))
    result = bench.session(Budget(trials=20)).run()
    assert result.kernels[0].failures == 10
    (rows,) = bench.store.measured.values()
    assert sum(not hasattr(r.result, "nanoseconds") for r in rows) == 10


def test_a_kernel_whose_constructed_program_fails_is_left_alone() -> None:
    bench = SessionBench(times=lambda number, sizes: None if number == CONSTRUCTED else 10.0)
    result = bench.session(Budget(trials=20)).run()
    assert result.end is EndReason.EXHAUSTED
    assert "constructed program fails" in result.kernels[0].refusal
    assert bench.store.choices == {}


def test_where_nothing_can_be_measured_the_session_says_so() -> None:
    bench = SessionBench(options={"is_broken": True})
    kernels = [planned(n) for n in ("matmul", "matvec", "convolution")]
    with pytest.raises(MeasureError, match="no worker process"):
        bench.session(Budget(trials=20), *kernels).run()


def test_an_interrupt_keeps_what_was_measured_and_chosen() -> None:
    bench = SessionBench(programs=1000, options={"interrupt_after": 137})
    result = bench.session(Budget(seconds=1e6)).run()
    assert result.end is EndReason.INTERRUPTED
    (rows,) = bench.store.measured.values()
    assert 137 - 2 * ROUND_TRIALS < len(rows) <= 137
    assert result.kernels[0].speedup > 1
    (choice,) = bench.store.choices.values()
    assert number_of(choice.programs[0]) > 100


def test_sources_that_change_interrupt_a_session_and_revert_nothing() -> None:
    """A worker that has to be started would run another version, which says nothing of the programs."""
    bench = SessionBench(
        programs=1000, options={"interrupt_after": 137, "interruption": SourcesChangedError()}
    )
    session = bench.session(Budget(seconds=1e6))
    with pytest.warns(TilewrightWarning, match="start this program again"):
        result = session.run()
    assert result.end is EndReason.INTERRUPTED
    assert result.kernels[0].speedup > 1
    assert not result.kernels[0].refusal
    (choice,) = bench.store.choices.values()
    assert number_of(choice.programs[0]) > 100
    with pytest.warns(TilewrightWarning, match="start this program again"):
        finished = session.finish(EndReason.TRIALS)
    assert finished.end is EndReason.INTERRUPTED
    assert finished.kernels[0].speedup > 1


def test_resuming_repeats_nothing_and_goes_on_from_the_best() -> None:
    bench = SessionBench()
    first = bench.session(Budget(trials=120)).run()
    again = SessionBench(store=bench.store)
    second = again.session(Budget(trials=1000)).run()
    (search,) = again.searches.values()
    assert search.asked == 150
    assert second.trials == 30
    assert second.kernels[0].after == pytest.approx(51.0)
    assert second.timeline[0].speedup >= first.timeline[-1].speedup * 0.999


def test_what_was_timed_on_a_busy_machine_is_timed_again() -> None:
    busy = SessionBench(programs=16)
    measure = busy.measurer.measure

    def busy_measure(task: Task, candidates: Sequence[Candidate], incumbent: Candidate | None = None) -> Any:
        results = measure(task, candidates, incumbent)
        is_busy = [number_of(m.candidate) % 2 == 0 for m in results]
        return [replace(m, result=replace(cast(Timing, m.result), is_disturbed=b))
                for m, b in zip(results, is_busy, strict=True)]  # fmt: skip

    busy.measurer.measure = busy_measure  # pyright: ignore[reportAttributeAccessIssue]
    assert busy.session(Budget(trials=1000)).run().disturbed == 8
    calm = SessionBench(programs=16, store=busy.store)
    assert calm.session(Budget(trials=1000)).run().trials == 8
    (rows,) = calm.store.measured.values()
    assert {number_of(r.candidate) for r in rows if r.result.is_disturbed} == set(range(0, 16, 2))  # pyright: ignore


def test_what_was_timed_by_its_first_calls_alone_is_timed_again() -> None:
    hasty = SessionBench(programs=16)
    measure = hasty.measurer.measure

    def given_up(task: Task, candidates: Sequence[Candidate], incumbent: Candidate | None = None) -> Any:
        results = measure(task, candidates, incumbent)
        blocks = [5 * (number_of(m.candidate) % 2) for m in results]
        return [replace(m, result=replace(cast(Timing, m.result), blocks=n, undisturbed=n))
                for m, n in zip(results, blocks, strict=True)]  # fmt: skip

    hasty.measurer.measure = given_up  # pyright: ignore[reportAttributeAccessIssue]
    assert hasty.session(Budget(trials=1000)).run().disturbed == 0
    patient = SessionBench(programs=16, store=hasty.store)
    assert patient.session(Budget(trials=1000)).run().trials == 8


def test_the_time_is_asked_between_the_points_of_a_baseline() -> None:
    kernel = planned("matmul_of_symbolic_rows", sizes=range(1, 41))
    bench = SessionBench(times=lambda number, sizes: 100.0)
    budget = Budget(seconds=10.0)
    result = bench.session(budget, kernel).run()
    assert (result.end, result.trials) == (EndReason.TIME, 0)
    assert bench.clock() <= 10.0 - budget.end_seconds + 1.0


def test_a_choice_that_has_become_slower_is_dropped_when_resuming() -> None:
    bench = SessionBench()
    bench.session(Budget(trials=150)).run()
    changed = SessionBench(store=bench.store, times=lambda number, sizes: 100.0 if number == CONSTRUCTED else 300.0)
    session = changed.session(Budget(trials=8))
    session.run()
    session.finish(EndReason.TRIALS)
    assert session.kernels[0].programs == planned().programs


def test_the_end_gives_up_programs_that_do_not_win_any_more() -> None:
    bench = SessionBench()
    session = bench.session(Budget(trials=150))
    session.run()
    bench.measurer.times = lambda number, sizes: 100.0
    session.finish(EndReason.TRIALS)
    assert not session.kernels[0].is_improved
    (choice,) = bench.store.choices.values()
    assert choice.programs == planned().programs
    assert bench.statuses[-1].speedup == 1.0


def test_the_end_leaves_points_as_they_are_when_the_time_of_the_comparison_comes() -> None:
    bench = SessionBench(times=lambda number, sizes: 100.0 if number == CONSTRUCTED else 50.0)
    budget = Budget(seconds=400.0)
    session = bench.session(budget, planned("matmul_of_symbolic_rows", sizes=range(1, 31)))
    session.run()
    assert session.kernels[0].speedup == pytest.approx(2.0)
    bench.clock.now = 400.0 - budget.end_seconds
    session.finish(EndReason.TIME)
    assert bench.clock() <= 400.0 - COMPARED_FRACTION * budget.end_seconds + 1.0
    assert session.kernels[0].speedup == pytest.approx(2.0)


def test_a_model_that_changes_between_sessions_just_has_other_kernels() -> None:
    bench = SessionBench()
    bench.session(Budget(trials=40), planned("matmul"), planned("matvec")).run()
    kept = dict(bench.store.choices)
    other = SessionBench(store=bench.store)
    result = other.session(Budget(trials=400), planned("matvec"), planned("convolution")).run()
    assert result.end is EndReason.EXHAUSTED
    assert len(bench.store.choices) == 3
    assert bench.store.choices[planned("matmul").task.hash] == kept[planned("matmul").task.hash]


def test_the_scheduler_spends_trials_on_the_kernel_that_gains() -> None:
    def times(number: int, sizes: Mapping[str, int]) -> float:
        return falling(number, sizes)

    bench = SessionBench(times=times, programs=400)
    heavy, light = planned("matmul", calls=20), planned("matvec")
    result = bench.session(Budget(trials=160), heavy, light).run()
    assert result.kernels[0].trials > 3 * result.kernels[1].trials


def test_programs_of_dynamic_sizes_serve_only_sizes_at_which_they_win() -> None:
    """One kind of program wins at sizes up to 16, another at 128 and above; the rest loses everywhere."""

    def times(number: int, sizes: Mapping[str, int]) -> float:
        (n,) = sizes.values()
        if number == CONSTRUCTED:
            return 100.0 * n
        return n * {0: 80.0 if n <= 16 else 130.0, 1: 70.0 if n >= 128 else 130.0}.get(number % 4, 150.0)

    bench = SessionBench(times=times, programs=40)
    kernel = planned("matmul_of_symbolic_rows", sizes=(40, 4, 16, 128, 256))
    result = bench.session(Budget(trials=100), kernel).run()
    (choice,) = bench.store.choices.values()
    assert result.improved[0].kernel is kernel
    assert [number_of(p) % 4 for p in choice.programs] == [CONSTRUCTED % 4, 0, 1]
    assert choice.selector is not None
    (symbol,) = kernel.task.func.symbols
    served = {n: number_of(choice.programs[value_of(choice.selector, {symbol: n})]) % 4 for n in range(1, 400)}
    assert {k for n, k in served.items() if n <= 16} == {0}
    assert {k for n, k in served.items() if 16 < n < 128} == {CONSTRUCTED % 4}
    assert {k for n, k in served.items() if n >= 128} == {1}
    assert choice.worst_ratio == 1.0
    assert result.kernels[0].speedup > 1


def test_on_a_busy_machine_nothing_new_wins_and_winners_stay() -> None:
    bench = SessionBench(programs=16)
    session = bench.session(Budget(trials=1000))
    calm = falling

    def busy_measure(*args: object) -> list[Measurement]:
        return [replace(m, result=replace(m.result, is_disturbed=True)) for m in measure(*args)]  # pyright: ignore

    bench.measurer.times = lambda number, sizes: 90.0 - number if number >= 0 else calm(number, sizes)
    session.run()
    assert session.kernels[0].is_improved
    measure, winner = bench.measurer.measure, session.kernels[0].programs
    bench.measurer.measure = busy_measure  # pyright: ignore[reportAttributeAccessIssue]
    session.finish(EndReason.EXHAUSTED)
    assert session.kernels[0].programs == winner
    other = SessionBench(programs=16)
    measure = other.measurer.measure
    other.measurer.measure = busy_measure  # pyright: ignore[reportAttributeAccessIssue]
    other.measurer.times = bench.measurer.times
    assert other.session(Budget(trials=16)).run().improved == ()
