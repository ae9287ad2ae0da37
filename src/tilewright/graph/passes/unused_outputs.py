"""Graph pass: removal of optional outputs without uses."""

from collections.abc import Sequence
from dataclasses import replace

from tilewright.graph.ir import Dialect, Graph, Node
from tilewright.graph.passes.def_use import use_counts
from tilewright.ops.library import OPERATORS


def drop_unused_outputs(graph: Graph) -> Graph:
    """Clears the names of optional outputs that neither a node nor the model uses (a Dropout's mask, the mean of a
    LayerNormalization, the indices of a MaxPool).

    The first output stays, and so do outputs that the operator's schema does not call optional: their number may
    carry meaning, as it does for Split.
    """
    counts = use_counts(graph)
    nodes = (_drop_outputs(n, [bool(counts[o]) for o in n.outputs], graph.dialect) for n in graph.nodes)
    return graph.with_nodes(tuple(nodes))


def _drop_outputs(node: Node, used: Sequence[bool], dialect: Dialect) -> Node:
    if all(used[1:]):
        return node
    optional = _optional_outputs(node, dialect)
    outputs = [o if k == 0 or used[k] or not optional[k] else "" for k, o in enumerate(node.outputs)]
    while len(outputs) > 1 and not outputs[-1]:
        outputs.pop()
    return replace(node, outputs=tuple(outputs))


def _optional_outputs(node: Node, dialect: Dialect) -> list[bool]:
    """Which outputs the operator's schema calls optional."""
    options = dialect.optional_outputs(node)
    if options is None:
        # Operators that only this compiler defines have one result, followed by optional ones.
        return [(node.domain, node.op_type) in OPERATORS] * len(node.outputs)
    return [*options, *[False] * len(node.outputs)][: len(node.outputs)]
