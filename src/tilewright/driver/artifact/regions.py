"""Native regions: maximal runs of kernels and views between fallbacks and control flow."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import groupby

from tilewright.driver.artifact.native_control_flow import NativeUnit
from tilewright.driver.artifact_names import ArtifactNames
from tilewright.driver.kernel_build.kernels import BoundKernel, BoundUnit
from tilewright.expr.computation import View
from tilewright.expr.nodes import Buffer, Expr, Var
from tilewright.expr.traversal import free_vars
from tilewright.graph.program import Constraint, Program, RuntimeStep


@dataclass(frozen=True, slots=True, eq=False)
class NativeRegion:
    """Kernels, views and native control flow between two steps that the runtime executes.

    Attributes:
        units: in order of execution.
        inputs: (value name, buffer) that the region reads and does not write.
        outputs: (value name, buffer) that later steps or the caller need.
        constraints: conditions to check before the region runs.
        runtime_shapes: shapes of results of the runtime's steps, as the runtime reports them, by buffer name.
    """

    units: tuple[NativeUnit, ...]
    inputs: tuple[tuple[str, Buffer], ...]
    outputs: tuple[tuple[str, Buffer], ...]
    constraints: tuple[Constraint, ...]
    runtime_shapes: Mapping[str, tuple[Expr, ...]]


def make_regions(
    program: Program,
    units: Sequence[BoundUnit | NativeUnit],
    names: ArtifactNames,
    visible: Set[Var] | None = None,
) -> tuple[NativeRegion | RuntimeStep, ...]:
    """The units as native regions between fallbacks and control flow, with the values that flow between them.

    The last region also writes the outputs that need a copy: inputs, constants, and second names of a value.

    Args:
        program: a model, or the body of control flow.
        units: its units.
        names: names of its values.
        visible: symbols of the programs around a body, which have sizes; None for a model, of which one region reads
            all inputs.
    """
    has_copies = any(names.is_copy(name, b) for name, b in program.outputs)
    groups = _group_units(units, has_copies, is_model=visible is None)
    last = max((k for k, g in enumerate(groups) if not isinstance(g, RuntimeStep)), default=-1)
    reads = [_external_reads(g, program) for g in groups]
    if last >= 0:
        copied = [b for name, b in program.outputs if names.is_copy(name, b) and b.name not in program.constants]
        reads[last] |= {b.name: b for b in copied}
    pending = list(program.constraints)
    bound_symbols = set(visible or ()) | {v for b in program.inputs for n in b.shape for v in free_vars(n)}
    runtime_shapes: dict[str, tuple[Expr, ...]] = {}
    regions: list[NativeRegion | RuntimeStep] = []
    for k, group in enumerate(groups):
        if isinstance(group, RuntimeStep):
            runtime_shapes |= {b.name: dims for b, dims in zip(group.outputs, group.runtime_shapes, strict=True)}
            bound_symbols |= set(group.data_symbols)
            regions.append(group)
            continue
        written = {b.name: b for u in group for b in _written_buffers(u)}
        read_later = {name for needed in reads[k + 1 :] for name in needed}
        outputs = _region_outputs(program, names, written, read_later, with_copies=k == last)
        external = [b for name, b in reads[k].items() if name not in written]
        inputs = list(program.inputs) if len(groups) == 1 and visible is None else external
        checkable = [c for c in pending if free_vars(c.condition) <= bound_symbols]
        pending = [c for c in pending if c not in checkable]
        named_inputs = tuple((names.of(b), b) for b in inputs)
        regions.append(NativeRegion(group, named_inputs, outputs, tuple(checkable), runtime_shapes))
    return tuple(regions)


def _region_outputs(
    program: Program, names: ArtifactNames, written: Mapping[str, Buffer], read_later: set[str], *, with_copies: bool
) -> tuple[tuple[str, Buffer], ...]:
    """A region's outputs: the program's in their order, then the values that later steps read."""
    direct = {name for name, b in program.outputs if b.name in written and not names.is_copy(name, b)}
    outputs = [(n, b) for n, b in program.outputs if n in direct or (with_copies and names.is_copy(n, b))]
    named = {b.name for n, b in outputs if names.of(b) == n}
    outputs += [(names.of(b), b) for b in written.values() if b.name in read_later and b.name not in named]
    return tuple(outputs)


def _group_units(
    units: Sequence[BoundUnit | NativeUnit], has_copies: bool, is_model: bool
) -> list[RuntimeStep | tuple[NativeUnit, ...]]:
    """Steps of the runtime alone, the units between them in groups; an empty group at the end for copies of outputs."""
    groups: list[RuntimeStep | tuple[NativeUnit, ...]] = []
    for is_fallback, members in groupby(units, key=lambda u: isinstance(u, RuntimeStep)):
        run = list(members)
        if is_fallback:
            groups += [u for u in run if isinstance(u, RuntimeStep)]
        else:
            groups.append(tuple(u for u in run if not isinstance(u, RuntimeStep)))
    if (is_model and not groups) or (has_copies and isinstance(groups[-1], RuntimeStep)):
        groups.append(())
    return groups


def _written_buffers(unit: NativeUnit) -> tuple[Buffer, ...]:
    match unit:
        case View():
            return (unit.output,)
        case BoundKernel():
            return unit.kernel.writes
        case _:
            return unit.step.outputs


def _read_buffers(unit: NativeUnit) -> tuple[Buffer, ...]:
    match unit:
        case View():
            return (unit.source,)
        case BoundKernel():
            return unit.kernel.reads
        case _:
            return unit.step.inputs


def _external_reads(group: RuntimeStep | tuple[NativeUnit, ...], program: Program) -> dict[str, Buffer]:
    """The buffers that a group reads, by name, without constants."""
    buffers = list(group.inputs) if isinstance(group, RuntimeStep) else [b for u in group for b in _read_buffers(u)]
    return {b.name: b for b in buffers if b.name not in program.constants}
