"""A machine of a cluster by itself: what it answers where a request, or the machine, is broken."""

import json
from contextlib import closing

import pytest
from tests.optimize.computations import KERNELS
from tests.optimize.tasks import task_of

from tilewright.errors import MeasureError
from tilewright.machine import Target
from tilewright.measure.local_measurer import MeasureOptions
from tilewright.measure.workers.station import LocalStation
from tilewright.optimize import task_json

TASK = task_json.encode(task_of(KERNELS["matmul"], Target.host().name).canonical())
RUN = {"task": TASK, "candidate": {"code": "", "functions": []}, "incumbent": None, "effort": "quick", "threads": 1}


@pytest.mark.parametrize(
    "text", ["no JSON", "[]", "{}", json.dumps({**RUN, "effort": "long"}), json.dumps({**RUN, "task": {}})]
)
def test_a_request_that_cannot_be_read_is_a_failure_and_not_the_end_of_the_machine(text: str) -> None:
    with closing(LocalStation()) as station:
        reply = json.loads(station.run(text))
    assert reply["failure"][0] == "build error"
    assert "error" not in reply


def test_a_machine_that_cannot_start_processes_answers_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise MeasureError("no process starts", where="worker")

    monkeypatch.setattr("tilewright.measure.worker_process.WorkerPool.ask_all", refuse)
    with closing(LocalStation(MeasureOptions())) as station:
        reply = json.loads(station.build(json.dumps({"task": TASK, "candidate": [], "cases": []})))
    assert "no process starts" in reply["error"]
