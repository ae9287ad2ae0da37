"""Where the time of a model's calls goes: kernels inside real calls, beside what the machine allows."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tilewright.codegen.segment import BufferCopy, KernelCall
from tilewright.cost.roofline import (
    OperandUse,
    OperationCounts,
    RooflineBound,
    count_operations,
    roofline_bound,
    size_value,
    source_levels,
    touched_bytes,
)
from tilewright.driver.compilation import Compilation
from tilewright.driver.compile import Progress, make_compilation
from tilewright.driver.instrumentation import instrument
from tilewright.driver.kernels import BoundKernel
from tilewright.driver.options import CompileOptions
from tilewright.driver.segments import calls_in_order
from tilewright.errors import OptionError
from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.nodes import Expr, Var, const
from tilewright.frontend.onnx import ShapeOption
from tilewright.graph.buffer_location import BufferLocation, OutputLocation, WorkspaceLocation
from tilewright.graph.layouts.plan import Choice, Plan
from tilewright.machine import thread_count
from tilewright.machine.choice import choose_machine
from tilewright.machine.model import Machine
from tilewright.measure.profiling import Recorder, Span, ThreadTimes, stamp_overhead
from tilewright.runtime import Executable
from tilewright.runtime.manifest import NativeStep

if TYPE_CHECKING:
    import onnx

SymbolValues = Mapping[Var, Expr]


@dataclass(frozen=True, slots=True)
class Entry:
    """One kernel, copy or fallback step within a call; times in microseconds.

    Attributes:
        name: of the function; "copy" and "fallback" otherwise.
        kind: "kernel", "copy" or "fallback".
        nodes: the user's nodes that it computes.
        step: which of the model's steps it belongs to, from 0.
        begin: from the beginning of the call.
        us: how long it took.
        share: of the call's time.
        regions: parallel regions that it started; 0 where it ran on the calling thread alone.
        threads: what each thread did; empty where there was no region.
        flops: floating-point operations; None for what is no kernel.
        limit: what the machine needs at least; None for what is no kernel.
    """

    name: str
    kind: str
    nodes: str
    step: int
    begin: float
    us: float
    share: float
    regions: int
    threads: tuple[ThreadTimes, ...]
    flops: float | None
    limit: RooflineBound | None

    @property
    def start(self) -> float:
        """When the last thread began its work, from the start of the regions."""
        return max((t.start for t in self.threads), default=0.0)

    @property
    def wait(self) -> float:
        """How long the thread waited at the joins that waited longest."""
        return max((t.wait for t in self.threads), default=0.0)


@dataclass(frozen=True, slots=True)
class Profile:
    """Where the time of a model's calls goes; times in microseconds.

    Attributes:
        model: its name.
        inputs: shapes by name.
        sizes: values of the symbols that the native steps were given, by name.
        threads: per call.
        calls: how many were recorded; figures are means over the quarter of them that were fastest.
        call_us: a call, of the instrumented code.
        median_us: the median of all calls.
        entries: kernels, copies and fallback steps in order of execution.
        machine: for which limits are told.
        origin: where its description came from.
        overhead: time of an instrumented call over that of a plain one, less 1; None where it was not measured.
    """

    model: str
    inputs: Mapping[str, tuple[int, ...]]
    sizes: Mapping[str, int]
    threads: int
    calls: int
    call_us: float
    median_us: float
    entries: tuple[Entry, ...]
    machine: Machine
    origin: str
    overhead: float | None = None

    @property
    def sum_us(self) -> float:
        """All entries together."""
        return sum(e.us for e in self.entries)

    @property
    def outside_us(self) -> float:
        """What of the call's time no entry accounts for: checks of the inputs, and what lies between steps."""
        return self.call_us - self.sum_us


