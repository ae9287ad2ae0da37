"""Profile of a model's calls: the time of every kernel inside real calls, and its roofline bound."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tilewright.codegen.segment import BufferCopy, ConditionalCalls, KernelCall, RepeatedCalls, RoutineCall
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
from tilewright.driver.artifact.plan_units import calls_in_order
from tilewright.driver.compilation import Compilation
from tilewright.driver.compile import Progress, make_compilation
from tilewright.driver.diagnostics.instrumentation import instrument
from tilewright.driver.kernel_build.kernels import BoundKernel
from tilewright.driver.options import CompileOptions
from tilewright.errors import OptionError
from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.nodes import Expr, Var, const
from tilewright.frontend.onnx import ShapeOption
from tilewright.graph.buffer_location import BufferLocation, OutputLocation, WorkspaceLocation
from tilewright.graph.layouts.plan import Choice, Plan
from tilewright.machine import thread_count
from tilewright.machine.choice import choose_machine
from tilewright.machine.model import Machine
from tilewright.measure.profiling import Recorder, Recording, ThreadTimes, TimedSpan, stamp_overhead
from tilewright.runtime import Executable
from tilewright.runtime.feeds import InputSignature
from tilewright.runtime.manifest import FallbackStep, IfStep, LoopStep, Manifest, NativeStep, SizesStep

if TYPE_CHECKING:
    import onnx

SymbolValues = Mapping[Var, Expr]

_STEP_KINDS: Mapping[type, str] = {IfStep: "if", LoopStep: "loop", FallbackStep: "fallback", SizesStep: "sizes"}
"""Kinds of entries of steps that the runtime executes."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One kernel, copy or fallback step within a call; times in microseconds.

    Attributes:
        name: of the function; the kind otherwise.
        kind: "kernel", "routine", "copy", "fallback", "sizes", "if" or "loop".
        nodes: the user's nodes that it computes.
        step: index of its step in the model.
        begin: its start, from the beginning of the call.
        us: its duration.
        share: of the call's time.
        regions: parallel regions that it started; 0 if it ran on the calling thread alone.
        threads: times of each thread; empty without a parallel region.
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
        """Start of the last thread, from the start of the regions."""
        return max((t.start for t in self.threads), default=0.0)

    @property
    def wait(self) -> float:
        """Longest wait of a thread at the joins."""
        return max((t.wait for t in self.threads), default=0.0)


@dataclass(frozen=True, slots=True)
class Profile:
    """Times of a model's calls, in microseconds.

    Attributes:
        model: its name.
        inputs: shapes by name.
        sizes: values of the symbols that the native steps were given, by name.
        threads: per call.
        calls: number of recorded calls; figures are means over the fastest quarter of them.
        call_us: time of a call of the instrumented code.
        median_us: median over all calls.
        entries: kernels, copies and fallback steps in order of execution.
        machine: the machine of the roofline bounds.
        origin: the source of its description.
        overhead: time of an instrumented call over that of a plain one, less 1; None if it was not measured.
        is_walked: whether the runtime has walked steps that a plain call runs in one native call.
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
    is_walked: bool = False

    @property
    def sum_us(self) -> float:
        """Sum over all entries."""
        return sum(e.us for e in self.entries)

    @property
    def outside_us(self) -> float:
        """The call's time outside of all entries: checks of inputs, and work between steps."""
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
    fusion: str | None = None,
    seconds: float = 1.0,
) -> Profile:
    """Compiles a model with clock readings around its kernels, and profiles its calls.

    Args:
        model, shapes, threads, optimizer, progress, layouts, machine, exact, winograd, fusion: as for
            `tilewright.compile`.
        feeds: the inputs, arrays by name.
        seconds: the least total time of the calls; a few calls are made in any case.

    Returns:
        The profile. `tilewright.report.profile` prints it as a table, as JSON and as an HTML page.

    Raises:
        What `tilewright.compile` raises, and what a call of the model raises.
    """
    options = CompileOptions(
        shapes=shapes, optimizer=optimizer, machine=machine, layouts=layouts, exact=exact, winograd=winograd,
        fusion=fusion,
    )  # fmt: skip

    _check_seconds(seconds)  # before kernels are built, as for the inputs

    def check(manifest: Manifest) -> None:
        InputSignature(manifest.inputs, manifest.symbols).collect(feeds)

    compilation = make_compilation(model, options, progress, check_signature=check)
    if progress is not None:
        progress("machine code", 0, 1)
    return profile_compilation(
        compilation, feeds, threads, seconds, name=str(model) if isinstance(model, str | os.PathLike) else None
    )


