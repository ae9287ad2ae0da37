"""Graph pass: dead code elimination."""

from tilewright.graph.ir import Graph, Node


def eliminate_dead_code(graph: Graph) -> Graph:
    """Removes nodes and constants that no output of the model depends on."""
    needed = set(graph.outputs)
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if any(o in needed for o in node.outputs if o):
            kept.append(node)
            needed |= set(node.inputs)
    constants = {name: array for name, array in graph.constants.items() if name in needed}
    return graph.with_nodes(tuple(reversed(kept)), constants)
