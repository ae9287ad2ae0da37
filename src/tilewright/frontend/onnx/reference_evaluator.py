"""Nodes as an ONNX model of their own: for the reference evaluator and for ONNX's shape inference."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnx.shape_inference
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tilewright.expr.dtype import DType, float32, opaque
from tilewright.expr.nodes import Buffer, Const, Expr
from tilewright.frontend.onnx.element_types import ELEMENT_TYPE_NUMBERS, ELEMENT_TYPES
from tilewright.frontend.onnx.node_protos import rename_values, subgraphs
from tilewright.graph.fallback import FallbackContext
from tilewright.graph.ir import Array, Node

_IR_VERSION = 10
_MAX_EMBEDDED_ELEMENTS = 1 << 12
"""Constants up to this many elements take part in shape inference by value."""


@dataclass(frozen=True, slots=True)
class InferredType:
    """What ONNX infers for an output: a dimension is a size, the text of an input's dimension, or None."""

    dtype: DType
    dims: tuple[int | str | None, ...]


def reference_model(
    nodes: Sequence[Node],
    feeds: Mapping[str, Buffer],
    constants: Mapping[str, Array],
    results: Mapping[str, Buffer],
    opsets: Mapping[str, int],
    types: Mapping[str, bytes] | None = None,
) -> onnx.ModelProto:
    """The nodes as a model.

    Args:
        nodes: in topological order.
        feeds: buffers of the values that come from outside, by value name; the model's inputs are called like them.
        constants: values that become initializers.
        results: buffers of the values that leave, by value name; the model's outputs are called like them.
        opsets: versions of the operator sets, by domain.
        types: serialized TypeProtos of opaque buffers, by the buffer's name, where they are known.
    """
    # Inside, every value has a name that no sub-graph uses for something of its own.
    inner = {v: f"value:{v}" for n in nodes for v in (*n.inputs, *n.outputs) if v}
    protos = [helper.make_node("Identity", [b.name], [inner[v]]) for v, b in feeds.items()]
    for node in nodes:
        proto = onnx.NodeProto.FromString(node.source)
        # The graph may have renamed inputs and outputs since the source was written: positions count.
        proto.input[:] = node.arguments
        # The evaluator would hand a value named "" to later nodes that leave an input out.
        proto.output[:] = [o or f"unused:{len(protos)}:{k}" for k, o in enumerate(node.outputs)]
        current = node.inputs[len(node.inputs) - len(node.captures) :]
        captures = {old: inner[new] for old, new in zip(node.captures, current, strict=True)}
        protos.append(rename_values(proto, inner, captures))
    protos += [helper.make_node("Identity", [inner[v]], [b.name]) for v, b in results.items()]
    graph = helper.make_graph(
        protos,
        "fallback",
        [_value_info(b, types or {}) for b in feeds.values()],
        [_value_info(b, types or {}) for b in results.values()],
        [numpy_helper.from_array(np.ascontiguousarray(a).reshape(a.shape), inner[v]) for v, a in constants.items()],
    )
    # Identity is of the standard operators, which a model need not import.
    versions = {"": onnx.defs.onnx_opset_version(), **opsets}
    imports = [helper.make_opsetid(domain, version) for domain, version in versions.items()]
    return helper.make_model(graph, opset_imports=imports, ir_version=_IR_VERSION)


