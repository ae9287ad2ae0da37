"""Optional outputs that nobody uses are left out: a node that could give them computes as if it did not."""

from collections.abc import Sequence
from dataclasses import replace

from tilewright.graph.ir import Graph, Node
from tilewright.graph.passes.def_use import use_counts
from tilewright.ops.library import OPERATORS


def drop_unused_outputs(graph: Graph) -> Graph:
    """Removes the names of optional outputs that no node and no output of the model takes (a Dropout's mask, the mean
    of a LayerNormalization, indices of a MaxPool).

    The first output stays, and so do outputs that the operator's schema does not call optional: their number may
    mean something, as that of Split's does.
    """
    counts = use_counts(graph)
    return graph.with_nodes(tuple(_drop_outputs(n, [bool(counts[o]) for o in n.outputs]) for n in graph.nodes))


def _drop_outputs(node: Node, used: Sequence[bool]) -> Node:
    if all(used[1:]):
        return node
    optional = _optional_outputs(node)
    outputs = [o if k == 0 or used[k] or not optional[k] else "" for k, o in enumerate(node.outputs)]
    while len(outputs) > 1 and not outputs[-1]:
        outputs.pop()
    return replace(node, outputs=tuple(outputs))


def _optional_outputs(node: Node) -> list[bool]:
    """Which outputs the operator's schema calls optional."""
    import onnx.defs  # here because few nodes have several outputs

    if not onnx.defs.has(node.op_type, node.opset, node.domain):
        # Operators that ONNX does not know and that are defined here have one result, and optional ones after it.
        return [(node.domain, node.op_type) in OPERATORS] * len(node.outputs)
    formal = onnx.defs.get_schema(node.op_type, node.opset, node.domain).outputs
    options = [f.option == onnx.defs.OpSchema.FormalParameterOption.Optional for f in formal]
    return (options + [False] * len(node.outputs))[: len(node.outputs)]
