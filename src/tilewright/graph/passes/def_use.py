"""Def-use information for passes: producers and uses of values, and replacement of inputs."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from tilewright.graph.ir import Graph, Node

RANDOM_OPERATORS = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"}
)
"""Operators whose results differ between calls."""


def is_standard(node: Node, *names: str) -> bool:
    """Whether a node is one of the named standard operators."""
    return node.domain == "" and node.op_type in names


def producers(graph: Graph) -> dict[str, Node]:
    """The node that produces each value."""
    return {o: n for n in graph.nodes for o in n.outputs if o}


def use_counts(graph: Graph) -> Counter[str]:
    """The number of uses of each value, as an input of a node or an output of the model."""
    return Counter([v for n in graph.nodes for v in n.inputs if v] + list(graph.outputs))


def with_aliases(graph: Graph, nodes: tuple[Node, ...], alias: Mapping[str, str]) -> Graph:
    """The graph with the given nodes, whose inputs are replaced by their aliases."""
    if not alias:
        return graph.with_nodes(nodes)

    def target(name: str) -> str:
        while name in alias:
            name = alias[name]
        return name

    return graph.with_nodes(
        tuple(
            replace(n, inputs=tuple(map(target, n.inputs))) if any(v in alias for v in n.inputs) else n for n in nodes
        )
    )
