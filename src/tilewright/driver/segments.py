"""From bound kernels to native entries: runs of kernels between fallbacks, their memory plans, and the artifact's
steps."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import groupby
from math import prod
from operator import mul
from typing import Any

import numpy as np

from tilewright.codegen.plan import (
    MAX_BYTES,
    MAX_NUMBER,
    Call,
    Copy,
    Input,
    Location,
    Output,
    Segment,
    Weight,
    Workspace,
)
from tilewright.driver.kernels import BoundKernel, BoundUnit
from tilewright.driver.naming import Names, dims, spec
from tilewright.driver.offline import evaluate_packed
from tilewright.driver.weights import WeightPool
from tilewright.errors import InternalError
from tilewright.expr.buffer import Buffer
from tilewright.expr.computation import View
from tilewright.expr.nodes import Expr, Var, const, free_vars
from tilewright.expr.printer import show
from tilewright.graph.memory import (
    Access,
    InConstant,
    InInput,
    InOutput,
    InWorkspace,
    MemoryPlan,
    plan_memory,
)
from tilewright.graph.program import Constraint, Fallback, Program
from tilewright.loops.reach import reached
from tilewright.runtime import manifest as m

Array = np.ndarray[Any, Any]

NativeUnit = BoundKernel | View


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Kernels and views between two fallbacks.

    Attributes:
        units: in order of execution.
        inputs: (value name, buffer) that it reads from outside.
        outputs: (value name, buffer) that later steps or the caller need.
        constraints: checked before it runs.
        arriving: sizes of the results of fallbacks as the evaluator tells them, by buffer name.
    """

    units: tuple[NativeUnit, ...]
    inputs: tuple[tuple[str, Buffer], ...]
    outputs: tuple[tuple[str, Buffer], ...]
    constraints: tuple[Constraint, ...]
    arriving: Mapping[str, tuple[Expr, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class PlannedSegment:
    """A native entry with the memory plan behind it and its record in the artifact."""

    segment: Segment
    memory: MemoryPlan
    step: m.NativeStep


def make_runs(program: Program, units: Sequence[BoundUnit], names: Names) -> tuple[Run | Fallback, ...]:
    """The units as runs of native ones between fallbacks, with what flows between them.

    The last run also makes the outputs that need a copy: inputs, constants, and second names of a value.
    """
    groups = _groups(units, any(names.is_extra(name, b) for name, b in program.outputs))
    last = max((k for k, g in enumerate(groups) if not isinstance(g, Fallback)), default=-1)
    needs = [_needs(g, program) for g in groups]
    if last >= 0:
        extras = [b for name, b in program.outputs if names.is_extra(name, b) and b.name not in program.constants]
        needs[last] |= {b.name: b for b in extras}
    pending = list(program.constraints)
    known = {v for b in program.inputs for n in b.shape for v in free_vars(n)}
    arriving: dict[str, tuple[Expr, ...]] = {}
    result: list[Run | Fallback] = []
    for k, group in enumerate(groups):
        if isinstance(group, Fallback):
            arriving |= {b.name: sizes for b, sizes in zip(group.outputs, group.arriving, strict=True)}
            known |= set(group.fresh)
            result.append(group)
            continue
        written = {b.name: b for u in group for b in _writes(u)}
        later = {name for n in needs[k + 1 :] for name in n}
        outputs = [(name, b) for name, b in program.outputs if b.name in written and not names.is_extra(name, b)]
        if k == last:
            belongs = {name for name, _ in outputs}
            outputs = [(n, b) for n, b in program.outputs if n in belongs or names.is_extra(n, b)]
        shown = {b.name for n, b in outputs if names.of(b) == n}
        outputs += [(names.of(b), b) for b in written.values() if b.name in later and b.name not in shown]
        read = [b for name, b in needs[k].items() if name not in written]
        inputs = list(program.inputs) if len(groups) == 1 else read
        ready = [c for c in pending if free_vars(c.condition) <= known]
        pending = [c for c in pending if c not in ready]
        given = tuple((names.of(b), b) for b in inputs)
        result.append(Run(group, given, tuple(outputs), tuple(ready), arriving))
    return tuple(result)


def _groups(units: Sequence[BoundUnit], copies: bool) -> list[Fallback | tuple[NativeUnit, ...]]:
    """Fallbacks alone, the others in runs; a run at the end where outputs have to be copied."""
    groups: list[Fallback | tuple[NativeUnit, ...]] = []
    for single, members in groupby(units, key=lambda u: isinstance(u, Fallback)):
        listed = list(members)
        if single:
            groups += [u for u in listed if isinstance(u, Fallback)]
        else:
            groups.append(tuple(u for u in listed if not isinstance(u, Fallback)))
    if not groups or (copies and isinstance(groups[-1], Fallback)):
        groups.append(())
    return groups


def _writes(unit: NativeUnit) -> tuple[Buffer, ...]:
    return (unit.output,) if isinstance(unit, View) else (unit.kernel.arguments[-1],)


def _needs(group: Fallback | tuple[NativeUnit, ...], program: Program) -> dict[str, Buffer]:
    """The buffers without data of their own that a group reads, by name."""
    if isinstance(group, Fallback):
        read = list(group.inputs)
    else:
        read = [b for u in group for b in ((u.source,) if isinstance(u, View) else u.kernel.arguments[:-1])]
    return {b.name: b for b in read if b.name not in program.constants}


@dataclass(slots=True)
class _Weights:
    """The weights of one segment, in the order of their pointers."""

    pool: WeightPool
    names: dict[str, int] = field(default_factory=dict[str, int])

    def add(self, hint: str, array: Array) -> Weight:
        """The place of an array among the segment's weights."""
        name = self.pool.add(hint, array)
        return Weight(self.names.setdefault(name, len(self.names)))


def _numbers(run: Run) -> tuple[Expr, ...]:
    """What numbers in the kernels are at most, where they may be large."""
    kernels = [u for u in run.units if isinstance(u, BoundKernel)]
    funcs = ((u.compiled.func, u.symbols) for u in kernels)
    return tuple(dict.fromkeys(e for f, given in funcs for e in reached(f, dict(zip(f.symbols, given, strict=True)))))


def plan_segment(run: Run, prefix: str, program: Program, names: Names, pool: WeightPool) -> PlannedSegment:
    """The native entry of one run: memory planned, weights collected, sizes as expressions.

    Args:
        run: the kernels.
        prefix: of the entry's C symbols.
        program: for the constants.
        names: what values and symbols are called in the artifact.
        pool: receives the weights.
    """
    scratch = [_scratch(k, u) for k, u in enumerate(run.units)]
    raw = _raw_constants(run, program)
    groups = [list(g) for _, g in groupby(zip(run.units, scratch, strict=True), key=lambda pair: _group(pair[0]))]
    steps = [s for g in groups for s in _accesses(g)]
    plan = plan_memory(steps, [b for _, b in run.inputs], [b for _, b in run.outputs], list(raw.values()))
    weights = _Weights(pool)

    def place(b: Buffer) -> Location:
        match plan.places[b.name]:
            case InInput(index):
                return Input(index)
            case InOutput(index):
                return Output(index)
            case InConstant(name):
                return weights.add(name, program.constants[name])
            case InWorkspace(_, offset):
                return Workspace(offset)

    owned = {id(u): _packed(u, program, weights) | {n: place(b) for n, b in own.items()}
             for u, own in zip(run.units, scratch, strict=True) if isinstance(u, BoundKernel)}  # fmt: skip
    calls: list[Call | Copy] = []
    for unit, k in called(run.units):
        where, given = owned[id(unit)], unit.arguments
        args = tuple(where[p.name] if p.name in where else _part(place(given[p.name]), unit, p, k)
                     for p in unit.compiled.func.params)  # fmt: skip
        calls.append(Call(unit.compiled.name, args, unit.symbols, unit.grains))
    for copy in plan.copies:
        calls.append(Copy(Output(copy.index), place(copy.source), copy.source.size * copy.source.dtype.bytes))
    shapes = tuple(b.shape for _, b in run.outputs)
    conditions = tuple(c.condition for c in run.constraints)
    sizes = _sizes(run, scratch)
    symbols = _ordered_symbols(program, run, calls, [plan.total, *conditions, *sizes, *(n for s in shapes for n in s)])
    segment = Segment(prefix, symbols, tuple(calls), plan.total, shapes, conditions, sizes, _numbers(run))
    return PlannedSegment(segment, plan, _native_step(segment, run, names, tuple(weights.names)))


def called(units: Iterable[BoundUnit]) -> Iterator[tuple[BoundKernel, int]]:
    """The kernels in the order of their calls, each with the slice that the call computes."""
    for _, group in groupby(units, key=_group):
        kernels = [u for u in group if isinstance(u, BoundKernel)]
        slices = kernels[0].kernel.slices if kernels else None
        for k in range(1 if slices is None else slices.count):
            yield from ((u, k) for u in kernels)


def _group(unit: BoundUnit) -> object:
    """What the units of a group that runs slice by slice have in common, and no others."""
    slices = unit.kernel.slices if isinstance(unit, BoundKernel) else None
    return id(unit) if slices is None else slices


def _part(location: Location, unit: BoundKernel, parameter: Buffer, k: int) -> Location:
    """Where slice `k` of an argument begins."""
    slices = unit.kernel.slices
    if slices is None or parameter.name not in unit.kernel.cut or unit.arguments[parameter.name].name in slices.private:
        return location
    apart = k * prod(_literal(parameter)) * parameter.dtype.bytes
    match location:
        case Workspace(offset):
            return Workspace(offset + apart)
        case Input() | Output():
            return replace(location, offset=apart)
        case Weight():
            raise InternalError(f"a constant is cut into slices: {parameter}", where="memory plan")


def _native_step(segment: Segment, run: Run, names: Names, weights: tuple[str, ...]) -> m.NativeStep:
    labels = dict.fromkeys(u.kernel.label for u in run.units if isinstance(u, BoundKernel) and u.kernel.label)
    return m.NativeStep(
        prefix=segment.name,
        inputs=tuple(
            m.TensorSpec(name, b.dtype.name, dims(run.arriving.get(b.name, b.shape), names, printed=False))
            for name, b in run.inputs
        ),
        outputs=tuple(spec(name, b, names) for name, b in run.outputs),
        weights=weights,
        symbols=tuple(names.symbol(v) for v in segment.symbols),
        constraints=tuple(m.Constraint(show(names.shown(c.condition)), c.message) for c in run.constraints),
        nodes=tuple(labels),
    )


def _sizes(run: Run, scratch: Sequence[Mapping[str, Buffer]]) -> tuple[Expr, ...]:
    """Bytes of every buffer of a run, and how often its kernels' bodies run, scaled so that both have one limit."""
    found = [b for _, b in (*run.inputs, *run.outputs)]
    counts: list[Expr] = []
    for unit, own in zip(run.units, scratch, strict=True):
        if isinstance(unit, View):
            found += (unit.source, unit.output)
        else:
            found += (*unit.kernel.arguments, *own.values())
            for stage in unit.kernel.stages:
                count = reduce(mul, (a.extent for a in (*stage.axes, *stage.reduce_axes)), const(1))
                counts.append(count // (MAX_NUMBER // MAX_BYTES))
    bytes_ = [b.size * b.dtype.bytes for b in found]
    return tuple(dict.fromkeys(e for e in (*bytes_, *counts) if free_vars(e)))


def _scratch(index: int, unit: NativeUnit) -> dict[str, Buffer]:
    """Workspace that a kernel needs for itself, by the name of its parameter."""
    if isinstance(unit, View):
        return {}
    return {b.name: b.renamed(f"{b.name}@{index}") for b in unit.scratch}


def _accesses(group: Sequence[tuple[NativeUnit, Mapping[str, Buffer]]]) -> list[Access | View]:
    """What the planner has to know of units with their scratch: of those that run slice by slice, that all of them go
    on from the first slice to the last, with room for one slice of what they hand on."""
    first = group[0][0]
    found = [_access(u, s) for u, s in group]
    slices = first.kernel.slices if isinstance(first, BoundKernel) else None
    single = [a for a in found if isinstance(a, Access)]
    if slices is None or not single:
        return found
    handed = [b for a in single for b in a.writes if b.name in slices.private]
    rooms = [replace(b, shape=(b.size // slices.count,)) for b in handed]
    reads = dict.fromkeys(b for a in single for b in a.reads if b.name not in slices.private)
    return [Access(tuple(reads), single[-1].writes, (*rooms, *(b for a in single for b in a.scratch)))]


def _access(unit: NativeUnit, scratch: Mapping[str, Buffer]) -> Access | View:
    """What the planner has to know of a unit."""
    if isinstance(unit, View):
        return unit
    given = unit.arguments
    reads = [given[p.name] for p in unit.compiled.func.params if p.name in given]
    output = unit.kernel.arguments[-1]
    return Access(tuple(b for b in reads if b.name != output.name), (output,), tuple(scratch.values()))


def _raw_constants(run: Run, program: Program) -> dict[str, Buffer]:
    """The constants whose own data is read, by name."""
    found: dict[str, Buffer] = {}
    for unit in run.units:
        if isinstance(unit, View):
            found[unit.source.name] = unit.source
        else:
            given = unit.arguments
            found |= {given[p.name].name: given[p.name] for p in unit.compiled.func.params if p.name in given}
    found |= {b.name: b for _, b in run.outputs}
    return {name: b for name, b in found.items() if name in program.constants}


def _packed(unit: BoundKernel, program: Program, weights: _Weights) -> dict[str, Location]:
    """The kernel's packed weights, by the name of its parameter."""
    needed = {p.name for p in unit.compiled.func.params}
    if not any(c.output.name in needed for c in unit.compiled.packed):
        return {}
    pairs = zip(unit.kernel.params, unit.kernel.arguments, strict=True)
    fixed = {p.name: (p, b.name) for p, b in pairs if b.name in program.constants}
    data = {name: program.constants[b].reshape(_literal(p)) for name, (p, b) in fixed.items()}
    found: dict[str, Location] = {}
    for name, array in evaluate_packed(unit.compiled.packed, data).items():
        if name in needed:
            source = next((fixed[b.name][1] for c in unit.compiled.packed if c.output.name == name for b in c.inputs
                           if b.name in fixed), unit.compiled.name)  # fmt: skip
            found[name] = weights.add(f"{source}.packed", array)
    return found


def _literal(b: Buffer) -> tuple[int, ...]:
    sizes = [getattr(n, "value", None) for n in b.shape]
    if None in sizes:
        raise InternalError(f"constant {b.name!r} has the size {b.shape}, which is no literal")
    return tuple(int(n) for n in sizes if n is not None)


def _ordered_symbols(
    program: Program, run: Run, calls: Sequence[Call | Copy], others: Sequence[Expr]
) -> tuple[Var, ...]:
    """The symbols that an entry needs: the program's in their order, then those of fallbacks."""
    used: dict[Var, None] = {}
    locations: list[Location] = []
    expressions = list(others)
    for call in calls:
        if isinstance(call, Call):
            expressions += (*call.symbols, *(() if call.grains is None else (call.grains,)))
            locations += call.args
        else:
            expressions.append(call.bytes)
            locations += [call.dst, call.src]
    expressions += [x.offset for x in locations if isinstance(x, Workspace)]
    for e in expressions:
        used |= dict.fromkeys(sorted(free_vars(e), key=lambda v: v.name))
    first = [v for v in program.symbols if v in used]
    return (*first, *(v for v in used if v not in first))
