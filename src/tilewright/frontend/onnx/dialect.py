"""The ONNX dialect: shape inference, reference evaluation and schemas of ONNX operators for graph passes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx
import onnx.defs
import onnx.shape_inference
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tilewright.custom_operators import evaluator_classes
from tilewright.errors import UnsupportedError
from tilewright.expr.dtype import opaque
from tilewright.expr.nodes import Buffer, Const, Expr
from tilewright.frontend.onnx.element_types import ELEMENT_TYPE_NUMBERS, ELEMENT_TYPES
from tilewright.frontend.onnx.node_protos import rename_values, set_ints_attribute, subgraphs
from tilewright.graph.ir import Array, FallbackRegion, InferredType, Node

_IR_VERSION = 10
_MAX_EMBEDDED_ELEMENTS = 1 << 12
"""Constants up to this many elements take part in shape inference by value."""


class OnnxDialect:
    """The `Dialect` of graphs that were loaded from ONNX models; it has no state."""

    def infer_types(self, region: FallbackRegion) -> tuple[Mapping[str, InferredType], Mapping[str, bytes]]:
        """Types of the last node's results by ONNX's shape inference; large constants take part by shape only."""
        node = region.nodes[-1]
        small = {v: a for v, a in region.constants.items() if a.size <= _MAX_EMBEDDED_ELEMENTS}
        model = reference_model(replace(region, constants=small))
        for name, array in region.constants.items():
            if name not in small:
                number = helper.np_dtype_to_tensor_dtype(array.dtype)
                model.graph.input.append(helper.make_tensor_value_info(f"value:{name}", number, array.shape))
        for proto in model.graph.node:
            _clear_dims(proto)
        try:
            typed = onnx.shape_inference.infer_shapes(model, data_prop=True)
        except Exception:  # C++ errors of many kinds; the types stay unknown
            return {}, {}
        types = {v.name: v.type for v in (*typed.graph.value_info, *typed.graph.output)}
        protos = {name: types[f"value:{name}"] for name in node.outputs if name and f"value:{name}" in types}
        inferred = {name: result for name, proto in protos.items() if (result := _parse_type(proto)) is not None}
        return _loop_output_types(node) | inferred, {name: p.SerializeToString() for name, p in protos.items()}

    def serialize(self, region: FallbackRegion) -> bytes:
        """The region as a serialized ONNX model.

        Raises:
            UnsupportedError: the reference evaluator cannot run one of the operators.
        """
        model = reference_model(region)
        reason = _evaluator_error(model)
        if reason is not None:
            raise UnsupportedError(reason)
        return model.SerializeToString(deterministic=True)

    def evaluate(self, region: FallbackRegion) -> Mapping[str, Array]:
        """The region's results by the reference evaluator; empty where it fails."""
        try:
            # The results' types are placeholders; the evaluator does not read them.
            with np.errstate(all="ignore"):
                arrays = ReferenceEvaluator(reference_model(region)).run(None, {})
        except Exception:  # the evaluator reports faults with many exception types; the nodes stay as they are
            return {}
        return {v: a for v, a in zip(region.results, arrays, strict=True) if isinstance(a, np.ndarray)}

    def optional_outputs(self, node: Node) -> Sequence[bool] | None:
        """Which outputs the operator's schema calls optional, None for operators that ONNX does not define."""
        if not onnx.defs.has(node.op_type, node.opset, node.domain):
            return None
        formal = onnx.defs.get_schema(node.op_type, node.opset, node.domain).outputs
        return [f.option == onnx.defs.OpSchema.FormalParameterOption.Optional for f in formal]

    def set_ints_attribute(self, source: bytes, name: str, values: tuple[int, ...]) -> bytes:
        """A serialized NodeProto with one attribute replaced by a list of integers."""
        return set_ints_attribute(source, name, values)

    def node_source(self, op_type: str) -> bytes:
        """A serialized NodeProto of a standard operator, whose inputs and outputs are those of its graph's node."""
        return onnx.NodeProto(op_type=op_type).SerializeToString(deterministic=True)


