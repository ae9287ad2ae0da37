"""Constant folding: nodes whose inputs are all constant are evaluated now.

A definition's stages are evaluated in NumPy; operators without a definition run on ONNX's reference evaluator. A result
that would be much larger than what it is made from stays a computation, and so does one that takes long in NumPy:
native code computes it once, when the model is loaded.
"""

from dataclasses import replace

from tilewright.expr.dtype import DTYPES
from tilewright.graph.ir import Array, Graph, Node
from tilewright.graph.lower_nodes import constant_results
from tilewright.graph.passes.def_use import RANDOM_OPERATORS
from tilewright.ops.library import OPERATORS

_MAX_REFERENCE_BYTES = 1 << 20
"""Inputs and results of the reference evaluator may take this many bytes."""


def fold_constants(graph: Graph) -> Graph:
    """Replaces nodes on constants by their results."""
    constants = dict(graph.constants)
    kept: list[Node] = []
    for node in graph.nodes:
        results = None
        if (
            not node.has_opaque_attributes
            and node.op_type not in RANDOM_OPERATORS
            and all(v in constants for v in node.inputs if v)
        ):
            results = _fold_node(replace(graph, constants=constants), node)
        if results is None:
            kept.append(node)
        else:
            constants.update(results)
    return graph.with_nodes(tuple(kept), constants)


def _fold_node(graph: Graph, node: Node) -> dict[str, Array] | None:
    """The node's outputs, or None where they are not to be computed now."""
    outputs = tuple(o for o in node.outputs if o)
    needed = {v: graph.constants[v] for v in node.inputs if v}
    if (node.domain, node.op_type) in OPERATORS:
        alone = Graph(graph.name, (), outputs, needed, (node,), opsets=graph.opsets)
        found = constant_results(alone)
    elif sum(a.nbytes for a in needed.values()) <= _MAX_REFERENCE_BYTES:
        found = _evaluate_by_reference(graph, node, needed, outputs)
    else:
        return None
    return {o: found[o] for o in outputs} if all(o in found for o in outputs) else None


def _evaluate_by_reference(
    graph: Graph, node: Node, constants: dict[str, Array], outputs: tuple[str, ...]
) -> dict[str, Array]:
    from tilewright.frontend.onnx.reference_evaluator import evaluate_nodes  # here because it imports onnx

    found = evaluate_nodes((node,), constants, outputs, graph.opsets)
    fits = all(a.dtype.name in DTYPES and a.nbytes <= _MAX_REFERENCE_BYTES for a in found.values())
    return found if fits else {}
