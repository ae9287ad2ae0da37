"""Programs of this package that run in processes of their own, from their start to their end.

This module imports no part of the compiler, so that a process can start them before it imports the compiler itself.
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol

from tilewright.errors import MeasureError

_THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True, slots=True, eq=False)
class StartedProgram:
    """A program with pipes to its standard input and output.

    Its number is that of its process group, too. The system gives it to others once the process has been waited for, so
    the group is ended before, and never afterwards.

    Attributes:
        process: the process, in a session of its own; only this class waits for it.
        errors: a file that has what it prints.
    """

    process: "subprocess.Popen[bytes]"
    errors: IO[bytes]
    _reaping: threading.Lock = field(default_factory=threading.Lock, init=False)

    def kill(self) -> None:
        """Ends the program and what it started; another thread that waits for it sees its end."""
        with self._reaping:
            self._kill_group()

    def is_running(self) -> bool:
        """Whether the program has not ended; once it has, what it started ends, too."""
        if self._has_not_ended(os.WNOHANG):
            return True
        self._reap()
        return False

    def wait(self) -> int:
        """Waits for the end of the program, ends what it started, and returns its status as `subprocess` states it."""
        self._has_not_ended(0)
        return self._reap()

    def _has_not_ended(self, options: int) -> bool:
        """Whether it runs, without waiting for it in the sense of the system; blocks until its end without WNOHANG."""
        try:
            return self.process.returncode is None and self._status(options) is None
        except ChildProcessError:  # another thread has waited for it, or this process ignores SIGCHLD
            return False

    def _status(self, options: int) -> object:
        return os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT | options)

    def _reap(self) -> int:
        with self._reaping:
            self._kill_group()
            return self.process.wait()

    def _kill_group(self) -> None:
        if self.process.returncode is None:
            with suppress(OSError):
                self._status(os.WNOHANG)  # raises where the number is not this process's any more
                os.killpg(self.process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Ends the program and what it started, and frees what this process has of it."""
        with ExitStack() as stack:  # an interrupt skips no other step
            stack.callback(self.errors.close)
            stack.callback(self.wait)
            for pipe in filter(None, (self.process.stdin, self.process.stdout)):
                stack.callback(_close_pipe, pipe)
            stack.callback(self.kill)


def _close_pipe(pipe: IO[bytes]) -> None:
    with suppress(OSError):  # what was not sent is lost with the program
        pipe.close()


def start_program(module: str) -> StartedProgram:
    """Starts `python -m module`.

    Args:
        module: the name of a module of this package, or of one that this process could import by name.

    Raises:
        MeasureError: it cannot be started.
    """
    if not sys.executable:
        raise start_error("the path of the interpreter is not known")
    try:
        errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the program
    except OSError as error:
        raise start_error(str(error)) from error
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", module], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
            env=_environment(), start_new_session=True,
        )  # fmt: skip
    except (OSError, ValueError) as error:
        errors.close()
        raise start_error(str(error)) from error
    return StartedProgram(process, errors)


class Closable(Protocol):
    """What runs in a process of its own."""

    def kill(self) -> None:
        """Ends the process, without waiting for its end."""
        ...

    def close(self) -> None:
        """Ends the process, waits for its end, and frees what this process has of it."""
        ...


def close_all(programs: Sequence[Closable]) -> None:
    """Ends all of them, and closes the others where an error or a Ctrl-C interrupts the wait for one; it is raised
    afterwards."""
    with ExitStack() as stack:
        for program in programs:
            stack.callback(program.close)
        for program in programs:  # all end at once, before any wait
            program.kill()


def start_error(reason: str) -> MeasureError:
    """The error of a program that does not start."""
    hint = "workers are processes of their own; check that this one may start them, and write temporary files"
    return MeasureError(f"no worker process can be started: {reason}", where="measurer", hint=hint)


def _environment() -> dict[str, str]:
    """Programs find this package where this process does, and start no threads before they fork."""
    root = str(Path(__file__).parents[2])
    path = os.environ.get("PYTHONPATH")
    single = dict.fromkeys(_THREAD_VARIABLES, "1")
    return {**os.environ, **single, "PYTHONPATH": f"{root}{os.pathsep}{path}" if path else root}
