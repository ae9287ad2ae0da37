"""The campaign itself: that it finds faults, survives crashes, shrinks, resumes and replays."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fuzz.__main__ import SCHEDULES, again
from tests.fuzz.campaign import Campaign, Outcome, Worker, smallest, stage_of
from tests.fuzz.case import Case
from tests.fuzz.check import WrongError, check, scheduled
from tests.fuzz.shrink import shrunk
from tests.fuzz.worker import drawn

from tilewright.errors import ScheduleError
from tilewright.expr.nodes import TRUE
from tilewright.loops.ir import Func
from tilewright.schedule import loop_transforms, step
from tilewright.schedule.rewrite_tree import map_blocks
from tilewright.schedule.step import Step

SPLIT = Step.of("split", "i0", 4)
CASE = Case(
    "elementwise",
    {"dtype": "float32", "rank": 1, "n0": 7, "n0 symbolic": True, "broadcast 0": False, "op": "mul", "whole": True},
    trace=(Step.of("reorder", ("i0",)), SPLIT, Step.of("unroll", "i0_i")),
)


def test_a_case_travels_as_json() -> None:
    case = drawn(5, 3, {})
    again = Case.from_json(json.loads(json.dumps(case.to_json())))
    assert again == case
    assert scheduled(again)[1] == scheduled(case)[1]


def test_the_same_seed_draws_the_same_cases() -> None:
    assert [drawn(5, k, {}) for k in range(6)] == [drawn(5, k, {}) for k in range(6)]


def test_a_wrong_primitive_is_found_and_the_case_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(func: Func, loop: str, factor: int) -> Func:
        """A split that forgets the guard."""
        after = loop_transforms.split(func, loop, factor)
        return after.with_body(map_blocks(after.body, lambda b: replace(b, predicate=TRUE)))

    monkeypatch.setattr(step, "PRIMITIVES", {**step.PRIMITIVES, "split": careless})
    with pytest.raises(WrongError, match="verify"):
        check(CASE)

    def ask(job: dict[str, object]) -> Outcome:
        case = scheduled(Case.from_json(job["case"]), lenient=True)[2]  # type: ignore[arg-type]
        try:
            check(case)
        except WrongError as failure:
            return Outcome(case.to_json(), (failure.stage, failure.what))
        return Outcome(case.to_json())

    small, _ = smallest(CASE.to_json(), ("verify VerifyError verifier.py:_check", ""), ask)
    assert Case.from_json(small).trace == (SPLIT,)
    assert small["record"]["n0"] == 1


def test_shrinking_keeps_what_fails() -> None:
    def fails(case: Case) -> Case | None:
        needed = SPLIT in case.trace and int(case.record["n0"]) >= 3
        return case if needed else None

    small = shrunk(CASE, fails)
    assert small.trace == (SPLIT,)
    assert small.record["n0"] == 3
    assert small.record["n0 symbolic"] is False


FAKE = """
import json, os, sys
for line in sys.stdin:
    job = json.loads(line)
    print(json.dumps({"case": %s}), flush=True)
    if job["index"] == 2:
        sys.stderr.write("Fatal Python error: Segmentation fault"); sys.stderr.flush()
        os.kill(os.getpid(), 11)
    failure = ["native", "wrong"] if job["index"] == 4 else None
    print(json.dumps({"result": {"tally": {"split": [1, 2]}, "failure": failure}}), flush=True)
"""


def fake_worker() -> Worker:
    case = json.dumps(CASE.to_json()).replace("true", "True").replace("false", "False").replace("null", "None")
    return Worker((sys.executable, "-c", FAKE % case))


def test_a_crash_is_a_failure_of_its_case_and_the_campaign_goes_on() -> None:
    worker = fake_worker()
    crashed = worker.ask({"index": 2})
    assert crashed.case == CASE.to_json()
    assert crashed.failure == ("crash", "exit status -11: Fatal Python error: Segmentation fault")
    assert worker.ask({"index": 3}).failure is None
    worker.close()


SLOW = """
import json, sys, time
for line in sys.stdin:
    for _ in range(10 * json.loads(line)["index"]):
        time.sleep(0.1)
    print(json.dumps({"result": {"tally": {}, "failure": None}}), flush=True)
"""

STOPPED = """
import sys
from tests.fuzz.campaign import Worker
from tests.fuzz import campaign
campaign.LONGEST = 4
worker = Worker((sys.executable, "-c", sys.argv[1]))
assert worker.ask({"index": 0}).failure is None
print("started", flush=True)
print(worker.ask({"index": 2}).failure)
worker.close()
"""


def test_a_worker_that_does_not_answer_in_time_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fuzz.campaign.LONGEST", 1)
    worker = Worker((sys.executable, "-c", SLOW))
    assert worker.ask({"index": 600}).failure == ("timeout", "no answer in 1 s")
    assert worker.ask({"index": 0}).failure is None
    worker.close()


def test_time_while_a_campaign_is_stopped_does_not_count() -> None:
    command = (sys.executable, "-c", STOPPED, SLOW)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        os.killpg(process.pid, signal.SIGSTOP)
        time.sleep(6)
        os.killpg(process.pid, signal.SIGCONT)
        assert process.stdout.read() == "None\n"


def test_a_campaign_counts_writes_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def keep(case: object, failure: object, ask: Callable[..., object]) -> object:
        return case, failure

    monkeypatch.setattr("tests.fuzz.campaign.smallest", keep)
    first = Campaign(tmp_path, 1, 3, io.StringIO(), fake_worker)
    assert first.run(jobs=2) == 1
    second = Campaign(tmp_path, 1, 6, io.StringIO(), fake_worker)
    second.resume()
    assert second.done == {0, 1, 2}
    assert second.run(jobs=1) == 2
    assert second.failed == {"crash": 1, "native": 1}
    assert second.tally == {"split": [5, 10]}
    assert "split" in second.summary()
    assert json.loads((tmp_path / "failure-1-4.json").read_text())["failure"] == ["native", "wrong"]


def test_a_file_is_replayed_in_a_process_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "case.json"
    file.write_text(json.dumps({"case": CASE.to_json()}))
    assert again(file, smaller=False, kind=SCHEDULES) == 0
    shown = capsys.readouterr().out
    assert "s.split('i0', 4)" in shown
    assert "passed" in shown


def test_stages_without_numbers_are_one() -> None:
    assert stage_of(("apply split IndexError tree.py:f12", "x")) == stage_of(("apply split IndexError tree.py:f3", "y"))


def test_an_illegal_step_is_refused_or_left_out() -> None:
    wrong = replace(CASE, trace=(Step.of("split", "nothing", 4), *CASE.trace))
    with pytest.raises(ScheduleError, match="there is no loop 'nothing'"):
        scheduled(wrong)
    assert scheduled(wrong, lenient=True)[2] == CASE
