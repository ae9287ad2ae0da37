"""Machine descriptions as data: memory levels, execution units and their rates.

A `Machine` gives the cost model the peak rate of floating-point operations and the bandwidth of each memory level.
Descriptions are JSON files (`data/`); reading one validates every value, so that the arithmetic never sees impossible
ones. Sizes are in bytes, rates in GB/s (1e9 bytes), times in nanoseconds or cycles as the names say.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from itertools import pairwise
from math import log2
from pathlib import Path
from typing import Any, cast

from tilewright.errors import Defect, MachineError, pluralize
from tilewright.machine.cost_parameters import DEFAULT_COST, CostParameters, ParameterField, parameter_fields
from tilewright.machine.register_tile_cycles import (
    RegisterTileCycles,
    decode_register_tiles,
    encode_register_tiles,
)

FORMAT = 1
"""Version of the description's format."""

_SAVE_HINT = "give a file that `tilewright doctor --machine --save FILE` wrote"


MAX_PRIVATE_LEVELS = 2
"""Levels of caches that cores have of their own: L1 and L2."""


@dataclass(frozen=True, slots=True)
class Level:
    """One level of memory, as one core sees it.

    Attributes:
        name: "L1", "L2", "L3", "memory"; for GPUs "register", "shared", "L2", "memory".
        bytes: capacity of one instance.
        line: bytes of a cache line.
        ways: associativity; 0 for main memory, which is no cache.
        latency_ns: load-to-use latency of a line in this level.
        core_gbs: read bandwidth of one core.
        total_gbs: read bandwidth of all cores together.
        shared_by: number of cores that share one instance.
    """

    name: str
    bytes: int
    line: int
    ways: int
    latency_ns: float
    core_gbs: float
    total_gbs: float
    shared_by: int

    def gbs(self, cores: int) -> float:
        """Read bandwidth of `cores` cores together, in bytes per nanosecond."""
        return min(self.core_gbs * cores, self.total_gbs)

    @property
    def share(self) -> float:
        """One core's share of the capacity, in bytes."""
        return self.bytes / max(1, self.shared_by)


