"""Machine descriptions shipped with the package, by name, target and processor.

Selection never measures and never reads a clock, so that the same inputs give the same program.
"""

from dataclasses import replace
from functools import lru_cache
from importlib import resources
from itertools import pairwise
from math import ceil
from pathlib import Path

from tilewright.errors import MachineError
from tilewright.machine.cpu_features import X86_LEVELS
from tilewright.machine.host import read_caches
from tilewright.machine.model import Level, Machine, parse_machine
from tilewright.machine.target import Target
from tilewright.machine.threads import available_cores, smt_siblings

_LEVELS = tuple(X86_LEVELS)
_CPUINFO = Path("/proc/cpuinfo")
_CPU = Path("/sys/devices/system/cpu/cpu0")


@lru_cache(maxsize=1)
def shipped_machines() -> dict[str, Machine]:
    """All shipped descriptions by name, in the order of their files' names."""
    folder = resources.files("tilewright.machine") / "data"
    machines: dict[str, Machine] = {}
    for entry in sorted(folder.iterdir(), key=lambda e: e.name):
        if entry.name.endswith(".json"):
            machine = parse_machine(entry.read_text(encoding="utf-8"), f"machine file '{entry.name}'")
            machines[machine.name] = machine
    return machines


def machine_named(name: str) -> Machine:
    """The shipped description of that name.

    Raises:
        MachineError: there is none.
    """
    machines = shipped_machines()
    if name not in machines:
        raise MachineError(f"there is no machine {name!r}", where="machine", hint=f"use one of {', '.join(machines)}")
    return machines[name]


def generic_machine(target: Target) -> Machine:
    """The description of a typical machine of an instruction set."""
    if target.arch == "aarch64":
        return machine_named("aarch64")
    level = target.name.split("+")[0]
    while level not in shipped_machines():
        level = _LEVELS[_LEVELS.index(level) - 1]
    return machine_named(level)


def processor_signature(cpuinfo: str) -> str:
    """The identification of the first processor in the text of /proc/cpuinfo (see `Machine.identify`); "" if it has
    none."""
    values: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            values.setdefault(key.strip(), value.strip())
    if "CPU implementer" in values:
        return f"{values['CPU implementer']}/{values.get('CPU part', '')}"
    if "vendor_id" in values:
        return f"{values['vendor_id']}/{values.get('cpu family', '')}/{values.get('model', '')}"
    return ""


def machine_of_processor(sign: str) -> Machine | None:
    """The shipped description of a processor, by its signature."""
    return next((m for m in shipped_machines().values() if sign and sign in m.identify), None)


@lru_cache(maxsize=1)
def host_machine() -> Machine:
    """This machine, without measurements: the description of its microarchitecture, or a generic one of its instruction
    set, with the cache sizes that the system reports and the number of cores available to this process."""
    try:
        sign = processor_signature(_CPUINFO.read_text())
    except OSError:
        sign = ""
    machine = machine_of_processor(sign) or generic_machine(Target.host())
    return with_reported_caches(machine, available_cores(), _CPU)


def with_reported_caches(machine: Machine, cores: int, folder: Path) -> Machine:
    """A description with the cache sizes that the system reports, and with another number of cores.

    Args:
        machine: a processor.
        cores: cores that one program may use.
        folder: folder of one logical CPU in Linux' sysfs; levels that it does not describe keep their sizes.
    """
    reported = {f"L{c.level}": c for c in read_caches(folder / "cache") if c.kind != "Instruction"}
    threads = len(smt_siblings(folder)) or 1
    levels: list[Level] = []
    for x in machine.levels:
        cache = reported.get(x.name)
        size = cache.bytes if cache is not None and cache.bytes > 0 else x.bytes
        # the system counts logical CPUs, not cores
        by = ceil(cache.shared_by / threads) if cache is not None and cache.shared_by > 0 else x.shared_by
        total = min(x.total_gbs, x.core_gbs * cores)
        levels.append(Level(x.name, size, x.line, x.ways, x.latency_ns, x.core_gbs, total, max(1, min(by, cores))))
    ordered = all(near.bytes <= far.bytes for near, far in pairwise(levels))
    consistent = tuple(levels) if ordered else machine.levels
    return replace(machine, cores=cores, sync_us=machine.sync_of(cores), levels=consistent)
