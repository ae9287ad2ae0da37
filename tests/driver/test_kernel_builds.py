"""Compilation on several processes: the same bytes as in one, whatever happens to the others."""

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.driver import models

from tilewright import kernel_caches
from tilewright.driver.compile import make_compilation
from tilewright.driver.kernel_build import kernel_builds, worker_threads
from tilewright.driver.kernel_build.build_resources import BuildResources, build_resources
from tilewright.driver.kernel_build.worker_threads import Job, TaskQueue, WorkerThread
from tilewright.driver.options import CompileOptions
from tilewright.errors import MeasureError, OptionError
from tilewright.measure.worker_process import WorkerProcess


def artifact(jobs, model=None, options=None):
    compilation = make_compilation(
        models.small_convnet() if model is None else model,
        options or CompileOptions(),
        resources=BuildResources(jobs, None, True),
    )
    result = compilation.artifact()
    return result.code, result.manifest, {n: (w.dtype, w.shape, w.tobytes()) for n, w in result.weights.items()}


@pytest.fixture(autouse=True)
def _several_processes_for_few_tasks(monkeypatch):
    monkeypatch.setattr(kernel_builds, "MIN_TASKS", 1)


@pytest.fixture(scope="module")
def alone():
    return artifact(1)


@pytest.fixture
def workers(monkeypatch):
    """The worker processes that are started."""
    started = []

    class Noted(WorkerProcess):
        def __init__(self, *args, **named):
            super().__init__(*args, **named)
            started.append(self)

    monkeypatch.setattr(worker_threads, "WorkerProcess", Noted)
    return started


@pytest.fixture
def answers(monkeypatch):
    """What workers answer; this process takes no task before the first answer."""
    queue, noted = worker_threads.TaskQueue, []
    put, take = queue.put_answer, queue.next_for_this_process

    def waiting(tasks):
        end = time.monotonic() + 60
        while not noted and time.monotonic() < end:
            time.sleep(0.01)
        return take(tasks)

    monkeypatch.setattr(queue, "put_answer", lambda tasks, k, value: (noted.append(value), put(tasks, k, value)))
    monkeypatch.setattr(queue, "next_for_this_process", waiting)
    return noted


@pytest.mark.parametrize("jobs", [2, 3])
def test_the_number_of_processes_does_not_change_the_bytes(alone, workers, answers, jobs):
    assert artifact(jobs) == alone
    assert len(workers) == jobs - 1
    assert not any(w.is_alive for w in workers)
    assert answers
    assert all(values is not None and None not in values for values in answers)


@pytest.mark.parametrize("optimizer", ["rule", "roller"])
def test_other_optimizers_on_two_processes(optimizer):
    options = CompileOptions(optimizer=optimizer, target="x86-64-v3")
    assert artifact(2, models.mlp(), options) == artifact(1, models.mlp(), options)


@pytest.mark.parametrize("growth", [0, 10**9], ids=["never", "always"])
def test_what_is_forgotten_between_steps_does_not_change_the_bytes(alone, monkeypatch, growth):
    """Caches of proofs are emptied by how much memory they take, which differs between processes."""
    cleared = []
    blocks = itertools.count(0, growth)
    memory = SimpleNamespace(getallocatedblocks=lambda: next(blocks), maxsize=sys.maxsize)
    clear_functions = vars(kernel_caches)["_clear_functions"]
    monkeypatch.setattr(kernel_caches, "sys", memory)
    monkeypatch.setattr(kernel_caches, "_clear_functions", [*clear_functions, lambda: cleared.append(1)])
    monkeypatch.setattr(kernel_caches, "_blocks_before", sys.maxsize)
    if not growth:
        monkeypatch.setattr(kernel_caches, "_clear_functions", [])
    assert artifact(1) == alone
    assert bool(cleared) is bool(growth)


def test_code_that_is_generated_later_is_the_same(alone):
    compilation = make_compilation(models.small_convnet())
    assert not any(k.code for k in compilation.kernels)
    assert compilation.artifact().code == alone[0]


def test_where_no_worker_can_start_this_process_does_all(alone, monkeypatch):
    class Refused:
        def __init__(self, *args, **named):
            raise MeasureError("no processes here", where="test")

    monkeypatch.setattr(worker_threads, "WorkerProcess", Refused)
    assert artifact(4) == alone


@pytest.mark.parametrize("module", ["tilewright.no_such_module", "this"])
def test_workers_that_end_at_once_are_replaced_by_this_process(alone, monkeypatch, module):
    monkeypatch.setattr(worker_threads, "MODULE", module)
    assert artifact(3) == alone


def test_workers_that_are_killed_leave_their_tasks_to_others(alone, workers, monkeypatch):
    send, killed = WorkerProcess.send_encoded, []

    def killing(worker, line):
        send(worker, line)
        if json.loads(line)["do"] != "set up":
            worker.kill()
            killed.append(worker)

    monkeypatch.setattr(WorkerProcess, "send_encoded", killing)
    # this process waits, so that workers do have tasks
    take = worker_threads.TaskQueue.next_for_this_process

    def waiting(tasks):
        end = time.monotonic() + 60
        while not killed and time.monotonic() < end:
            time.sleep(0.01)
        return take(tasks)

    monkeypatch.setattr(worker_threads.TaskQueue, "next_for_this_process", waiting)
    assert artifact(3) == alone
    assert killed
    assert not any(w.is_alive for w in workers)


