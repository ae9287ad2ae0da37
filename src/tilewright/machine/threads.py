"""Number of threads of a call: by argument, environment, or available cores.

The order is argument, TILEWRIGHT_NUM_THREADS, OMP_NUM_THREADS, and last the smaller of the cores in the CPU affinity
mask and the control group's CPU quota (versions 1 and 2). Two logical CPUs of one core count once: they share its
execution units, so a second thread there gains nothing.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from tilewright.errors import OptionError, pluralize
from tilewright.machine.thread_limits import thread_limit

MAX_THREADS = 1024
VARIABLES = ("TILEWRIGHT_NUM_THREADS", "OMP_NUM_THREADS")
_CGROUPS = Path("/sys/fs/cgroup")
_SELF = Path("/proc/self/cgroup")
_CPUS = Path("/sys/devices/system/cpu")


def thread_count(argument: int | None = None, environ: Mapping[str, str] | None = None) -> int:
    """Number of threads to use, at least 1.

    Args:
        argument: the number that the caller asks for; None for that of the environment or the system.
        environ: environment variables, the process's own by default.

    Raises:
        OptionError: the argument or a variable is not an integer in 1..1024, or is more than the system allows this
            process; names the argument or variable.
    """
    if argument is not None:
        return _check_limit(_parse_count(argument, "argument 'threads'"), "argument 'threads'", environ)
    environ = os.environ if environ is None else environ
    for name in VARIABLES:
        text = environ.get(name, "").strip()
        if text:
            # OpenMP allows one number per nesting level; there is one level here
            first = text.split(",")[0].strip() if name == "OMP_NUM_THREADS" else text
            where = f"environment variable {name}={text}"
            return _check_limit(_parse_count(first, where), where, environ)
    grant = thread_limit(environ)
    return available_cores() if grant is None else min(available_cores(), grant.threads)


def _check_limit(count: int, where: str, environ: Mapping[str, str] | None) -> int:
    """The number itself, if the system allows this process that number of threads."""
    grant = thread_limit(environ) if count > 1 else None
    if grant is not None and count > grant.threads:
        what = f"expected at most {pluralize(grant.threads, 'thread')}, got {count}: this process has {grant.reason}"
        raise OptionError(what, where=where, hint="ask for fewer threads, or raise the limit")
    return count


def team_size(threads: int) -> int:
    """How many of so many threads work at a time: at most the logical CPUs of this process. More threads would preempt
    those whose work the others wait for."""
    return min(threads, len(available_cpus()))


def available_cores() -> int:
    """Cores available to this process: those of its affinity mask, limited by its CPU quota."""
    quota = cgroup_quota()
    cores = core_count(available_cpus())
    # rounded down: a thread beyond the quota makes every parallel region wait for the next accounting period
    return max(1, min(cores, int(quota))) if quota is not None else cores


def core_count(cpus: frozenset[int], folder: Path = _CPUS) -> int:
    """Cores that logical CPUs belong to.

    Args:
        cpus: their numbers.
        folder: `cpu` folder of Linux' sysfs; a CPU that it does not describe is a core of its own.
    """
    return len({smt_siblings(folder / f"cpu{c}") or (c,) for c in cpus})


def smt_siblings(folder: Path) -> tuple[int, ...]:
    """The logical CPUs of a CPU's core, itself included, by the CPU's folder in sysfs; none if the system does not
    report them."""
    try:
        return parse_cpu_list((folder / "topology" / "thread_siblings_list").read_text())
    except (OSError, ValueError):
        return ()


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """CPU numbers of a kernel list such as "0-3,8"."""
    cpus: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        cpus += range(int(first), int(last or first) + 1)
    return tuple(cpus)


def _parse_count(value: int | str, where: str) -> int:
    hint = f"give an integer from 1 to {MAX_THREADS}"
    if isinstance(value, bool) or not isinstance(value, (int, str)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise OptionError(f"expected a number of threads, got {value!r}", where=where, hint=hint)
    try:
        count = int(value)
    except ValueError:
        raise OptionError(f"expected a number of threads, got {value!r}", where=where, hint=hint) from None
    if not 1 <= count <= MAX_THREADS:
        raise OptionError(f"expected a number of threads, got {count}", where=where, hint=hint)
    return count


def available_cpus() -> frozenset[int]:
    """Logical CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def cgroup_quota(groups: Path = _SELF, root: Path = _CGROUPS) -> float | None:
    """CPU quota of this process's control groups; None without a limit.

    The limit of every ancestor holds too, so the smallest one counts. In a container the path of the group may not be
    visible; its root then shows the container's own limit.

    Args:
        groups: file in the format of /proc/self/cgroup.
        root: where the control group file systems are mounted.
    """
    try:
        lines = groups.read_text().splitlines()
    except OSError:
        return None
    limits: list[float] = []
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if not controllers:
            limits += [_v2_limit(folder) for folder in _with_ancestors(root, path)]
        elif "cpu" in controllers.split(","):
            mounts = [root / controllers, root / "cpu"]
            limits += [_v1_limit(folder) for mount in mounts for folder in _with_ancestors(mount, path)]
    granted = [limit for limit in limits if limit > 0]
    return min(granted) if granted else None


def _with_ancestors(mount: Path, path: str) -> list[Path]:
    parts = [part for part in path.split("/") if part not in ("", "..", ".")]
    return [mount.joinpath(*parts[:depth]) for depth in range(len(parts) + 1)]


def _v2_limit(folder: Path) -> float:
    """Quota / period of `cpu.max` ("max 100000" or "150000 100000"), 0 without a limit."""
    words = _words(folder / "cpu.max")
    return int(words[0]) / int(words[1]) if len(words) == 2 and words[0].isdigit() and int(words[1]) else 0.0


def _v1_limit(folder: Path) -> float:
    """Quota / period of the CFS files (a quota of -1 is no limit), 0 without a limit."""
    quota, period = _words(folder / "cpu.cfs_quota_us"), _words(folder / "cpu.cfs_period_us")
    if len(quota) == 1 and len(period) == 1 and quota[0].isdigit() and int(period[0]):
        return int(quota[0]) / int(period[0])
    return 0.0


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []
