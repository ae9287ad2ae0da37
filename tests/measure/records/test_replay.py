"""Replay of recorded programs: hostile ones, which would become code without end, are refused in time."""

import time

import pytest
from tests.measure.records.examples import dynamic_task, small_task, split_by

from tilewright.errors import ScheduleError
from tilewright.measure.records.replay import replay_checked
from tilewright.schedule.step import Step, replay
from tilewright.verify.verifier import verify


def test_programs_that_fit_are_replayed_and_verified() -> None:
    task = dynamic_task()
    trace = (*split_by(4, "i1"), Step.of("unroll", "i1_i"))
    assert replay_checked(task.func, trace) == replay(task.func, trace)
    verify(replay_checked(task.func, trace))


def unrolled(count: int) -> tuple[Step, ...]:
    """Loops of 2^18 iterations, split into so many loops of 64, all unrolled."""
    steps = [step for k in range(count) for step in split_by(64, "i0" + "_o" * k)]
    return (*steps, *(Step.of("unroll", "i0" + "_o" * k + "_i") for k in range(count)))


def peeled(count: int) -> tuple[Step, ...]:
    """A loop whose first iteration is cut off again and again, each time with a copy of the loops inside."""
    names = ["i0", *(f"rest{k}" for k in range(count))]
    return tuple(Step.of("peel", names[k], 1, names[k + 1]) for k in range(count))


@pytest.mark.parametrize(
    ("trace", "reason"),
    [
        (unrolled(3), "copies of blocks"),
        (split_by(0), "factor"),
        (split_by(4, "i7"), "i7"),
        ((Step("exec", ("rm",)),), "there is no primitive"),
        ((Step("unroll", ("i0",)),), "more than 512"),
    ],
)
def test_programs_that_do_not_fit_are_refused_in_time(trace: tuple[Step, ...], reason: str) -> None:
    start = time.process_time()
    with pytest.raises(ScheduleError, match=reason):
        replay_checked(small_task(1 << 18).func, trace)
    assert time.process_time() - start < 20


def test_loops_that_are_copied_without_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.measure.records.replay.MAX_STATEMENTS", 12)
    with pytest.raises(ScheduleError, match="more than 12 statements"):
        replay_checked(small_task(1 << 18).func, peeled(12))


def test_buffers_without_end_are_refused() -> None:
    task = small_task(1 << 40)
    with pytest.raises(ScheduleError, match="its buffers take 4398046511104 bytes"):
        replay_checked(task.func, (Step.of("cache_write", "out", "memory"),))
