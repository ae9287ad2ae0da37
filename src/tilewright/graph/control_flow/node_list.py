"""Lists of generated nodes: what stands for one node of the model, under names that no other node has."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from tilewright.graph.ir import Array, Node

NodeSource = Callable[[str], bytes]
"""The serialized node of a standard operator without attributes, as `Dialect.node_source` gives it."""

OPSET = 14
"""Version of the generated nodes."""


@dataclass(slots=True)
class NodeList:
    """Nodes under names that belong to one node alone, with the constants that they read.

    Attributes:
        owner: the node for which they stand.
        node_source: the serialized node of an operator (`Dialect.node_source`).
        prefix: of the names.
        nodes: in topological order.
        constants: by value name.
    """

    owner: Node
    node_source: NodeSource
    prefix: str
    nodes: list[Node] = field(default_factory=list[Node])
    constants: dict[str, Array] = field(default_factory=dict[str, Array])

    def name(self, what: str) -> str:
        """A new name."""
        return f"{self.owner.name}/{self.prefix}{what}{len(self.nodes)}.{len(self.constants)}"

    def constant(self, value: Array) -> str:
        """The name of a constant."""
        name = self.name("constant")
        self.constants[name] = value
        return name

    def ints(self, *values: int) -> str:
        """The name of a vector of integers."""
        return self.constant(np.array(values, np.int64))

    def add(self, op_type: str, *inputs: str, output: str = "", **attributes: float | tuple[int, ...]) -> str:
        """Adds a node; returns the name of its result."""
        return self.add_with(op_type, inputs, attributes, output)

    def add_with(
        self, op_type: str, inputs: tuple[str, ...], attributes: Mapping[str, float | tuple[int, ...]], output: str = ""
    ) -> str:
        """Adds a node with attributes that are data; returns the name of its result."""
        result = output or self.name(op_type)
        name = f"{self.owner.name}/{self.prefix}{op_type}{len(self.nodes)}"
        source = self.node_source(op_type)
        node = Node(name, op_type, "", OPSET, inputs, (result,), dict(attributes), source, stands_for=self.owner.origin)
        self.nodes.append(node)
        return result

    def slice(self, value: str, start: int, stop: int, axis: int) -> str:
        """The part of a value between two positions of an axis."""
        return self.add("Slice", value, self.ints(start), self.ints(stop), self.ints(axis))
