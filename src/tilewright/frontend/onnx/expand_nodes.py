"""Expansion of nodes of `com.microsoft` that standard nodes say in other words."""

from collections.abc import Container, MutableMapping

import numpy as np
import onnx
from onnx import TensorProto, helper

from tilewright.errors import Defect
from tilewright.frontend.onnx.structure import node_label
from tilewright.frontend.onnx.tensors import TensorDefectError
from tilewright.graph.ir import Array
from tilewright.names import underscored_name

EXPANDED = frozenset([("com.microsoft", "DynamicQuantizeLSTM")])
"""The operators that are expanded, by domain and name."""

_REQUIRED = {0: "X", 1: "W", 2: "R", 8: "W_scale", 9: "W_zero_point", 10: "R_scale", 11: "R_zero_point"}
"""Inputs of DynamicQuantizeLSTM that are not optional."""

_STATE_INPUTS = range(3, 8)
"""Positions of the bias, lengths, initial states and peepholes, which are those of LSTM."""


def expand_node(
    name: str, node: onnx.NodeProto, constants: MutableMapping[str, Array], taken: Container[str]
) -> list[tuple[str, onnx.NodeProto]]:
    """The nodes that stand for a node, with their names: the node itself, or several standard ones.

    Args:
        name: of the node.
        node: any.
        constants: receives constants of the new nodes.
        taken: names that a new value must not have.

    Raises:
        TensorDefectError: the node lacks an input.
    """
    if (node.domain, node.op_type) not in EXPANDED:
        return [(name, node)]
    inputs = [*node.input, *[""] * (12 - len(node.input))]
    for position, what in _REQUIRED.items():
        if not inputs[position]:
            raise TensorDefectError(Defect("arity", node_label(name, node), f"input {position} ('{what}') is required"))
    return _lstm_nodes(name, node, inputs, constants, taken)


def _lstm_nodes(
    name: str, node: onnx.NodeProto, inputs: list[str], constants: MutableMapping[str, Array], taken: Container[str]
) -> list[tuple[str, onnx.NodeProto]]:
    """LSTM with dequantized weights: [directions, 4 * hidden, width] of [directions, width, 4 * hidden]."""

    def new(what: str) -> str:
        return underscored_name(f"{name}/{what}", taken, constants)

    directions = 2 if any(a.name == "direction" and a.s == b"bidirectional" for a in node.attribute) else 1
    row = new("row")
    constants[row] = np.array([directions, 1, -1], np.int64)
    parts: list[onnx.NodeProto] = []

    def add(op_type: str, what: str, *arguments: str, **attributes: int | list[int]) -> str:
        part = helper.make_node(op_type, arguments, [new(what)])
        part.attribute.extend(helper.make_attribute(k, v) for k, v in attributes.items())
        parts.append(part)
        return part.output[0]

    weights: list[str] = []
    for letter, quantized, scale, zero in (("W", 1, 8, 9), ("R", 2, 10, 11)):
        values, offsets = (
            add("Cast", f"{letter}/{what}", inputs[k], to=TensorProto.FLOAT)
            for what, k in (("values", quantized), ("zero", zero))
        )
        offset_row = add("Reshape", f"{letter}/zero_row", offsets, row)
        scale_row = add("Reshape", f"{letter}/scale_row", inputs[scale], row)
        centred = add("Sub", f"{letter}/centred", values, offset_row)
        floats = add("Mul", f"{letter}/floats", centred, scale_row)
        weights.append(add("Transpose", f"{letter}/transposed", floats, perm=[0, 2, 1]))
    lstm = helper.make_node("LSTM", [inputs[0], *weights, *(inputs[k] for k in _STATE_INPUTS)], list(node.output))
    while not lstm.input[-1]:
        del lstm.input[-1]
    lstm.attribute.extend(node.attribute)
    return [*((f"{name}/{p.op_type}#{k}", p) for k, p in enumerate(parts)), (name, lstm)]
