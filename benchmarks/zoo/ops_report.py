"""Describe an ONNX file: inputs, outputs, operator counts and the attribute values in use.

Reads only the model file; the text is what an operator author needs in order to know which forms occur in the zoo.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator

import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, ValueInfoProto

MAX_VALUE_LENGTH = 60


def describe(model: ModelProto) -> str:
    """Return a plain-text report on `model`: opsets, interface, and per operator its count, arity and attributes."""
    graph = model.graph
    opsets = ", ".join(f"{entry.domain or 'ai.onnx'} {entry.version}" for entry in model.opset_import)
    lines = [f"ir {model.ir_version}, opsets: {opsets}, functions: {len(model.functions)}, nodes: {len(graph.node)}"]
    initializers = {tensor.name for tensor in graph.initializer}
    constants = initializers | {node.output[0] for node in graph.node if node.op_type == "Constant"}
    lines += [f"input  {_value_text(value)}" for value in graph.input if value.name not in initializers]
    lines += [f"output {_value_text(value)}" for value in graph.output]
    lines.append(f"initializer types: {_initializer_types(graph)}")
    lines += _operator_lines(list(_all_nodes(graph)), constants)
    return "\n".join(lines)


def _all_nodes(graph: GraphProto) -> Iterator[NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield from _all_nodes(attribute.g)


def _value_text(value: ValueInfoProto) -> str:
    tensor = value.type.tensor_type
    dims = [dim.dim_param if dim.HasField("dim_param") else str(dim.dim_value) if dim.HasField("dim_value") else "-"
            for dim in tensor.shape.dim]  # fmt: skip
    return f"{value.name}: {onnx.TensorProto.DataType.Name(tensor.elem_type)}[{', '.join(dims)}]"


def _initializer_types(graph: GraphProto) -> str:
    counts = Counter(onnx.TensorProto.DataType.Name(tensor.data_type) for tensor in graph.initializer)
    return ", ".join(f"{name} x{count}" for name, count in sorted(counts.items()))


def _operator_lines(nodes: list[NodeProto], constants: set[str]) -> list[str]:
    """One line per operator type, then one per attribute with the distinct values and their counts."""
    counts = Counter((node.domain, node.op_type) for node in nodes)
    values: defaultdict[tuple[str, str], defaultdict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    for node in nodes:
        key = (node.domain, node.op_type)
        # "c" marks an operand that is an initializer or Constant, "-" one that is absent, "x" a computed one.
        pattern = "".join("-" if not name else "c" if name in constants else "x" for name in node.input)
        values[key]["operands"][f"{pattern}->{len(node.output)}"] += 1
        for attribute in node.attribute:
            values[key][attribute.name][_attribute_text(attribute)] += 1
    lines: list[str] = []
    for key, count in sorted(counts.items()):
        domain, op_type = key
        lines.append(f"  {domain + '::' if domain else ''}{op_type} x{count}")
        for name, seen in sorted(values[key].items()):
            shown = "; ".join(f"{value} x{times}" for value, times in seen.most_common(8))
            more = "" if len(seen) <= 8 else f"; ... {len(seen) - 8} more"
            lines.append(f"      {name}: {shown}{more}")
    return lines


def _attribute_text(attribute: AttributeProto) -> str:
    if attribute.type == AttributeProto.TENSOR:
        array = onnx.numpy_helper.to_array(attribute.t)
        text = f"{array.dtype}{list(array.shape)}" + (f"={array.tolist()}" if array.size <= 4 else "")
    elif attribute.type == AttributeProto.GRAPH:
        text = f"graph of {len(attribute.g.node)} nodes"
    else:
        text = str(onnx.helper.get_attribute_value(attribute))
    return text if len(text) <= MAX_VALUE_LENGTH else text[:MAX_VALUE_LENGTH] + "..."
