"""Layout assignment: layouts of a program's tensors, and the conversions that are left (ALT, Section 4.2).

In this order, and within each step in the order of the requests:

1. A contraction writes the layout that was requested for its output; element-wise steps that consume it take the layout
   over, so that they stay in its loop nest (constraint 1).
2. The layout that was requested for an operand is written by its producer where that is a simple step (a padding, an
   element-wise step, a pooling, a view); element-wise steps before it take the layout over.
3. Element-wise neighbours of all these tensors take their layouts over, forwards and backwards, where they have none.
4. Operands that still have another layout than the requested one are converted (constraint 3).

A layout that expands the data is never propagated (constraint 2), and is written by a simple step only if that step's
result has no other reader. A tensor that the model's user sees keeps its layout.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import chain

from tilewright.expr.algebra.bounds import NO_BOUNDS
from tilewright.expr.computation import Computation, View
from tilewright.expr.nodes import Buffer, Var
from tilewright.graph.layouts.dataflow import Dataflow, Reason
from tilewright.graph.layouts.plan import LayoutRequest, Variant, is_contraction, step_title
from tilewright.layout.layout import Layout


class Role(StrEnum):
    """The tensor of its operator that a layout was requested for."""

    OUTPUT = "output"
    OPERAND = "operand"


@dataclass(frozen=True, slots=True)
class Assignment:
    """A tensor with an assigned layout.

    Attributes:
        buffer: over logical sizes.
        layout: how it is stored.
        operator: the contraction that the layout was requested for.
        role: whether it was requested for the output or for an operand.
        via: the element-wise step along which the layout was propagated, or the producer that writes it for an operand.
        propagated: whether it was propagated along an element-wise step.
    """

    buffer: Buffer
    layout: Layout
    operator: str
    role: Role
    via: str = ""
    propagated: bool = False


@dataclass(frozen=True, slots=True)
class ConversionRequest:
    """An operand whose layout is not the one that its operator requested.

    Attributes:
        operator: the contraction that reads it.
        operand: its buffer.
        layout: the requested layout.
        reason: why the buffer itself does not have it.
    """

    operator: Computation
    operand: Buffer
    layout: Layout
    reason: Reason


@dataclass(frozen=True, slots=True)
class OverriddenChoice:
    """A request that was dropped because the variant makes two operators share one layout."""

    buffer: Buffer
    operator: str
    layout: Layout


@dataclass(slots=True)
class Assignments:
    """The assignments of a program by buffer name, in the order in which they were made; conversions and dropped
    requests."""

    by_buffer: dict[str, Assignment] = field(default_factory=dict[str, Assignment])
    conversions: list[ConversionRequest] = field(default_factory=list[ConversionRequest])
    overridden: list[OverriddenChoice] = field(default_factory=list[OverriddenChoice])


def assign_layouts(flow: Dataflow, requests: Sequence[LayoutRequest], variant: Variant) -> Assignments:
    """The layouts of all tensors and the conversions that are needed.

    Args:
        flow: the program. Outputs with a request are not pinned.
        requests: in order of priority.
        variant: how far layouts propagate.
    """
    assigner = _Assigner(flow, requests, variant)
    if variant is Variant.BACKWARD:
        assigner.assign_operands()
        assigner.assign_outputs()
    else:
        assigner.assign_outputs()
        assigner.assign_operands()
    for name in list(assigner.result.by_buffer):
        assigner.propagate(name, forward=True, backward=True)
    assigner.find_conversions()
    return assigner.result


def is_same_layout(a: Layout, b: Layout) -> bool:
    """Whether two layouts of one tensor store the same elements at the same places."""
    if a.primitives == b.primitives:
        return True
    if a.physical_shape != b.physical_shape or a.attached or b.attached:
        return False
    index = tuple(Var(f"i{k}") for k in range(len(a.physical_shape)))
    bounds = NO_BOUNDS
    for v, n in zip(index, a.physical_shape, strict=True):
        bounds = bounds.with_loop(v, n)
    return a.backward(index, bounds) == b.backward(index, bounds)


@dataclass(slots=True)
class _Assigner:
    flow: Dataflow
    requests: Sequence[LayoutRequest]
    variant: Variant
    result: Assignments = field(default_factory=Assignments)

    def assign_outputs(self) -> None:
        """Assigns the outputs of contractions, and the results of the element-wise steps that consume them."""
        for request in self.requests:
            b = request.operator.output
            if request.output is None:
                continue
            assigned = self.result.by_buffer.get(b.name)
            if assigned is None:
                self._assign(Assignment(b, request.output, step_title(request.operator), Role.OUTPUT))
                self.propagate(b.name, forward=True)
            elif not is_same_layout(assigned.layout, request.output):
                self.result.overridden.append(OverriddenChoice(b, step_title(request.operator), request.output))

    def assign_operands(self) -> None:
        """Assigns operands to be written by their producers, then the operands of the element-wise steps before
        them."""
        for request in self.requests:
            for b, layout in request.operands:
                if b.name not in self.result.by_buffer and self._refusal_reason(b, layout) is None:
                    writer = self.flow.writers.get(b.name)
                    self._assign(
                        Assignment(
                            b, layout, step_title(request.operator), Role.OPERAND, step_title(writer) if writer else ""
                        )
                    )
        for assignment in list(self.result.by_buffer.values()):
            if assignment.role is Role.OPERAND and not assignment.propagated:
                self.propagate(assignment.buffer.name, backward=True)

    def propagate(self, name: str, *, forward: bool = False, backward: bool = False) -> None:
        """Propagates the layout of a tensor along element-wise steps to tensors without a layout."""
        origin = self.result.by_buffer[name]
        if origin.layout.expands or self.variant is Variant.ADJACENT:
            return
        worklist = [origin.buffer]
        for b in worklist:
            consumers = self.flow.elementwise_consumers(b) if forward else iter(())
            operands = self.flow.elementwise_operands(b) if backward else iter(())
            for other, step in chain(consumers, operands):
                if self._can_propagate_to(other):
                    assignment = replace(origin, buffer=other, via=step_title(step), propagated=True)
                    self._assign(assignment)
                    worklist.append(other)

    def find_conversions(self) -> None:
        """Finds operands that are not stored as their operator requested."""
        for request, b, layout in self._operands():
            assigned = self.result.by_buffer.get(b.name)
            if is_same_layout(assigned.layout if assigned else Layout(b.shape), layout):
                continue
            is_output = assigned is not None and assigned.role is Role.OUTPUT and not assigned.layout.expands
            if is_output and self.variant is Variant.FORWARD:
                self.result.overridden.append(OverriddenChoice(b, step_title(request.operator), layout))
                continue
            reason = self._refusal_reason(b, layout)
            self.result.conversions.append(ConversionRequest(request.operator, b, layout, reason or Reason.OPERATORS))

    def _operands(self) -> Iterator[tuple[LayoutRequest, Buffer, Layout]]:
        return ((request, b, layout) for request in self.requests for b, layout in request.operands)

    def _assign(self, assignment: Assignment) -> None:
        self.result.by_buffer[assignment.buffer.name] = assignment

    def _refusal_reason(self, b: Buffer, layout: Layout) -> Reason | None:
        """Why a buffer cannot be stored as an operator requested, None where it can."""
        writer = self.flow.writers.get(b.name)
        if writer is None and b.name in self.flow.program.constants and b.name not in self.flow.pinned:
            return None if self.flow.has_sole_reader(b.name) else Reason.CONSTANT
        if self.flow.constant_data(b) is not None:
            return Reason.CONSTANT
        if b.name in self.flow.pinned:
            return self.flow.pinned[b.name]
        if is_contraction(writer):
            shares = self.variant is Variant.BACKWARD and not layout.expands
            return None if shares else Reason.OPERATORS
        if layout.expands and not self._has_private_producer(b):
            return Reason.EXPANDS
        return None

    def _has_private_producer(self, b: Buffer) -> bool:
        """Whether a step without a reduction writes a buffer that has one reader."""
        writer = self.flow.writers.get(b.name)
        simple = isinstance(writer, View) or (isinstance(writer, Computation) and not writer.is_reduction)
        return simple and self.flow.has_sole_reader(b.name)

    def _can_propagate_to(self, b: Buffer) -> bool:
        """Whether a layout may be propagated to a tensor."""
        if b.name in self.result.by_buffer or b.name in self.flow.pinned:
            return False
        writer = self.flow.writers.get(b.name)
        if writer is None:
            return b.name in self.flow.program.constants and self.flow.has_sole_reader(b.name)
        if isinstance(writer, View):
            return False
        return not is_contraction(writer) or self.variant is Variant.BACKWARD