def reference_model(region: FallbackRegion) -> onnx.ModelProto:
    """The region as an ONNX model; its inputs and outputs are named like the buffers of feeds and results."""
    # Inside the model every value has a name that no sub-graph uses for a value of its own.
    inner = {v: f"value:{v}" for n in region.nodes for v in (*n.inputs, *n.outputs) if v}
    protos = [helper.make_node("Identity", [b.name], [inner[v]]) for v, b in region.feeds.items()]
    for node in region.nodes:
        proto = onnx.NodeProto.FromString(node.source)
        # The graph may have renamed inputs and outputs since the source was written: positions count.
        proto.input[:] = node.arguments
        # The evaluator would pass a value named "" to later nodes that omit an input.
        proto.output[:] = [o or f"unused:{len(protos)}:{k}" for k, o in enumerate(node.outputs)]
        current = node.inputs[len(node.inputs) - len(node.captures) :]
        captures = {old: inner[new] for old, new in zip(node.captures, current, strict=True)}
        protos.append(rename_values(proto, inner, captures))
    protos += [helper.make_node("Identity", [inner[v]], [b.name]) for v, b in region.results.items()]
    graph = helper.make_graph(
        protos,
        "fallback",
        [_value_info(b, region.opaque_types) for b in region.feeds.values()],
        [_value_info(b, region.opaque_types) for b in region.results.values()],
        [
            numpy_helper.from_array(np.ascontiguousarray(a).reshape(a.shape), inner[v])
            for v, a in region.constants.items()
        ],
    )
    # Identity belongs to the standard operator set, which a model need not import.
    versions = {"": onnx.defs.onnx_opset_version(), **region.opsets}
    imports = [helper.make_opsetid(domain, version) for domain, version in versions.items()]
    return helper.make_model(graph, opset_imports=imports, ir_version=_IR_VERSION)


def _clear_dims(node: onnx.NodeProto) -> None:
    """Clears the sizes in the types that a node's sub-graphs declare: exporters write those of one run."""
    for graph in subgraphs(node):
        for value in (*graph.input, *graph.output, *graph.value_info):
            if value.type.WhichOneof("value") == "tensor_type":
                for dim in value.type.tensor_type.shape.dim:
                    dim.Clear()
        for inner in graph.node:
            _clear_dims(inner)


def _evaluator_error(model: onnx.ModelProto) -> str | None:
    """Why the reference evaluator cannot run a model, None where it has all operators."""
    try:
        ReferenceEvaluator(model, new_ops=evaluator_classes())
    except Exception as error:  # the evaluator reports unknown operators with several exception types
        lines = str(error).strip().splitlines()
        return lines[0] if lines else type(error).__name__
    return None


def _value_info(buffer: Buffer, opaque_types: Mapping[str, bytes]) -> onnx.ValueInfoProto:
    if buffer.dtype is opaque:
        return helper.make_value_info(buffer.name, onnx.TypeProto.FromString(opaque_types.get(buffer.name, b"")))
    dims = [_dim(s) for s in buffer.shape]
    return helper.make_tensor_value_info(buffer.name, ELEMENT_TYPE_NUMBERS[buffer.dtype], dims)


def _dim(size: Expr) -> int | str:
    return int(size.value) if isinstance(size, Const) else repr(size)


def _loop_output_types(node: Node) -> dict[str, InferredType]:
    """Types of a Loop's outputs as its body declares them; ONNX does not infer them, as iterations may change sizes."""
    if node.op_type != "Loop" or node.domain:
        return {}
    types: dict[str, InferredType] = {}
    states = len(node.arguments) - 2
    for body in subgraphs(onnx.NodeProto.FromString(node.source)):
        for position, (name, value) in enumerate(zip(node.outputs, list(body.output)[1:], strict=False)):
            inner = _parse_type(value.type)
            if name and inner is not None:
                rank = len(inner.dims) + (position >= states)
                types[name] = InferredType(inner.dtype, (None,) * rank)
    return types


def _parse_type(proto: onnx.TypeProto) -> InferredType | None:
    """The type of a tensor of known rank, None for other types."""
    tensor = proto.tensor_type
    dtype = ELEMENT_TYPES.get(tensor.elem_type) if proto.WhichOneof("value") == "tensor_type" else None
    if dtype is None or not tensor.HasField("shape"):
        return None
    dims = [d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in tensor.shape.dim]
    return InferredType(dtype, tuple(dims))
