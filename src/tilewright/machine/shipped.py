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
from tilewright.machine.origin import Origin
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
    values = _first_processor(cpuinfo)
    if "CPU implementer" in values:
        return f"{values['CPU implementer']}/{values.get('CPU part', '')}"
    if "vendor_id" in values:
        return f"{values['vendor_id']}/{values.get('cpu family', '')}/{values.get('model', '')}"
    return ""


def machine_of_processor(sign: str) -> Machine | None:
    """The shipped description of a processor, by its signature."""
    return next((m for m in shipped_machines().values() if sign and sign in m.identify), None)


def machine_of_features(cpuinfo: str) -> Machine | None:
    """The shipped description that the features of a processor suggest: of those of its vendor whose features the
    processor has, the one with the most.

    Virtual machines often hide the model or report that of another processor, with the features of the real one. Each
    generation has the features of the one before, so the most features are the newest generation that fits.

    Args:
        cpuinfo: the text of /proc/cpuinfo.
    """
    values = _first_processor(cpuinfo)
    vendor, flags = values.get("vendor_id", ""), set(values.get("flags", "").split())
    suggested = [
        m
        for m in shipped_machines().values()
        if m.features and flags.issuperset(m.features) and any(sign.split("/")[0] == vendor for sign in m.identify)
    ]
    return max(suggested, key=lambda m: len(m.features), default=None)


def describe_processor(cpuinfo: str, target: Target) -> tuple[Machine, Origin]:
    """The shipped description of a processor, and how it was chosen: by model, by features, or by instruction set.

    Args:
        cpuinfo: the text of /proc/cpuinfo.
        target: the processor's target.
    """
    machine = machine_of_processor(processor_signature(cpuinfo))
    if machine is not None:
        return machine, Origin.SHIPPED
    machine, generic = machine_of_features(cpuinfo), generic_machine(target)
    # a processor of which some features are hidden must not be taken for one with other vectors
    is_alike = machine is not None and machine.vector_bits == generic.vector_bits
    return (machine, Origin.FEATURES) if machine is not None and is_alike else (generic, Origin.GENERIC)


@lru_cache(maxsize=1)
def describe_host() -> tuple[Machine, Origin]:
    """This machine, without measurements, and how its description was chosen (`describe_processor`); with the cache
    sizes that the system reports and the number of cores available to this process."""
    try:
        cpuinfo = _CPUINFO.read_text()
    except OSError:
        cpuinfo = ""
    machine, origin = describe_processor(cpuinfo, Target.host())
    return with_reported_caches(machine, available_cores(), _CPU), origin


def host_machine() -> Machine:
    """This machine, without measurements (`describe_host`)."""
    return describe_host()[0]


def _first_processor(cpuinfo: str) -> dict[str, str]:
    """The fields of the first processor in the text of /proc/cpuinfo."""
    values: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            values.setdefault(key.strip(), value.strip())
    return values


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