def profile(
    model: "str | os.PathLike[str] | bytes | onnx.ModelProto",
    feeds: Mapping[str, Any],
    shapes: Mapping[str, ShapeOption] | None = None,
    threads: int | None = None,
    optimizer: str | None = None,
    progress: Progress | None = None,
    layouts: Plan | Mapping[str, Choice] | None = None,
    machine: Machine | str | os.PathLike[str] | None = None,
    exact: bool = False,
    winograd: str | None = None,
    seconds: float = 1.0,
) -> Profile:
    """Compiles a model with clock readings around its kernels, calls it, and tells where the time went.

    Args:
        model, shapes, threads, optimizer, progress, layouts, machine, exact, winograd: as for `tilewright.compile`.
        feeds: the inputs, arrays by name.
        seconds: how long the model is called, at least; a few calls are made in any case.

    Returns:
        The profile. `tilewright.report.profile` prints it as a table, as JSON and as an HTML page.

    Raises:
        What `tilewright.compile` raises, and what a call of the model raises.
    """
    options = CompileOptions(
        shapes=shapes, optimizer=optimizer, machine=machine, layouts=layouts, exact=exact, winograd=winograd
    )
    compilation = make_compilation(model, options, progress)
    if progress is not None:
        progress("machine code", 0, 1)
    return profile_compilation(
        compilation, feeds, threads, seconds, name=str(model) if isinstance(model, str | os.PathLike) else None
    )


def profile_compilation(
    compilation: Compilation,
    feeds: Mapping[str, Any],
    threads: int | None = None,
    seconds: float = 1.0,
    with_overhead: bool = False,
    name: str | None = None,
) -> Profile:
    """The profile of a compilation.

    Args:
        made: for this machine.
        feeds: the inputs, arrays by name.
        threads: per call; None asks the environment and the system.
        seconds: how long the model is called, at least.
        with_overhead: whether the plain code is generated and timed, too.
        name: what the model is called; by default as its graph is.

    Raises:
        OptionError: the time is not positive, or the number of threads is not one.
        TargetError: the compilation is for another machine.
        FeedError, ShapeError: the inputs do not fit the model.
    """
    if not 0 < seconds < float("inf"):
        raise OptionError(f"expected a number of seconds of more than 0, got {seconds}", where="argument 'seconds'")
    noted = instrument(compilation, thread_count(threads))
    segments = [p.segment for p in noted.compilation.segments]
    recorder = Recorder(noted.compilation.artifact(), segments, noted.timestamp_outputs, thread_count(threads), feeds)
    recorder.executable.prepare()
    extra = (
        stamp_overhead(recorder, Executable(compilation.artifact(), threads), feeds, seconds) if with_overhead else None
    )
    found = recorder.record(seconds)
    values = [dict(zip(s.symbols, map(const, sizes), strict=True))
              for s, sizes in zip(segments, found.sizes, strict=True)]  # fmt: skip
    chosen = (
        choose_machine(None, compilation.target) if compilation.build.machine is None else compilation.build.machine
    )
    machine, used = chosen.for_target(compilation.target), recorder.executable.threads
    kernels = _describe_calls(compilation, values, machine, min(used, machine.cores))
    entries: list[Entry] = []
    native, fallbacks = iter(range(len(segments))), iter(found.fallbacks)
    for k, step in enumerate(compilation.manifest.steps):
        if isinstance(step, NativeStep):
            segment = next(native)
            for described, span in zip(kernels[segment], found.segments[segment], strict=True):
                entries.append(_entry(described, span, k, found.call_us))
        else:
            described = _EntryInfo("fallback", "fallback", ", ".join(step.nodes))
            entries.append(_entry(described, next(fallbacks), k, found.call_us))
    names = {n: int(size) for p, given in zip(compilation.segments, found.sizes, strict=True)
             for n, size in zip(p.step.symbols, given, strict=True)}  # fmt: skip
    inputs = {name: tuple(int(n) for n in getattr(a, "shape", ())) for name, a in feeds.items()}
    return Profile(compilation.manifest.meta.graph_name if name is None else name, inputs, names, used, found.calls,
                   found.call_us, found.median_us, tuple(entries), machine, str(chosen.origin), extra)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _EntryInfo:
    """What is known of an entry without running it."""

    name: str
    kind: str
    nodes: str
    flops: float | None = None
    limit: RooflineBound | None = None


