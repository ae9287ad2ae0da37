"""Partition of a program into kernels: a reduction with its element-wise epilogue, an element-wise computation alone,
or a chain of them that works row by row (`rows.py`)."""

from dataclasses import dataclass

from tilewright.expr.computation import Computation, View
from tilewright.expr.nodes import Buffer
from tilewright.expr.traversal import loads
from tilewright.graph.coalesce_axes import Kernel, make_kernel
from tilewright.graph.fuse_rowwise import fuse_rowwise
from tilewright.graph.inline_elementwise import inline_elementwise, inline_scalars, is_contraction_body, is_same_element
from tilewright.graph.program import Fallback, Program

Unit = Kernel | View | Fallback


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """A program whose computations are grouped: `units` in an order of execution."""

    program: Program
    units: tuple[Unit, ...]


def partition(program: Program) -> Partition:
    """Groups the computations of a program after inlining element-wise producers."""
    program = inline_elementwise(inline_scalars(program))
    pinned = {buffer.name for _, buffer in program.outputs}
    uses = _use_counts(program)
    writers = {s.output: s for s in program.steps if isinstance(s, Computation)}
    absorbed: dict[Buffer, Computation] = {}
    for step in program.steps:
        if isinstance(step, Computation) and not step.is_reduction:
            first = _fusible_reduction(step, writers, uses, pinned)
            if first is not None:
                absorbed[step.output] = first
    gone = {c.output for c in absorbed.values()}
    left = [s for s in program.steps if isinstance(s, Computation) and s.output not in gone]
    groups = fuse_rowwise([(absorbed[s.output], s) if s.output in absorbed else (s,) for s in left], program)
    last = {group[-1].output: group for group in groups}
    units: list[Unit] = []
    for step in program.steps:
        if not isinstance(step, Computation):
            units.append(step)
        elif step.output in last:
            units.append(make_kernel(last[step.output]))
    return Partition(program, tuple(units))


def _use_counts(program: Program) -> dict[Buffer, int]:
    count: dict[Buffer, int] = {}
    for step in program.steps:
        for b in dict.fromkeys(step.inputs):
            count[b] = count.get(b, 0) + 1
    return count


def _fusible_reduction(
    epilogue: Computation, writers: dict[Buffer, Computation], use_counts: dict[Buffer, int], pinned: set[str]
) -> Computation | None:
    """The reduction whose results the element-wise computation may take over as they are made."""
    index = tuple(a.var for a in epilogue.axes)
    candidates: list[Computation] = []
    for b in epilogue.inputs:
        producer = writers.get(b)
        reads = [x for x in loads(epilogue.body) if x.buffer == b]
        if producer is None or not producer.is_reduction or use_counts[b] != 1 or b.name in pinned:
            continue
        if len(reads) == 1 and b.shape == epilogue.output.shape and is_same_element(reads[0], index):
            candidates.append(producer)
    # A contraction gains most; among equals the last one, whose operands are warm.
    return max(reversed(candidates), key=lambda c: is_contraction_body(c.body), default=None)
