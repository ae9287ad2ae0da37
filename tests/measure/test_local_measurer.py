"""The measurer: same bytes wherever code is built, a name for every failure, and times in turns."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from tests.measure.hostile_candidates import honest_task, measured, with_statement
from tests.optimize.computations import KERNELS
from tests.optimize.tasks import task_of

from tilewright.errors import MeasureError, SourcesChangedError
from tilewright.machine import Target
from tilewright.measure import local_measurer, started_program, task_cases, worker, worker_process
from tilewright.measure.build import BuiltCandidate, build_candidate, decode_built, encode_built
from tilewright.measure.interleaved_blocks import RunPlan
from tilewright.measure.local_measurer import Builder, LocalMeasurer, MeasureOptions
from tilewright.measure.task_cases import case_sizes
from tilewright.measure.worker_process import WorkerPool
from tilewright.optimize import task_json
from tilewright.optimize.measurer import Candidate, Failure, FailureKind, Timing
from tilewright.optimize.rule import Rule
from tilewright.optimize.task import Task
from tilewright.schedule.step import Step
from tilewright.tile.shape_samples import ShapeSamples

ROOT = Path(__file__).parents[2]
QUICK = MeasureOptions(
    run_seconds=5.0, build_seconds=60.0, memory_bytes=512 << 20, plan=RunPlan(1, 0.001, 0.0, 0.0005), builders=1
)


def task_named(name: str) -> Task:
    task = task_of(KERNELS[name], Target.host().name).canonical()
    return replace(task, samples=ShapeSamples.of(task.func.symbols), threads=2)


def ruled(task: Task) -> Candidate:
    schedule = Rule().optimize(task)
    assert schedule is not None
    return Candidate(schedule.trace)


@pytest.fixture(scope="module")
def measurer() -> Iterator[LocalMeasurer]:
    with LocalMeasurer(QUICK) as local:
        yield local


def failure_of(result: Timing | Failure) -> Failure:
    assert isinstance(result, Failure)
    return result


@pytest.mark.parametrize("name", KERNELS)
def test_legal_programs_of_all_kinds_are_timed(measurer: LocalMeasurer, name: str) -> None:
    """The untransformed loops and the rule's, whose constants are packed."""
    task = task_named(name)
    for m in measurer.measure(task, [Candidate(()), ruled(task)], ruled(task)):
        assert isinstance(m.result, Timing), m.result
        assert m.nanoseconds is not None
        assert 0 < m.result.fastest <= m.nanoseconds
        assert m.result.incumbent is not None


def test_workers_build_the_same_bytes_as_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    task = task_named("matmul")
    candidates, sizes = [ruled(task), Candidate(())], case_sizes(task)
    isolated, local = Builder(QUICK), Builder(QUICK)
    built = isolated.build(task, candidates, sizes)
    isolated.close()
    assert not isolated.in_process
    monkeypatch.setattr(started_program.sys, "executable", "/nonexistent/python")
    assert local.build(task, candidates, sizes) == built
    assert local.in_process
    assert built == [build_candidate(task, c, sizes) for c in candidates]


def test_without_processes_nothing_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    task = honest_task()
    for executable in ("/nonexistent/python", "", "/bin/false"):
        monkeypatch.setattr(started_program.sys, "executable", executable)
        with LocalMeasurer(QUICK) as other, pytest.raises(MeasureError, match="no worker process can be started"):
            other.measure(task, [Candidate(())])


BUILD = """
import sys
from hashlib import sha256
sys.path.insert(0, {root!r})
from tests.measure.test_local_measurer import QUICK, honest_task, case_sizes, Builder, Candidate
def digest():
    task, builder = honest_task(), Builder(QUICK)
    (built,) = builder.build(task, [Candidate(())], case_sizes(task))
    print(builder.in_process, sha256(built.code).hexdigest(), flush=True)
    builder.close()
"""

PLACES = {
    "a script without a guard": "digest()",
    "a thread": "import threading\nt = threading.Thread(target=digest)\nt.start()\nt.join()",
    "after threads": "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\ndigest()",
    "a daemonic worker": "import multiprocessing\np = multiprocessing.get_context('fork').Process(target=digest, "
                         "daemon=True)\np.start()\np.join()",
}  # fmt: skip


