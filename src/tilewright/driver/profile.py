"""Where the time of a model's calls goes: kernels inside real calls, beside what the machine allows."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tilewright.codegen.plan import Call, Copy, Location, Output, Workspace
from tilewright.cost.limits import Limit, Operations, Touch, limit, number, operations, sources, touched
from tilewright.driver.build import MachineOption
from tilewright.driver.compilation import Compilation
from tilewright.driver.compile import Progress, make_compilation
from tilewright.driver.instrumented import instrumented
from tilewright.driver.kernels import BoundKernel
from tilewright.driver.segments import called
from tilewright.errors import OptionError
from tilewright.expr.nodes import Expr, Var, const
from tilewright.expr.simplify import substitute
from tilewright.frontend.onnx import ShapeOption
from tilewright.layout.plan import Choice, Plan
from tilewright.machine import thread_count
from tilewright.machine.choice import choose_machine
from tilewright.machine.model import Machine
from tilewright.measure.profiling import Recorder, Span, ThreadTimes, overhead
from tilewright.runtime import Executable
from tilewright.runtime.manifest import NativeStep

if TYPE_CHECKING:
    import onnx

Values = Mapping[Var, Expr]


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
    limit: Limit | None

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
    machine: MachineOption | None = None,
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
    made = make_compilation(model, shapes, None, optimizer, progress, layouts=layouts, machine=machine, exact=exact,
                            winograd=winograd)  # fmt: skip
    if progress is not None:
        progress("machine code", 0, 1)
    return profile_of(made, feeds, threads, seconds, name=str(model) if isinstance(model, str | os.PathLike) else None)


def profile_of(
    made: Compilation,
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
    noted = instrumented(made, thread_count(threads))
    segments = [p.segment for p in noted.made.segments]
    recorder = Recorder(noted.made.artifact(), segments, noted.buffers, thread_count(threads), feeds)
    recorder.executable.prepare()
    extra = overhead(recorder, Executable(made.artifact(), threads), feeds, seconds) if with_overhead else None
    found = recorder.record(seconds)
    values = [dict(zip(s.symbols, map(const, sizes), strict=True))
              for s, sizes in zip(segments, found.sizes, strict=True)]  # fmt: skip
    chosen = choose_machine(None, made.target) if made.build.machine is None else made.build.machine
    machine, used = chosen.for_target(made.target), recorder.executable.threads
    kernels = _kernels(made, values, machine, min(used, machine.cores))
    entries: list[Entry] = []
    native, fallbacks = iter(range(len(segments))), iter(found.fallbacks)
    for k, step in enumerate(made.manifest.steps):
        if isinstance(step, NativeStep):
            segment = next(native)
            for described, span in zip(kernels[segment], found.segments[segment], strict=True):
                entries.append(_entry(described, span, k, found.call_us))
        else:
            described = _Described("fallback", "fallback", ", ".join(step.nodes))
            entries.append(_entry(described, next(fallbacks), k, found.call_us))
    names = {n: int(size) for p, given in zip(made.segments, found.sizes, strict=True)
             for n, size in zip(p.step.symbols, given, strict=True)}  # fmt: skip
    inputs = {name: tuple(int(n) for n in getattr(a, "shape", ())) for name, a in feeds.items()}
    return Profile(made.manifest.meta.graph_name if name is None else name, inputs, names, used, found.calls,
                   found.call_us, found.median_us, tuple(entries), machine, str(chosen.origin), extra)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Described:
    """What is known of an entry without running it."""

    name: str
    kind: str
    nodes: str
    flops: float | None = None
    limit: Limit | None = None


def _entry(d: _Described, span: Span, step: int, call_us: float) -> Entry:
    share = span.us / call_us if call_us > 0 else 0.0
    return Entry(d.name, d.kind, d.nodes, step, span.begin, span.us, share, span.regions, span.threads, d.flops,
                 d.limit)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Work:
    """What a kernel does at the sizes of a call; None for operations of a copy."""

    name: str
    nodes: str
    operations: Operations | None
    touches: tuple[Touch, ...]


def _kernels(made: Compilation, values: Sequence[Values], machine: Machine, cores: int) -> list[tuple[_Described, ...]]:
    """Per segment its calls, with their limits."""
    bound = iter([u for u, _ in called(made.units)])
    listed: list[list[_Work]] = []
    for k, (planned, given) in enumerate(zip(made.segments, values, strict=True)):
        works: list[_Work] = []
        for call in planned.segment.calls:
            if isinstance(call, Call):
                works.append(_work(next(bound), call, k, given))
            else:
                works.append(_copy(call, k, given, planned.step))
        listed.append(works)
    flat = [w for works in listed for w in works]
    levels = iter(sources([w.touches for w in flat], machine, cores))
    return [tuple(_described(w, next(levels), machine, cores) for w in works) for works in listed]


def _described(w: _Work, levels: Sequence[tuple[Touch, int]], machine: Machine, cores: int) -> _Described:
    if w.operations is None:
        return _Described(w.name, "copy", w.nodes, None, limit(Operations(0.0, ()), levels, machine, cores))
    return _Described(w.name, "kernel", w.nodes, w.operations.flops, limit(w.operations, levels, machine, cores))


def _work(unit: BoundKernel, call: Call, segment: int, given: Values) -> _Work:
    """A kernel at the sizes of a call. Where packed weights lie does not matter: no other kernel's operands are
    there."""
    values = {**given, **{v: substitute(e, given) for v, e in unit.sizes.items()}}
    origin = unit.compiled.origin
    places = dict(zip((p.name for p in unit.compiled.func.params), call.args, strict=True))
    sizes = touched(origin, values)
    given_as = unit.arguments
    keys = {p.name: _place(places[p.name], segment, given) if p.name in places else given_as[p.name].name
            for p in origin.params}  # fmt: skip
    touches = tuple(Touch(key, sizes[name]) for name, key in keys.items())
    return _Work(call.kernel, unit.kernel.label, operations(origin, values), touches)


def _copy(copy: Copy, segment: int, given: Values, step: NativeStep) -> _Work:
    size = number(copy.bytes, given)
    places = (_place(copy.src, segment, given), _place(copy.dst, segment, given))
    name = f"output '{step.outputs[copy.dst.index].name}'" if isinstance(copy.dst, Output) else ""
    return _Work("copy", name, None, tuple(Touch(p, size) for p in places))


def _place(location: Location, segment: int, given: Values) -> object:
    """What tells memory apart within a call: segments have a workspace in common, all else is a segment's own."""
    if isinstance(location, Workspace):
        return "workspace", number(location.offset, given)
    return segment, location
