"""Small ONNX models as text."""

import re
from collections.abc import Sequence

import numpy as np
import onnx
import onnx.parser
import pytest

from tilewright.errors import ModelError
from tilewright.frontend.onnx import load_onnx


def model(
    body: str, *, inputs: str = "float[N, 4] x", outputs: str = "float[N, 4] y", opset: int = 18
) -> onnx.ModelProto:
    """A model whose nodes are `body`, in ONNX's text syntax; the nodes are called n0, n1, ..."""
    text = f'<ir_version: 10, opset_import: ["" : {opset}]>\ng ({inputs}) => ({outputs}) {{ {body} }}'
    result = onnx.parser.parse_model(text)
    for index, node in enumerate(result.graph.node):
        node.name = f"n{index}"
    return result


def add_initializer(result: onnx.ModelProto, name: str, array: np.ndarray) -> onnx.TensorProto:
    """Adds an initializer and returns it, to be spoiled."""
    tensor = result.graph.initializer.add()
    tensor.CopyFrom(onnx.numpy_helper.from_array(array, name))
    return tensor


def problems(source: object, shapes: dict | None = None, **options: object) -> Sequence[str]:
    """The printed problems of a model that must not load."""
    with pytest.raises(ModelError) as error:
        load_onnx(source, shapes, **options)  # type: ignore[arg-type]
    lines = str(error.value).splitlines()
    assert len(lines) == len(error.value.problems) + 1
    assert re.match(r"\[model\] .*: \d+ problems?$", lines[0])
    return [str(p) for p in error.value.problems]


def untyped(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model without declared shapes of outputs."""
    for value in proto.graph.output:
        value.type.tensor_type.ClearField("shape")
    return proto