@dataclass(frozen=True, slots=True)
class Gpu:
    """Resources that only graphics processors have.

    Attributes:
        multiprocessors: independent processors.
        registers: 32-bit registers of one.
        shared_bytes: its shared memory.
        warp: threads that execute in lockstep.
        max_threads: threads of one block.
        banks: of shared memory; `bank_bytes` wide each.
        bank_bytes: width of a bank.
    """

    multiprocessors: int
    registers: int
    shared_bytes: int
    warp: int
    max_threads: int
    banks: int
    bank_bytes: int


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine.

    Attributes:
        name: of the description ("x86-64-v4", "zen5", or the name of a calibration).
        arch: "x86_64", "aarch64" or "nvptx64".
        cores: cores that one program may use.
        ghz: clock under sustained vector work.
        vector_bits: width of a vector register.
        vector_registers: their number.
        fma_pipes: fused multiply-adds issued per cycle and core.
        fma_cycles: latency of one.
        load_ports: vector loads per cycle and core.
        store_ports: vector stores per cycle and core.
        tlb_entries: pages of 4096 bytes whose addresses a core translates without delay: entries of its first data TLB;
            0 for graphics processors, which nothing asks.
        sync_us: microseconds that a parallel loop on all threads takes beyond its share of the work, inside a call.
        levels: nearest first; the last one is main memory.
        gpu: None for processors.
        identify: processors that the description is for, as "vendor/family/model" (x86) or "implementer/part" (Arm) in
            the words of /proc/cpuinfo.
        features: flags of /proc/cpuinfo that tell its processors from older ones of the same vendor, for processors
            that do not say their model; empty where no flags do.
        cost: parameters of the cost model that the other fields do not state.
        register_tiles: measured times of innermost loops; empty where none were measured.
    """

    name: str
    arch: str
    cores: int
    ghz: float
    vector_bits: int
    vector_registers: int
    fma_pipes: int
    fma_cycles: int
    load_ports: int
    store_ports: int
    tlb_entries: int
    sync_us: float
    levels: tuple[Level, ...]
    gpu: Gpu | None = None
    identify: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    cost: CostParameters = DEFAULT_COST
    register_tiles: tuple[RegisterTileCycles, ...] = ()

    def gflops(self, cores: int = 1, bits: int = 32) -> float:
        """Peak of fused multiply-adds, two operations each, on elements of `bits` bits."""
        lanes = max(1, self.vector_bits // bits)
        return 2.0 * lanes * self.fma_pipes * self.ghz * min(cores, self.cores)

    def level(self, name: str) -> Level:
        """The memory level of that name.

        Raises:
            MachineError: there is none.
        """
        for level in self.levels:
            if level.name == name:
                return level
        names = ", ".join(x.name for x in self.levels)
        raise MachineError(f"there is no memory level {name!r}; there are {names}", where=f"machine {self.name!r}")

    @property
    def private_caches(self) -> tuple[Level, ...]:
        """The caches that a core has of its own, nearest first. A third level is none, even where a program may use
        only one of the cores that share it: it is far, and its sets are hashed."""
        return tuple([x for x in self.levels[:-1][:MAX_PRIVATE_LEVELS] if x.ways and x.shared_by == 1])

    def with_ports_for(self, bits: int) -> "Machine":
        """The same machine with as many multiply-adds and loads per cycle as it executes on vectors of so many bits. A
        broadcast takes what it did before, but no more than such a vector."""
        cost, rate = self.cost, self.cost.half_width_rate
        if rate == 1 or 2 * bits > self.vector_bits:
            return self
        broadcast = min(rate * cost.broadcast_load_factor, 1.0)
        cost = replace(cost, half_width_rate=1, broadcast_load_factor=broadcast)
        return replace(self, fma_pipes=self.fma_pipes * rate, load_ports=self.load_ports * rate, cost=cost)

    def with_cores(self, cores: int) -> "Machine":
        """The same machine with at most so many cores."""
        count = max(1, min(cores, self.cores))
        return replace(self, cores=count, sync_us=self.sync_of(count))

    def sync_of(self, cores: int) -> float:
        """Microseconds of fork and join on another number of cores: proportional to its logarithm, as in a tree of
        threads."""
        return self.sync_us * max(1.0, log2(cores)) / max(1.0, log2(self.cores))


_POSITIVE = ("bytes", "line", "core_gbs", "total_gbs", "latency_ns", "shared_by", "cores", "ghz", "vector_bits",
             "vector_registers", "fma_pipes", "fma_cycles", "load_ports", "store_ports", "multiprocessors", "registers",
             "shared_bytes", "warp", "max_threads", "banks", "bank_bytes")  # fmt: skip
_MAX_INTEGER = 1 << 53
"""The largest integer that a float represents exactly."""

_MAX_VALUES = {"cores": 1 << 20, "ghz": 100, "vector_bits": 1 << 16, "vector_registers": 1 << 12, "fma_pipes": 1 << 10,
         "load_ports": 1 << 10, "store_ports": 1 << 10, "tlb_entries": 1 << 20, "fma_cycles": 1 << 10,
         "line": 1 << 16, "core_gbs": 1e6, "total_gbs": 1e9, "latency_ns": 1e6, "sync_us": 1e6}  # fmt: skip
"""Limits far beyond any machine; a larger value is in the wrong unit."""

_ARCHITECTURES = ("x86_64", "aarch64", "nvptx64")


def to_json(machine: Machine) -> str:
    """A description as JSON text; `parse_machine` reads it back to an equal machine."""
    data = {"format": FORMAT, **asdict(machine)}
    del data["register_tiles"]
    if machine.register_tiles:
        data["register_tiles"] = encode_register_tiles(machine.register_tiles)
    return json.dumps(data, indent=2) + "\n"


def read_machine(path: Path) -> Machine:
    """The machine that a file describes.

    Raises:
        MachineError: the file can't be read, or does not describe a valid machine; lists every problem.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise MachineError(f"cannot be read: {error}", where=f"machine file '{path}'", hint=_SAVE_HINT) from error
    return parse_machine(text, f"machine file '{path}'")