def infer_outputs(node: Node, context: FallbackContext) -> tuple[dict[str, InferredType], dict[str, bytes]]:
    """Types of the values that a node computes, by ONNX's shape inference: tensors of known rank, and the serialized
    TypeProtos of the others; values are missing that it can't infer.

    Large constants take part with their shape only.
    """
    small = {v: a for v, a in context.constants.items() if a.size <= _MAX_EMBEDDED_ELEMENTS}
    nodes = (*context.opaque_constants, node)
    model = reference_model(nodes, context.feeds, small, {}, context.graph.opsets, context.opaque_types)
    for name, array in context.constants.items():
        if name not in small:
            number = helper.np_dtype_to_tensor_dtype(array.dtype)
            model.graph.input.append(helper.make_tensor_value_info(f"value:{name}", number, array.shape))
    for proto in model.graph.node:
        _clear_dims(proto)
    try:
        found = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except Exception:  # C++ errors of many kinds; the types stay unknown
        return {}, {}
    types = {v.name: v.type for v in (*found.graph.value_info, *found.graph.output)}
    known = {name: types[f"value:{name}"] for name in node.outputs if name and f"value:{name}" in types}
    inferred = {name: result for name, proto in known.items() if (result := _parse_type(proto)) is not None}
    return _loop_output_types(node) | inferred, {name: proto.SerializeToString() for name, proto in known.items()}


def _clear_dims(node: onnx.NodeProto) -> None:
    """Takes the sizes out of the types that a node's sub-graphs declare: exporters write those of one run."""
    for graph in subgraphs(node):
        for value in (*graph.input, *graph.output, *graph.value_info):
            if value.type.WhichOneof("value") == "tensor_type":
                for dim in value.type.tensor_type.shape.dim:
                    dim.Clear()
        for inner in graph.node:
            _clear_dims(inner)


def evaluator_error(model: onnx.ModelProto) -> str | None:
    """Why the reference evaluator can't run a model, or None when it has all operators."""
    try:
        ReferenceEvaluator(model)
    except Exception as error:  # the evaluator reports unknown operators with several exception types
        lines = str(error).strip().splitlines()
        return lines[0] if lines else type(error).__name__
    return None


def evaluate_nodes(
    nodes: Sequence[Node], constants: Mapping[str, Array], outputs: Sequence[str], opsets: Mapping[str, int]
) -> dict[str, Array]:
    """The values of `outputs` by ONNX's reference evaluator, or nothing where it fails."""
    results = {v: Buffer(f"result{k}", (), float32) for k, v in enumerate(outputs)}
    try:
        # The outputs' types are made up; the evaluator does not read them.
        with np.errstate(all="ignore"):
            found = ReferenceEvaluator(reference_model(nodes, {}, constants, results, opsets)).run(None, {})
    except Exception:  # the evaluator reports faults with many exception types; the nodes stay as they are
        return {}
    return {v: a for v, a in zip(outputs, found, strict=True) if isinstance(a, np.ndarray)}


def _value_info(buffer: Buffer, types: Mapping[str, bytes]) -> onnx.ValueInfoProto:
    if buffer.dtype is opaque:
        return helper.make_value_info(buffer.name, onnx.TypeProto.FromString(types.get(buffer.name, b"")))
    dims = [_dim(s) for s in buffer.shape]
    return helper.make_tensor_value_info(buffer.name, ELEMENT_TYPE_NUMBERS[buffer.dtype], dims)


def _dim(size: Expr) -> int | str:
    return int(size.value) if isinstance(size, Const) else repr(size)


def _loop_output_types(node: Node) -> dict[str, InferredType]:
    """Types of a Loop's outputs as its body declares them; ONNX does not infer them, as sizes may change on the way."""
    if node.op_type != "Loop" or node.domain:
        return {}
    found: dict[str, InferredType] = {}
    states = len(node.arguments) - 2
    for body in subgraphs(onnx.NodeProto.FromString(node.source)):
        for position, (name, value) in enumerate(zip(node.outputs, list(body.output)[1:], strict=False)):
            inner = _parse_type(value.type)
            if name and inner is not None:
                rank = len(inner.dims) + (position >= states)
                found[name] = InferredType(inner.dtype, (None,) * rank)
    return found


def _parse_type(proto: onnx.TypeProto) -> InferredType | None:
    tensor = proto.tensor_type
    dtype = ELEMENT_TYPES.get(tensor.elem_type) if proto.WhichOneof("value") == "tensor_type" else None
    if dtype is None or not tensor.HasField("shape"):
        return None
    dims = [d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in tensor.shape.dim]
    return InferredType(dtype, tuple(dims))
