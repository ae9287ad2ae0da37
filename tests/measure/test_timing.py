"""Timing: repetitions grow until they can be measured, candidates take turns, medians count."""

import pytest

from tilewright.measure import timing


class Clock:
    """A clock that only work moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.order: list[str] = []
        monkeypatch.setattr(timing.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(timing.time, "sleep", self.pass_time)

    def pass_time(self, seconds: float) -> None:
        """Lets time pass."""
        self.now += seconds

    def work(self, name: str, seconds: float):
        """Something that takes that long per repetition."""

        def run(times: int) -> None:
            self.order.append(name)
            self.now += seconds * times

        return run


@pytest.mark.parametrize("seconds", [1e-9, 1e-6, 1e-3, 0.5])
def test_the_time_of_one_repetition(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    run = Clock(monkeypatch).work("x", seconds)
    assert timing.time_once(run) == pytest.approx(seconds, rel=1e-6)
    assert timing.time_median(run) == pytest.approx(seconds, rel=1e-6)


def test_candidates_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    times = timing.time_interleaved({"a": clock.work("a", 0.01), "b": clock.work("b", 0.02)}, repeats=3, pause=0.1)
    assert times == pytest.approx({"a": 0.01, "b": 0.02})
    assert clock.order[-6:] == ["a", "b"] * 3


def test_one_slow_measurement_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    calls = iter([1.0, 1.0, 50.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])

    def run(times: int) -> None:
        clock.now += next(calls) * times

    assert timing.time_median(run, seconds=0.5) == pytest.approx(1.0)


class Seconds(float):
    """Seconds that count how often they are added up."""

    additions = 0

    def __radd__(self, other: float) -> float:
        Seconds.additions += 1
        return other + float(self)


def test_the_work_of_a_block_is_in_proportion_to_its_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small kernel takes 0.4 us, so a block has ten thousands of calls."""
    monkeypatch.setattr(timing, "_time_call", lambda _: Seconds(1e-6))
    times = timing.time_block(lambda: None, 0.02)
    assert len(times) == pytest.approx(20_000, abs=1)
    assert Seconds.additions == len(times)
