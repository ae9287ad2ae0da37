"""Native entries of a model: the memory plan, calls and weights of every native region."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import reduce
from operator import mul
from typing import Any

import numpy as np

from tilewright.codegen.segment import (
    MAX_BUFFER_BYTES,
    MAX_SIZE_VALUE,
    Segment,
    all_calls,
    locations_of,
    routine_calls,
    sizes_of,
)
from tilewright.driver.artifact.native_control_flow import nested_routines, nested_units
from tilewright.driver.artifact.plan_units import PlannedUnits, make_calls, plan_units
from tilewright.driver.artifact.prepacked_weights import SegmentWeights
from tilewright.driver.artifact.regions import NativeRegion
from tilewright.driver.artifact.weight_pool import WeightPool
from tilewright.driver.artifact_names import ArtifactNames, dim_specs, tensor_spec
from tilewright.driver.kernel_build.kernels import BoundKernel
from tilewright.driver.kernel_build.make_segment import make_segment
from tilewright.expr.computation import View
from tilewright.expr.nodes import Buffer, Expr, Var, const
from tilewright.expr.printer import show
from tilewright.expr.traversal import free_vars
from tilewright.graph.buffer_location import (
    WorkspaceLocation,
)
from tilewright.graph.memory_plan import MemoryPlan
from tilewright.graph.program import Program
from tilewright.loops.private_memory import THREADS
from tilewright.lower.kernel_variants import programs_of
from tilewright.runtime import manifest as m
from tilewright.verify.index_overflow import overflow_candidates

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, eq=False)
class PlannedSegment:
    """A native entry with its memory plan and its record in the artifact."""

    segment: Segment
    memory: MemoryPlan
    step: m.NativeStep


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
    results = [b for _, b in region.outputs]
    planned = plan_units(program, region.units, [b for _, b in region.inputs], results)
    weights = SegmentWeights(pool)
    calls = make_calls(planned, weights)
    segment = make_segment(
        prefix,
        (),
        calls,
        planned.memory.total,
        results,
        _touched_buffers(region, planned),
        _index_bounds(region),
        weights=tuple(weights.names),
        constraints=tuple(c.condition for c in region.constraints),
        iteration_counts=_iteration_counts(region),
    )
    segment = replace(segment, symbols=_used_symbols(segment, program))
    return PlannedSegment(segment, planned.memory, _native_step(segment, region, names))


def _index_bounds(region: NativeRegion) -> tuple[Expr, ...]:
    """Upper bounds of the numbers in a region's kernels, where they may overflow."""
    kernels = [u for u in nested_units(region.units) if isinstance(u, BoundKernel)]
    bounds = (e for u in kernels for func in programs_of(u.compiled.func) for e in overflow_candidates(func, _sizes(u)))
    return tuple(dict.fromkeys(bounds))


def _sizes(unit: BoundKernel) -> Mapping[Var, Expr]:
    """The values of the symbols of a kernel's function over the program's."""
    return dict(zip(unit.compiled.func.symbols, unit.symbols, strict=True))


def _native_step(segment: Segment, region: NativeRegion, names: ArtifactNames) -> m.NativeStep:
    kernels = [u.kernel for u in nested_units(region.units) if isinstance(u, BoundKernel)]
    labels = dict.fromkeys(k.label for k in kernels if k.label)
    routines = routine_calls(segment.calls)
    labels |= dict.fromkeys(c.label for c in routines)
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
        failures=tuple(m.ConstraintSpec(text, f"node {c.origin}") for c in routines for text in c.failures),
    )


def _touched_buffers(region: NativeRegion, planned: PlannedUnits) -> list[Buffer]:
    """Every buffer of a region, with the workspace of its kernels and of its loops."""
    buffers = [b for _, b in (*region.inputs, *region.outputs)]
    buffers += [b for step in nested_routines(region.units) for b in step.buffers]
    for unit in nested_units(region.units):
        buffers += (unit.source, unit.output) if isinstance(unit, View) else unit.kernel.arguments
    return [*buffers, *planned.all_scratch()]


def _iteration_counts(region: NativeRegion) -> list[Expr]:
    """How often the bodies of a region's kernels run, scaled so that the limit of bytes applies to them."""
    stages = [s for u in nested_units(region.units) if isinstance(u, BoundKernel) for s in u.kernel.stages]
    counts = [reduce(mul, (a.extent for a in (*s.axes, *s.reduce_axes)), const(1)) for s in stages]
    return [count // (MAX_SIZE_VALUE // MAX_BUFFER_BYTES) for count in counts]


def _used_symbols(segment: Segment, program: Program) -> tuple[Var, ...]:
    """The symbols that an entry needs: the program's in their order, then the data-dependent sizes of fallbacks."""
    dims = [n for shape in segment.output_shapes for n in shape]
    expressions = [segment.workspace_bytes, *segment.constraints, *segment.buffer_bytes, *dims]
    for call in all_calls(segment.calls):
        expressions += sizes_of(call)
        expressions += [x.offset for x in locations_of(call) if isinstance(x, WorkspaceLocation)]
    used: dict[Var, None] = {}
    for e in expressions:
        used |= dict.fromkeys(sorted(free_vars(e), key=lambda v: v.name))
    declared = [v for v in program.symbols if v in used]
    return (*declared, *(v for v in used if v not in declared and v is not THREADS))
