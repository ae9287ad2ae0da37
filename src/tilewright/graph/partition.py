"""Partition of a program into kernels.

A kernel is a reduction with its element-wise epilogue, an element-wise computation, or a group of them that is fused
row by row (`fuse_rowwise.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.errors import InternalError
from tilewright.expr.computation import Computation, View
from tilewright.expr.nodes import Buffer
from tilewright.expr.pattern import is_same_element, product_operands
from tilewright.expr.traversal import loads
from tilewright.graph.coalesce_axes import make_kernel
from tilewright.graph.fuse_rowwise import fuse_rowwise
from tilewright.graph.inline_elementwise import inline_elementwise, inline_scalars
from tilewright.graph.kernel import Kernel
from tilewright.graph.program import Program, RuntimeStep, step_outputs
from tilewright.graph.read_through_views import read_through_views

Unit = Kernel | View | RuntimeStep


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """A program whose computations are grouped into kernels; `units` are in order of execution."""

    program: Program
    units: tuple[Unit, ...]


def partition(program: Program) -> Partition:
    """Groups the computations of a program into kernels, after the inlining of element-wise producers."""
    program = inline_elementwise(inline_scalars(read_through_views(program)))
    pinned = {buffer.name for _, buffer in program.outputs}
    uses = _use_counts(program)
    writers = {s.output: s for s in program.steps if isinstance(s, Computation)}
    absorbed: dict[Buffer, Computation] = {}
    for step in program.steps:
        if isinstance(step, Computation) and not step.is_reduction:
            reduction = _fusible_reduction(step, writers, uses, pinned)
            if reduction is not None:
                absorbed[step.output] = reduction
    fused = {c.output for c in absorbed.values()}
    remaining = [s for s in program.steps if isinstance(s, Computation) and s.output not in fused]
    groups = fuse_rowwise([(absorbed[s.output], s) if s.output in absorbed else (s,) for s in remaining], program)
    group_of = {group.stages[-1].output: group for group in groups}
    units: list[Unit] = []
    for step in program.steps:
        if not isinstance(step, Computation):
            units.append(step)
        elif step.output in group_of:
            group = group_of[step.output]
            units.append(make_kernel(group.stages, group.outputs))
    ordered, waiting = in_order_of_execution(units)
    if waiting:
        names = ", ".join(b.name for u in waiting for b in _writes(u))
        raise InternalError(f"the computations of {names} need each other's results", where="partition")
    return Partition(program, ordered)


def in_order_of_execution(units: Sequence[Unit]) -> tuple[tuple[Unit, ...], tuple[Unit, ...]]:
    """The units, each as early as its place allows: those that read a result of a later kernel wait for it.

    Those that need each other's results wait for ever: they come second.
    """
    missing = {b.name for u in units for b in _writes(u)}
    ordered: list[Unit] = []
    waiting: list[Unit] = []
    for unit in units:
        waiting.append(unit)
        while ready := next((u for u in waiting if missing.isdisjoint(b.name for b in _reads(u))), None):
            waiting.remove(ready)
            ordered.append(ready)
            missing.difference_update(b.name for b in _writes(ready))
    return tuple(ordered), tuple(waiting)


def _reads(unit: Unit) -> tuple[Buffer, ...]:
    return unit.reads if isinstance(unit, Kernel) else unit.inputs


def _writes(unit: Unit) -> tuple[Buffer, ...]:
    return unit.writes if isinstance(unit, Kernel) else step_outputs(unit)


def _use_counts(program: Program) -> dict[Buffer, int]:
    count: dict[Buffer, int] = {}
    for step in program.steps:
        for b in dict.fromkeys(step.inputs):
            count[b] = count.get(b, 0) + 1
    return count


def _fusible_reduction(
    epilogue: Computation, writers: dict[Buffer, Computation], use_counts: dict[Buffer, int], pinned: set[str]
) -> Computation | None:
    """The reduction that an element-wise computation becomes the epilogue of, None where there is none."""
    index = tuple(a.var for a in epilogue.axes)
    candidates: list[Computation] = []
    for b in epilogue.inputs:
        producer = writers.get(b)
        reads = [x for x in loads(epilogue.body) if x.buffer == b]
        if producer is None or not producer.is_reduction or use_counts[b] != 1 or b.name in pinned:
            continue
        if len(reads) == 1 and b.shape == epilogue.output.shape and is_same_element(reads[0], index):
            candidates.append(producer)
    # A contraction gains most; among equals the last one, whose operands are still in cache.
    return max(reversed(candidates), key=lambda c: product_operands(c.body) is not None, default=None)
