"""Graph pass: a Reshape of a Reshape and a Transpose of a Transpose become one node."""

from dataclasses import replace

from tilewright.graph.ir import Graph, Node
from tilewright.graph.passes.def_use import is_standard, producers, with_aliases


def merge_reshapes_and_transposes(graph: Graph) -> Graph:
    """Merges pairs: Reshape(Reshape(x, s), t) is Reshape(x, t); Transpose(Transpose(x, p), q) has perm p[q].

    The inner node stays for its other users, if any.
    """
    producer_of = producers(graph)
    alias: dict[str, str] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        inner = producer_of.get(node.inputs[0]) if node.inputs else None
        current: Node | None = node
        if is_standard(node, "Reshape") and _has_absolute_target(node, graph):
            while inner is not None and is_standard(inner, "Reshape", "Flatten"):
                current = replace(node, inputs=(inner.inputs[0], *node.inputs[1:]))
                inner = producer_of.get(inner.inputs[0])
        elif inner is not None and is_standard(node, "Transpose") and is_standard(inner, "Transpose"):
            current = _merge_transposes(node, inner, graph)
            if current is None:
                alias[node.outputs[0]] = inner.inputs[0]
        if current is not None:
            nodes.append(current)
            producer_of.update({o: current for o in current.outputs if o})
    return with_aliases(graph, tuple(nodes), alias)


def _has_absolute_target(node: Node, graph: Graph) -> bool:
    """Whether a Reshape's target is independent of its input's sizes: a zero copies one unless allowzero is set."""
    target = graph.constants.get(node.inputs[1]) if len(node.inputs) > 1 else None
    return target is not None and (bool(node.attributes.get("allowzero", 0)) or bool((target != 0).all()))


def _merge_transposes(node: Node, inner: Node, graph: Graph) -> Node | None:
    """The merged Transpose, None where it would be the identity."""
    outer_perm, inner_perm = node.attributes.get("perm"), inner.attributes.get("perm")
    if not isinstance(outer_perm, tuple) or not isinstance(inner_perm, tuple) or len(outer_perm) != len(inner_perm):
        return node
    if sorted(map(int, outer_perm)) != list(range(len(outer_perm))):
        return node
    perm = tuple(int(inner_perm[int(k)]) for k in outer_perm)
    if perm == tuple(range(len(perm))) and node.outputs[0] not in graph.outputs:
        return None
    source = graph.dialect.set_ints_attribute(node.source, "perm", perm)
    return replace(node, inputs=(inner.inputs[0],), attributes={**node.attributes, "perm": perm}, source=source)
