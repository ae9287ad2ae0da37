"""Native entries of a model: the memory plan, calls and weights of every native region."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import groupby, repeat, zip_longest
from math import prod
from operator import mul
from typing import Any

import numpy as np

from tilewright.codegen.segment import MAX_BUFFER_BYTES, MAX_SIZE_VALUE, BufferCopy, KernelCall, Segment
from tilewright.driver.artifact_names import ArtifactNames, dim_specs, tensor_spec
from tilewright.driver.kernels import BoundKernel, BoundUnit
from tilewright.driver.make_segment import make_segment
from tilewright.driver.regions import NativeRegion, NativeUnit
from tilewright.driver.weight_pool import WeightPool
from tilewright.errors import InternalError
from tilewright.expr.computation import View
from tilewright.expr.dtype import uint8
from tilewright.expr.nodes import Buffer, Expr, Var, const
from tilewright.expr.operations import maximum
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
from tilewright.graph.program import Program
from tilewright.loops.private_memory import THREADS, workspace_of
from tilewright.lower.kernel_variants import programs_of
from tilewright.lower.prepack_constants import evaluate_prepacked
from tilewright.machine.threads import available_cores
from tilewright.runtime import manifest as m
from tilewright.verify.index_overflow import overflow_candidates

Array = np.ndarray[Any, Any]

MAX_PREPACKING_THREADS = 4
"""Threads that prepack constants; each needs memory for one of them, and together they soon have all of its bandwidth.
"""


@dataclass(frozen=True, slots=True, eq=False)
class PlannedSegment:
    """A native entry with its memory plan and its record in the artifact."""

    segment: Segment
    memory: MemoryPlan
    step: m.NativeStep


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


def plan_segment(
    region: NativeRegion, prefix: str, program: Program, names: ArtifactNames, pool: WeightPool
) -> PlannedSegment:
    """The native entry of a region: memory planned, weights collected, sizes as expressions.

    Args:
        region: its kernels and views.
        prefix: the prefix of the entry's C symbols.
        program: the program, for its constants and symbols.
        names: names of values and symbols in the artifact.
        pool: receives the weights.
    """
    scratch = [_scratch_buffers(k, u) for k, u in enumerate(region.units)]
    memory = _plan_region_memory(region, scratch, program)
    weights = _SegmentWeights(pool)

    def locate(b: Buffer) -> BufferLocation:
        location = memory.locations[b.name]
        if isinstance(location, ConstantLocation):
            return weights.add(location.name, program.constants[location.name])
        return location

    kernels = [(u, buffers) for u, buffers in zip(region.units, scratch, strict=True) if isinstance(u, BoundKernel)]
    # numpy works without the interpreter's lock most of the time
    with ThreadPoolExecutor(min(available_cores(), MAX_PREPACKING_THREADS)) as executor:
        prepacked = list(executor.map(_prepack, [u for u, _ in kernels], repeat(program)))
    # parameters of a kernel that are no buffers of the program
    own_params = {
        id(u): {n: weights.add(hint, array) for n, (hint, array) in arrays.items()}
        | {n: locate(b) for n, b in buffers.items()}
        for (u, buffers), arrays in zip(kernels, prepacked, strict=True)
    }
    calls: list[KernelCall | BufferCopy] = []
    for unit, slice_index in calls_in_order(region.units):
        own, arguments = own_params[id(unit)], unit.arguments
        locations = tuple(
            own[p.name] if p.name in own else _slice_location(locate(arguments[p.name]), unit, p, slice_index)
            for p in unit.compiled.func.params
        )
        calls.append(KernelCall(unit.compiled.name, locations, unit.symbols, unit.parallel_grains))
    for copy in memory.copies:
        size = copy.source.size * copy.source.dtype.bytes
        calls.append(BufferCopy(OutputLocation(copy.index), locate(copy.source), size))
    segment = make_segment(
        prefix,
        (),
        calls,
        memory.total,
        [b for _, b in region.outputs],
        _touched_buffers(region, scratch),
        _index_bounds(region),
        weights=tuple(weights.names),
        constraints=tuple(c.condition for c in region.constraints),
        iteration_counts=_iteration_counts(region),
    )
    segment = replace(segment, symbols=_used_symbols(segment, program))
    return PlannedSegment(segment, memory, _native_step(segment, region, names))


def _plan_region_memory(region: NativeRegion, scratch: Sequence[Mapping[str, Buffer]], program: Program) -> MemoryPlan:
    units = zip(region.units, scratch, strict=True)
    groups = [list(g) for _, g in groupby(units, key=lambda pair: _slice_group(pair[0]))]
    accesses = [a for g in groups for a in _group_accesses(g)]
    constants = list(_raw_constants(region, program).values())
    return plan_memory(accesses, [b for _, b in region.inputs], [b for _, b in region.outputs], constants)


def _index_bounds(region: NativeRegion) -> tuple[Expr, ...]:
    """Upper bounds of the numbers in a region's kernels, where they may overflow."""
    kernels = [u for u in region.units if isinstance(u, BoundKernel)]
    bounds = (e for u in kernels for func in programs_of(u.compiled.func) for e in overflow_candidates(func, _sizes(u)))
    return tuple(dict.fromkeys(bounds))


