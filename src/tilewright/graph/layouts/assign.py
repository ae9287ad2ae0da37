"""Which tensor of a program gets which layout, and where conversions are needed (ALT, Section 4.2).

In this order, and within each step in the order of the choices:

1. A complex operator writes what was chosen for its output; element-wise steps behind it take the layout over, so that
   they stay in its loop nest (constraint 1).
2. What was chosen for an operand is written by its producer where that is a simple step (a padding, an element-wise
   step, a pooling, a view); element-wise steps in front of it take the layout over.
3. Element-wise neighbours of all these tensors take their layouts over, forwards and backwards, where they have none.
4. Operands that still have another layout than the chosen one are converted (constraint 3).

A layout that expands the data is never copied (constraint 2), and is written by a simple step only if nobody else reads
the result. A tensor that the model's user sees is never changed.
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
    """For which tensor of its operator a layout was chosen."""

    OUTPUT = "output"
    OPERAND = "operand"


@dataclass(frozen=True, slots=True)
class Assignment:
    """A tensor that has a layout.

    Attributes:
        buffer: over logical sizes.
        layout: how it is stored.
        operator: the complex operator for which the layout was chosen.
        role: for its output or for an operand.
        along: the element-wise step along which the layout was copied, or the producer that writes it for an operand.
        copied: whether it came along an element-wise step.
    """

    buffer: Buffer
    layout: Layout
    operator: str
    role: Role
    via: str = ""
    propagated: bool = False


@dataclass(frozen=True, slots=True)
class ConversionRequest:
    """An operand that has another layout than the operator wants.

    Attributes:
        operator: the sum of products that reads it.
        operand: its buffer.
        layout: what is wanted.
        reason: why the buffer itself does not have it.
    """

    operator: Computation
    operand: Buffer
    layout: Layout
    reason: Reason


@dataclass(frozen=True, slots=True)
class OverriddenChoice:
    """A choice that was passed over because the variant makes two operators share one layout."""

    buffer: Buffer
    operator: str
    layout: Layout


@dataclass(slots=True)
class Assignments:
    """The layouts of a program's tensors, by buffer name in the order in which they were given; and what is left."""

    by_buffer: dict[str, Assignment] = field(default_factory=dict[str, Assignment])
    conversions: list[ConversionRequest] = field(default_factory=list[ConversionRequest])
    overridden: list[OverriddenChoice] = field(default_factory=list[OverriddenChoice])


def assign_layouts(flow: Dataflow, requests: Sequence[LayoutRequest], variant: Variant) -> Assignments:
    """The layouts of all tensors and the conversions that are needed.

    Args:
        flow: the program. Chosen outputs are not pinned.
        wanted: choices in their order.
        variant: how far layouts travel.
    """
    d = _Assigner(flow, requests, variant)
    if variant is Variant.BACKWARD:
        d.assign_operands()
        d.assign_outputs()
    else:
        d.assign_outputs()
        d.assign_operands()
    for name in list(d.result.by_buffer):
        d.propagate(name, forward=True, backward=True)
    d.find_conversions()
    return d.result


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
        """What complex operators write, and the element-wise steps behind them."""
        for w in self.requests:
            b = w.operator.output
            if w.output is None:
                continue
            have = self.result.by_buffer.get(b.name)
            if have is None:
                self._assign(Assignment(b, w.output, step_title(w.operator), Role.OUTPUT))
                self.propagate(b.name, forward=True)
            elif not is_same_layout(have.layout, w.output):
                self.result.overridden.append(OverriddenChoice(b, step_title(w.operator), w.output))

    def assign_operands(self) -> None:
        """What the producers of operands write, and then the element-wise steps in front of them."""
        for w in self.requests:
            for b, layout in w.operands:
                if b.name not in self.result.by_buffer and self._refusal_reason(b, layout) is None:
                    writer = self.flow.writers.get(b.name)
                    self._assign(
                        Assignment(
                            b, layout, step_title(w.operator), Role.OPERAND, step_title(writer) if writer else ""
                        )
                    )
        for placement in list(self.result.by_buffer.values()):
            if placement.role is Role.OPERAND and not placement.propagated:
                self.propagate(placement.buffer.name, backward=True)

    def propagate(self, name: str, *, forward: bool = False, backward: bool = False) -> None:
        """Copies the layout of a tensor along element-wise steps to tensors that have none."""
        origin = self.result.by_buffer[name]
        if origin.layout.expands or self.variant is Variant.ADJACENT:
            return
        reached = [origin.buffer]
        for b in reached:
            ahead = self.flow.elementwise_consumers(b) if forward else iter(())
            behind = self.flow.elementwise_operands(b) if backward else iter(())
            for other, along in chain(ahead, behind):
                if self._can_propagate_to(other):
                    copied = replace(origin, buffer=other, via=step_title(along), propagated=True)
                    self._assign(copied)
                    reached.append(other)

    def find_conversions(self) -> None:
        """Operands that are not stored as their operator wants them."""
        for w, b, layout in self._operands():
            have = self.result.by_buffer.get(b.name)
            if is_same_layout(have.layout if have else Layout(b.shape), layout):
                continue
            passes_on = have is not None and have.role is Role.OUTPUT and not have.layout.expands
            if passes_on and self.variant is Variant.FORWARD:
                self.result.overridden.append(OverriddenChoice(b, step_title(w.operator), layout))
                continue
            refusal = self._refusal_reason(b, layout)
            self.result.conversions.append(ConversionRequest(w.operator, b, layout, refusal or Reason.OPERATORS))

    def _operands(self) -> Iterator[tuple[LayoutRequest, Buffer, Layout]]:
        return ((w, b, layout) for w in self.requests for b, layout in w.operands)

    def _assign(self, assignment: Assignment) -> None:
        self.result.by_buffer[assignment.buffer.name] = assignment

    def _refusal_reason(self, b: Buffer, layout: Layout) -> Reason | None:
        """Why a buffer can't be stored as an operator wants it; None where it can."""
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
        """Whether a simple step that reduces nothing writes a buffer, and one step alone reads it."""
        writer = self.flow.writers.get(b.name)
        simple = isinstance(writer, View) or (isinstance(writer, Computation) and not writer.is_reduction)
        return simple and self.flow.has_sole_reader(b.name)

    def _can_propagate_to(self, b: Buffer) -> bool:
        """Whether a layout may be copied to a tensor."""
        if b.name in self.result.by_buffer or b.name in self.flow.pinned:
            return False
        writer = self.flow.writers.get(b.name)
        if writer is None:
            return b.name in self.flow.program.constants and self.flow.has_sole_reader(b.name)
        if isinstance(writer, View):
            return False
        return not is_contraction(writer) or self.variant is Variant.BACKWARD
