"""Units of a program as calls of a native entry: their memory planned, their weights collected.

The memory of a branch or of a loop's body is planned like that of the program around it, which gives it a part of its
own workspace. Results are written where the program around wants them; carried values change place with every
iteration, so native code keeps pointers to them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import groupby, zip_longest
from math import prod

from tilewright.codegen.segment import (
    BufferCopy,
    CarriedValue,
    ConditionalCalls,
    KernelCall,
    RepeatedCalls,
    RoutineCall,
    RoutineCode,
    SegmentCall,
    StackedValue,
)
from tilewright.driver.artifact.native_control_flow import (
    NativeConditional,
    NativeControlFlow,
    NativeLoop,
    NativeRoutine,
    NativeUnit,
)
from tilewright.driver.artifact.prepacked_weights import SegmentWeights, literal_shape, prepack_weights
from tilewright.driver.kernel_build.kernels import BoundKernel, BoundUnit
from tilewright.errors import InternalError
from tilewright.expr.computation import View
from tilewright.expr.dtype import boolean, int64, uint8
from tilewright.expr.nodes import Buffer, const
from tilewright.expr.operations import maximum
from tilewright.graph.buffer_location import (
    BufferLocation,
    ConstantLocation,
    InputLocation,
    OutputLocation,
    PointerLocation,
    WorkspaceLocation,
)
from tilewright.graph.memory_plan import KernelAccess, MemoryPlan, plan_memory
from tilewright.graph.program import Conditional, Program, RoutineStep
from tilewright.loops.private_memory import THREADS, workspace_of
from tilewright.lower.kernel_variants import programs_of

Locate = Callable[[Buffer], BufferLocation]

_WORKSPACE, _ITERATION, _CONDITION = "workspace", "iteration", "condition"
"""Purposes of the memory of control flow."""


@dataclass(frozen=True, slots=True, eq=False)
class PlannedUnits:
    """Units with their memory.

    Attributes:
        program: of the units.
        units: in order of execution.
        scratch: own workspace of each unit by purpose.
        inner: the bodies of each unit that is control flow.
        memory: locations of all buffers.
    """

    program: Program
    units: tuple[NativeUnit, ...]
    scratch: tuple[Mapping[str, Buffer], ...]
    inner: tuple[tuple["PlannedUnits", ...], ...]
    memory: MemoryPlan

    def all_scratch(self) -> Iterator[Buffer]:
        """The own workspace of all units, those of bodies among them."""
        for scratch, inner in zip(self.scratch, self.inner, strict=True):
            yield from scratch.values()
            for body in inner:
                yield from body.all_scratch()


def plan_units(
    program: Program, units: Sequence[NativeUnit], inputs: Sequence[Buffer], results: Sequence[Buffer]
) -> PlannedUnits:
    """The memory of units.

    Args:
        program: of the units.
        units: in order of execution.
        inputs: buffers that are filled before.
        results: buffers that the caller provides memory for.
    """
    inner = tuple(
        tuple(plan_units(b.program, b.units, b.program.inputs, b.results) for b in u.bodies)
        if isinstance(u, NativeControlFlow)
        else ()
        for u in units
    )
    scratch = tuple(_scratch_buffers(k, u, inner[k]) for k, u in enumerate(units))
    groups = [list(g) for _, g in groupby(zip(units, scratch, strict=True), key=lambda pair: _slice_group(pair[0]))]
    accesses = [a for g in groups for a in _group_accesses(g)]
    constants = list(_raw_constants(program, units, results).values())
    memory = plan_memory(accesses, inputs, results, constants)
    return PlannedUnits(program, tuple(units), scratch, inner, memory)


def make_calls(planned: PlannedUnits, weights: SegmentWeights) -> list[SegmentCall]:
    """The calls of a native entry.

    Args:
        planned: its units.
        weights: receives its weights.
    """

    def locate(b: Buffer) -> BufferLocation:
        location = planned.memory.locations[b.name]
        if isinstance(location, ConstantLocation):
            return weights.add(location.name, planned.program.constants[location.name])
        return location

    return _CallMaker(weights).calls(planned, locate, OutputLocation)


class _CallMaker:
    """Makes calls; counts loops, so that their pointers have names of their own."""

    def __init__(self, weights: SegmentWeights) -> None:
        self._weights, self._loop_count = weights, 0

    def calls(
        self, planned: PlannedUnits, locate: Locate, result: Callable[[int], BufferLocation]
    ) -> list[SegmentCall]:
        """The calls of units.

        Args:
            planned: the units.
            locate: locations of their buffers.
            result: locations of their results.
        """
        position = {id(u): k for k, u in enumerate(planned.units)}
        packed = prepack_weights(
            [u for u in planned.units if isinstance(u, BoundKernel)], planned.program, self._weights
        )
        calls: list[SegmentCall] = []
        for unit, slice_index in _in_call_order(planned.units):
            k = position[id(unit)]
            scratch = {n: locate(b) for n, b in planned.scratch[k].items()}
            match unit:
                case BoundKernel():
                    own = packed[id(unit)] | scratch
                    calls.append(_kernel_call(unit, own, locate, slice_index))
                case NativeConditional(step):
                    calls.append(self._conditional(step, planned.inner[k], scratch, locate))
                case NativeLoop():
                    calls.append(self._make_loop(unit, planned.inner[k][0], scratch, locate))
                case NativeRoutine(step):
                    calls.append(_routine_call(step, scratch, locate))
        for copy in planned.memory.copies:
            size = copy.source.size * copy.source.dtype.bytes
            calls.append(BufferCopy(result(copy.index), locate(copy.source), size))
        return calls

    def _conditional(
        self,
        step: Conditional,
        inner: Sequence[PlannedUnits],
        scratch: Mapping[str, BufferLocation],
        locate: Locate,
    ) -> ConditionalCalls:
        results = [locate(b) for b in step.outputs]
        branches: list[tuple[SegmentCall, ...]] = []
        for body, planned in zip(step.bodies, inner, strict=True):
            captured = [locate(b) for b in body.captures]
            locate_inner = self._locate_in_body(planned, captured, results, scratch[_WORKSPACE])
            branches.append(tuple(self.calls(planned, locate_inner, results.__getitem__)))
        return ConditionalCalls(locate(step.condition), branches[0], branches[1])

    def _make_loop(
        self, unit: NativeLoop, body: PlannedUnits, scratch: Mapping[str, BufferLocation], locate: Locate
    ) -> RepeatedCalls:
        step, count = unit.step, len(unit.step.initial)
        prefix = f"loop{self._loop_count}"
        self._loop_count += 1
        stacked = [
            StackedValue(f"{prefix}.stacked{k}", locate(b), slice_.size * slice_.dtype.bytes)
            for k, (b, slice_) in enumerate(zip(step.outputs[count:], unit.bodies[0].results[count:], strict=True))
        ]
        carried = [
            CarriedValue(
                name=f"{prefix}.carried{k}",
                next_name=f"{prefix}.next{k}",
                initial=locate(b),
                memory=(scratch[first], scratch[second]),
                result=locate(step.outputs[k]),
                bytes=b.size * b.dtype.bytes,
            )
            for k, (b, (first, second)) in enumerate((b, _carried_memory(k)) for k, b in enumerate(step.initial))
        ]
        inputs = [scratch[_ITERATION], scratch[_CONDITION], *(PointerLocation(c.name) for c in carried)]
        inputs += [locate(b) for b in step.body.captures]
        results = [*(PointerLocation(c.next_name) for c in carried), *(PointerLocation(s.name) for s in stacked)]
        locate_inner = self._locate_in_body(body, inputs, results, scratch[_WORKSPACE])
        calls = self.calls(body, locate_inner, results.__getitem__)
        return RepeatedCalls(
            unit.count, scratch[_ITERATION], scratch[_CONDITION], tuple(carried), tuple(stacked), tuple(calls)
        )

    def _locate_in_body(
        self,
        planned: PlannedUnits,
        inputs: Sequence[BufferLocation],
        results: Sequence[BufferLocation],
        workspace: BufferLocation,
    ) -> Locate:
        """Locations of a body's buffers, given those of its inputs, of its results and of its workspace."""
        if not isinstance(workspace, WorkspaceLocation):
            raise InternalError(f"a body's workspace lies at {workspace}", where="memory plan")

        def locate(b: Buffer) -> BufferLocation:
            match planned.memory.locations[b.name]:
                case InputLocation(k):
                    return inputs[k]
                case OutputLocation(k):
                    return results[k]
                case WorkspaceLocation(offset):
                    return WorkspaceLocation(workspace.offset + offset)
                case ConstantLocation(name):
                    return self._weights.add(name, planned.program.constants[name])
                case PointerLocation(name):
                    raise InternalError(f"the memory plan gives {b} the variable {name!r}", where="memory plan")

        return locate