def calls_in_order(units: Iterable[BoundUnit]) -> Iterator[tuple[BoundKernel, int]]:
    """The kernels in the order of their calls, each with the index of the slice that the call computes."""
    for _, group in groupby(units, key=_slice_group):
        kernels = [u for u in group if isinstance(u, BoundKernel)]
        slices = kernels[0].kernel.slices if kernels else None
        for k in range(1 if slices is None else slices.count):
            yield from ((u, k) for u in kernels)


def _slice_group(unit: BoundUnit) -> object:
    """Key of the units that run slice by slice together; unique for every other unit."""
    slices = unit.kernel.slices if isinstance(unit, BoundKernel) else None
    return id(unit) if slices is None else slices


def _slice_location(location: BufferLocation, unit: BoundKernel, parameter: Buffer, slice_index: int) -> BufferLocation:
    """The location of a slice of an argument."""
    slices = unit.kernel.slices
    if (
        slices is None
        or parameter.name not in unit.kernel.sliced_params
        or unit.arguments[parameter.name].name in slices.intermediates
    ):
        return location
    offset_of_slice = slice_index * prod(_literal_shape(parameter)) * parameter.dtype.bytes
    match location:
        case WorkspaceLocation(offset):
            return WorkspaceLocation(offset + offset_of_slice)
        case InputLocation() | OutputLocation():
            return replace(location, offset=offset_of_slice)
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


def _touched_buffers(region: NativeRegion, scratch: Sequence[Mapping[str, Buffer]]) -> list[Buffer]:
    """Every buffer of a region, with the workspace of its kernels."""
    buffers = [b for _, b in (*region.inputs, *region.outputs)]
    for unit, own in zip(region.units, scratch, strict=True):
        buffers += (unit.source, unit.output) if isinstance(unit, View) else (*unit.kernel.arguments, *own.values())
    return buffers


