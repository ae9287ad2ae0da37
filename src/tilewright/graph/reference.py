"""Nodes as an ONNX model of their own: for the reference evaluator and for ONNX's shape inference."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnx.shape_inference
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tilewright.expr.buffer import Buffer
from tilewright.expr.dtype import DType, float32
from tilewright.expr.nodes import Const, Expr
from tilewright.graph.ir import Array, Node
from tilewright.graph.onnx_nodes import renamed, subgraphs
from tilewright.graph.onnx_types import ELEMENT_NUMBERS, ELEMENT_TYPES

_IR_VERSION = 10
_EMBED_LIMIT = 1 << 12
"""Constants up to this many elements take part in shape inference by value."""


@dataclass(frozen=True, slots=True)
class Inferred:
    """What ONNX infers for an output: a dimension is a size, the text of an input's dimension, or None."""

    dtype: DType
    dims: tuple[int | str | None, ...]


def reference_model(
    nodes: Sequence[Node],
    feeds: Mapping[str, Buffer],
    constants: Mapping[str, Array],
    results: Mapping[str, Buffer],
    opsets: Mapping[str, int],
) -> onnx.ModelProto:
    """The nodes as a model.

    Args:
        nodes: in topological order.
        feeds: buffers of the values that come from outside, by value name; the model's inputs are called like them.
        constants: values that become initializers.
        results: buffers of the values that leave, by value name; the model's outputs are called like them.
        opsets: versions of the operator sets, by domain.
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
        protos.append(renamed(proto, inner, captures))
    protos += [helper.make_node("Identity", [inner[v]], [b.name]) for v, b in results.items()]
    graph = helper.make_graph(
        protos,
        "fallback",
        [_value_info(b) for b in feeds.values()],
        [_value_info(b) for b in results.values()],
        [numpy_helper.from_array(np.ascontiguousarray(a).reshape(a.shape), inner[v]) for v, a in constants.items()],
    )
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    return helper.make_model(graph, opset_imports=imports, ir_version=_IR_VERSION)


def infer_outputs(
    nodes: Sequence[Node], feeds: Mapping[str, Buffer], constants: Mapping[str, Array], opsets: Mapping[str, int]
) -> dict[str, Inferred]:
    """Types of the values that `nodes` compute, by ONNX's shape inference; values are missing that it can't infer.

    Args:
        nodes: in topological order.
        feeds: as in `reference_model`.
        constants: by value name; large ones take part with their shape only.
        opsets: versions of the operator sets, by domain.
    """
    small = {v: a for v, a in constants.items() if a.size <= _EMBED_LIMIT}
    model = reference_model(nodes, feeds, small, {}, opsets)
    for name, array in constants.items():
        if name not in small:
            number = helper.np_dtype_to_tensor_dtype(array.dtype)
            model.graph.input.append(helper.make_tensor_value_info(f"value:{name}", number, array.shape))
    names = [v for n in nodes for v in n.outputs if v]
    try:
        found = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except Exception:  # C++ errors of many kinds; the types stay unknown
        return {}
    types = {v.name: v.type for v in (*found.graph.value_info, *found.graph.output)}
    inferred = {name: _inferred(types[f"value:{name}"]) for name in names if f"value:{name}" in types}
    stated = {name: result for node in nodes for name, result in _stated_by_loop(node).items()}
    return stated | {name: result for name, result in inferred.items() if result is not None}


def evaluator_lacks(model: onnx.ModelProto) -> str | None:
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
        found = ReferenceEvaluator(reference_model(nodes, {}, constants, results, opsets)).run(None, {})
    except Exception:  # the evaluator reports faults with many exception types; the nodes stay as they are
        return {}
    return {v: a for v, a in zip(outputs, found, strict=True) if isinstance(a, np.ndarray)}


def _value_info(buffer: Buffer) -> onnx.ValueInfoProto:
    dims = [_dim(s) for s in buffer.shape]
    return helper.make_tensor_value_info(buffer.name, ELEMENT_NUMBERS[buffer.dtype], dims)


def _dim(size: Expr) -> int | str:
    return int(size.value) if isinstance(size, Const) else repr(size)


def _stated_by_loop(node: Node) -> dict[str, Inferred]:
    """Types of a Loop's outputs as its body declares them; ONNX does not infer them, as sizes may change on the way."""
    if node.op_type != "Loop" or node.domain:
        return {}
    found: dict[str, Inferred] = {}
    states = len(node.arguments) - 2
    for body in subgraphs(onnx.NodeProto.FromString(node.source)):
        for position, (name, value) in enumerate(zip(node.outputs, list(body.output)[1:], strict=False)):
            inner = _inferred(value.type)
            if name and inner is not None:
                rank = len(inner.dims) + (position >= states)
                found[name] = Inferred(inner.dtype, (None,) * rank)
    return found


def _inferred(proto: onnx.TypeProto) -> Inferred | None:
    tensor = proto.tensor_type
    dtype = ELEMENT_TYPES.get(tensor.elem_type) if proto.WhichOneof("value") == "tensor_type" else None
    if dtype is None or not tensor.HasField("shape"):
        return None
    dims = [d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in tensor.shape.dim]
    return Inferred(dtype, tuple(dims))
