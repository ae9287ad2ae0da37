"""Graph pass: removal of identities (Identity, and Dropout in inference)."""

from tilewright.graph.ir import Graph, Node
from tilewright.graph.passes.def_use import is_standard, use_counts, with_aliases


def drop_identities(graph: Graph) -> Graph:
    """Removes Identity and inference Dropout: `f(Identity(x))` becomes `f(x)`. Nodes of the model's outputs stay."""
    counts = use_counts(graph)
    alias: dict[str, str] = {}
    kept: list[Node] = []
    for node in graph.nodes:
        if _is_identity(node, graph, counts) and node.outputs[0] not in graph.outputs:
            alias[node.outputs[0]] = node.inputs[0]
        else:
            kept.append(node)
    return with_aliases(graph, tuple(kept), alias)


def _is_identity(node: Node, graph: Graph, counts: dict[str, int]) -> bool:
    if is_standard(node, "Identity"):
        return True
    if not is_standard(node, "Dropout") or any(counts.get(o) for o in node.outputs[1:]):
        return False
    training = node.inputs[2] if len(node.inputs) > 2 else ""
    return not training or (training in graph.constants and not graph.constants[training].any())