def _iteration_counts(region: NativeRegion) -> list[Expr]:
    """How often the bodies of a region's kernels run, scaled so that the limit of bytes applies to them."""
    stages = [s for u in region.units if isinstance(u, BoundKernel) for s in u.kernel.stages]
    counts = [reduce(mul, (a.extent for a in (*s.axes, *s.reduce_axes)), const(1)) for s in stages]
    return [count // (MAX_SIZE_VALUE // MAX_BUFFER_BYTES) for count in counts]


def _sizes(unit: BoundKernel) -> Mapping[Var, Expr]:
    """The values of the symbols of a kernel's function over the program's."""
    return dict(zip(unit.compiled.func.symbols, unit.symbols, strict=True))


def _scratch_buffers(index: int, unit: NativeUnit) -> dict[str, Buffer]:
    """A kernel's own workspace, by the name of its parameter: a private buffer has a slice per thread.

    Of several programs one runs at a time: those at the same position in each share a buffer that holds the largest.
    """
    if isinstance(unit, View):
        return {}
    programs = zip(programs_of(unit.compiled.func), unit.scratch, strict=True)
    needed = [[(b.name, workspace_of(func, b, THREADS)) for b in buffers] for func, buffers in programs]
    result: dict[str, Buffer] = {}
    for position in zip_longest(*needed):
        alike = [x for x in position if x is not None]
        name, buffer = alike[0]
        if len(alike) > 1:
            buffer = Buffer(name, (reduce(maximum, (b.size * b.dtype.bytes for _, b in alike)),), uint8)
        result |= dict.fromkeys((n for n, _ in alike), buffer.renamed(f"{name}@{index}"))
    return result


def _group_accesses(group: Sequence[tuple[NativeUnit, Mapping[str, Buffer]]]) -> list[KernelAccess | View]:
    """The buffer accesses of units, for the memory planner.

    Units that run slice by slice are one access from the first slice to the last, with scratch memory for one slice of
    their intermediates.
    """
    first = group[0][0]
    accesses = [_unit_access(u, s) for u, s in group]
    slices = first.kernel.slices if isinstance(first, BoundKernel) else None
    kernels = [a for a in accesses if isinstance(a, KernelAccess)]
    if slices is None or not kernels:
        return accesses
    intermediates = [b for a in kernels for b in a.writes if b.name in slices.intermediates]
    slice_buffers = [replace(b, shape=(b.size // slices.count,)) for b in intermediates]
    scratch = (*slice_buffers, *(b for a in kernels for b in a.scratch))
    written = {b.name: b for a in kernels for b in a.writes}
    reads = dict.fromkeys(b for a in kernels for b in a.reads if b.name not in written)
    writes = [b for name, b in written.items() if name not in slices.intermediates]
    return [KernelAccess(tuple(reads), tuple(writes), scratch)]


def _unit_access(unit: NativeUnit, scratch: Mapping[str, Buffer]) -> KernelAccess | View:
    """The buffer accesses of a unit, for the memory planner."""
    if isinstance(unit, View):
        return unit
    arguments = unit.arguments
    reads = [arguments[p.name] for p in unit.compiled.func.params if p.name in arguments]
    writes = {b.name for b in unit.kernel.writes}
    own = tuple(dict.fromkeys(scratch.values()))
    return KernelAccess(tuple(b for b in reads if b.name not in writes), unit.kernel.writes, own)


def _raw_constants(region: NativeRegion, program: Program) -> dict[str, Buffer]:
    """The constants that a region reads as they are, without prepacking, by name."""
    buffers: dict[str, Buffer] = {}
    for unit in region.units:
        if isinstance(unit, View):
            buffers[unit.source.name] = unit.source
        else:
            arguments = unit.arguments
            used = [arguments[p.name] for p in unit.compiled.func.params if p.name in arguments]
            buffers |= {b.name: b for b in used}
    buffers |= {b.name: b for _, b in region.outputs}
    return {name: b for name, b in buffers.items() if name in program.constants}


def _prepack(unit: BoundKernel, program: Program) -> dict[str, tuple[str, Array]]:
    """A kernel's prepacked constants with hints for their names, by the name of its parameter."""
    needed = {p.name for p in unit.compiled.func.params}
    if not any(c.output.name in needed for c in unit.compiled.prepacked):
        return {}
    pairs = zip(unit.kernel.params, unit.kernel.arguments, strict=True)
    constants = {p.name: (p, b.name) for p, b in pairs if b.name in program.constants}
    data = {name: program.constants[b].reshape(_literal_shape(p)) for name, (p, b) in constants.items()}
    found: dict[str, tuple[str, Array]] = {}
    for name, array in evaluate_prepacked(unit.compiled.prepacked, data).items():
        if name in needed:
            computation = next(c for c in unit.compiled.prepacked if c.output.name == name)
            sources = (constants[b.name][1] for b in computation.inputs if b.name in constants)
            found[name] = f"{next(sources, unit.compiled.name)}.packed", array
    return found


def _literal_shape(b: Buffer) -> tuple[int, ...]:
    sizes = [getattr(n, "value", None) for n in b.shape]
    if None in sizes:
        raise InternalError(f"constant {b.name!r} has the size {b.shape}, which is no literal")
    return tuple(int(n) for n in sizes if n is not None)


def _used_symbols(segment: Segment, program: Program) -> tuple[Var, ...]:
    """The symbols that an entry needs: the program's in their order, then the data-dependent sizes of fallbacks."""
    dims = [n for shape in segment.output_shapes for n in shape]
    expressions = [segment.workspace_bytes, *segment.constraints, *segment.buffer_bytes, *dims]
    locations: list[BufferLocation] = []
    for call in segment.calls:
        if isinstance(call, KernelCall):
            expressions += (*call.symbols, *(() if call.parallel_grains is None else (call.parallel_grains,)))
            locations += call.args
        else:
            expressions.append(call.bytes)
            locations += [call.dst, call.src]
    expressions += [x.offset for x in locations if isinstance(x, WorkspaceLocation)]
    used: dict[Var, None] = {}
    for e in expressions:
        used |= dict.fromkeys(sorted(free_vars(e), key=lambda v: v.name))
    declared = [v for v in program.symbols if v in used]
    return (*declared, *(v for v in used if v not in declared and v is not THREADS))
