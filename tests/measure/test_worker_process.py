"""Worker processes from their start to their end, whatever they print and whoever waits for them."""

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tilewright.errors import MeasureError
from tilewright.measure import started_program, worker_process
from tilewright.measure.started_program import StartedProgram, close_all, start_program
from tilewright.measure.worker_process import WorkerPool, WorkerProcess


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder of modules that can be started."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    return tmp_path


@pytest.fixture
def signalled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Process groups that signals were sent to."""
    groups, send = list[int](), os.killpg

    def noted(group: int, number: int) -> None:
        groups.append(group)
        send(group, number)

    monkeypatch.setattr(started_program.os, "killpg", noted)
    return groups


def has_ended(started: StartedProgram) -> bool:
    return started.process.returncode is not None and not Path(f"/proc/{started.process.pid}").exists()


READY = "import json, sys\nfrom tilewright.version import source_hash\n"


def test_lines_that_others_print_before_it_is_ready_are_skipped(programs: Path) -> None:
    """As sitecustomize, or a module of a .pth file, does."""
    (programs / "talks.py").write_text(
        f"{READY}print('activated environment')\nprint('[1]')\n"
        "print(json.dumps({'ready': source_hash()}), flush=True)\n"
        "for line in sys.stdin: print(line, end='', flush=True)\n"
    )
    worker = WorkerProcess(module="talks")
    assert worker.ask({"value": 5}, 30.0) == {"value": 5}
    worker.close()


@pytest.mark.parametrize("text", ["print('x\\n' * 5000, flush=True)", "print('{}')", "import no_such_module"])
def test_a_worker_that_is_never_ready_ends(programs: Path, text: str) -> None:
    (programs / "never.py").write_text(f"{text}\n" + ("import time; time.sleep(60)" if "5000" in text else ""))
    started = start_program("never")
    with pytest.raises(MeasureError, match="no worker process can be started"):
        WorkerProcess(module="never", started=started)
    assert has_ended(started)


def test_an_answer_that_is_no_json_is_a_failure(programs: Path) -> None:
    (programs / "garbles.py").write_text(
        f"{READY}print(json.dumps({{'ready': source_hash()}}), flush=True)\n"
        "for line in sys.stdin: print('what?', flush=True)\n"
    )
    worker = WorkerProcess(module="garbles")
    assert worker.ask({"do": "build"}, 30.0) == {"failure": ["crash", "its answer is no JSON: b'what?'"]}
    assert not worker.is_alive


def note_workers(
    monkeypatch: pytest.MonkeyPatch, module: str, receive: Callable[[WorkerProcess, float, float], dict[str, Any]]
) -> list[WorkerProcess]:
    """The workers that pools start from now on: of a module, their answers read by a function."""
    workers: list[WorkerProcess] = []

    class Noted(WorkerProcess):
        def __init__(self, memory_bytes: int | None) -> None:
            super().__init__(memory_bytes, module=module)
            workers.append(self)

        def receive(self, end: float, seconds: float) -> dict[str, Any]:
            return receive(self, end, seconds)

    monkeypatch.setattr(worker_process, "WorkerProcess", Noted)
    return workers


def test_a_pool_frees_what_it_has_of_a_worker_that_ends_after_its_answer(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (programs / "leaves.py").write_text(
        f"{READY}print(json.dumps({{'ready': source_hash()}}), flush=True)\n"
        "print(sys.stdin.readline(), end='', flush=True)\n"
    )

    def receive_and_wait(worker: WorkerProcess, end: float, seconds: float) -> dict[str, Any]:
        answer = WorkerProcess.receive(worker, end, seconds)
        worker._started.wait()
        return answer

    workers = note_workers(monkeypatch, "leaves", receive_and_wait)
    with WorkerPool(1) as pool:
        assert pool.ask_all([{"value": 1}, {"value": 2}], 30.0) == [{"value": 1}, {"value": 2}]
    assert len(workers) == 2
    assert all(w._started.errors.closed for w in workers)


def test_a_pool_whose_wait_for_an_answer_is_interrupted_ends_the_worker(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (programs / "answers.py").write_text(
        f"{READY}print(json.dumps({{'ready': source_hash()}}), flush=True)\n"
        "for line in sys.stdin: print(line, end='', flush=True)\n"
    )

    def interrupt(*_: object) -> dict[str, Any]:
        raise KeyboardInterrupt

    workers = note_workers(monkeypatch, "answers", interrupt)
    with WorkerPool(1) as pool, pytest.raises(KeyboardInterrupt):
        pool.ask_all([{"value": 1}], 30.0)
    assert [has_ended(w._started) for w in workers] == [True]


@pytest.mark.parametrize("how", ["is_running", "wait", "close"])
def test_no_signal_is_sent_to_the_number_of_an_ended_process(programs: Path, signalled: list[int], how: str) -> None:
    """The system gives it to others once the process was waited for."""
    (programs / "short.py").write_text("")
    started = start_program("short")
    # it has ended, and nobody has waited for it: the number is its own
    os.waitid(os.P_PID, started.process.pid, os.WEXITED | os.WNOWAIT)
    getattr(started, how)()
    assert has_ended(started)
    count = len(signalled)
    started.kill()
    started.close()
    assert not started.is_running()
    assert len(signalled) == count


def test_what_a_program_has_started_ends_with_it(programs: Path) -> None:
    (programs / "parent.py").write_text(
        "import subprocess, sys\n"
        "print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']).pid, flush=True)\n"
    )
    started = start_program("parent")
    assert started.process.stdout is not None
    child = int(started.process.stdout.readline())
    assert started.wait() == 0
    status = Path(f"/proc/{child}/stat")
    end = threading.Event()
    for _ in range(500):
        if not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z":
            break
        end.wait(0.01)
    else:
        os.kill(child, signal.SIGKILL)
        pytest.fail("it was left over")
    started.close()


class Interrupted:
    """A program whose `close` is interrupted where that is said."""

    def __init__(self, number: int, log: list[str], interrupted: bool) -> None:
        self.number, self.log, self.interrupted = number, log, interrupted

    def kill(self) -> None:
        self.log.append(f"kill {self.number}")

    def close(self) -> None:
        self.log.append(f"close {self.number}")
        if self.interrupted:
            raise KeyboardInterrupt


def test_an_interrupted_wait_for_one_program_leaves_no_other() -> None:
    for which in range(3):
        log: list[str] = []
        with pytest.raises(KeyboardInterrupt):
            close_all([Interrupted(k, log, k == which) for k in range(3)])
        assert log[:3] == ["kill 0", "kill 1", "kill 2"]
        assert sorted(log[3:]) == ["close 0", "close 1", "close 2"]


def test_a_thread_that_waits_sees_the_end_by_another_one(programs: Path, signalled: list[int]) -> None:
    (programs / "long.py").write_text("import time\ntime.sleep(600)\n")
    for _ in range(3):
        started, statuses = start_program("long"), list[int]()
        thread = threading.Thread(target=lambda s=started, results=statuses: results.append(s.wait()))
        thread.start()
        started.close()
        thread.join(30)
        assert statuses == [-signal.SIGKILL]
        count = len(signalled)
        started.kill()
        assert len(signalled) == count
