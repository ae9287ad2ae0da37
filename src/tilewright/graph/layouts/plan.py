"""Layout plans: layouts that an optimizer or a user chooses for the tensors of contractions.

    Plan({"conv1": Choice(output=(Split(1, (4, 16)), Reorder((0, 1, 3, 4, 2))))})

Only *complex* operators in ALT's sense (sums of products: convolutions, matrix products) have a choice of their own;
all other steps adapt (`propagate`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from tilewright.errors import LayoutError
from tilewright.expr.computation import Computation, View
from tilewright.expr.nodes import Buffer
from tilewright.expr.pattern import is_sum_of_products
from tilewright.graph.program import Program, Step
from tilewright.layout.layout import Layout
from tilewright.layout.primitive import Primitive, is_provably_equal, show_shape
from tilewright.layout.primitives import DecoupleAt, StoreAt


class Variant(StrEnum):
    """How far layouts propagate; all but the first measure what propagation is worth (ALT, Section 7)."""

    FULL = "full"
    """Along element-wise operators; between two complex operators that differ there is a conversion."""

    ADJACENT = "adjacent"
    """ALT-WP: producers write and consumers read a chosen layout; it is copied to no other tensor."""

    FORWARD = "forward"
    """ALT-FP: a complex operator reads what the one before it writes, whatever it would have chosen."""

    BACKWARD = "backward"
    """ALT-BP: a complex operator writes the layout that the next one reads, whatever it would have chosen."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Layouts for one contraction. None leaves a tensor as it is; an empty tuple of primitives asks for row-major.

    Attributes:
        output: of the sum of products, in the operator's own shape (before bias and activation).
        operands: of the two factors, in the order of the expression (`contraction_operands`). The input of a
            convolution is the padded one.
    """

    output: "Layout | tuple[Primitive, ...] | None" = None
    operands: "tuple[Layout | tuple[Primitive, ...] | None, ...]" = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """Choices in order of priority: of two that concern one tensor the first applies.

    Attributes:
        choices: by the name of a node of the model, of a value that it computes, or of the buffer of the sum itself.
        variant: how far layouts propagate.
    """

    choices: Mapping[str, Choice] = field(default_factory=dict[str, Choice])
    variant: Variant = Variant.FULL


@dataclass(frozen=True, slots=True)
class LayoutRequest:
    """A choice that was checked against its operator.

    Attributes:
        operator: the contraction.
        output: the layout of its output, if one was chosen.
        operands: the buffers with a chosen layout, with that layout.
    """

    operator: Computation
    output: Layout | None
    operands: tuple[tuple[Buffer, Layout], ...]


def is_contraction(step: object) -> bool:
    """Whether a step is a sum of products, whose layouts can be chosen."""
    return isinstance(step, Computation) and is_sum_of_products(step)


def contractions(program: Program) -> tuple[Computation, ...]:
    """The steps whose layouts can be chosen, in order of execution."""
    return tuple(s for s in program.steps if isinstance(s, Computation) and is_contraction(s))


def contraction_operands(operator: Computation) -> tuple[Buffer, ...]:
    """The buffers that a choice's `operands` refer to."""
    return operator.inputs


def step_title(step: Step) -> str:
    """A step's name in texts: the user's node, or its buffer."""
    return step.label or (step.output.name if isinstance(step, Computation | View) else "")


def bind_choices(program: Program, choices: Mapping[str, Choice]) -> tuple[LayoutRequest, ...]:
    """The choices with their operators, in order.

    Raises:
        LayoutError: a name denotes no contraction or several, or a layout does not fit its tensor; says what was
            expected and what was given.
    """
    names = _contractions_by_name(program)
    requests: dict[str, LayoutRequest] = {}
    for name, choice in choices.items():
        if not isinstance(choice, Choice):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may have no types
            raise LayoutError(f"expected a Choice, got {type(choice).__name__}", where=f"layouts[{name!r}]")
        operator = _resolve_name(name, names, program)
        if operator.output.name in requests:
            raise LayoutError(f"{step_title(operator)} has a choice already", where=f"layouts[{name!r}]")
        requests[operator.output.name] = _bind_choice(operator, choice, program)
    return tuple(requests.values())


