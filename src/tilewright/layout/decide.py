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

from tilewright.expr.bounds import NOTHING_KNOWN
from tilewright.expr.buffer import Buffer
from tilewright.expr.computation import Computation, View
from tilewright.expr.nodes import Var
from tilewright.layout.dataflow import Dataflow, Reason
from tilewright.layout.layout import Layout
from tilewright.layout.plan import Variant, Wanted, is_complex, title


class Role(StrEnum):
    """For which tensor of its operator a layout was chosen."""

    OUTPUT = "output"
    OPERAND = "operand"


@dataclass(frozen=True, slots=True)
class Placement:
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
    along: str = ""
    copied: bool = False


@dataclass(frozen=True, slots=True)
class Need:
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
class Shared:
    """A choice that was passed over because the variant makes two operators share one layout."""

    buffer: Buffer
    operator: str
    layout: Layout


@dataclass(slots=True)
class Decisions:
    """The layouts of a program's tensors, by buffer name in the order in which they were given; and what is left."""

    placed: dict[str, Placement] = field(default_factory=dict[str, Placement])
    needs: list[Need] = field(default_factory=list[Need])
    shared: list[Shared] = field(default_factory=list[Shared])


def decide(flow: Dataflow, wanted: Sequence[Wanted], variant: Variant) -> Decisions:
    """The layouts of all tensors and the conversions that are needed.

    Args:
        flow: the program. Chosen outputs are not pinned.
        wanted: choices in their order.
        variant: how far layouts travel.
    """
    d = _Decider(flow, wanted, variant)
    if variant is Variant.BACKWARD:
        d.place_operands()
        d.place_outputs()
    else:
        d.place_outputs()
        d.place_operands()
    for name in list(d.made.placed):
        d.spread(name, forward=True, backward=True)
    d.find_needs()
    return d.made


def same_layout(a: Layout, b: Layout) -> bool:
    """Whether two layouts of one tensor store the same elements at the same places."""
    if a.primitives == b.primitives:
        return True
    if a.physical_shape != b.physical_shape or a.attached or b.attached:
        return False
    index = tuple(Var(f"i{k}") for k in range(len(a.physical_shape)))
    bounds = NOTHING_KNOWN
    for v, n in zip(index, a.physical_shape, strict=True):
        bounds = bounds.with_loop(v, n)
    return a.backward(index, bounds) == b.backward(index, bounds)


@dataclass(slots=True)
class _Decider:
    flow: Dataflow
    wanted: Sequence[Wanted]
    variant: Variant
    made: Decisions = field(default_factory=Decisions)

    def place_outputs(self) -> None:
        """What complex operators write, and the element-wise steps behind them."""
        for w in self.wanted:
            b = w.operator.output
            if w.output is None:
                continue
            have = self.made.placed.get(b.name)
            if have is None:
                self._place(Placement(b, w.output, title(w.operator), Role.OUTPUT))
                self.spread(b.name, forward=True)
            elif not same_layout(have.layout, w.output):
                self.made.shared.append(Shared(b, title(w.operator), w.output))

    def place_operands(self) -> None:
        """What the producers of operands write, and then the element-wise steps in front of them."""
        for w in self.wanted:
            for b, layout in w.operands:
                if b.name not in self.made.placed and self._refusal(b, layout) is None:
                    writer = self.flow.writers.get(b.name)
                    self._place(Placement(b, layout, title(w.operator), Role.OPERAND, title(writer) if writer else ""))
        for placement in list(self.made.placed.values()):
            if placement.role is Role.OPERAND and not placement.copied:
                self.spread(placement.buffer.name, backward=True)

    def spread(self, name: str, *, forward: bool = False, backward: bool = False) -> None:
        """Copies the layout of a tensor along element-wise steps to tensors that have none."""
        origin = self.made.placed[name]
        if origin.layout.expands or self.variant is Variant.ADJACENT:
            return
        reached = [origin.buffer]
        for b in reached:
            ahead = self.flow.followers(b) if forward else iter(())
            behind = self.flow.sources(b) if backward else iter(())
            for other, along in chain(ahead, behind):
                if self._may_follow(other):
                    copied = replace(origin, buffer=other, along=title(along), copied=True)
                    self._place(copied)
                    reached.append(other)

    def find_needs(self) -> None:
        """Operands that are not stored as their operator wants them."""
        for w, b, layout in self._operands():
            have = self.made.placed.get(b.name)
            if same_layout(have.layout if have else Layout(b.shape), layout):
                continue
            passes_on = have is not None and have.role is Role.OUTPUT and not have.layout.expands
            if passes_on and self.variant is Variant.FORWARD:
                self.made.shared.append(Shared(b, title(w.operator), layout))
                continue
            refusal = self._refusal(b, layout)
            self.made.needs.append(Need(w.operator, b, layout, refusal or Reason.OPERATORS))

    def _operands(self) -> Iterator[tuple[Wanted, Buffer, Layout]]:
        return ((w, b, layout) for w in self.wanted for b, layout in w.operands)

    def _place(self, placement: Placement) -> None:
        self.made.placed[placement.buffer.name] = placement

    def _refusal(self, b: Buffer, layout: Layout) -> Reason | None:
        """Why a buffer can't be stored as an operator wants it; None where it can."""
        writer = self.flow.writers.get(b.name)
        if writer is None and b.name in self.flow.program.constants and b.name not in self.flow.pinned:
            return None if self.flow.sole_reader(b.name) else Reason.CONSTANT
        if self.flow.data(b) is not None:
            return Reason.CONSTANT
        if b.name in self.flow.pinned:
            return self.flow.pinned[b.name]
        if is_complex(writer):
            shares = self.variant is Variant.BACKWARD and not layout.expands
            return None if shares else Reason.OPERATORS
        if layout.expands and not self._writes_for_one(b):
            return Reason.EXPANDS
        return None

    def _writes_for_one(self, b: Buffer) -> bool:
        """Whether a simple step that reduces nothing writes a buffer, and one step alone reads it."""
        writer = self.flow.writers.get(b.name)
        simple = isinstance(writer, View) or (isinstance(writer, Computation) and not writer.is_reduction)
        return simple and self.flow.sole_reader(b.name)

    def _may_follow(self, b: Buffer) -> bool:
        """Whether a layout may be copied to a tensor."""
        if b.name in self.made.placed or b.name in self.flow.pinned:
            return False
        writer = self.flow.writers.get(b.name)
        if writer is None:
            return b.name in self.flow.program.constants and self.flow.sole_reader(b.name)
        if isinstance(writer, View):
            return False
        return not is_complex(writer) or self.variant is Variant.BACKWARD
