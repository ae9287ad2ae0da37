"""Calls in a forked process of their own, under limits of time and memory: whatever they do, the caller goes on.

The caller must have no other threads, as `measure/worker.py` has none: a forked process has only the calling thread,
and locks that another one holds would stay locked.
"""

import ctypes
import json
import os
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.optimize.measurer import FailureKind

POLL_SECONDS = 0.05
"""Seconds between two looks at a process's memory; each costs the measured code some microseconds."""

ADDRESS_SPACE_FACTOR = 2
"""Address space that a process may reserve, as a multiple of the memory that it may use: where reserving fails, it has
used its memory up, which tells this death from others."""

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one call.

    Attributes:
        seconds: wall-clock time until it is killed.
        memory_bytes: memory that it may use beyond what the process uses at its start.
    """

    seconds: float
    memory_bytes: int


class IsolatedError(Exception):
    """The call did not answer; says why."""

    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(message)
        self.kind, self.message = kind, message


def call_isolated(function: Callable[[], Any], limits: Limits) -> Any:
    """The JSON values that a function gives in a process of its own.

    Raises:
        IsolatedError: the process crashed, took too long, or needs too much memory.
    """
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(read)
        _answer(function, write, limits)
    os.close(write)
    try:
        with os.fdopen(read, "rb", buffering=0) as pipe:
            answer = _received(pid, pipe.fileno(), limits)
    except BaseException:
        # what still runs is killed before anyone waits for it
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
    _, status, usage = os.wait4(pid, 0)
    if not answer:
        raise _death(os.waitstatus_to_exitcode(status), usage.ru_maxrss << 10, limits)
    try:
        data = json.loads(answer)
    except ValueError:
        raise IsolatedError(FailureKind.CRASH, "it gave no readable answer") from None
    if "memory" in data:
        raise IsolatedError(FailureKind.OUT_OF_MEMORY, data["memory"])
    return data["value"]


def _answer(function: Callable[[], Any], write: int, limits: Limits) -> None:
    """Runs in the new process, which it ends."""
    try:
        _die_with_parent()
        _close_other_files(write)
        limit_memory(ADDRESS_SPACE_FACTOR * limits.memory_bytes)
        try:
            data = {"value": function()}
        except MemoryError as error:
            data = {"memory": str(error) or f"more than {limits.memory_bytes >> 20} MiB"}
        with os.fdopen(write, "wb") as pipe:
            pipe.write(json.dumps(data).encode())
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(1)


def _close_other_files(kept: int) -> None:
    """Leaves the new process standard error and one descriptor: it must not speak in the name of the old one."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1):
        os.dup2(nothing, standard)
    os.closerange(3, kept)
    os.closerange(kept + 1, max(kept + 1, 1 + max(map(int, os.listdir("/proc/self/fd")), default=kept)))


def _received(pid: int, pipe: int, limits: Limits) -> bytes:
    """What the process writes until it closes its end; stops it at its limits."""
    end = time.monotonic() + limits.seconds
    base = _resident_bytes(os.getpid())
    parts: list[bytes] = []
    while True:
        left = end - time.monotonic()
        if left <= 0:
            raise IsolatedError(FailureKind.TIMEOUT, f"it was not done after {limits.seconds:g} s")
        if select.select([pipe], [], [], min(left, POLL_SECONDS))[0]:
            part = os.read(pipe, 1 << 16)
            if not part:
                return b"".join(parts)
            parts.append(part)
        elif _resident_bytes(pid) > base + limits.memory_bytes:
            raise IsolatedError(FailureKind.OUT_OF_MEMORY, f"it uses more than {limits.memory_bytes >> 20} MiB")


def _death(status: int, peak_bytes: int, limits: Limits) -> IsolatedError:
    """The error of a process that ended without an answer."""
    if status < 0 and peak_bytes > _resident_bytes(os.getpid()) + limits.memory_bytes:
        what = f"it was killed by {signal_name(-status)} with all of its {limits.memory_bytes >> 20} MiB in use"
        return IsolatedError(FailureKind.OUT_OF_MEMORY, what)
    return IsolatedError(FailureKind.CRASH, describe_status(status))


def describe_status(status: int) -> str:
    """How a process ended: a negative status is a signal."""
    return f"it was killed by {signal_name(-status)}" if status < 0 else f"it ended with status {status}"


def signal_name(number: int) -> str:
    """ "SIGSEGV", or "signal 99" where it has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def limit_memory(extra_bytes: int) -> None:
    """Lets this process reserve so much more address space than it has now, and write no core file."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    reserved = _memory_pages(os.getpid())[0] * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = reserved + extra_bytes
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


def _die_with_parent() -> None:
    """Lets the system kill this process when the one that started it ends."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _resident_bytes(pid: int) -> int:
    return _memory_pages(pid)[1] * resource.getpagesize()


def _memory_pages(pid: int) -> tuple[int, int]:
    """Reserved and resident pages of a process; zeros where it has ended or the system does not tell."""
    try:
        words = Path(f"/proc/{pid}/statm").read_text().split()
        return int(words[0]), int(words[1])
    except (OSError, ValueError, IndexError):
        return 0, 0