def parse_machine(text: str, where: str) -> Machine:
    """The machine that a JSON text describes.

    Raises:
        MachineError: it is not JSON, or a value is missing, of the wrong type or invalid; lists every problem.
    """
    try:
        data: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MachineError(f"is not JSON: {error}", where=where, hint=_SAVE_HINT) from error
    if not isinstance(data, dict):
        raise MachineError(f"expected an object, got {type(data).__name__}", where=where, hint=_SAVE_HINT)
    reader = _Reader()
    machine = reader.machine(cast(Mapping[str, Any], data))
    if reader.problems or machine is None:
        lines = "".join(f"\n  {p.where}: {p.what}" for p in reader.problems)
        what = f"{pluralize(len(reader.problems), 'problem')}{lines}"
        raise MachineError(what, where=where, hint="see docs/how-to/add-a-machine.md for every field")
    return machine


class _Reader:
    """Reads and validates fields; collects all problems."""

    def __init__(self) -> None:
        self.problems: list[Defect] = []

    def machine(self, data: Mapping[str, Any]) -> Machine | None:
        """The machine; None if a field is invalid."""
        if "format" not in data:
            self._report("format", "is missing")
        elif data["format"] != FORMAT:
            self._report("format", f"expected {FORMAT}, got {data['format']!r}")
        listed = data.get("levels")
        levels: list[Level | None] = []
        if not isinstance(listed, list) or not listed:
            self._report("levels", "expected a list of at least one memory level")
        else:
            levels = [self._read_record(Level, x, f"levels[{k}]") for k, x in enumerate(cast(list[Any], listed))]
        gpu = None if data.get("gpu") is None else self._read_record(Gpu, data["gpu"], "gpu")
        identify = self._read_texts("identify", data.get("identify", []))
        features = self._read_texts("features", data.get("features", []))
        cost = self._read_cost(data.get("cost", {}))
        tiles = decode_register_tiles(data.get("register_tiles", {}), self._report)
        nested = ("levels", "gpu", "identify", "features", "cost", "register_tiles")
        plain = {k: v for k, v in data.items() if k not in ("format", *nested)}
        values = self._read_values(Machine, plain, "", skip=nested)
        self._check_levels(levels, processor=data.get("gpu") is None)
        if values.get("arch") is not None and values["arch"] not in _ARCHITECTURES:
            self._report("arch", f"expected one of {', '.join(_ARCHITECTURES)}, got {values['arch']!r}")
        if data.get("gpu") is None and values.get("tlb_entries") == 0:
            self._report("tlb_entries", "must be more than 0, got 0: only graphics processors say 0")
        if (values.get("vector_bits") or 64) % 64:
            self._report("vector_bits", f"expected a multiple of 64, got {values['vector_bits']}")
        if self.problems:
            return None
        present = tuple(x for x in levels if x is not None)
        return Machine(
            **values, levels=present, gpu=gpu, identify=identify, features=features, cost=cost, register_tiles=tiles
        )

    def _report(self, field: str, what: str) -> None:
        self.problems.append(Defect("machine", f"field '{field}'", what))

    def _read_texts(self, place: str, value: Any) -> tuple[str, ...]:
        listed = cast(list[Any], value) if isinstance(value, list) else [None]
        if not all(isinstance(x, str) for x in listed):
            self._report(place, f"expected a list of texts, got {value!r}")
            return ()
        return tuple(str(x) for x in listed)

    def _read_cost(self, value: Any) -> CostParameters:
        """Parameters of the cost model; those that are left out have their defaults."""
        if not isinstance(value, dict):
            self._report("cost", f"expected an object, got {value!r}")
            return DEFAULT_COST
        listed, known = cast(Mapping[str, Any], value), {f.name: f for f in parameter_fields()}
        for name in sorted(set(listed) - set(known)):
            self._report(f"cost.{name}", f"is not known; fields are {', '.join(known)}")
        values = {name: self._read_parameter(known[name], x) for name, x in listed.items() if name in known}
        return CostParameters(**{name: x for name, x in values.items() if x is not None})

    def _read_parameter(self, field: ParameterField, value: Any) -> Any:
        place = f"cost.{field.name}"
        number = self._read_typed(place, value, "int" if field.is_integer else "float")
        if number is not None and not field.least <= number <= field.most:
            self._report(
                place, f"must be between {field.least:.16g} and {field.most:.16g}, got {number} ({field.unit})"
            )
        return number

    def _read_record(self, kind: type[Any], value: Any, place: str) -> Any:
        if not isinstance(value, dict):
            self._report(place, f"expected an object, got {value!r}")
            return None
        before = len(self.problems)
        values = self._read_values(kind, cast(Mapping[str, Any], value), f"{place}.")
        return kind(**values) if len(self.problems) == before else None

    def _read_values(
        self, kind: type[Any], data: Mapping[str, Any], prefix: str, skip: tuple[str, ...] = ()
    ) -> dict[str, Any]:
        types = {f.name: f.type for f in fields(kind) if f.name not in skip}
        for name in sorted(set(data) - set(types)):
            self._report(prefix + name, f"is not known; fields are {', '.join(types)}")
        result: dict[str, Any] = {}
        for name, annotation in types.items():
            if name not in data:
                self._report(prefix + name, "is missing")
                continue
            value = self._read_typed(prefix + name, data[name], str(getattr(annotation, "__name__", annotation)))
            if value is not None and name in _POSITIVE and value <= 0:
                self._report(prefix + name, f"must be more than 0, got {value}")
            elif value is not None and not isinstance(value, str) and value < 0:
                self._report(prefix + name, f"must not be negative, got {value}")
            elif name == "line" and isinstance(value, int) and value & (value - 1):
                self._report(prefix + name, f"expected a power of two, got {value}")
            elif value is not None and not isinstance(value, str):
                limit = _MAX_VALUES.get(name, _MAX_INTEGER)
                if value > limit:
                    self._report(prefix + name, f"must be at most {limit:.16g}, got {value}")
            result[name] = value
        return result

    def _read_typed(self, place: str, value: Any, kind: str) -> Any:
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and -1e300 < value < 1e300
        if kind == "str":
            fits = isinstance(value, str) and bool(value)
        else:
            fits = number and (kind == "float" or value == int(value))
        if not fits:
            expected = {"str": "a text", "int": "a whole number"}.get(kind, "a number")
            self._report(place, f"expected {expected}, got {value!r}")
            return None
        return str(value) if kind == "str" else int(value) if kind == "int" else float(value)

    def _check_levels(self, levels: list[Level | None], processor: bool) -> None:
        """Checks each level, and each pair of adjacent levels that are both valid."""
        if processor and levels and not any(x is None or x.ways for x in levels[:-1]):
            self._report("levels", "expected at least one cache, with `ways` of 1 or more, and main memory after it")
        elif processor:
            for x in levels[:-1]:
                if x is not None and not x.ways:
                    what = "expected a cache, with `ways` of 1 or more: only the last level, main memory, has 0 ways"
                    self._report(f"levels ({x.name})", what)
        names = [x.name for x in levels if x is not None]
        for name in sorted({n for n in names if names.count(n) > 1}):
            self._report("levels", f"{names.count(name)} levels are called {name!r}")
        for x in levels:
            if x is not None and x.total_gbs < x.core_gbs:
                self._report(f"levels ({x.name})", f"all cores read less than one: {x.total_gbs} against {x.core_gbs}")
        for x in levels:
            if x is not None and x.bytes < x.line * max(1, x.ways):
                what = f"{x.ways} ways of lines of {x.line} bytes" if x.ways > 1 else f"a line of {x.line} bytes"
                self._report(f"levels ({x.name})", f"{x.bytes} bytes hold not even {what}")
        for near, far in pairwise(levels):
            if near is not None and far is not None:
                self._check_order(near, far, processor)

    def _check_order(self, near: Level, far: Level, processor: bool) -> None:
        place = f"levels ({near.name}, {far.name})"
        # a graphics processor has more registers than shared memory
        if processor and far.bytes < near.bytes:
            self._report(place, f"the farther level holds less: {far.bytes} bytes against {near.bytes}")
        if far.latency_ns < near.latency_ns:
            self._report(place, f"the farther level is nearer: {far.latency_ns} ns against {near.latency_ns}")
        if far.core_gbs > near.core_gbs:
            self._report(place, f"the farther level is faster: {far.core_gbs} GB/s against {near.core_gbs}")