@pytest.mark.parametrize("place", [*PLACES, "a notebook"])
def test_workers_start_everywhere(place: str, tmp_path: Path) -> None:
    """A notebook's cells are not in a file that a child could import."""
    text = BUILD.format(root=str(ROOT)) + PLACES.get(place, "digest()")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    (tmp_path / "script.py").write_text(text)
    command = [sys.executable, *(["-"] if place == "a notebook" else [str(tmp_path / "script.py")])]
    done = subprocess.run(command, input=text, capture_output=True, text=True, env=environment, cwd=tmp_path)
    built = build_candidate(honest_task(), Candidate(()), case_sizes(honest_task()))
    assert done.stdout.split() == ["False", sha256(built.code).hexdigest()], done.stderr


def test_illegal_programs_are_named(measurer: LocalMeasurer) -> None:
    unknown, twice = Step("parallel", ("nowhere",)), Step("parallel", ("r0",))
    failures = [
        failure_of(m.result) for m in measurer.measure(honest_task(), [Candidate((unknown,)), Candidate((twice,))])
    ]
    assert [f.kind for f in failures] == [FailureKind.ILLEGAL_PROGRAM] * 2
    assert "there is no loop 'nowhere'" in failures[0].message
    assert "r0" in failures[1].message


def unrolled() -> tuple[Task, Candidate]:
    """A program of 2 ** 22 statements, through which no build gets in a second."""
    task = honest_task()
    text = task.form.text.replace("12", "512").replace("8", "512")
    large = task_json.decode({**task_json.encode(task), "func": text})
    return large, Candidate(tuple(Step.of("unroll", loop) for loop in ("i0", "i1", "r0")))


def test_builds_that_take_too_long_are_named() -> None:
    task, candidate = unrolled()
    builder = Builder(replace(QUICK, build_seconds=0.5))
    first, _ = builder.build(task, [candidate, Candidate(())], case_sizes(task))
    (last,) = builder.build(honest_task(), [Candidate(())], case_sizes(honest_task()))
    builder.close()
    assert first == Failure(FailureKind.TIMEOUT, "it was not done after 0.5 s")
    assert isinstance(last, BuiltCandidate)


def test_builds_that_take_too_much_memory_are_named() -> None:
    builder = Builder(replace(QUICK, memory_bytes=1 << 20))
    built = builder.build(honest_task(), [Candidate(())] * 2, case_sizes(honest_task()))
    builder.close()
    assert [b.kind for b in built if isinstance(b, Failure)] == [FailureKind.OUT_OF_MEMORY] * 2


def test_code_that_cannot_be_generated_is_named() -> None:
    task = honest_task()
    request = {"do": "build", "task": task_json.encode(task), "candidate": {"format": "tilewright-trace", "version": 1,
               "steps": []}, "cases": [{}]}  # fmt: skip
    assert "value" in worker.answer_build(request)
    broken = {**request, "cases": None}
    assert worker.answer_build(broken)["failure"][0] == "build error"
    assert worker.answer_build({**request, "task": {}})["failure"][0] == "illegal program"
    gpu = {"steps": [{"primitive": "bind", "args": {"loop": "i0", "axis": "block_x"}}]}
    answer = worker.answer_build({**request, "candidate": {**request["candidate"], **gpu}})
    assert answer["failure"][0] == "build error"
    assert "TargetError" in answer["failure"][1]


@pytest.mark.parametrize(
    "kind", [FailureKind.CRASH, FailureKind.TIMEOUT, FailureKind.OUT_OF_MEMORY, FailureKind.WRONG_ANSWER]
)
def test_hostile_candidates_are_survived_and_named(kind: FailureKind) -> None:
    """Some of every sort; `make hostile-candidates` runs fifty of each kind."""
    count = {FailureKind.TIMEOUT: 5, FailureKind.OUT_OF_MEMORY: 5}.get(kind, 10)
    options = replace(QUICK, run_seconds=0.3 if kind is FailureKind.TIMEOUT else 5.0, memory_bytes=256 << 20)
    measurements, after = measured(kind, count, options)
    assert [failure_of(m.result).kind for m in measurements] == [kind] * count
    assert isinstance(after[0].result, Timing)


