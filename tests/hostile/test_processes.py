"""Forks at a bad moment, and more threads than the system grants."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from onnx import helper
from tests.hostile.work import compiled, model

import tilewright
from tilewright.errors import OptionError
from tilewright.machine import thread_count, thread_limits
from tilewright.runtime import executable, fast_call

X = np.random.default_rng(2).normal(size=(3, 5)).astype(np.float32)


def made() -> tilewright.Executable:
    return compiled(model([helper.make_node("Neg", ["x"], ["y"])], {"x": [3, 5]}))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize(("place", "name"), [(executable, "link"), (fast_call, "_compile")])
def test_fork_while_another_thread_links(monkeypatch, place, name):
    """The child calls the model that the other thread was linking, its code or how arrays reach it; it must not wait
    for that thread."""
    linked, begun = getattr(place, name), threading.Event()

    def slow(*args: object) -> object:
        import llvmlite.binding as llvm

        with llvm.ffi.lib._lock:  # what LLVM holds while it works
            begun.set()
            time.sleep(0.3)
            return linked(*args)

    model = tilewright.Executable(made().artifact)  # compiled, but not yet linked
    fast_call._link_once.cache_clear()
    monkeypatch.setattr(place, name, slow)
    thread = threading.Thread(target=lambda: model(X))
    thread.start()
    assert begun.wait(10)
    child = os.fork()
    if not child:
        signal.alarm(20)
        os._exit(0 if np.array_equal(model(X), -X) else 1)
    thread.join(20)
    assert os.waitpid(child, 0)[1] == 0
    np.testing.assert_array_equal(model(X), -X)


_COMPILE = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from tests.hostile.work import _softmaxes
import tilewright.driver.compile
print("begin", flush=True)
try:
    _softmaxes(3000)
except KeyboardInterrupt:
    print("interrupted")
"""


def _environment() -> dict[str, str]:
    paths = [str(Path(tilewright.__file__).parents[1]), str(Path(__file__).parents[2])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def test_compilation_can_be_interrupted():
    command = [sys.executable, "-c", _COMPILE]
    with subprocess.Popen(command, env=_environment(), stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "begin\n"
        time.sleep(0.5)
        child.send_signal(signal.SIGINT)
        assert child.communicate(timeout=20)[0] == "interrupted\n"


_MANY = """
import resource
from tests.hostile.test_processes import made
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
import tilewright
artifact = made().artifact
try:
    tilewright.Executable(artifact, threads=1024)
except tilewright.OptionError as error:
    print(error)
"""


def test_more_threads_than_addresses():
    environment = {**_environment(), "OMP_STACKSIZE": "8M"}
    process = subprocess.run([sys.executable, "-c", _MANY], env=environment, capture_output=True, text=True, timeout=60)
    assert process.returncode == 0, process.stderr
    assert process.stdout.startswith("[option] argument 'threads': expected at most ")
    assert "threads, got 1024: this process has 3221225472 bytes of addresses (ulimit -v)" in process.stdout


def test_tasks_of_a_control_group(tmp_path, monkeypatch):
    folder, groups = tmp_path / "self", tmp_path / "groups"
    (groups / "a" / "b").mkdir(parents=True)
    folder.mkdir()
    (folder / "cgroup").write_text("0::/a/b\n")
    (groups / "a" / "pids.max").write_text("20\n")
    (groups / "a" / "pids.current").write_text("17\n")
    (groups / "a" / "b" / "pids.max").write_text("max\n")
    monkeypatch.setattr(thread_limits.os, "geteuid", lambda: 0)
    limit = thread_limits.thread_limit({}, folder, groups)
    assert limit is not None
    assert limit.threads == 4
    assert limit.reason == "20 tasks of its control group, 17 of them in use"


def test_limits_hold_for_variables_and_defaults(monkeypatch):
    monkeypatch.setattr(
        "tilewright.machine.threads.thread_limit", lambda environ: thread_limits.ThreadLimit(1, "room for one")
    )
    assert thread_count(None, {}) == 1
    assert thread_count(1) == 1
    with pytest.raises(
        OptionError, match="OMP_NUM_THREADS=3: expected at most 1 thread, got 3: this process has room"
    ):
        thread_count(None, {"OMP_NUM_THREADS": "3"})


@pytest.mark.parametrize(
    ("text", "size"),
    [("4M", 4 << 20), (" 512 k", 512 << 10), ("1024", 1 << 20), ("1G", 1 << 30), ("2097152B", 2 << 20)],
)
def test_stack_size(text, size):
    assert thread_limits.stack_bytes({"OMP_STACKSIZE": text}) == size
