"""Layout propagation: a few chosen layouts make a program whose tensors fit each other (ALT, Section 4.2).

made = propagate(program, {"conv1": Choice(output=(Split(1, (4, 16)), Reorder((0, 1, 3, 4, 2))))})
made.program    computations over stored tensors, to be partitioned as usual
print(made)     which tensor got which layout and why, and which conversions were inserted and why
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.errors import counted
from tilewright.graph.program import Program
from tilewright.layout.apply import Conversion, stored_program, with_conversions, with_own_results
from tilewright.layout.dataflow import Dataflow
from tilewright.layout.decide import Placement, Role, Shared, decide
from tilewright.layout.layout import Layout
from tilewright.layout.plan import Choice, Variant, fitted
from tilewright.layout.primitive import show_shape


@dataclass(frozen=True, slots=True, eq=False)
class Propagation:
    """A program over stored tensors, and how it came about.

    Attributes:
        program: what is compiled.
        layouts: of its buffers that are not stored row by row, by name.
        placements: the tensors that got a layout, in the order in which they got it.
        conversions: the copies that were inserted; those that are `offline` cost nothing in a call.
        shared: choices that were passed over for a layout that two operators share.
        variant: how far layouts travelled.
    """

    program: Program
    layouts: Mapping[str, Layout]
    placements: tuple[Placement, ...]
    conversions: tuple[Conversion, ...]
    shared: tuple[Shared, ...]
    variant: Variant

    @property
    def runtime_conversions(self) -> tuple[Conversion, ...]:
        """The copies that every call makes."""
        return tuple(c for c in self.conversions if not c.offline)

    def __str__(self) -> str:
        lines = [f"propagation {self.variant}: {counted(len(self.placements), 'tensor')} with a layout"]
        lines[0] += f", {counted(len(self.runtime_conversions), 'conversion')}"
        for operator in dict.fromkeys(p.operator for p in self.placements):
            lines.append(operator)
            lines += [f"  {_placed(p)}" for p in self.placements if p.operator == operator]
        lines += [_converted(c) for c in self.conversions]
        for s in self.shared:
            lines.append(f"shared: {s.operator} takes {s.buffer.name} as it is, not {s.layout}")
        return "\n".join(lines)


def propagate(program: Program, choices: Mapping[str, Choice], variant: Variant = Variant.FULL) -> Propagation:
    """The program in which complex operators read and write the layouts that were chosen for them.

    Element-wise steps around an operator take its layouts over; simple producers write what an operator wants to read;
    constants are transformed now; between operators that want one tensor in two layouts, and where the model's user
    sees a tensor, there are conversions. A complex operator without a choice reads what it is given.

    Args:
        program: as the graph was lowered, before it is partitioned.
        choices: by operator (see `Plan`), the most important first: of two that want one tensor the first has it.
        variant: how far layouts travel.

    Raises:
        LayoutError: a choice names no operator of this program, or does not fit its tensor.
    """
    own, wanted, exported = with_own_results(program, fitted(program, choices))
    flow = Dataflow.of(own)
    made = decide(flow, wanted, variant)
    layouts = {name: p.layout for name, p in made.placed.items()}
    converted, every, conversions = with_conversions(flow, made.needs, layouts, exported)
    stored = stored_program(converted, every)
    moved = {name: layout for name, layout in every.items() if not layout.is_plain}
    placements = tuple(made.placed.values())
    return Propagation(stored, moved, placements, (*exported, *conversions), tuple(made.shared), variant)


def _placed(p: Placement) -> str:
    if p.copied:
        return f"{p.buffer.name}: copied along {p.along}"
    written = f", written by {p.along}" if p.role is Role.OPERAND and p.along else ""
    return f"{p.role} {p.buffer.name}{written}: {p.layout}"


def _converted(c: Conversion) -> str:
    before, after = (show_shape(x.physical_shape) if x else "row by row" for x in (c.before, c.after))
    readers = f" for {', '.join(c.readers)}" if c.readers else ""
    return f"conversion {c.source.name} -> {c.result.name}{readers}, {before} to {after}: {c.reason}"