def test_operands_that_do_not_fit_are_named(measurer: LocalMeasurer) -> None:
    task = honest_task()
    cases = case_sizes(task)
    built = build_candidate(task, Candidate(()), cases)
    huge = replace(built.kernel.parameters[-1], name="w", shapes=((1 << 30, 8),))
    large = replace(built, kernel=replace(built.kernel, parameters=(*built.kernel.parameters, huge)))
    result = measurer._runner.run(large, None, measurer._runner.cases.of(task), 1, QUICK)
    assert failure_of(result).kind is FailureKind.OUT_OF_MEMORY


def test_worker_that_dies_is_named_and_replaced() -> None:
    with WorkerPool(2) as pool:
        bad, good = {"do": "nothing"}, {"do": "limit", "bytes": 1 << 32}
        answers = pool.ask_all([bad, good, bad, good, good], 30.0)
        assert [("value" in a) for a in answers] == [False, True, False, True, True]
        kind, message = answers[0]["failure"]
        assert kind == "crash"
        assert message.startswith("it ended with status 1; ")
        assert "KeyError: 'nothing'" in message
        assert pool.ask_all([good], 30.0) == [{"value": None}]


def test_workers_outlive_the_thread_that_started_them_and_others_replace_the_dead() -> None:
    with LocalMeasurer(QUICK) as other:
        thread = threading.Thread(target=other.measure, args=(honest_task(), [Candidate(())]))
        thread.start()
        thread.join()
        children = psutil.Process().children()
        assert isinstance(other.measure(honest_task(), [Candidate(())])[0].result, Timing)
        assert psutil.Process().children() == children
        for child in children:
            child.kill()
        psutil.wait_procs(children, timeout=10)
        assert isinstance(other.measure(honest_task(), [Candidate(())])[0].result, Timing)


def test_workers_end_with_the_measurer() -> None:
    before = set(psutil.Process().children(recursive=True))
    with LocalMeasurer(QUICK) as other:
        other.measure(honest_task(), [Candidate(())])
        started = set(psutil.Process().children(recursive=True)) - before
        assert len(started) == 2
        folder = Path(other._runner.cases._folder.name)
        assert folder.exists()
    assert not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in started)
    assert not folder.exists()


WAIT = """
import sys
from tilewright.measure.worker_process import WorkerProcess
worker = WorkerProcess()
print(worker._started.process.pid, flush=True)
sys.stdin.read()
"""


def test_a_worker_whose_parent_is_killed_ends() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-c", WAIT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    psutil.wait_procs([child], timeout=10)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_builders_work_ahead_of_the_runner_on_processors_that_it_leaves() -> None:
    """While the caller works on an answer, at most so many workers have something to do."""
    with WorkerPool(3) as pool:
        requests: list[dict[str, Any]] = [{"do": "limit", "bytes": 1 << 32}] * 7
        for ahead in (None, 2, 1, 0):
            seen: list[int] = []
            for number, answer in pool.answers(requests, 30.0, ahead):
                assert ahead is None or len(pool._busy) <= ahead
                assert answer == {"value": None}
                seen.append(number)
            assert sorted(seen) == list(range(7))
        answers = pool.answers(requests, 30.0, 1)
        next(answers)
        answers.close()
        assert not pool._busy
        assert pool.ask_all(requests, 30.0) == [{"value": None}] * 7


def test_an_answer_that_came_in_time_counts_where_it_is_read_later() -> None:
    with WorkerPool(2) as pool:
        answers = pool.answers([{"do": "limit", "bytes": 1 << 32}] * 2, 1.0)
        first = next(answers)
        time.sleep(1.2)
        assert [first[1], next(answers)[1]] == [{"value": None}] * 2


def test_what_is_built_is_kept_for_longer_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    builder, task = Builder(QUICK), honest_task()
    cases = case_sizes(task)
    (built,) = builder.build(task, [Candidate(())], cases)
    refusal = [(0, {"failure": ["crash", ""]})]
    monkeypatch.setattr(builder._pool, "answers", lambda requests, *_: iter(refusal * len(requests)))
    assert builder.build(task, [Candidate(())], cases) == [built]
    (other,) = builder.build(task, [Candidate((Step("parallel", ("i0",)),))], cases)
    assert failure_of(other).kind is FailureKind.CRASH
    builder.close()


