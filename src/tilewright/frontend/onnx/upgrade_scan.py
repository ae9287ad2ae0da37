"""Scan of operator set 8, which repeats over a batch, as a Scan of set 9 over the batch that holds one over time."""

from collections.abc import Sequence

import onnx
from onnx import helper

from tilewright.frontend.onnx.node_protos import all_nodes
from tilewright.names import underscored_name

BATCHED_VERSION, SCAN_VERSION = 8, 9
"""The operator set whose Scan has a batch, and the one that it is brought to."""
_CHANGED_OPERATORS = ("BatchNormalization", "Scan", "Upsample")
"""Operators that mean something else in set 9 than in set 8."""


def upgrade_scan(node: onnx.NodeProto) -> onnx.NodeProto | None:
    """A Scan of set 9 that means the same as a Scan of set 8.

    Everything is scanned along axis 0 by the outer one, initial states too, which is why it has no states.

    Returns:
        None for another node, and for a Scan with lengths, without a body, or whose body set 9 would change.
    """
    attributes = {a.name: a for a in node.attribute}
    body, count = attributes.get("body"), attributes.get("num_scan_inputs")
    if node.op_type != "Scan" or body is None or count is None or not node.input or node.input[0]:
        return None
    operators = {n.op_type for n in all_nodes(body.g.node)}
    arguments = list(node.input[1:])
    if not operators.isdisjoint(_CHANGED_OPERATORS) or not all(arguments) or len(arguments) != len(body.g.input):
        return None
    outer = _outer_body(body.g, attributes.get("directions"), int(count.i), node.output)
    result = helper.make_node(
        "Scan", arguments, list(node.output), name=node.name, body=outer, num_scan_inputs=len(arguments)
    )
    result.doc_string = node.doc_string
    return result


def _outer_body(
    body: onnx.GraphProto, directions: onnx.AttributeProto | None, count: int, outputs: Sequence[str]
) -> onnx.GraphProto:
    """The graph that scans one element of the batch."""
    taken = _all_names(body) | set(outputs)

    def fresh(names: Sequence[str]) -> list[str]:
        result: list[str] = []
        for name in names:
            result.append(underscored_name(f"{name}/item", taken, result))
        return result

    inputs, results = fresh([v.name for v in body.input]), fresh([v.name for v in body.output])
    inner = helper.make_node("Scan", inputs, results, body=body, num_scan_inputs=count)
    if directions is not None:
        inner.attribute.append(helper.make_attribute("scan_input_directions", list(directions.ints)))
    return helper.make_graph(
        [inner],
        body.name or "scan",
        [_of_type(name, v) for name, v in zip(inputs, body.input, strict=True)],
        [_of_type(name, v) for name, v in zip(results, body.output, strict=True)],
    )


def _of_type(name: str, item: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    """A value of the element type of another one."""
    return helper.make_tensor_value_info(name, item.type.tensor_type.elem_type, None)


def _all_names(graph: onnx.GraphProto) -> set[str]:
    """All names of values in a graph, those that it captures included."""
    named = {v.name for v in (*graph.input, *graph.output, *graph.initializer)}
    return named | {name for n in all_nodes(graph.node) for name in (*n.input, *n.output)}
