"""Conversion of NodeProtos to graph nodes, and of constants to arrays."""

from collections.abc import Iterator, MutableMapping

import numpy as np
import onnx
from onnx import AttributeProto

from tilewright.errors import Defect
from tilewright.expr.nodes import Var, const
from tilewright.frontend.onnx.element_types import ELEMENT_TYPES
from tilewright.frontend.onnx.node_protos import captured_names
from tilewright.frontend.onnx.opsets import standard_domain
from tilewright.frontend.onnx.tensors import TensorDefectError, has_native_type, sparse_to_array, to_array
from tilewright.graph.ir import Array, Attribute, Node, TensorType
from tilewright.machine.map_in_threads import map_in_threads


def convert_node(node: onnx.NodeProto, name: str, opsets: dict[str, int]) -> Node:
    """A graph node.

    Raises:
        TensorDefectError: a tensor attribute is defective.
    """
    domain = standard_domain(node.domain)
    captures = captured_names(node)
    attributes: dict[str, Attribute] = {}
    nested = False
    for a in node.attribute:
        value = _attribute_value(a, f"node {name} ({node.op_type}), attribute '{a.name}'")
        if value is None:
            nested = True
        else:
            attributes[a.name] = value
    return Node(
        name=name,
        op_type=node.op_type,
        domain=domain,
        opset=opsets.get(domain, 0),
        inputs=(*node.input, *captures),
        outputs=tuple(node.output),
        attributes=attributes,
        source=node.SerializeToString(deterministic=True),
        captures=captures,
        has_opaque_attributes=nested,
    )


def _attribute_value(a: AttributeProto, where: str) -> Attribute | None:
    """The value; None for graphs, types and tensors without a native type."""
    match a.type:
        case AttributeProto.INT:
            return a.i
        case AttributeProto.FLOAT:
            return a.f
        case AttributeProto.STRING:
            return _decode_text(a.s)
        case AttributeProto.INTS:
            return tuple(a.ints)
        case AttributeProto.FLOATS:
            return tuple(a.floats)
        case AttributeProto.STRINGS:
            return tuple(s.decode("utf-8", "replace") for s in a.strings)
        case AttributeProto.TENSOR if has_native_type(a.t):
            return to_array(a.t, (), where)
        case _:
            return None


def _decode_text(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


_CONSTANT_TYPES = {
    "value": AttributeProto.TENSOR, "sparse_value": AttributeProto.SPARSE_TENSOR,
    "value_float": AttributeProto.FLOAT, "value_floats": AttributeProto.FLOATS,
    "value_int": AttributeProto.INT, "value_ints": AttributeProto.INTS,
    "value_string": AttributeProto.STRING, "value_strings": AttributeProto.STRINGS,
}  # fmt: skip
"""Attributes that hold a Constant's value; embedded_tensors.py has made sparse ones dense."""


def constant_value(node: onnx.NodeProto, folders: tuple[str, ...]) -> Array | None:
    """The array of a Constant node, None where only the reference evaluator has its type.

    Raises:
        TensorDefectError: the tensor is defective, or the node has no value, or several.
    """
    where = f"constant '{node.output[0]}'"
    values = [a for a in node.attribute if a.name in _CONSTANT_TYPES]
    if len(values) != 1 or values[0].type not in (_CONSTANT_TYPES[values[0].name], AttributeProto.UNDEFINED):
        got = ", ".join(f"{a.name} of type {AttributeProto.AttributeType.Name(a.type)}" for a in values) or "none"
        what = f"expected one attribute with the value of a Constant, of the type that its name says, got {got}"
        raise TensorDefectError(Defect("attribute", where, what))
    for a in values:
        match a.name:
            case "value" if has_native_type(a.t):
                return to_array(a.t, folders, where)
            case "value" if a.t.data_type == onnx.TensorProto.UNDEFINED:
                raise TensorDefectError(Defect("attribute", where, "attribute 'value' of the Constant has no tensor"))
            case "value_float":
                return np.asarray(a.f, np.float32)
            case "value_floats":
                return np.asarray(a.floats, np.float32)
            case "value_int":
                return np.asarray(a.i, np.int64)
            case "value_ints":
                return np.asarray(a.ints, np.int64)
            case _:
                pass
    return None


def extract_constant(
    node: onnx.NodeProto,
    constants: MutableMapping[str, Array],
    defective: set[str],
    folders: tuple[str, ...],
    problems: list[Defect],
) -> bool:
    """Moves the value of a Constant node to `constants`, or the name of a defective one to `defective`; whether it did
    so."""
    if node.op_type != "Constant" or standard_domain(node.domain) or len(node.output) != 1:
        return False
    try:
        value = constant_value(node, folders)
    except TensorDefectError as error:
        problems.append(error.problem)
        defective.add(node.output[0])
        return True
    if value is None or node.output[0] in constants:
        return False
    constants[node.output[0]] = value
    return True


def initializer_values(
    graph: onnx.GraphProto, folders: tuple[str, ...], problems: list[Defect]
) -> Iterator[tuple[str, Array | onnx.NodeProto]]:
    """Yields the name of each initializer with its array, or with a Constant node for the reference evaluator where
    its element type has no native code.

    A defective initializer is left out and its problem appended to `problems`.
    """
    values = map_in_threads(lambda tensor: _initializer_value(tensor, folders), graph.initializer)
    for tensor, value in zip(graph.initializer, values, strict=True):
        if isinstance(value, Defect):
            problems.append(value)
        else:
            yield tensor.name, value
    for sparse in graph.sparse_initializer:
        try:
            yield sparse.values.name, sparse_to_array(sparse)
        except TensorDefectError as error:
            problems.append(error.problem)


def _initializer_value(tensor: onnx.TensorProto, folders: tuple[str, ...]) -> Array | onnx.NodeProto | Defect:
    if not has_native_type(tensor):
        return onnx.helper.make_node("Constant", [], [tensor.name], name=tensor.name, value=tensor)
    try:
        return to_array(tensor, folders, f"initializer '{tensor.name}'")
    except TensorDefectError as error:
        return error.problem


def tensor_type(proto: onnx.TypeProto) -> TensorType | None:
    """A declared type, None where it is not a tensor or has no rank."""
    if proto.WhichOneof("value") != "tensor_type" or not proto.tensor_type.HasField("shape"):
        return None
    dtype = ELEMENT_TYPES.get(proto.tensor_type.elem_type)
    if dtype is None:
        return None
    dims = proto.tensor_type.shape.dim
    return TensorType(
        dtype,
        tuple(
            const(d.dim_value) if d.HasField("dim_value") and d.dim_value > 0 else Var(d.dim_param or "?") for d in dims
        ),
    )
