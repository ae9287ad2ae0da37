"""The graph IR: frozen operator nodes over named values with symbolic shapes.

A front end builds a `Graph`, graph passes rewrite it, and `lower.py` lowers it to a `Program` of tensor expressions.
What only the front end knows about its operators is behind the graph's `Dialect`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from tilewright.errors import UnsupportedError
from tilewright.expr.dtype import DType
from tilewright.expr.nodes import Buffer, Const, Expr, Var

Array = np.ndarray[Any, Any]

Attribute = int | float | str | bytes | Array | tuple[int, ...] | tuple[float, ...] | tuple[str, ...]
"""Attribute values; an attribute of another type is in `Node.source` only, and sub-graphs in `Node.subgraphs`, too."""


@dataclass(frozen=True, slots=True)
class TensorType:
    """Element type and shape of a value; sizes are expressions over the model's symbols."""

    dtype: DType
    shape: tuple[Expr, ...]

    def has_other_shape(self, other: "TensorType") -> bool:
        """Whether ranks or literal sizes differ; symbol names carry no information."""
        if len(self.shape) != len(other.shape):
            return True
        pairs = zip(self.shape, other.shape, strict=True)
        return any(a is not b and isinstance(a, Const) and isinstance(b, Const) for a, b in pairs)

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
        opset: version of the domain's operator set that the model imports.
        inputs: value names; "" marks an omitted optional input.
        outputs: value names; "" marks an output without uses.
        attributes: by name.
        source: the serialized NodeProto, for the dialect's evaluator.
        captures: names by which sub-graphs in `source` refer to values of the enclosing graph; the last `len(captures)`
            entries of `inputs` are those values, so that the order of nodes and liveness take them into account.
        has_opaque_attributes: whether `source` holds sub-graphs or attributes that are missing in `attributes`.
        subgraphs: the sub-graphs of a control-flow node, by name of the attribute; empty where the evaluator runs it.
        stands_for: label of the model's node that a generated node is part of; "" for the model's own.
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
    subgraphs: Mapping[str, "Subgraph"] = field(default_factory=dict[str, "Subgraph"])
    stands_for: str = ""

    @property
    def captured(self) -> Mapping[str, str]:
        """The values of the enclosing graph that the sub-graphs use, by the names that these have for them."""
        return dict(zip(self.captures, self.inputs[len(self.inputs) - len(self.captures) :], strict=True))

    @property
    def arguments(self) -> tuple[str, ...]:
        """The operator's own inputs, without the values that its sub-graphs capture."""
        return self.inputs[: len(self.inputs) - len(self.captures)]

    @property
    def label(self) -> str:
        """The node's name in errors and reports: "conv1 (Conv)"."""
        return f"{self.name} ({self.op_type})"

    @property
    def origin(self) -> str:
        """The label of the model's node: its own, or that of the node which it is part of."""
        return self.stands_for or self.label


@dataclass(frozen=True, slots=True, eq=False)
class Subgraph:
    """A branch or body of a control-flow node; it sees the values of the graph around it.

    Attributes:
        inputs: names of its parameters.
        outputs: names of its results; a parameter, a constant and a captured value may be one, also several times.
        constants: its initializers by value name.
        nodes: in topological order.
        declared_types: types that it declares for its values; sizes of parameters are those of one run of the exporter.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: Mapping[str, Array]
    nodes: tuple[Node, ...]
    declared_types: Mapping[str, TensorType] = field(default_factory=dict[str, TensorType])


@dataclass(frozen=True, slots=True)
class FallbackRegion:
    """Nodes that the dialect's evaluator runs, with the values that cross the region's border.

    Attributes:
        nodes: in topological order.
        feeds: buffers of the values that enter the region, by value name.
        constants: arrays of the constants that the nodes read, by value name.
        results: buffers of the values that leave the region, by value name.
        opsets: operator set versions by domain.
        opaque_types: serialized types of opaque buffers by buffer name, where they are known.
    """

    nodes: tuple[Node, ...]
    feeds: Mapping[str, Buffer]
    constants: Mapping[str, Array]
    results: Mapping[str, Buffer]
    opsets: Mapping[str, int]
    opaque_types: Mapping[str, bytes] = field(default_factory=dict[str, bytes])


@dataclass(frozen=True, slots=True)
class InferredType:
    """The type that a dialect infers for a result: a dimension is a size, the text of a feed's dimension, or None."""

    dtype: DType
    dims: tuple[int | str | None, ...]