def test_builders_of_other_sources_are_no_reason_to_build_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process, "source_hash", lambda: "another")
    with LocalMeasurer(QUICK) as measurer:
        with pytest.raises(SourcesChangedError, match="start this program again"):
            measurer.measure(honest_task(), [Candidate(())])
        assert not measurer._builder.in_process


def test_tasks_must_be_canonical_and_for_this_machine(measurer: LocalMeasurer) -> None:
    task = honest_task()
    other = Target.parse("aarch64" if task.target.arch == "x86_64" else "x86-64")
    with pytest.raises(MeasureError, match=r"its loops are not in canonical form; pass task.canonical\(\)"):
        measurer.measure(task_of(KERNELS["convolution"], Target.host().name), [])
    with pytest.raises(MeasureError, match="this machine can't run code for"):
        measurer.measure(replace(task, target=other), [])
    with pytest.raises(MeasureError, match=r"the incumbent of task .*: it fails: illegal program"):
        measurer.measure(task, [], Candidate((Step("parallel", ("x",)),)))


def test_an_incumbent_that_crashes_is_not_the_candidates_fault() -> None:
    class Crashing(Builder):
        def build(self, *args: Any) -> list[BuiltCandidate | Failure]:
            *honest, last = super().build(*args)
            assert isinstance(last, BuiltCandidate)
            return [*honest, with_statement(last, "call void @abort()", honest_task().target)]

    what = r"the incumbent of task .*: it fails: crash: it was killed by SIGABRT"
    with LocalMeasurer(QUICK, Crashing(QUICK)) as other, pytest.raises(MeasureError, match=what):
        other.measure(honest_task(), [Candidate(())], Candidate(()))


def test_cases_of_symbolic_sizes_start_with_a_small_one() -> None:
    task = task_named("matmul_of_symbolic_rows")
    (symbol,) = task.func.symbols
    small, large = case_sizes(task)
    assert small[symbol.name] < large[symbol.name]
    assert task.samples is not None
    assert large == {symbol.name: task.samples.representative[symbol]}
    assert len(case_sizes(task_named("matmul"))) == 1


def test_elements_of_large_outputs_are_sampled() -> None:
    rng = np.random.default_rng(0)
    flat = task_cases._checked_elements((300, 70, 11), rng)
    assert len(flat) <= task_cases.MAX_CHECKED_ELEMENTS
    assert len(flat) > 900
    corners = {(0, 0, 0), (0, 69, 10), (299, 0, 0), (299, 69, 10)}
    assert corners <= {tuple(int(i) for i in c) for c in zip(*np.unravel_index(flat, (300, 70, 11)), strict=True)}
    assert list(task_cases._checked_elements((), rng)) == [0]
    assert list(task_cases._checked_elements((0, 5), rng)) == []


def test_built_candidates_travel_as_json() -> None:
    task = task_named("matmul_of_symbolic_rows")
    built = build_candidate(task, ruled(task), case_sizes(task))
    assert decode_built(json.loads(json.dumps(encode_built(built)))) == built
    assert isinstance(built, BuiltCandidate)


def test_what_a_candidate_writes_is_no_answer(measurer: LocalMeasurer) -> None:
    """It has no descriptor but standard error and that of its own answer, which it makes unreadable."""
    task = honest_task()
    cases = measurer._runner.cases.of(task)
    built = build_candidate(task, Candidate(()), case_sizes(task))
    writes = "\n  ".join(f"%r{fd} = call i64 @write(i32 {fd}, ptr @text, i64 8)" for fd in (0, 1, *range(3, 64)))
    text = '@text = constant [8 x i8] c"{}\\0A{}\\0Aab"\ndeclare i64 @write(i32, ptr, i64)'
    result = measurer._runner.run(with_statement(built, writes, task.target, text), None, cases, 1, QUICK)
    assert failure_of(result) == Failure(FailureKind.CRASH, "it gave no readable answer")
    assert isinstance(measurer._runner.run(built, None, cases, 1, QUICK), Timing)


def test_default_memory_is_half_of_the_machine() -> None:
    assert local_measurer.default_memory_bytes() == pytest.approx(psutil.virtual_memory().total / 2, rel=0.01)
