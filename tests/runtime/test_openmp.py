"""OpenMP threads of native calls: their number, their spinning time, and what they leave to the rest of the process."""

import ctypes
import os

import pytest
from tests.runtime.models import count_artifact
from tests.runtime.process import python

from tilewright.machine.threads import available_cpus
from tilewright.runtime import Executable
from tilewright.runtime import openmp as module

CPUS = len(available_cpus())
CHOICES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")

IDLE = """
import time
from tests.runtime.models import count_artifact
from tilewright.runtime import Executable
exe = Executable(count_artifact(), threads=2)
exe()
spent = 0.0
for _ in range(20):
    exe()
    start = time.process_time()
    time.sleep(0.02)
    spent += time.process_time() - start
print(spent)
"""


def test_idle_threads_release_their_cores() -> None:
    """Twenty pauses of 20 ms; by default libgomp spins for several ms of each."""
    quiet = python(IDLE, without=CHOICES, TILEWRIGHT_OMP_LIBRARY="libgomp.so.1")
    assert quiet.returncode == 0, quiet.stderr
    assert float(quiet.stdout) < 0.02


@pytest.mark.parametrize("chosen", [*CHOICES, ""])
def test_users_spin_settings_take_precedence(chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the variables that set the spinning time, and of everything after loading."""
    values: list[str | None] = []
    opened = ctypes.CDLL

    def opening(path: str) -> ctypes.CDLL:
        values.append(os.environ.get("GOMP_SPINCOUNT"))
        return opened(path)

    for name in CHOICES:
        monkeypatch.delenv(name, raising=False)
    if chosen:
        monkeypatch.setenv(chosen, "7")
    monkeypatch.setattr(ctypes, "CDLL", opening)
    assert module.open_library("libgomp.so.1") is not None
    assert values == [{"GOMP_SPINCOUNT": "7", "OMP_WAIT_POLICY": None, "": str(module.SPIN_COUNT)}[chosen]]
    assert [os.environ.get(name) for name in CHOICES] == ["7" if name == chosen else None for name in CHOICES]


def test_team_is_limited_to_the_cpus() -> None:
    for threads in (1, 2, 3, 4):
        exe, team = Executable(count_artifact(), threads=threads), min(threads, CPUS)
        assert exe().tolist() == [team] * team + [0] * (4 - team)
        assert exe.threads == threads
