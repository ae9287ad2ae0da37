"""Runs of candidates in one process: when one is given up, what is known of an incumbent, and busy machines."""

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.measure.hostile_candidates import honest_task, with_statement
from tests.measure.test_local_measurer import ruled, task_named

from tilewright.driver.tune.verdict import seems_to_win, wins
from tilewright.measure import interleaved_blocks, run
from tilewright.measure.build import build_candidate
from tilewright.measure.incumbent import prepare_incumbent, prepare_isolated
from tilewright.measure.interleaved_blocks import BlockTimes, RunPlan, TimedBlock, times_of
from tilewright.measure.isolation import IsolatedError, Limits
from tilewright.measure.linked_candidate import BoundCandidate
from tilewright.measure.system_load import SystemLoad
from tilewright.measure.task_cases import case_data, case_sizes
from tilewright.optimize.measurer import Candidate, Timing


def test_a_slow_candidate_is_given_up_after_its_first_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """And before it, where its first calls took far longer than the incumbent does."""
    monkeypatch.setattr(interleaved_blocks, "CANARY_TOLERANCE", 1e9)  # on a busy machine, too
    task = task_named("matmul")
    cases = case_sizes(task)
    data = [case_data(task, s) for s in cases]
    fast, slow = build_candidate(task, ruled(task), cases), build_candidate(task, Candidate(()), cases)
    options = run.RunOptions(1, RunPlan(3, 0.001, 0.0, 0.0005), 1.05)
    incumbent = prepare_incumbent(fast, data, 1)
    timing = run.check_and_time(slow, incumbent, data, options)
    assert timing["blocks"] == 1
    assert timing["nanoseconds"] > 1.05 * timing["incumbent"]
    assert run.check_and_time(slow, incumbent, data, replace(options, max_ratio=1e9))["blocks"] >= 3
    monkeypatch.setattr(run, "MIN_FIRST_CALL_SECONDS", 0.0)
    given_up = run.check_and_time(slow, replace(incumbent, seconds=1e-9), data, options)
    assert (given_up["blocks"], given_up["undisturbed"], given_up["incumbent"]) == (0, 0, pytest.approx(1.0))
    assert not Timing(**given_up).is_reliable
    assert not wins(Timing(**{**given_up, "nanoseconds": 0.1}))


def test_one_slow_first_call_does_not_give_a_candidate_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its caches are cold and its threads start; the second call is at its speed."""
    task = task_named("matmul")
    cases = case_sizes(task)
    data = [case_data(task, s) for s in cases]
    built = build_candidate(task, ruled(task), cases)
    checked_call = BoundCandidate.checked_call
    monkeypatch.setattr(BoundCandidate, "checked_call", lambda self: replace(checked_call(self), seconds=1.0))
    incumbent = prepare_incumbent(built, data, 1)
    options = run.RunOptions(1, RunPlan(1, 0.001, 0.0, 0.0005), 100.0)
    assert run.check_and_time(built, incumbent, data, options)["blocks"] > 0


def rounds_of(
    candidate: Sequence[Sequence[float]], incumbent: Sequence[Sequence[float]], slow: Collection[int] = ()
) -> list[TimedBlock]:
    """Blocks of calls with these seconds, in turns; those of the candidate in the rounds `slow` are disturbed."""
    return [
        TimedBlock(name, tuple(calls), 1e-4, 2e-4 if k in slow and name == run.CANDIDATE else 1e-4 * (1 + 0.01 * k))
        for k, pair in enumerate(zip(candidate, incumbent, strict=True))
        for name, calls in zip((run.CANDIDATE, run.INCUMBENT), pair, strict=True)
    ]


TURNS = run.RunOptions(1, RunPlan(3), 1.1)


def test_the_more_blocks_the_smaller_a_difference_decides() -> None:
    assert run.is_decided(rounds_of([[1.2]], [[1.0]]), TURNS)
    assert not run.is_decided(rounds_of([[1.05]], [[1.0]]), TURNS)
    assert run.is_decided(rounds_of([[1.05]] * 2, [[1.0]] * 2), TURNS)
    assert not run.is_decided(rounds_of([[1.001]] * 2, [[1.0]] * 2), TURNS)
    assert run.is_decided(rounds_of([[1.001]] * 3, [[1.0]] * 3), TURNS)
    assert not run.is_decided(rounds_of([[0.9]] * 8, [[1.0]] * 8), TURNS)


def test_disturbed_calls_do_not_give_a_candidate_up() -> None:
    """Where its threads start late, or another process takes its processor; one call at its speed is enough."""
    assert not run.is_decided(rounds_of([[40.0, 30.0, 0.98]], [[1.0, 1.0, 1.0]]), TURNS)
    assert not run.is_decided(rounds_of([[1.1], [1.05]], [[9.0], [1.03]]), TURNS)
    assert run.is_decided(rounds_of([[1.1], [1.05]], [[1.0, 1.0, 9.0], [1.01]]), TURNS)


def test_disturbed_blocks_do_not_give_a_candidate_up() -> None:
    """Each of its blocks is one call, of which disturbed ones are slower than the incumbent's."""
    assert not run.is_decided(rounds_of([[1.26]], [[1.0]], slow={0}), TURNS)
    assert not run.is_decided(rounds_of([[1.05], [1.05]], [[1.0]] * 2, slow={1}), TURNS)
    assert not run.is_decided(rounds_of([[1.3], [0.9], [1.3]], [[1.0]] * 3, slow={0, 2}), TURNS)
    assert run.is_decided(rounds_of([[1.3], [1.1], [1.3]], [[1.0]] * 3, slow={0, 2}), TURNS)
    # a fast call is a fact beside a slow canary, too
    assert not run.is_decided(rounds_of([[1.3], [0.9]], [[1.0]] * 2, slow={1}), TURNS)


