"""What a model computes in double precision, by others: node by node, so that each node runs on whichever of ONNX
Runtime and ONNX's reference evaluator has it for this type."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper
from tests.fuzz_models.oracle import Array, captured, oracle

_NARROW = (TensorProto.FLOAT, TensorProto.FLOAT16)


def float64_values(model: onnx.ModelProto, feeds: Mapping[str, Array], outputs: Sequence[str]) -> dict[str, Any]:
    """Values by name: some outputs of a model, and all that they depend on.

    Args:
        model: a model; every float16 and float32 in it becomes float64, conversions to these types too.
        feeds: its inputs.
        outputs: names of outputs.

    Raises:
        Exception: nobody runs one of the nodes in double precision.
    """
    values: dict[str, Any] = {t.name: _as_float64(numpy_helper.to_array(t)) for t in model.graph.initializer}
    values |= {name: _as_float64(a) for name, a in feeds.items()}
    for node in _nodes_before(model.graph, outputs):
        needed = sorted({*node.input, *captured(node)} - {""})
        single = _model_of(_in_float64(node), {name: values[name] for name in needed}, model)
        results = oracle(single, {name: values[name] for name in needed})
        values |= {n: _as_float64(r) for n, r in zip([o for o in node.output if o], results, strict=True)}
    return values


def _nodes_before(graph: onnx.GraphProto, outputs: Sequence[str]) -> list[onnx.NodeProto]:
    """The nodes that some values depend on, in order."""
    needed, nodes = set(outputs), list[onnx.NodeProto]()
    for node in reversed(graph.node):
        if needed & set(node.output):
            needed |= {*node.input, *captured(node)}
            nodes.append(node)
    return nodes[::-1]


def _model_of(node: onnx.NodeProto, feeds: Mapping[str, Any], model: onnx.ModelProto) -> onnx.ModelProto:
    results = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    graph = helper.make_graph([node], "node", [_value_info(name, value) for name, value in feeds.items()], results)
    return helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)


def _value_info(name: str, value: Any) -> onnx.ValueInfoProto:
    if isinstance(value, list):
        return helper.make_tensor_sequence_value_info(name, helper.np_dtype_to_tensor_dtype(value[0].dtype), None)
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)


def _as_float64(value: Any) -> Any:
    if isinstance(value, list):
        return [_as_float64(v) for v in value]
    array = np.asarray(value)
    return array.astype(np.float64) if array.dtype.name in ("float16", "float32") else array


def _in_float64(node: onnx.NodeProto) -> onnx.NodeProto:
    """The node whose constants, conversions and sub-graphs are in double precision."""
    result = onnx.NodeProto()
    result.CopyFrom(node)
    for a in result.attribute:
        if a.type == AttributeProto.GRAPH:
            _widen_graph(a.g)
        elif node.op_type == "Cast" and a.name == "to":
            a.i = TensorProto.DOUBLE if a.i in _NARROW else a.i
            a.s = b"DOUBLE" if a.s in (b"FLOAT", b"FLOAT16") else a.s
        elif a.type == AttributeProto.TENSOR and a.t.data_type in _NARROW:
            a.t.CopyFrom(numpy_helper.from_array(_as_float64(numpy_helper.to_array(a.t)), a.t.name))
    return result


def _widen_graph(graph: onnx.GraphProto) -> None:
    for info in (*graph.input, *graph.output, *graph.value_info):
        if info.type.tensor_type.elem_type in _NARROW:
            info.type.tensor_type.elem_type = TensorProto.DOUBLE
    for t in graph.initializer:
        if t.data_type in _NARROW:
            t.CopyFrom(numpy_helper.from_array(_as_float64(numpy_helper.to_array(t)), t.name))
    nodes = [_in_float64(n) for n in graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