def test_where_no_thread_can_start_this_process_does_all(alone, workers, monkeypatch):
    """Containers limit the number of tasks. A process that was started for such a thread ends."""

    class Refused(threading.Thread):
        def start(self):
            raise RuntimeError("can't start new thread")

    refusing = SimpleNamespace(Thread=Refused, Condition=threading.Condition)
    monkeypatch.setattr(worker_threads, "threading", refusing)
    assert artifact(3) == alone
    assert len(workers) == 1
    assert not workers[0].is_alive


@pytest.mark.parametrize("jobs", [1, 2])
def test_every_stage_reports_how_far_it_is(jobs):
    reports, resources = [], BuildResources(jobs, None, True)
    make_compilation(models.small_convnet(), progress=lambda *report: reports.append(report), resources=resources)
    stages = [what.partition(": ")[0] for what, _, _ in reports]
    assert list(dict.fromkeys(stages)) == ["model", "estimates", "kernels", "weights and memory"]
    for stage in ("model", "estimates", "kernels"):
        counts = [(done, total) for (_, done, total), s in zip(reports, stages, strict=True) if s == stage]
        assert counts == sorted(counts)
        assert all(0 <= done < total for done, total in counts)


def test_errors_end_the_workers(workers):
    def interrupted(*_):
        if workers:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_compilation(models.small_convnet(), progress=interrupted, resources=BuildResources(2, None, True))
    assert workers
    assert not any(w.is_alive for w in workers)


def test_a_second_interrupt_leaves_no_worker_alive(workers, monkeypatch):
    """It comes while the first worker is waited for."""
    interrupts, killed, kill = [], [], WorkerProcess.kill

    class Interrupted(threading.Thread):
        def join(self, timeout=None):
            if not interrupts:
                interrupts.append(self)
                raise KeyboardInterrupt
            super().join(timeout)

    def interrupted(*_):
        if len(workers) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(worker_threads, "threading", SimpleNamespace(Thread=Interrupted, Condition=threading.Condition))
    monkeypatch.setattr(WorkerProcess, "kill", lambda worker: (killed.append(worker), kill(worker)))
    with pytest.raises(KeyboardInterrupt):
        make_compilation(models.convnet(), progress=interrupted, resources=BuildResources(4, None, True))
    assert interrupts
    assert all(w in killed for w in workers)
    end = time.monotonic() + 60
    while any(w.is_alive or not w._started.errors.closed for w in workers):
        assert time.monotonic() < end, "a worker is left over, or one of its pipes"
        time.sleep(0.01)
    for thread in interrupts:
        thread.join(60)
        assert not thread.is_alive()


_INTERRUPTED = """
import signal
import sys
import threading
# a shell ignores it for what it runs in the background
signal.signal(signal.SIGINT, signal.default_int_handler)
from tests.driver import models
from tilewright.driver.kernel_build import kernel_builds
from tilewright.driver.kernel_build.build_resources import BuildResources
from tilewright.driver.compile import make_compilation
kernel_builds.MIN_TASKS = 1
while True:
    make_compilation(models.small_convnet(), resources=BuildResources(3, None, True))
    print("compiled", flush=True)
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGKILL"])
def test_signals_leave_no_process_behind(name):
    command = [sys.executable, "-c", _INTERRUPTED]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "compiled\n"
        time.sleep(0.4)
        children = _children(process.pid)
        process.send_signal(getattr(signal, name))
        process.wait(60)
    end = time.monotonic() + 60
    while any(_is_worker(pid) for pid in children):
        assert time.monotonic() < end, "a worker is left over"
        time.sleep(0.1)


def _children(pid):
    return [int(c) for task in Path(f"/proc/{pid}/task").iterdir() for c in (task / "children").read_text().split()]


def _is_worker(pid):
    try:
        return b"build_worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def test_number_of_processes():
    assert build_resources(3, False).jobs == 3
    assert build_resources(None, False, {"TILEWRIGHT_JOBS": "5"}).jobs == 5
    assert 1 <= build_resources(None, False, {}).jobs <= len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("jobs", "variable", "message"),
    [
        (0, "", "argument 'jobs': expected a number within 1..256, got 0"),
        (True, "", "argument 'jobs': expected a number within 1..256, got True"),
        (None, "many", "TILEWRIGHT_JOBS: expected a number within 1..256, got 'many'"),
        (None, "0", "TILEWRIGHT_JOBS: expected a number within 1..256, got 0"),
    ],
)
def test_wrong_numbers_of_processes(jobs, variable, message):
    with pytest.raises(OptionError) as refusal:
        build_resources(jobs, False, {"TILEWRIGHT_JOBS": variable})
    assert str(refusal.value) == f"[option] {message}; give a number of processes, or nothing for one per core"


def test_large_tasks_and_large_answers_do_not_wait_for_each_other(monkeypatch):
    """A worker that has another task and writes a large answer reads nothing until that has been read."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setattr(worker_threads, "MODULE", "tests.driver.large_answers")
    sizes = [10, 1 << 20, 10, 10, 1 << 20, 1 << 20, 10]
    worker = WorkerThread({"do": "set up"})
    queue = TaskQueue([worker] * len(sizes))

    def request(number):
        return {"do": "echo", "number": number, "data": "x" * sizes[number]}

    watchdog = threading.Timer(30, worker.close)
    watchdog.start()
    try:
        worker.begin(Job(queue, request, [()] * len(sizes)))
        answers = {}
        while len(answers) < len(sizes):
            # a task for this process: the worker has failed
            number, value = queue.next_for_this_process()
            assert value is not None
            answers[number] = value[0]
    finally:
        watchdog.cancel()
        worker.close()
    assert answers == {k: k for k in range(len(sizes))}