def _kernel_call(unit: BoundKernel, own: Mapping[str, BufferLocation], locate: Locate, slice_index: int) -> KernelCall:
    """The call of a kernel; `own` are parameters that are no buffers of the program."""
    arguments = unit.arguments
    locations = tuple(
        own[p.name] if p.name in own else _slice_location(locate(arguments[p.name]), unit, p, slice_index)
        for p in unit.compiled.func.params
    )
    return KernelCall(unit.compiled.name, locations, unit.symbols, unit.parallel_grains)


def _routine_call(step: RoutineStep, scratch: Mapping[str, BufferLocation], locate: Locate) -> RoutineCall:
    return RoutineCall(
        code=RoutineCode(step.routine, tuple(b.dtype for b in step.buffers)),
        args=tuple(scratch[b.name] if b in step.scratch else locate(b) for b in step.buffers),
        lengths=tuple(b.size for b in step.buffers),
        scalars=step.scalars,
        failures=step.routine.failures,
        label=step.label,
        origin=step.origin,
    )


def _carried_memory(k: int) -> tuple[str, str]:
    """Purposes of the memory that the iterations write carried value k to, in turns."""
    return f"even{k}", f"odd{k}"


def _scratch_buffers(index: int, unit: NativeUnit, inner: Sequence[PlannedUnits]) -> dict[str, Buffer]:
    """A unit's own workspace: that of a kernel by the name of its parameter, in which a private buffer has a slice per
    thread, and that of control flow by its purpose."""
    match unit:
        case View():
            return {}
        case BoundKernel():
            return _kernel_scratch(index, unit)
        case NativeRoutine(step):
            return {b.name: b for b in step.scratch}
        case NativeConditional():
            size = reduce(maximum, (p.memory.total for p in inner))
            return {_WORKSPACE: Buffer(f"branch@{index}", (size,), uint8)}
        case NativeLoop(step):
            carried = {
                name: replace(b, name=f"{name}@{index}")
                for k, b in enumerate(step.initial)
                for name in _carried_memory(k)
            }
            return {
                _WORKSPACE: Buffer(f"body@{index}", (inner[0].memory.total,), uint8),
                _ITERATION: Buffer(f"iteration@{index}", (const(1),), int64),
                _CONDITION: Buffer(f"condition@{index}", (const(1),), boolean),
                **carried,
            }


