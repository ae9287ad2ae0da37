"""Builders of ONNX models of float32 weights and nodes whose inputs and outputs are written as one string each."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
Model = tuple[onnx.ModelProto, Mapping[str, np.ndarray]]
"""A model and its inputs."""


def tensor(name: str, kind: int, shape: Sequence[int | str | None] | None) -> onnx.ValueInfoProto:
    """A declared tensor; its rank is open where the shape is None."""
    return helper.make_tensor_value_info(name, kind, shape)


def make_node(op: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    """A node of space-separated names; "-" omits an input."""
    names = [name if name != "-" else "" for name in inputs.split()]
    return helper.make_node(op, names, outputs.split(), name=f"{op}_{outputs.split()[0]}", **attributes)


def make_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    constants: Mapping[str, np.ndarray],
) -> onnx.ModelProto:
    """A model of ONNX's version 18 with initializers by name."""
    tensors = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
