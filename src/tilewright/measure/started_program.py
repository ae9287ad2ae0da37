"""Programs of this package that run in processes of their own, from their start to their end.

This module imports no part of the compiler, so that a process can start them before it imports the compiler itself.
"""

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tilewright.errors import MeasureError

_THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True, slots=True, eq=False)
class StartedProgram:
    """A program with pipes to its standard input and output.

    Attributes:
        process: the process, in a session of its own.
        errors: a file that has what it prints.
    """

    process: "subprocess.Popen[bytes]"
    errors: IO[bytes]

    def kill(self) -> None:
        """Ends the program and what it started; another thread that waits for it sees its end."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Ends the program and what it started, and frees what this process has of it."""
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        self.process.wait()
        self.errors.close()


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