def _kernel_scratch(index: int, unit: BoundKernel) -> dict[str, Buffer]:
    """A kernel's own workspace. Of several programs one runs at a time: those at the same position in each share a
    buffer that holds the largest."""
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
    match unit:
        case View():
            return unit
        case BoundKernel():
            arguments = unit.arguments
            reads = [arguments[p.name] for p in unit.compiled.func.params if p.name in arguments]
            writes = {b.name for b in unit.kernel.writes}
            own = tuple(dict.fromkeys(scratch.values()))
            return KernelAccess(tuple(b for b in reads if b.name not in writes), unit.kernel.writes, own)
        case _:
            return KernelAccess(unit.step.inputs, unit.step.outputs, tuple(scratch.values()))


def _raw_constants(program: Program, units: Sequence[NativeUnit], results: Sequence[Buffer]) -> dict[str, Buffer]:
    """The constants that units read as they are, without prepacking, and those that are results, by name."""
    buffers: dict[str, Buffer] = {}
    for unit in units:
        match unit:
            case View():
                buffers[unit.source.name] = unit.source
            case BoundKernel():
                arguments = unit.arguments
                used = [arguments[p.name] for p in unit.compiled.func.params if p.name in arguments]
                buffers |= {b.name: b for b in used}
            case _:
                buffers |= {b.name: b for b in unit.step.inputs}
    buffers |= {b.name: b for b in results}
    return {name: b for name, b in buffers.items() if name in program.constants}


def calls_in_order(units: Iterable[BoundUnit | NativeUnit]) -> Iterator[tuple[BoundKernel, int]]:
    """The kernels in the order of their calls, each with the index of the slice that the call computes."""
    yield from ((u, k) for u, k in _in_call_order(units) if isinstance(u, BoundKernel))


def _in_call_order(
    units: Iterable[BoundUnit | NativeUnit],
) -> Iterator[tuple[BoundKernel | NativeControlFlow | NativeRoutine, int]]:
    """Kernels, routines and control flow in the order of their calls, each with the index of the slice that the call
    computes."""
    for _, group in groupby(units, key=_slice_group):
        members = [u for u in group if isinstance(u, BoundKernel | NativeControlFlow | NativeRoutine)]
        first = members[0] if members else None
        slices = first.kernel.slices if isinstance(first, BoundKernel) else None
        for k in range(1 if slices is None else slices.count):
            yield from ((u, k) for u in members)


def _slice_group(unit: BoundUnit | NativeUnit) -> object:
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
    offset_of_slice = slice_index * prod(literal_shape(parameter)) * parameter.dtype.bytes
    match location:
        case WorkspaceLocation(offset):
            return WorkspaceLocation(offset + offset_of_slice)
        case InputLocation() | OutputLocation():
            return replace(location, offset=offset_of_slice)
        case ConstantLocation() | PointerLocation():
            raise InternalError(f"{parameter} is cut into slices, but lies at {location}", where="memory plan")
