"""Limits of the system on the number of threads of this process.

OpenMP runtimes terminate the process when a thread cannot be created. Each thread needs address space for its stack,
and counts against the task limits of its user and its control groups.
"""

import os
import resource
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

STACK_VARIABLES = ("OMP_STACKSIZE", "GOMP_STACKSIZE", "KMP_STACKSIZE")
_UNITS = {"B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_DEFAULT_STACK_BYTES = 8 << 20
"""Bytes of a thread's stack where no limit is set."""


@dataclass(frozen=True, slots=True)
class ThreadLimit:
    """A number of threads, the calling one included, and what limits it."""

    threads: int
    reason: str


def thread_limit(environ: Mapping[str, str] | None = None, folder: Path = Path("/proc/self"),
            groups: Path = Path("/sys/fs/cgroup")) -> ThreadLimit | None:  # fmt: skip
    """The tightest limit on threads; None without a limit.

    Args:
        environ: environment variables, the process's own by default.
        folder: this process's folder in the format of /proc/self.
        groups: mount point of the control group file system.
    """
    environ = os.environ if environ is None else environ
    limits = [x for x in (_address_space_limit(environ, folder), _task_limit(groups, folder)) if x is not None]
    return min(limits, key=lambda x: x.threads, default=None)


def _address_space_limit(environ: Mapping[str, str], folder: Path) -> ThreadLimit | None:
    """Stacks that fit half of the address space left below its limit (`ulimit -v`)."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    used = _first_number(folder / "statm") * resource.getpagesize()
    stack = stack_bytes(environ)
    threads = 1 + max(0, limit - used) // 2 // stack
    return ThreadLimit(
        threads, f"{limit} bytes of addresses (ulimit -v), {used} of them in use, and {stack} for each stack"
    )


def stack_bytes(environ: Mapping[str, str]) -> int:
    """Bytes of a thread's stack by the rules of OpenMP runtimes: a variable ("4M", kilobytes without a unit), else the
    stack limit."""
    for name in STACK_VARIABLES:
        text = environ.get(name, "").strip().upper()
        number, unit = (text[:-1].strip(), text[-1]) if text[-1:] in _UNITS else (text, "K")
        if number.isascii() and number.isdigit() and int(number):
            return int(number) * _UNITS[unit]
    limit, _ = resource.getrlimit(resource.RLIMIT_STACK)
    return _DEFAULT_STACK_BYTES if limit == resource.RLIM_INFINITY else max(limit, 1 << 16)


def _task_limit(groups: Path, folder: Path) -> ThreadLimit | None:
    """Task limits of the control groups (version 2) and of the user; root has none."""
    limits: list[ThreadLimit] = []
    limit, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if limit != resource.RLIM_INFINITY and os.geteuid():
        limits.append(ThreadLimit(max(1, limit), f"{limit} processes and threads of this user (ulimit -u)"))
    for group in _cgroup_folders(groups, folder):
        most, now = _first_number(group / "pids.max"), _first_number(group / "pids.current")
        if most:
            limits.append(
                ThreadLimit(max(1, most - now + 1), f"{most} tasks of its control group, {now} of them in use")
            )
    return min(limits, key=lambda x: x.threads, default=None)


def _cgroup_folders(groups: Path, folder: Path) -> list[Path]:
    try:
        lines = (folder / "cgroup").read_text().splitlines()
    except OSError:
        return []
    path = next((line[3:] for line in lines if line.startswith("0::")), "/")
    parts = [part for part in path.split("/") if part not in ("", "..", ".")]
    return [groups.joinpath(*parts[:depth]) for depth in range(len(parts) + 1)]


def _first_number(file: Path) -> int:
    """The number at the beginning of a file; 0 if there is none ("max")."""
    try:
        words = file.read_text().split()
    except OSError:
        return 0
    return int(words[0]) if words and words[0].isdigit() else 0
