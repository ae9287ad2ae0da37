"""A model as tensor expressions: the form in which it is partitioned, scheduled and planned."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tilewright.expr.buffer import Buffer
from tilewright.expr.computation import Stage
from tilewright.expr.nodes import Expr, Var
from tilewright.graph.ir import Array, Node


@dataclass(frozen=True, slots=True)
class Constraint:
    """A condition on the symbols that must hold at run time ("a == b" for two dimensions that are added)."""

    condition: Expr
    message: str


@dataclass(frozen=True, slots=True, eq=False)
class Fallback:
    """A node that runs on ONNX's reference evaluator, between native segments.

    `outputs` may have symbols of their own (`fresh`) for dimensions that only the evaluator knows.
    """

    node: Node
    inputs: tuple[Buffer | None, ...]
    outputs: tuple[Buffer | None, ...]
    fresh: tuple[Var, ...]
    reason: str

    @property
    def label(self) -> str:
        """The user's name of the node."""
        return self.node.label


Step = Stage | Fallback


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """Stages in an order of execution.

    Attributes:
        name: the model's name.
        inputs: buffers fed by the caller, named like the model's inputs.
        outputs: (output name, buffer) in the model's order; a buffer may be an input, a constant or shared.
        constants: data of constant buffers, by buffer name.
        steps: computations, views and fallbacks; every buffer is written once, before it is read.
        symbols: symbolic dimensions with ranges.
        constraints: checked at the start of every call.
        nodes: number of nodes of the model after the graph passes.
    """

    name: str
    inputs: tuple[Buffer, ...]
    outputs: tuple[tuple[str, Buffer], ...]
    constants: Mapping[str, Array]
    steps: tuple[Step, ...]
    symbols: tuple[Var, ...]
    constraints: tuple[Constraint, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
