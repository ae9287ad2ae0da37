"""NodeProtos: their sub-graphs, the values that those capture, and renaming of values."""

from collections.abc import Iterable, Iterator, Mapping

import onnx

from tilewright.frontend.onnx.opsets import standard_domain

FunctionKey = tuple[str, str, str]
"""Domain, name and overload of a function of the model."""


def function_key(proto: onnx.NodeProto | onnx.FunctionProto) -> FunctionKey:
    """The key of a function, or of that which a node calls if the model has it."""
    name = proto.name if isinstance(proto, onnx.FunctionProto) else proto.op_type
    return standard_domain(proto.domain), name, proto.overload


def subgraphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """The graphs in a node's attributes."""
    graphs = [a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]
    for a in node.attribute:
        graphs.extend(a.graphs)
    return graphs


def all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Nodes including those of their sub-graphs."""
    for node in nodes:
        yield node
        for graph in subgraphs(node):
            yield from all_nodes(graph.node)


def initializer_names(graph: onnx.GraphProto) -> set[str]:
    """Names of dense and sparse initializers."""
    return {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}


def uncomputed_names(graph: onnx.GraphProto) -> set[str]:
    """Values of a graph that no node computes."""
    return {v.name for v in graph.input} | initializer_names(graph)


def defined_names(graph: onnx.GraphProto) -> set[str]:
    """All values that a graph defines."""
    return uncomputed_names(graph) | {o for n in graph.node for o in n.output if o}


def captured_names(node: onnx.NodeProto) -> tuple[str, ...]:
    """Names of the enclosing graph that the node's sub-graphs use, in order of their first use."""
    names: dict[str, None] = {}
    for graph in subgraphs(node):
        defined = defined_names(graph)
        for inner_node in graph.node:
            for name in (*inner_node.input, *captured_names(inner_node)):
                if name and name not in defined:
                    names[name] = None
        names.update({v.name: None for v in graph.output if v.name and v.name not in defined})
    return tuple(names)


def rename_values(
    node: onnx.NodeProto, names: Mapping[str, str], captures: Mapping[str, str] | None = None
) -> onnx.NodeProto:
    """A copy of a node with other names of inputs and outputs.

    Args:
        node: the node.
        names: new names of inputs and outputs; the others keep theirs.
        captures: new names of the values that its sub-graphs capture; `names` by default.
    """
    result = onnx.NodeProto()
    result.CopyFrom(node)
    result.input[:] = [names.get(i, i) for i in node.input]
    result.output[:] = [names.get(o, o) for o in node.output]
    for graph in subgraphs(result):
        _rename_captures(graph, names if captures is None else captures)
    return result


def _rename_captures(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    defined = defined_names(graph)
    outer_names = {old: new for old, new in names.items() if old not in defined}
    for node in graph.node:
        node.input[:] = [outer_names.get(i, i) for i in node.input]
        for inner in subgraphs(node):
            _rename_captures(inner, outer_names)
    for value in graph.output:
        value.name = outer_names.get(value.name, value.name)


def set_ints_attribute(source: bytes, name: str, values: tuple[int, ...]) -> bytes:
    """A serialized node with an attribute replaced by a list of integers."""
    node = onnx.NodeProto.FromString(source)
    others = [a for a in node.attribute if a.name != name]
    del node.attribute[:]
    node.attribute.extend([*others, onnx.helper.make_attribute(name, values, attr_type=onnx.AttributeProto.INTS)])
    return node.SerializeToString(deterministic=True)
