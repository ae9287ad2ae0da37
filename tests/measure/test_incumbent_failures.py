"""Incumbents that can't be prepared beside a candidate: the candidate did not run, so it has not failed."""

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

import pytest
from tests.measure.hostile_candidates import honest_task, with_statement
from tests.measure.test_local_measurer import QUICK

from tilewright.errors import MeasureError
from tilewright.measure.build import build_candidate, encode_built
from tilewright.measure.local_measurer import LocalMeasurer, Runner
from tilewright.measure.task_cases import case_sizes
from tilewright.measure.worker_process import WorkerPool
from tilewright.measure.workers.station import LocalStation
from tilewright.optimize import task_json
from tilewright.optimize.measurer import Candidate, Failure, Timing

STOPPED = {"incumbent_failure": ["timeout", "it was not done after 5 s"]}


def answer_with(monkeypatch: pytest.MonkeyPatch, stopped: int) -> list[float]:
    """Lets so many runs beside an incumbent end while that is prepared; the limits of all of these runs."""
    ask_all, limits = WorkerPool.ask_all, list[float]()

    def answer(self: WorkerPool, requests: Sequence[Mapping[str, Any]], seconds: float) -> list[dict[str, Any]]:
        if requests[0].get("incumbent") is None:
            return ask_all(self, requests, seconds)
        limits.append(seconds)
        return [STOPPED] if len(limits) <= stopped else ask_all(self, requests, seconds)

    monkeypatch.setattr(WorkerPool, "ask_all", answer)
    return limits


def test_an_incumbent_that_a_busy_machine_stopped_is_prepared_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """And there is time for its preparation and the run, which have a limit each."""
    limits = answer_with(monkeypatch, stopped=1)
    with LocalMeasurer(QUICK) as measurer:
        (m,) = measurer.measure(honest_task(), [Candidate(())], Candidate(()))
    assert isinstance(m.result, Timing)
    assert len(limits) == 2
    assert min(limits) > 2 * QUICK.run_seconds


def test_an_incumbent_that_cannot_be_prepared_is_an_error_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_with(monkeypatch, stopped=9)
    what = r"the incumbent of task .*: it fails: timeout: it was not done after 5 s"
    with LocalMeasurer(QUICK) as measurer, pytest.raises(MeasureError, match=what):
        measurer.measure(honest_task(), [Candidate(())], Candidate(()))


def test_a_station_tells_it_from_failures_and_from_errors_of_the_machine() -> None:
    task = honest_task()
    built = build_candidate(task, Candidate(()), case_sizes(task))
    crashing = with_statement(built, "call void @abort()", task.target)
    request = {
        "task": task_json.encode(task), "candidate": encode_built(built), "incumbent": encode_built(crashing),
        "effort": "quick", "threads": 1,
    }  # fmt: skip
    with closing(LocalStation(QUICK)) as station:
        reply = json.loads(station.run(json.dumps(request)))
    assert reply["incumbent_failure"] == ["crash", "it was killed by SIGABRT"]
    assert not {"failure", "error", "value"} & reply.keys()


def test_a_candidate_that_crashes_beside_a_sound_incumbent_has_failed() -> None:
    task = honest_task()
    built = build_candidate(task, Candidate(()), case_sizes(task))
    runner = Runner()
    cases = runner.cases.of(task)
    with closing(runner):
        result = runner.run(with_statement(built, "call void @abort()", task.target), built, cases, 1, QUICK)
    assert isinstance(result, Failure)
    assert "SIGABRT" in result.message
