"""Host detection: processor, cores, caches, memory and CPU quota of this machine.

Everything is read from /proc and /sys; fields that a system does not report are empty or 0.
"""

import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from tilewright.machine.cpu_features import host_arch, host_features
from tilewright.machine.threads import available_cpus, cgroup_quota, parse_cpu_list

_UNITS = {"K": 1024, "M": 1024**2, "G": 1024**3}


@dataclass(frozen=True, slots=True)
class Cache:
    """One cache of the first core.

    Attributes:
        level: 1, 2, 3.
        kind: "Data", "Instruction" or "Unified".
        bytes: capacity.
        line: bytes of a line.
        shared_by: number of logical CPUs that share it.
    """

    level: int
    kind: str
    bytes: int
    line: int
    shared_by: int


@dataclass(frozen=True, slots=True)
class Host:
    """This machine.

    Attributes:
        arch: "x86_64", "aarch64" or the system's own word.
        model: processor name.
        cpus: logical CPUs that this process may use.
        quota: CPU quota of the control group; None without a limit.
        memory: bytes of main memory.
        caches: caches of the first core.
        features: all CPU features, by LLVM's names, sorted.
    """

    arch: str
    model: str
    cpus: int
    quota: float | None
    memory: int
    caches: tuple[Cache, ...]
    features: tuple[str, ...]


@lru_cache(maxsize=1)
def host() -> Host:
    """Describe the machine that runs this process."""
    return Host(
        arch=host_arch(),
        model=_processor_name(),
        cpus=len(available_cpus()),
        quota=cgroup_quota(),
        memory=_memory_bytes(),
        caches=read_caches(Path("/sys/devices/system/cpu/cpu0/cache")),
        features=tuple(sorted(host_features())),
    )


def read_caches(folder: Path) -> tuple[Cache, ...]:
    """Caches described in a `cache` folder of Linux' sysfs, by level; unreadable ones are omitted."""
    caches: list[Cache] = []
    for index in sorted(folder.glob("index*")):
        try:
            size = (index / "size").read_text().strip()
            caches.append(
                Cache(
                    level=int((index / "level").read_text()),
                    kind=(index / "type").read_text().strip(),
                    bytes=int(size[:-1]) * _UNITS[size[-1]] if size[-1] in _UNITS else int(size),
                    line=int((index / "coherency_line_size").read_text()),
                    shared_by=len(parse_cpu_list((index / "shared_cpu_list").read_text())),
                )
            )
        except (OSError, ValueError, IndexError):
            continue
    return tuple(sorted(caches, key=lambda cache: (cache.level, cache.kind)))


def _processor_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        return ""
    return ""


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return 0
