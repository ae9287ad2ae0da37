"""Graph pass: constant folding.

Stages of a definition are evaluated in NumPy; operators without a definition run on the dialect's reference evaluator.
A result that would be much larger than its operands stays a computation, and so does one that takes long in NumPy:
native code computes it once, when the model is loaded.
"""

from collections.abc import Mapping
from dataclasses import replace

from tilewright.expr.dtype import DTYPES, float32
from tilewright.expr.nodes import Buffer
from tilewright.graph.ir import Array, FallbackRegion, Graph, Node
from tilewright.graph.lower_nodes import NodeLowering
from tilewright.graph.passes.def_use import RANDOM_OPERATORS
from tilewright.ops.library import OPERATORS

_MAX_REFERENCE_BYTES = 1 << 20
"""Limit on the operands, and on each result, of the reference evaluator."""


def fold_constants(graph: Graph) -> Graph:
    """Replaces nodes with constant operands by their results."""
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
    """The node's outputs, None where they stay computations."""
    outputs = tuple(o for o in node.outputs if o)
    operands = {v: graph.constants[v] for v in node.inputs if v}
    if (node.domain, node.op_type) in OPERATORS:
        single = Graph(graph.name, (), outputs, operands, (node,), opsets=graph.opsets, dialect=graph.dialect)
        results = _constant_results(single)
    elif sum(a.nbytes for a in operands.values()) <= _MAX_REFERENCE_BYTES:
        results = _evaluate_by_reference(graph, node, operands, outputs)
    else:
        return None
    return {o: results[o] for o in outputs} if all(o in results for o in outputs) else None


def _evaluate_by_reference(
    graph: Graph, node: Node, constants: Mapping[str, Array], outputs: tuple[str, ...]
) -> Mapping[str, Array]:
    # The evaluator does not read the types of results, so these are placeholders.
    buffers = {v: Buffer(f"result{k}", (), float32) for k, v in enumerate(outputs)}
    results = graph.dialect.evaluate(FallbackRegion((node,), {}, constants, buffers, graph.opsets))
    fits = all(a.dtype.name in DTYPES and a.nbytes <= _MAX_REFERENCE_BYTES for a in results.values())
    return results if fits else {}


def _constant_results(graph: Graph) -> dict[str, Array]:
    """Values that are constant once the graph is lowered, by name; values of nodes that fail are missing."""
    walk = NodeLowering(graph).run()
    return {n: walk.constants[o.buffer.name] for n, o in walk.operands.items() if o.buffer.name in walk.constants}