def _entry(info: _EntryInfo, span: Span, step: int, call_us: float) -> Entry:
    share = span.us / call_us if call_us > 0 else 0.0
    return Entry(info.name, info.kind, info.nodes, step, span.begin, span.us, share, span.regions, span.threads,
    info.flops,
                 info.limit)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _CallWork:
    """What a kernel does at the sizes of a call; None for operations of a copy."""

    name: str
    nodes: str
    operations: OperationCounts | None
    touches: tuple[OperandUse, ...]


def _describe_calls(
    compilation: Compilation, values: Sequence[SymbolValues], machine: Machine, cores: int
) -> list[tuple[_EntryInfo, ...]]:
    """Per segment its calls, with their limits."""
    bound = iter([u for u, _ in calls_in_order(compilation.units)])
    listed: list[list[_CallWork]] = []
    for k, (planned, given) in enumerate(zip(compilation.segments, values, strict=True)):
        works: list[_CallWork] = []
        for call in planned.segment.calls:
            if isinstance(call, KernelCall):
                works.append(_kernel_work(next(bound), call, k, given))
            else:
                works.append(_copy_work(call, k, given, planned.step))
        listed.append(works)
    flat = [w for works in listed for w in works]
    levels = iter(source_levels([w.touches for w in flat], machine, cores))
    return [tuple(_entry_info(w, next(levels), machine, cores) for w in works) for works in listed]


def _entry_info(work: _CallWork, levels: Sequence[tuple[OperandUse, int]], machine: Machine, cores: int) -> _EntryInfo:
    if work.operations is None:
        return _EntryInfo(
            work.name, "copy", work.nodes, None, roofline_bound(OperationCounts(0.0, ()), levels, machine, cores)
        )
    return _EntryInfo(
        work.name, "kernel", work.nodes, work.operations.flops, roofline_bound(work.operations, levels, machine, cores)
    )


def _kernel_work(unit: BoundKernel, call: KernelCall, segment: int, symbol_values: SymbolValues) -> _CallWork:
    """A kernel at the sizes of a call. Where packed weights lie does not matter: no other kernel's operands are
    there."""
    values = {**symbol_values, **{v: substitute(e, symbol_values) for v, e in unit.sizes.items()}}
    origin = unit.compiled.origin
    places = dict(zip((p.name for p in unit.compiled.func.params), call.args, strict=True))
    sizes = touched_bytes(origin, values)
    given_as = unit.arguments
    keys = {p.name: _memory_key(places[p.name], segment, symbol_values) if p.name in places else given_as[p.name].name
            for p in origin.params}  # fmt: skip
    touches = tuple(OperandUse(key, sizes[name]) for name, key in keys.items())
    return _CallWork(call.kernel, unit.kernel.label, count_operations(origin, values), touches)


def _copy_work(copy: BufferCopy, segment: int, symbol_values: SymbolValues, step: NativeStep) -> _CallWork:
    size = size_value(copy.bytes, symbol_values)
    places = (_memory_key(copy.src, segment, symbol_values), _memory_key(copy.dst, segment, symbol_values))
    name = f"output '{step.outputs[copy.dst.index].name}'" if isinstance(copy.dst, OutputLocation) else ""
    return _CallWork("copy", name, None, tuple(OperandUse(p, size) for p in places))


def _memory_key(location: BufferLocation, segment: int, symbol_values: SymbolValues) -> object:
    """What tells memory apart within a call: segments have a workspace in common, all else is a segment's own."""
    if isinstance(location, WorkspaceLocation):
        return "workspace", size_value(location.offset, symbol_values)
    return segment, location
