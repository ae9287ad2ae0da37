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

from tilewright.codegen.segment import MAX_BUFFER_BYTES, MAX_SIZE_VALUE, BufferCopy, KernelCall, Segment
from tilewright.driver.artifact_names import ArtifactNames, dim_specs, tensor_spec
from tilewright.driver.kernels import BoundKernel, BoundUnit
from tilewright.driver.weight_pool import WeightPool
from tilewright.errors import InternalError
from tilewright.expr.computation import View
from tilewright.expr.nodes import Buffer, Expr, Var, const
from tilewright.expr.printer import show
from tilewright.expr.traversal import free_vars
from tilewright.graph.buffer_location import (
    BufferLocation,
    ConstantLocation,
    InputLocation,
    OutputLocation,
    WorkspaceLocation,
)
from tilewright.graph.memory_plan import KernelAccess, MemoryPlan, plan_memory
from tilewright.graph.program import Constraint, Fallback, Program
from tilewright.lower.prepack_constants import evaluate_prepacked
from tilewright.runtime import manifest as m
from tilewright.verify.index_overflow import overflow_candidates

Array = np.ndarray[Any, Any]

NativeUnit = BoundKernel | View


@dataclass(frozen=True, slots=True, eq=False)
class NativeRegion:
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
    runtime_shapes: Mapping[str, tuple[Expr, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class PlannedSegment:
    """A native entry with the memory plan behind it and its record in the artifact."""

    segment: Segment
    memory: MemoryPlan
    step: m.NativeStep


def make_regions(
    program: Program, units: Sequence[BoundUnit], names: ArtifactNames
) -> tuple[NativeRegion | Fallback, ...]:
    """The units as runs of native ones between fallbacks, with what flows between them.

    The last run also makes the outputs that need a copy: inputs, constants, and second names of a value.
    """
    groups = _group_units(units, any(names.is_copy(name, b) for name, b in program.outputs))
    last = max((k for k, g in enumerate(groups) if not isinstance(g, Fallback)), default=-1)
    needs = [_external_reads(g, program) for g in groups]
    if last >= 0:
        extras = [b for name, b in program.outputs if names.is_copy(name, b) and b.name not in program.constants]
        needs[last] |= {b.name: b for b in extras}
    pending = list(program.constraints)
    known = {v for b in program.inputs for n in b.shape for v in free_vars(n)}
    arriving: dict[str, tuple[Expr, ...]] = {}
    result: list[NativeRegion | Fallback] = []
    for k, group in enumerate(groups):
        if isinstance(group, Fallback):
            arriving |= {b.name: sizes for b, sizes in zip(group.outputs, group.runtime_shapes, strict=True)}
            known |= set(group.data_symbols)
            result.append(group)
            continue
        written = {b.name: b for u in group for b in _written_buffers(u)}
        later = {name for n in needs[k + 1 :] for name in n}
        outputs = [(name, b) for name, b in program.outputs if b.name in written and not names.is_copy(name, b)]
        if k == last:
            belongs = {name for name, _ in outputs}
            outputs = [(n, b) for n, b in program.outputs if n in belongs or names.is_copy(n, b)]
        shown = {b.name for n, b in outputs if names.of(b) == n}
        outputs += [(names.of(b), b) for b in written.values() if b.name in later and b.name not in shown]
        read = [b for name, b in needs[k].items() if name not in written]
        inputs = list(program.inputs) if len(groups) == 1 else read
        ready = [c for c in pending if free_vars(c.condition) <= known]
        pending = [c for c in pending if c not in ready]
        given = tuple((names.of(b), b) for b in inputs)
        result.append(NativeRegion(group, given, tuple(outputs), tuple(ready), arriving))
    return tuple(result)


def _group_units(units: Sequence[BoundUnit], has_copies: bool) -> list[Fallback | tuple[NativeUnit, ...]]:
    """Fallbacks alone, the others in runs; a run at the end where outputs have to be copied."""
    groups: list[Fallback | tuple[NativeUnit, ...]] = []
    for single, members in groupby(units, key=lambda u: isinstance(u, Fallback)):
        listed = list(members)
        if single:
            groups += [u for u in listed if isinstance(u, Fallback)]
        else:
            groups.append(tuple(u for u in listed if not isinstance(u, Fallback)))
    if not groups or (has_copies and isinstance(groups[-1], Fallback)):
        groups.append(())
    return groups


def _written_buffers(unit: NativeUnit) -> tuple[Buffer, ...]:
    return (unit.output,) if isinstance(unit, View) else (unit.kernel.arguments[-1],)


def _external_reads(group: Fallback | tuple[NativeUnit, ...], program: Program) -> dict[str, Buffer]:
    """The buffers without data of their own that a group reads, by name."""
    if isinstance(group, Fallback):
        read = list(group.inputs)
    else:
        read = [b for u in group for b in ((u.source,) if isinstance(u, View) else u.kernel.arguments[:-1])]
    return {b.name: b for b in read if b.name not in program.constants}


@dataclass(slots=True)
class _SegmentWeights:
    """The weights of one segment, in the order of their pointers."""

    pool: WeightPool
    names: dict[str, None] = field(default_factory=dict[str, None])

    def add(self, hint: str, array: Array) -> ConstantLocation:
        """The location of an array among the segment's weights."""
        name = self.pool.add(hint, array)
        self.names.setdefault(name)
        return ConstantLocation(name)


def _index_bounds(region: NativeRegion) -> tuple[Expr, ...]:
    """What numbers in the kernels are at most, where they may be large."""
    kernels = [u for u in region.units if isinstance(u, BoundKernel)]
    funcs = ((u.compiled.func, u.symbols) for u in kernels)
    return tuple(
        dict.fromkeys(e for f, given in funcs for e in overflow_candidates(f, dict(zip(f.symbols, given, strict=True))))
    )


def plan_segment(
    region: NativeRegion, prefix: str, program: Program, names: ArtifactNames, pool: WeightPool
) -> PlannedSegment:
    """The native entry of one run: memory planned, weights collected, sizes as expressions.

    Args:
        run: the kernels.
        prefix: of the entry's C symbols.
        program: for the constants.
        names: what values and symbols are called in the artifact.
        pool: receives the weights.
    """
    scratch = [_scratch_buffers(k, u) for k, u in enumerate(region.units)]
    raw = _raw_constants(region, program)
    groups = [
        list(g) for _, g in groupby(zip(region.units, scratch, strict=True), key=lambda pair: _slice_group(pair[0]))
    ]
    steps = [s for g in groups for s in _group_accesses(g)]
    plan = plan_memory(steps, [b for _, b in region.inputs], [b for _, b in region.outputs], list(raw.values()))
    weights = _SegmentWeights(pool)

    def place(b: Buffer) -> BufferLocation:
        location = plan.locations[b.name]
        if isinstance(location, ConstantLocation):
            return weights.add(location.name, program.constants[location.name])
        return location

    owned = {id(u): _prepacked_weights(u, program, weights) | {n: place(b) for n, b in own.items()}
             for u, own in zip(region.units, scratch, strict=True) if isinstance(u, BoundKernel)}  # fmt: skip
    calls: list[KernelCall | BufferCopy] = []
    for unit, k in calls_in_order(region.units):
        where, given = owned[id(unit)], unit.arguments
        args = tuple(where[p.name] if p.name in where else _slice_location(place(given[p.name]), unit, p, k)
                     for p in unit.compiled.func.params)  # fmt: skip
        calls.append(KernelCall(unit.compiled.name, args, unit.symbols, unit.parallel_grains))
    for copy in plan.copies:
        calls.append(
            BufferCopy(OutputLocation(copy.index), place(copy.source), copy.source.size * copy.source.dtype.bytes)
        )
    shapes = tuple(b.shape for _, b in region.outputs)
    conditions = tuple(c.condition for c in region.constraints)
    sizes = _checked_sizes(region, scratch)
    symbols = _ordered_symbols(
        program, region, calls, [plan.total, *conditions, *sizes, *(n for s in shapes for n in s)]
    )
    bounds, weight_names = _index_bounds(region), tuple(weights.names)
    segment = Segment(prefix, symbols, tuple(calls), plan.total, shapes, weight_names, conditions, sizes, bounds)
    return PlannedSegment(segment, plan, _native_step(segment, region, names))


def calls_in_order(units: Iterable[BoundUnit]) -> Iterator[tuple[BoundKernel, int]]:
    """The kernels in the order of their calls, each with the slice that the call computes."""
    for _, group in groupby(units, key=_slice_group):
        kernels = [u for u in group if isinstance(u, BoundKernel)]
        slices = kernels[0].kernel.slices if kernels else None
        for k in range(1 if slices is None else slices.count):
            yield from ((u, k) for u in kernels)


def _slice_group(unit: BoundUnit) -> object:
    """What the units of a group that runs slice by slice have in common, and no others."""
    slices = unit.kernel.slices if isinstance(unit, BoundKernel) else None
    return id(unit) if slices is None else slices


def _slice_location(location: BufferLocation, unit: BoundKernel, parameter: Buffer, slice_index: int) -> BufferLocation:
    """Where slice `k` of an argument begins."""
    slices = unit.kernel.slices
    if (
        slices is None
        or parameter.name not in unit.kernel.sliced_params
        or unit.arguments[parameter.name].name in slices.intermediates
    ):
        return location
    apart = slice_index * prod(_literal_shape(parameter)) * parameter.dtype.bytes
    match location:
        case WorkspaceLocation(offset):
            return WorkspaceLocation(offset + apart)
        case InputLocation() | OutputLocation():
            return replace(location, offset=apart)
        case ConstantLocation():
            raise InternalError(f"a constant is cut into slices: {parameter}", where="memory plan")


def _native_step(segment: Segment, region: NativeRegion, names: ArtifactNames) -> m.NativeStep:
    labels = dict.fromkeys(u.kernel.label for u in region.units if isinstance(u, BoundKernel) and u.kernel.label)
    return m.NativeStep(
        prefix=segment.name,
        inputs=tuple(
            m.TensorSpec(
                name, b.dtype.name, dim_specs(region.runtime_shapes.get(b.name, b.shape), names, printed=False)
            )
            for name, b in region.inputs
        ),
        outputs=tuple(tensor_spec(name, b, names) for name, b in region.outputs),
        weights=segment.weights,
        symbols=tuple(names.symbol_name(v) for v in segment.symbols),
        constraints=tuple(
            m.ConstraintSpec(show(names.with_user_symbols(c.condition)), c.message) for c in region.constraints
        ),
        nodes=tuple(labels),
    )


def _checked_sizes(region: NativeRegion, scratch: Sequence[Mapping[str, Buffer]]) -> tuple[Expr, ...]:
    """Bytes of every buffer of a run, and how often its kernels' bodies run, scaled so that both have one limit."""
    found = [b for _, b in (*region.inputs, *region.outputs)]
    counts: list[Expr] = []
    for unit, own in zip(region.units, scratch, strict=True):
        if isinstance(unit, View):
            found += (unit.source, unit.output)
        else:
            found += (*unit.kernel.arguments, *own.values())
            for stage in unit.kernel.stages:
                count = reduce(mul, (a.extent for a in (*stage.axes, *stage.reduce_axes)), const(1))
                counts.append(count // (MAX_SIZE_VALUE // MAX_BUFFER_BYTES))
    bytes_ = [b.size * b.dtype.bytes for b in found]
    return tuple(dict.fromkeys(e for e in (*bytes_, *counts) if free_vars(e)))


def _scratch_buffers(index: int, unit: NativeUnit) -> dict[str, Buffer]:
    """Workspace that a kernel needs for itself, by the name of its parameter."""
    if isinstance(unit, View):
        return {}
    return {b.name: b.renamed(f"{b.name}@{index}") for b in unit.scratch}


def _group_accesses(group: Sequence[tuple[NativeUnit, Mapping[str, Buffer]]]) -> list[KernelAccess | View]:
    """What the planner has to know of units with their scratch: of those that run slice by slice, that all of them go
    on from the first slice to the last, with room for one slice of what they hand on."""
    first = group[0][0]
    found = [_unit_access(u, s) for u, s in group]
    slices = first.kernel.slices if isinstance(first, BoundKernel) else None
    single = [a for a in found if isinstance(a, KernelAccess)]
    if slices is None or not single:
        return found
    handed = [b for a in single for b in a.writes if b.name in slices.intermediates]
    rooms = [replace(b, shape=(b.size // slices.count,)) for b in handed]
    reads = dict.fromkeys(b for a in single for b in a.reads if b.name not in slices.intermediates)
    return [KernelAccess(tuple(reads), single[-1].writes, (*rooms, *(b for a in single for b in a.scratch)))]


def _unit_access(unit: NativeUnit, scratch: Mapping[str, Buffer]) -> KernelAccess | View:
    """What the planner has to know of a unit."""
    if isinstance(unit, View):
        return unit
    given = unit.arguments
    reads = [given[p.name] for p in unit.compiled.func.params if p.name in given]
    output = unit.kernel.arguments[-1]
    return KernelAccess(tuple(b for b in reads if b.name != output.name), (output,), tuple(scratch.values()))


def _raw_constants(region: NativeRegion, program: Program) -> dict[str, Buffer]:
    """The constants whose own data is read, by name."""
    found: dict[str, Buffer] = {}
    for unit in region.units:
        if isinstance(unit, View):
            found[unit.source.name] = unit.source
        else:
            given = unit.arguments
            found |= {given[p.name].name: given[p.name] for p in unit.compiled.func.params if p.name in given}
    found |= {b.name: b for _, b in region.outputs}
    return {name: b for name, b in found.items() if name in program.constants}


def _prepacked_weights(unit: BoundKernel, program: Program, weights: _SegmentWeights) -> dict[str, BufferLocation]:
    """The kernel's packed weights, by the name of its parameter."""
    needed = {p.name for p in unit.compiled.func.params}
    if not any(c.output.name in needed for c in unit.compiled.prepacked):
        return {}
    pairs = zip(unit.kernel.params, unit.kernel.arguments, strict=True)
    fixed = {p.name: (p, b.name) for p, b in pairs if b.name in program.constants}
    data = {name: program.constants[b].reshape(_literal_shape(p)) for name, (p, b) in fixed.items()}
    found: dict[str, BufferLocation] = {}
    for name, array in evaluate_prepacked(unit.compiled.prepacked, data).items():
        if name in needed:
            source = next((fixed[b.name][1] for c in unit.compiled.prepacked if c.output.name == name for b in c.inputs
                           if b.name in fixed), unit.compiled.name)  # fmt: skip
            found[name] = weights.add(f"{source}.packed", array)
    return found


def _literal_shape(b: Buffer) -> tuple[int, ...]:
    sizes = [getattr(n, "value", None) for n in b.shape]
    if None in sizes:
        raise InternalError(f"constant {b.name!r} has the size {b.shape}, which is no literal")
    return tuple(int(n) for n in sizes if n is not None)


def _ordered_symbols(
    program: Program, region: NativeRegion, calls: Sequence[KernelCall | BufferCopy], sizes: Sequence[Expr]
) -> tuple[Var, ...]:
    """The symbols that an entry needs: the program's in their order, then those of fallbacks."""
    used: dict[Var, None] = {}
    locations: list[BufferLocation] = []
    expressions = list(sizes)
    for call in calls:
        if isinstance(call, KernelCall):
            expressions += (*call.symbols, *(() if call.parallel_grains is None else (call.parallel_grains,)))
            locations += call.args
        else:
            expressions.append(call.bytes)
            locations += [call.dst, call.src]
    expressions += [x.offset for x in locations if isinstance(x, WorkspaceLocation)]
    for e in expressions:
        used |= dict.fromkeys(sorted(free_vars(e), key=lambda v: v.name))
    first = [v for v in program.symbols if v in used]
    return (*first, *(v for v in used if v not in first))
