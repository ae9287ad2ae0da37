"""Layout propagation: a few chosen layouts extended to a program whose tensors fit each other (ALT, Section 4.2).

Example:

    result = propagate(program, {"conv1": Choice(output=(Split(1, (4, 16)), Reorder((0, 1, 3, 4, 2))))})
    result.program    # computations over stored tensors, to be partitioned as usual
    print(result)     # the layout of each tensor and the conversions, with their reasons
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.errors import pluralize
from tilewright.graph.layouts.assign import Assignment, OverriddenChoice, Role, assign_layouts
from tilewright.graph.layouts.dataflow import Dataflow
from tilewright.graph.layouts.materialize import (
    Conversion,
    insert_conversions,
    materialize_layouts,
    separate_pinned_outputs,
)
from tilewright.graph.layouts.plan import Choice, Variant, bind_choices
from tilewright.graph.program import Program
from tilewright.layout.layout import Layout
from tilewright.layout.primitive import show_shape


@dataclass(frozen=True, slots=True, eq=False)
class Propagation:
    """A program over stored tensors, with the layouts that it was derived from.

    Attributes:
        program: the program to compile.
        layouts: of its buffers that are not row-major, by name.
        assignments: the tensors with an assigned layout, in the order of assignment.
        conversions: the inserted copies; those that are `precomputed` cost nothing in a call.
        overridden: requests that were dropped for a layout that two operators share.
        variant: how far layouts propagate.
    """

    program: Program
    layouts: Mapping[str, Layout]
    assignments: tuple[Assignment, ...]
    conversions: tuple[Conversion, ...]
    overridden: tuple[OverriddenChoice, ...]
    variant: Variant

    @property
    def runtime_conversions(self) -> tuple[Conversion, ...]:
        """The copies that every call makes."""
        return tuple(c for c in self.conversions if not c.precomputed)

    def __str__(self) -> str:
        lines = [f"propagation {self.variant}: {pluralize(len(self.assignments), 'tensor')} with a layout"]
        lines[0] += f", {pluralize(len(self.runtime_conversions), 'conversion')}"
        for operator in dict.fromkeys(p.operator for p in self.assignments):
            lines.append(operator)
            lines += [f"  {_format_assignment(p)}" for p in self.assignments if p.operator == operator]
        lines += [_format_conversion(c) for c in self.conversions]
        for s in self.overridden:
            lines.append(f"shared: {s.operator} takes {s.buffer.name} as it is, not {s.layout}")
        return "\n".join(lines)


def propagate(program: Program, choices: Mapping[str, Choice], variant: Variant = Variant.FULL) -> Propagation:
    """The program in which contractions read and write the layouts that were chosen for them.

    Element-wise steps around an operator take its layouts over; simple producers write the layout that an operator
    reads; constants are transformed at compile time; conversions stand between operators that request one tensor in two
    layouts, and where the model's user sees a tensor. A contraction without a choice reads its operands as they are.

    Args:
        program: as the graph was lowered, before it is partitioned.
        choices: by operator (see `Plan`), in order of priority.
        variant: how far layouts propagate.

    Raises:
        LayoutError: a choice names no operator of this program, or does not fit its tensor.
    """
    separated, requests, exported = separate_pinned_outputs(program, bind_choices(program, choices))
    flow = Dataflow.of(separated)
    assigned = assign_layouts(flow, requests, variant)
    layouts = {name: p.layout for name, p in assigned.by_buffer.items()}
    converted, all_layouts, conversions = insert_conversions(flow, assigned.conversions, layouts, exported)
    stored = materialize_layouts(converted, all_layouts)
    stored_layouts = {name: layout for name, layout in all_layouts.items() if not layout.is_plain}
    assignments = tuple(assigned.by_buffer.values())
    return Propagation(
        stored, stored_layouts, assignments, (*exported, *conversions), tuple(assigned.overridden), variant
    )


def _format_assignment(p: Assignment) -> str:
    if p.propagated:
        return f"{p.buffer.name}: copied along {p.via}"
    written = f", written by {p.via}" if p.role is Role.OPERAND and p.via else ""
    return f"{p.role} {p.buffer.name}{written}: {p.layout}"


def _format_conversion(c: Conversion) -> str:
    before, after = (show_shape(x.physical_shape) if x else "row-major" for x in (c.before, c.after))
    readers = f" for {', '.join(c.readers)}" if c.readers else ""
    return f"conversion {c.source.name} -> {c.result.name}{readers}, {before} to {after}: {c.reason}"
