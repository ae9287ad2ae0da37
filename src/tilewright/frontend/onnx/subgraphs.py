"""Sub-graphs of control-flow nodes, checked and converted like the graph around them."""

from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass, replace

import onnx

from tilewright.errors import Defect
from tilewright.expr.dtype import dtype_of
from tilewright.frontend.onnx.convert import convert_node, extract_constant, initializer_values, tensor_type
from tilewright.frontend.onnx.element_types import ELEMENT_TYPE_NUMBERS
from tilewright.frontend.onnx.expand_nodes import expand_node
from tilewright.frontend.onnx.node_protos import captured_names, initializer_names
from tilewright.frontend.onnx.opsets import standard_domain
from tilewright.frontend.onnx.structure import check_structure, node_label, node_names
from tilewright.frontend.onnx.tensors import TensorDefectError, type_name
from tilewright.frontend.onnx.types import check_types, type_text
from tilewright.frontend.onnx.upgrade_nodes import upgrade_node
from tilewright.frontend.onnx.upgrade_scan import BATCHED_VERSION, SCAN_VERSION, upgrade_scan
from tilewright.graph.ir import Array, Node, Subgraph

_FIRST_VERSIONS = {"If": 1, "Loop": 1, "Scan": 9}
"""Control-flow operators, with the operator set since which they mean what they do now."""


@dataclass(frozen=True, slots=True)
class ConversionContext:
    """What conversion of nodes needs to know of the model.

    Attributes:
        opsets: versions of the operator sets by domain.
        folders: where external data may be.
        types: ONNX's texts of the types of all values that the nodes may use.
    """

    opsets: Mapping[str, int]
    folders: tuple[str, ...]
    types: Mapping[str, str]

    def with_version(self, version: int) -> "ConversionContext":
        """The same for nodes of another version of the standard operator set."""
        return replace(self, opsets={**self.opsets, "": version})


def convert_nodes(
    nodes: list[tuple[str, onnx.NodeProto]],
    context: ConversionContext,
    constants: MutableMapping[str, Array],
    problems: list[Defect],
) -> tuple[Node, ...]:
    """Graph nodes of checked nodes.

    Args:
        nodes: names and nodes in topological order.
        context: of the model.
        constants: of their graph; receives inputs that were attributes in early operator sets.
        problems: appended to.
    """
    taken = {v for _, n in nodes for v in (*n.input, *n.output)}
    converted: list[Node] = []
    for name, node in nodes:
        try:
            for part_name, part in expand_node(name, node, constants, taken):
                is_standard = not standard_domain(part.domain)
                proto = upgrade_node(part, context.opsets[""], constants, taken) if is_standard else part
                scan = upgrade_scan(part) if is_standard and context.opsets[""] == BATCHED_VERSION else None
                around, proto = (context, proto) if scan is None else (context.with_version(SCAN_VERSION), scan)
                result = convert_node(proto, part_name, dict(around.opsets))
                converted.append(replace(result, subgraphs=_convert_subgraphs(result, proto, around, problems)))
        except TensorDefectError as error:
            problems.append(error.problem)
    return tuple(converted)


def _convert_subgraphs(
    node: Node, proto: onnx.NodeProto, context: ConversionContext, problems: list[Defect]
) -> dict[str, Subgraph]:
    """The sub-graphs of a control-flow node by the attribute's name; none of other nodes."""
    first = _FIRST_VERSIONS.get(node.op_type)
    if node.domain or first is None or node.opset < first:
        return {}
    graphs = {a.name: a.g for a in proto.attribute if a.type == onnx.AttributeProto.GRAPH}
    result: dict[str, Subgraph] = {}
    for attribute, graph in graphs.items():
        found: list[Defect] = []
        result[attribute] = _convert_subgraph(graph, captured_names(proto), context, found)
        where = f"{node_label(node.name, proto)}, {attribute}"
        problems += [replace(p, where=f"{where}: {p.where}") for p in found]
    return result


def _convert_subgraph(
    graph: onnx.GraphProto, captures: tuple[str, ...], context: ConversionContext, problems: list[Defect]
) -> Subgraph:
    constants: dict[str, Array] = {}
    exotic: list[onnx.NodeProto] = []
    for name, value in initializer_values(graph, context.folders, problems):
        if isinstance(value, onnx.NodeProto):
            exotic.append(value)
        else:
            constants[name] = value
    defective: set[str] = set()

    def remains(node: onnx.NodeProto) -> bool:
        return not extract_constant(node, constants, defective, context.folders, problems)

    nodes = [n for n in (*exotic, *graph.node) if remains(n)]
    produced = {o for n in exotic for o in n.output}
    inputs = [v for v in graph.input if v.name not in produced]
    predefined = (constants.keys() | initializer_names(graph) | defective | set(captures)) - produced
    predefined -= {v.name for v in inputs} | {o for n in nodes for o in n.output}
    outputs = list({v.name: v for v in graph.output}.values())
    order = check_structure(inputs, outputs, nodes, predefined, problems)
    names = node_names(nodes)
    types = dict(context.types) | _type_texts(graph.input)
    types |= {v: f"tensor({type_name(ELEMENT_TYPE_NUMBERS[dtype_of(a.dtype)])})" for v, a in constants.items()}
    ordered = [(names[k], nodes[k]) for k in order]
    check_types(ordered, types, _type_texts((*graph.value_info, *graph.output)), context.opsets, problems)
    converted = convert_nodes(ordered, replace(context, types=types), constants, problems)
    declared = {v.name: t for v in (*graph.input, *graph.value_info, *graph.output) if (t := tensor_type(v.type))}
    return Subgraph(
        tuple(v.name for v in graph.input), tuple(v.name for v in graph.output), constants, converted, declared
    )


def _type_texts(values: Iterable[onnx.ValueInfoProto]) -> dict[str, str]:
    return {v.name: text for v in values if (text := type_text(v.type))}