def unassigned_operators(program: Program, choices: Mapping[str, Choice]) -> tuple[tuple[str, int], ...]:
    """The operators without a choice: an unambiguous name of each, and its number of operands."""
    names = _contractions_by_name(program)
    assigned = {_resolve_name(name, names, program).output.name for name in choices}
    unassigned: list[tuple[str, int]] = []
    for c in contractions(program):
        node, _, _ = c.label.rpartition(" (")
        name = node if len(names.get(node, ())) == 1 else c.output.name
        if c.output.name not in assigned:
            unassigned.append((name, len(contraction_operands(c))))
    return tuple(unassigned)


def _contractions_by_name(program: Program) -> dict[str, list[Computation]]:
    """Contractions by every name that users may give them."""
    by_name: dict[str, list[Computation]] = {}
    values: dict[str, list[str]] = {}
    for name, b in program.values.items():
        values.setdefault(b.name, []).append(name)
    labels = {s.output.name: s.label for s in program.steps if isinstance(s, Computation)}
    for c in contractions(program):
        node, _, _ = c.label.rpartition(" (")
        aliases = [c.output.name, c.label, node]
        # A value of the model may be the output of the bias stage of the same node.
        aliases += [n for b, listed in values.items() if c.label and labels.get(b) == c.label for n in listed]
        aliases += values.get(c.output.name, [])
        for name in dict.fromkeys(n for n in aliases if n):
            by_name.setdefault(name, []).append(c)
    return by_name


def _resolve_name(name: str, names: Mapping[str, list[Computation]], program: Program) -> Computation:
    where = f"layouts[{name!r}]"
    candidates = names.get(name, [])
    if len(candidates) == 1:
        return candidates[0]
    same_buffer = [c for c in candidates if c.output.name == name]
    if same_buffer:
        return same_buffer[0]
    if candidates:
        listed = ", ".join(repr(c.output.name) for c in candidates)
        raise LayoutError(
            f"{len(candidates)} sums of products have this name", where=where, hint=f"use one of {listed}"
        )
    titles = ", ".join(dict.fromkeys(step_title(c) for c in contractions(program))) or "none"
    hint = f"those of this model are {titles}"
    raise LayoutError("there is no convolution or matrix product of this name", where=where, hint=hint)


def _bind_choice(operator: Computation, choice: Choice, program: Program) -> LayoutRequest:
    node = f"node {step_title(operator)}"
    operands = contraction_operands(operator)
    if len(choice.operands) > len(operands):
        listed = ", ".join(b.name for b in operands)
        raise LayoutError(
            f"expected layouts of at most {len(operands)} operands ({listed}), got {len(choice.operands)}", where=node
        )
    output = _bind_layout(choice.output, operator.output, f"{node}, output", program)
    layouts = [
        (b, layout)
        for k, (b, operand_choice) in enumerate(zip(operands, choice.operands, strict=False))
        if (layout := _bind_layout(operand_choice, b, f"{node}, operand {k} ({b.name})", program)) is not None
    ]
    return LayoutRequest(operator, output, tuple(layouts))


def _bind_layout(
    choice: Layout | tuple[Primitive, ...] | None, buffer: Buffer, where: str, program: Program
) -> Layout | None:
    """The layout of a buffer, built from primitives or checked against the buffer's shape."""
    if choice is None:
        return None
    if isinstance(choice, Layout):
        if len(choice.shape) != buffer.rank or not all(map(is_provably_equal, choice.shape, buffer.shape)):
            expected, got = show_shape(buffer.shape), show_shape(choice.shape)
            raise LayoutError(f"expected a layout of shape {expected}, got one of {got}", where=where)
        choice = choice.primitives
    invalid = [choice] if not isinstance(choice, tuple) else [p for p in choice if not isinstance(p, Primitive)]  # pyright: ignore
    if invalid:
        raise LayoutError(f"expected a Layout or a tuple of primitives, got {invalid[0]!r}", where=where)
    try:
        return Layout(buffer.shape, tuple(_resolve_attached(p, program) for p in choice))
    except LayoutError as e:
        raise LayoutError(e.what, where=f"{where}, {e.where}", hint=e.hint) from None


def _resolve_attached(p: Primitive, program: Program) -> Primitive:
    """An attached tensor by its buffer's name; users give the model's name."""
    if isinstance(p, StoreAt | DecoupleAt) and p.other in program.values:
        return replace(p, other=program.values[p.other].name)
    return p
