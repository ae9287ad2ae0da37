"""Searches that are measured at once: their log, failures, and that a run goes on with what a log holds."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.optimize.search_tasks import begin, failed, made_up_time, search_task, timed

from tilewright.measure import search
from tilewright.measure.build import encode_candidate
from tilewright.measure.interleaved_blocks import RunPlan
from tilewright.measure.local_measurer import LocalMeasurer, MeasureOptions
from tilewright.measure.search_log import SearchLog
from tilewright.optimize.measurer import Candidate, Measurement
from tilewright.optimize.task import Task

TASK = search_task("product")


class Reckoning:
    """A measurer that makes up times, so that searches are quick and always the same."""

    def __init__(self) -> None:
        self.asked: list[Candidate] = []
        self.incumbents: list[float | None] = []

    def measure(
        self, task: Task, candidates: Sequence[Candidate], incumbent: Candidate | None = None
    ) -> list[Measurement]:
        assert task is TASK
        self.asked += candidates
        self.incumbents.append(None if incumbent is None else made_up_time(incumbent))
        return [failed(c) if made_up_time(c) % 7 < 1 else timed(c, made_up_time(c)) for c in candidates]


def run(log: SearchLog, budget: int, deadline: float = 1e300) -> tuple[search.SearchStatus, Reckoning, list[str]]:
    measurer, lines = Reckoning(), list[str]()
    status = search.run_search(
        begin(TASK, "random"), TASK, log, budget, deadline, measurer, lines.append
    )
    return status, measurer, lines


@pytest.fixture
def short_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "BATCH", 6)


@pytest.mark.usefixtures("short_batches")
def test_a_search_uses_its_budget_without_repeats(tmp_path: Path) -> None:
    log = SearchLog(tmp_path / "x.jsonl")
    log.clear("code")
    status, measurer, lines = run(log, 20)
    assert status.is_finished
    assert not status.is_exhausted
    assert len(search.timed_entries(log)) == 20
    failures = [e["failure"] for e in log.entries if e["ns"] is None]
    assert len(log.entries) == 20 + len(failures)
    assert failures.count(["crash", "signal 11"]) == len(failures) == lines.count("crash: signal 11") > 0
    assert len({str(c.trace) for c in measurer.asked}) == len(log.entries)
    # all but the first program that runs take turns with the fastest one of the batches before
    others = [x for x in measurer.incumbents if x is not None]
    assert measurer.incumbents[0] is None
    assert others == sorted(others, reverse=True)
    assert len(others) >= 3
    (best,) = search.fastest_programs(log, 1)
    assert made_up_time(best) == min(e["ns"] for e in search.timed_entries(log))


@pytest.mark.usefixtures("short_batches")
def test_a_stopped_search_goes_on(tmp_path: Path) -> None:
    stopped = SearchLog(tmp_path / "stopped.jsonl")
    stopped.clear("code")
    assert not run(stopped, 20, deadline=0.0)[0].is_finished
    assert stopped.entries == []
    whole = SearchLog(tmp_path / "whole.jsonl")
    whole.clear("code")
    run(whole, 20)
    lines = whole.path.read_text().splitlines(keepends=True)
    stopped.path.write_text("".join(lines[:10]) + '{"trace": {"fo')
    again = SearchLog(stopped.path)
    assert len(again.entries) == 9
    status, measurer, _ = run(again, 20)
    assert status.is_finished
    assert SearchLog(stopped.path).entries == again.entries
    assert len(measurer.asked) == len(whole.entries) - 9
    assert [e["trace"] for e in whole.entries] == [e["trace"] for e in again.entries]


def test_a_search_of_a_small_space_exhausts_it(tmp_path: Path) -> None:
    task = search_task("rows")
    log = SearchLog(tmp_path / "x.jsonl")
    log.clear("code")

    class Constant:
        def measure(
            self, task: Task, candidates: Sequence[Candidate], incumbent: Candidate | None = None
        ) -> list[Measurement]:
            return [timed(c, 1.0) for c in candidates]

    status = search.run_search(begin(task, "random"), task, log, 100_000, 1e300, Constant())
    assert status.is_exhausted
    assert len(log.entries) > 4


def test_measured_search_of_a_small_product(tmp_path: Path) -> None:
    if not TASK.target.runs_here:
        pytest.skip(f"needs {TASK.target}")
    log = SearchLog(tmp_path / "x.jsonl")
    log.clear("code")
    with LocalMeasurer(MeasureOptions(plan=RunPlan(1, 0.001, 0.0, 0.0005))) as measurer:
        status = search.run_search(begin(TASK, "evolution"), TASK, log, 6, 1e300, measurer)
    assert status.is_finished
    assert [e for e in log.entries if "failure" in e] == []
    assert len(search.timed_entries(log)) == 6
    assert encode_candidate(search.fastest_programs(log, 1)[0]) in [e["trace"] for e in log.entries]