def _check_seconds(seconds: float) -> None:
    if not 0 < seconds < float("inf"):
        raise OptionError(f"expected a number of seconds of more than 0, got {seconds}", where="argument 'seconds'")


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
        compilation: a compilation for this machine.
        feeds: the inputs, arrays by name.
        threads: threads per call; None asks the environment and the system.
        seconds: the least total time of the calls.
        with_overhead: whether to generate and time the plain code, too.
        name: the model's name; by default that of its graph.

    Raises:
        OptionError: the time is not positive, or `threads` is no number of threads.
        TargetError: the compilation is for another machine.
        FeedError, ShapeError: the inputs do not fit the model.
    """
    _check_seconds(seconds)
    count = thread_count(threads)
    instrumented = instrument(compilation, count)
    segments = [p.segment for p in instrumented.compilation.segments]
    recorder = Recorder(instrumented.compilation.artifact(), segments, instrumented.timestamp_outputs, count, feeds)
    recorder.executable.prepare()
    overhead = None
    if with_overhead:
        plain = compilation.artifact()
        # walked as well: the difference is that of the clock readings alone
        plain = replace(plain, manifest=replace(plain.manifest, tree=None))
        overhead = stamp_overhead(recorder, Executable(plain, threads), feeds, seconds)
    record = recorder.record(seconds)
    values = [dict(zip(s.symbols, map(const, sizes), strict=True))
              for s, sizes in zip(segments, record.sizes, strict=True)]  # fmt: skip
    choice = compilation.build.machine or choose_machine(None, compilation.target)
    machine, used_threads = choice.for_target(compilation.target), recorder.executable.threads
    calls = _describe_calls(compilation, values, machine, min(used_threads, machine.cores))
    entries = _entries(compilation, calls, record)
    symbol_sizes = {n: int(size) for p, sizes in zip(compilation.segments, record.sizes, strict=True)
                    for n, size in zip(p.step.symbols, sizes, strict=True)}  # fmt: skip
    return Profile(
        model=compilation.manifest.meta.graph_name if name is None else name,
        inputs={name: tuple(int(n) for n in getattr(a, "shape", ())) for name, a in feeds.items()},
        sizes=symbol_sizes,
        threads=used_threads,
        calls=record.calls,
        call_us=record.call_us,
        median_us=record.median_us,
        entries=entries,
        machine=machine,
        origin=str(choice.origin),
        overhead=overhead,
        is_walked=compilation.manifest.tree is not None,
    )


@dataclass(frozen=True, slots=True)
class _EntryInfo:
    """The static part of an entry."""

    name: str
    kind: str
    nodes: str
    flops: float | None = None
    limit: RooflineBound | None = None


def _entry(info: _EntryInfo, span: TimedSpan, step: int, call_us: float) -> Entry:
    share = span.us / call_us if call_us > 0 else 0.0
    return Entry(info.name, info.kind, info.nodes, step, span.begin, span.us, share, span.regions, span.threads,
                 info.flops, info.limit)  # fmt: skip


def _entries(compilation: Compilation, calls: Sequence[Sequence[_EntryInfo]], record: Recording) -> tuple[Entry, ...]:
    """The entries of all steps in order of execution."""
    entries: list[Entry] = []
    native, others = iter(range(len(calls))), iter(record.runtime_steps)
    for k, step in enumerate(compilation.manifest.steps):
        if isinstance(step, NativeStep):
            segment = next(native)
            for info, span in zip(calls[segment], record.segments[segment], strict=True):
                entries.append(_entry(info, span, k, record.call_us))
        else:
            kind = _STEP_KINDS[type(step)]
            info = _EntryInfo(kind, kind, ", ".join(step.nodes))
            entries.append(_entry(info, next(others), k, record.call_us))
    return tuple(entries)


@dataclass(frozen=True, slots=True)
class _CallWork:
    """The work of a call: its operations (None for a copy) and the memory that it touches."""

    name: str
    nodes: str
    operations: OperationCounts | None
    touches: tuple[OperandUse, ...]
    kind: str = "kernel"


def _describe_calls(
    compilation: Compilation, values: Sequence[SymbolValues], machine: Machine, cores: int
) -> list[tuple[_EntryInfo, ...]]:
    """The calls of every segment with their roofline bounds."""
    kernels = iter([u for u, _ in calls_in_order(compilation.units)])
    works_by_segment: list[list[_CallWork]] = []
    for k, (planned, symbol_values) in enumerate(zip(compilation.segments, values, strict=True)):
        works: list[_CallWork] = []
        for call in planned.segment.calls:
            match call:
                case KernelCall():
                    works.append(_kernel_work(next(kernels), call, k, symbol_values))
                case BufferCopy():
                    works.append(_copy_work(call, k, symbol_values, planned.step))
                case RoutineCall():
                    works.append(_CallWork(call.code.routine.name, call.label, None, (), "routine"))
                case ConditionalCalls():
                    works.append(_CallWork("if", "", None, (), "if"))
                case RepeatedCalls():
                    works.append(_CallWork("loop", "", None, (), "loop"))
        works_by_segment.append(works)
    works = [w for of_segment in works_by_segment for w in of_segment]
    levels = iter(source_levels([w.touches for w in works], machine, cores))
    return [tuple(_entry_info(w, next(levels), machine, cores) for w in of_segment) for of_segment in works_by_segment]


def _entry_info(work: _CallWork, levels: Sequence[tuple[OperandUse, int]], machine: Machine, cores: int) -> _EntryInfo:
    if work.kind in ("if", "loop", "routine"):
        return _EntryInfo(work.name, work.kind, work.nodes)
    if work.operations is None:
        return _EntryInfo(
            work.name, "copy", work.nodes, None, roofline_bound(OperationCounts(0.0, ()), levels, machine, cores)
        )
    return _EntryInfo(
        work.name, "kernel", work.nodes, work.operations.flops, roofline_bound(work.operations, levels, machine, cores)
    )


def _kernel_work(unit: BoundKernel, call: KernelCall, segment: int, symbol_values: SymbolValues) -> _CallWork:
    """The work of a kernel at the sizes of a call.

    The location of prepacked weights does not matter, as no other kernel reads them.
    """
    values = {**symbol_values, **{v: substitute(e, symbol_values) for v, e in unit.sizes.items()}}
    origin = unit.compiled.origin
    locations = dict(zip((p.name for p in unit.compiled.func.params), call.args, strict=True))
    sizes = touched_bytes(origin, values)
    keys = {
        p.name: _memory_key(locations[p.name], segment, symbol_values)
        if p.name in locations
        else unit.arguments[p.name].name
        for p in origin.params
    }
    touches = tuple(OperandUse(key, sizes[name]) for name, key in keys.items())
    return _CallWork(call.kernel, unit.kernel.label, count_operations(origin, values), touches)


def _copy_work(copy: BufferCopy, segment: int, symbol_values: SymbolValues, step: NativeStep) -> _CallWork:
    size = size_value(copy.bytes, symbol_values)
    keys = (_memory_key(copy.src, segment, symbol_values), _memory_key(copy.dst, segment, symbol_values))
    name = f"output '{step.outputs[copy.dst.index].name}'" if isinstance(copy.dst, OutputLocation) else ""
    return _CallWork("copy", name, None, tuple(OperandUse(key, size) for key in keys))


def _memory_key(location: BufferLocation, segment: int, symbol_values: SymbolValues) -> object:
    """Identity of memory within a call: segments share the workspace; other memory belongs to one segment."""
    if isinstance(location, WorkspaceLocation):
        return "workspace", size_value(location.offset, symbol_values)
    return segment, location