@given(st.data())
def test_what_ends_early_is_no_win(data: st.DataObject) -> None:
    """Whatever blocks count: what decides is what is reported."""
    count = data.draw(st.integers(1, 9))
    times = st.lists(st.lists(st.floats(0.5, 2.0), min_size=1, max_size=3), min_size=count, max_size=count)
    blocks = rounds_of(data.draw(times), data.draw(times), data.draw(st.sets(st.integers(0, count - 1))))
    assume(run.is_decided(blocks, TURNS))
    incumbent = times_of(run.INCUMBENT, blocks).median
    timing = Timing(**run._timing(times_of(run.CANDIDATE, blocks), SystemLoad.now(), 1, incumbent))
    assert not seems_to_win(timing)


def test_a_single_lucky_block_is_no_win() -> None:
    blocks = rounds_of([[0.8], [1.3], [1.3]], [[1.0]] * 3, slow={1, 2})
    assert not run.is_decided(blocks, TURNS)
    timing = Timing(**run._timing(times_of(run.CANDIDATE, blocks), SystemLoad.now(), 1, 1.0))
    assert (timing.nanoseconds, timing.undisturbed, timing.is_disturbed) == (0.8e9, 1, True)
    assert not wins(timing)


@pytest.mark.parametrize("name", ["matmul", "matmul_of_symbolic_rows"])
def test_an_incumbent_is_prepared_in_a_process_of_its_own(name: str) -> None:
    """To the same constants and results as in this one. One thread: others of this process would not be forked."""
    task = task_named(name)
    cases = case_sizes(task)
    data = [case_data(task, s) for s in cases]
    built = build_candidate(task, ruled(task), cases)
    here, isolated = prepare_incumbent(built, data, 1), prepare_isolated(built, data, 1, Limits(20.0, 1 << 30))
    assert built.prepack is not None
    assert isolated.constants.keys() == here.constants.keys() == {*here.linked.constants}
    for one, other in ((here.constants, isolated.constants), (here.results, isolated.results)):
        for key, array in one.items():
            np.testing.assert_array_equal(other[key], array)
    assert isolated.seconds > 0


def test_an_incumbent_that_crashes_while_it_is_prepared_is_named() -> None:
    task = honest_task()
    cases = case_sizes(task)
    built = build_candidate(task, Candidate(()), cases)
    crashing = with_statement(built, "call void @abort()", task.target)
    with pytest.raises(IsolatedError, match="SIGABRT"):
        prepare_isolated(crashing, [case_data(task, s) for s in cases], 1, Limits(20.0, 1 << 30))


@pytest.mark.parametrize(
    ("others", "threads", "undisturbed", "expected"),
    [(0.0, 2, 2, False), (0.0, 2, 1, True), (0.4, 1, 2, False), (0.4, 2, 2, True), (0.8, 1, 2, True)],
)
def test_a_busy_machine_is_noticed(
    monkeypatch: pytest.MonkeyPatch, others: float, threads: int, undisturbed: int, expected: bool
) -> None:
    """By blocks beside slow canaries, and by what other processes take of the processors that threads need."""
    monkeypatch.setattr(SystemLoad, "others_since", lambda _: others)
    monkeypatch.setattr(run.os, "cpu_count", lambda: 2)
    times = BlockTimes(1e-6, 0.1, 9e-7, 7, undisturbed, 3)
    long_ago = replace(SystemLoad.now(), elapsed=SystemLoad.now().elapsed - 1.0)
    timing = Timing(**run._timing(times, long_ago, threads, 2e-6))
    assert not Timing(**run._timing(replace(times, undisturbed=2), SystemLoad.now(), threads, 2e-6)).is_disturbed
    assert timing.is_disturbed is expected
    assert (timing.nanoseconds, timing.incumbent) == pytest.approx((1e3, 2e3))