class Dialect(Protocol):
    """What a front end knows about its own operators (as MLIR's dialect interfaces for type inference and folding).

    The graph's passes and its lowering call it for nodes without a definition in `ops`.
    """

    def infer_types(self, region: FallbackRegion) -> tuple[Mapping[str, InferredType], Mapping[str, bytes]]:
        """Types of the last node's results by value name: tensors of known rank, and serialized types of all.

        Results whose type cannot be inferred are missing.
        """
        ...

    def serialize(self, region: FallbackRegion) -> bytes:
        """The region as a model that the dialect's evaluator runs, inputs and outputs named like the buffers.

        Raises:
            UnsupportedError: the evaluator cannot run one of the operators.
        """
        ...

    def evaluate(self, region: FallbackRegion) -> Mapping[str, Array]:
        """The results of a region without feeds, by value name; empty where the evaluation fails."""
        ...

    def optional_outputs(self, node: Node) -> Sequence[bool] | None:
        """Which outputs the operator's schema calls optional, None where the dialect has no such operator."""
        ...

    def set_ints_attribute(self, source: bytes, name: str, values: tuple[int, ...]) -> bytes:
        """A serialized node (`Node.source`) with one attribute replaced by a list of integers."""
        ...

    def node_source(self, op_type: str) -> bytes:
        """The serialized node (`Node.source`) of a standard operator without attributes."""
        ...


class NoDialect:
    """The dialect of a graph whose operators all have definitions: it infers, evaluates and serializes nothing."""

    def infer_types(self, region: FallbackRegion) -> tuple[Mapping[str, InferredType], Mapping[str, bytes]]:
        """No types."""
        return {}, {}

    def serialize(self, region: FallbackRegion) -> bytes:
        """Always raises UnsupportedError."""
        raise UnsupportedError("the graph has no reference evaluator")

    def evaluate(self, region: FallbackRegion) -> Mapping[str, Array]:
        """No results."""
        return {}

    def optional_outputs(self, node: Node) -> Sequence[bool] | None:
        """None: schemas are a front end's."""
        return None

    def set_ints_attribute(self, source: bytes, name: str, values: tuple[int, ...]) -> bytes:
        """The node unchanged."""
        return source

    def node_source(self, op_type: str) -> bytes:
        """Nothing: nothing runs it."""
        return b""


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """A model.

    Attributes:
        name: name of the model's graph.
        inputs: values that the caller feeds; a dimension is a literal or a symbol (`Var`), never a compound expression.
        outputs: names of the returned values, in order.
        constants: initializers by value name.
        nodes: in topological order.
        symbols: symbolic dimensions with their declared ranges, in order of first use in `inputs`.
        declared_types: types that the model file declares for values, by name (symbols are ignored for all but inputs);
            checked, and a last resort for operators without a definition.
        metadata: producer, version and custom properties ("custom:<key>"), all strings.
        opsets: version of every imported operator set, by domain.
        symbol_names: the user's name of each symbol by identifier ("height" for "height", "x[2]" for an unnamed
            dimension).
        opaque_types: serialized types of inputs that are not tensors of known rank (dtype `opaque`), by name.
        dialect: the front end's knowledge about its operators.
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
    dialect: Dialect = field(default_factory=NoDialect)

    @property
    def value_names(self) -> set[str]:
        """The names of all values: inputs, constants and results of nodes."""
        return {v.name for v in self.inputs} | self.constants.keys() | {o for n in self.nodes for o in n.outputs if o}

    def with_nodes(self, nodes: tuple[Node, ...], constants: Mapping[str, Array] | None = None) -> "Graph":
        """The graph with other nodes, and with other constants where they are given."""
        return replace(self, nodes=nodes, constants=self.constants if constants is None else constants)
