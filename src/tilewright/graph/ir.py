"""The model as a graph of operators: frozen nodes over named values, with symbolic shapes.

The front end makes a `Graph`; graph passes rewrite it; `lower.py` turns it into a `Program` of tensor expressions.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tilewright.expr.dtype import DType
from tilewright.expr.nodes import Expr, Var

Array = np.ndarray[Any, Any]

Attribute = int | float | str | bytes | Array | tuple[int, ...] | tuple[float, ...] | tuple[str, ...]
"""Attribute values; a sub-graph or other exotic attribute stays in `Node.source` only."""


@dataclass(frozen=True, slots=True)
class TensorType:
    """Element type and shape of a value; sizes are expressions over the model's symbols."""

    dtype: DType
    shape: tuple[Expr, ...]

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Value:
    """A named value with its type."""

    name: str
    type: TensorType


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One operator application.

    Attributes:
        name: the user's name of the node, or "OpType#index" where the model gives none; unique within the graph.
        op_type: operator name.
        domain: "" for the standard operators.
        opset: version of the operator set that the model imports for the domain.
        inputs: value names; "" marks an optional input that is left out.
        outputs: value names; "" marks an output that nobody needs.
        attributes: by name.
        source: the serialized NodeProto, for the reference evaluator.
        captures: names under which sub-graphs in `source` use values of the graph around them; the last
            `len(captures)` entries of `inputs` are those values, so that order and liveness see them.
        nested: whether `source` holds sub-graphs or attributes that `attributes` leaves out.
    """

    name: str
    op_type: str
    domain: str
    opset: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute]
    source: bytes = b""
    captures: tuple[str, ...] = ()
    has_opaque_attributes: bool = False

    @property
    def arguments(self) -> tuple[str, ...]:
        """The inputs that the operator itself takes, without the values that its sub-graphs capture."""
        return self.inputs[: len(self.inputs) - len(self.captures)]

    @property
    def label(self) -> str:
        """How errors and reports call the node: "conv1 (Conv)"."""
        return f"{self.name} ({self.op_type})"


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """A model.

    Attributes:
        name: the model's graph name.
        inputs: what a caller feeds; dimensions are literals or symbols (`Var`), nothing compound.
        outputs: names of the values returned, in order.
        constants: initializers by value name.
        nodes: topologically sorted.
        symbols: the symbolic dimensions with their declared ranges, in the order of their first use in `inputs`.
        declared: types that the model file declares for values, by name (symbols of declared dims are ignored for
            everything but inputs); used to check and as a last resort for operators without a definition.
        metadata: producer, version and custom properties ("custom:<key>"), all strings.
        opsets: version of every operator set that the model imports, by domain.
        symbol_names: what the user calls a symbol, by its identifier ("height" for "height", "x[2]" for an unnamed
            dimension).
        types: serialized TypeProtos of inputs that are no tensors of known rank (`opaque`), by name.
    """

    name: str
    inputs: tuple[Value, ...]
    outputs: tuple[str, ...]
    constants: Mapping[str, Array]
    nodes: tuple[Node, ...]
    symbols: tuple[Var, ...] = ()
    declared_types: Mapping[str, TensorType] = field(default_factory=dict[str, TensorType])
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    opsets: Mapping[str, int] = field(default_factory=dict[str, int])
    symbol_names: Mapping[str, str] = field(default_factory=dict[str, str])
    opaque_types: Mapping[str, bytes] = field(default_factory=dict[str, bytes])

    def with_nodes(self, nodes: tuple[Node, ...], constants: Mapping[str, Array] | None = None) -> "Graph":
        """The same graph over other nodes."""
        return replace(self, nodes=nodes, constants=self.constants if constants is None else constants)
