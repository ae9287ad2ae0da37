"""A model as tensor expressions: the form in which it is partitioned, scheduled and planned."""

from collections.abc import Container, Mapping
from dataclasses import dataclass, field

from tilewright.expr.computation import Stage
from tilewright.expr.nodes import Buffer, Expr, Var
from tilewright.graph.ir import Array, Node


@dataclass(frozen=True, slots=True)
class Constraint:
    """A condition on the symbols that must hold at run time ("a == b" for two dimensions that are added)."""

    condition: Expr
    message: str


@dataclass(frozen=True, slots=True, eq=False)
class Fallback:
    """Nodes that run on ONNX's reference evaluator, between native segments.

    Attributes:
        nodes: the nodes.
        inputs: buffers that are fed to the model; constants are part of the model instead.
        outputs: buffers that it fills.
        arriving: their sizes as the evaluator tells them, literals and symbols. Where a buffer has another size, a
            constraint of the program says that the two are equal.
        fresh: the symbols among them that only the evaluator knows.
        reason: why the nodes have no native code.
        model: a serialized ONNX model; its inputs and outputs are called like the buffers, in their order.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    runtime_shapes: tuple[tuple[Expr, ...], ...]
    data_symbols: tuple[Var, ...]
    reason: str
    model: bytes

    @property
    def label(self) -> str:
        """The user's names of the nodes."""
        return ", ".join(n.label for n in self.nodes)


Step = Stage | Fallback


def step_outputs(step: Step) -> tuple[Buffer, ...]:
    """The buffers that a step fills."""
    return step.outputs if isinstance(step, Fallback) else (step.output,)


def unique_name(hint: str, taken: Container[str]) -> str:
    """The wish, or the wish with the first number from 1 on that makes it a name that is not taken."""
    name, k = hint, 1
    while name in taken:
        name, k = f"{hint}{k}", k + 1
    return name


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """Stages in an order of execution.

    Attributes:
        name: the model's name.
        inputs: buffers fed by the caller, in the model's order; their names are identifiers.
        outputs: (output name, buffer) in the model's order; a buffer may be an input, a constant or shared.
        constants: data of constant buffers, by buffer name.
        steps: computations, views and fallbacks; every buffer is written once, before it is read.
        symbols: symbolic dimensions with ranges.
        constraints: checked at the start of every call.
        metadata: producer, version and custom properties ("custom:<key>"), all strings.
        input_names: what the model calls `inputs`.
        symbol_names: what the user calls a symbol, by its identifier.
        values: the buffer of every value of the model that is kept, by the model's name.
    """

    name: str
    inputs: tuple[Buffer, ...]
    outputs: tuple[tuple[str, Buffer], ...]
    constants: Mapping[str, Array]
    steps: tuple[Step, ...]
    symbols: tuple[Var, ...]
    constraints: tuple[Constraint, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    input_names: tuple[str, ...] = ()
    symbol_names: Mapping[str, str] = field(default_factory=dict[str, str])
    values: Mapping[str, Buffer] = field(default_factory=dict[str, Buffer])

    @property
    def buffer_names(self) -> frozenset[str]:
        """The names of all buffers."""
        used = (b.name for s in self.steps for b in (*s.inputs, *step_outputs(s)))
        return frozenset((*used, *self.constants, *(b.name for b in self.inputs)))
