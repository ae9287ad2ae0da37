"""A float64 evaluation of an ONNX model: the yardstick that both engines' float32 errors are measured with.

The graph is walked node by node with torch tensors; every float32 value (weights, constants, inputs, casts) becomes a
double, integers and booleans stay what they are. Nothing of the compiler or of ONNX Runtime takes part.
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto
from torch import Tensor

from benchmarks.zoo import reference_shapes  # noqa: F401  (registers its kernels)
from benchmarks.zoo.reference_ops import KERNELS, ReferenceGapError


class Reference:
    """A loaded model that evaluates in float64: `Reference(path).run(feeds)` returns every graph output by name."""

    def __init__(self, path: Path) -> None:
        model = onnx.load(path)
        self._model = model
        self._opset = next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
        self._weights = {tensor.name: to_double(tensor) for tensor in model.graph.initializer}
        missing = {node.op_type for node in model.graph.node} - set(KERNELS) - {"Constant", "ConstantOfShape"}
        if missing or model.functions:
            raise ReferenceGapError(f"no reference for {', '.join(sorted(missing)) or 'functions'}")

    def run(self, feeds: Mapping[str, NDArray[np.generic]]) -> dict[str, NDArray[np.generic]]:
        """Evaluate the graph at `feeds`; float outputs are float64, the others keep their type."""
        graph = self._model.graph
        with torch.no_grad():
            values: dict[str, Tensor | None] = {"": None, **self._weights}
            values |= {name: _promote(torch.from_numpy(np.array(array))) for name, array in feeds.items()}
            uses = _last_uses(self._model)
            for node in graph.node:
                results = self._evaluate(node, [values[name] for name in node.input])
                for name, result in zip(node.output, results, strict=False):
                    values[name] = result
                for name in node.input:
                    uses[name] -= 1
                    if uses[name] == 0:
                        values.pop(name, None)
        return {output.name: _array(values[output.name]) for output in graph.output}

    def _evaluate(self, node: NodeProto, operands: list[Tensor | None]) -> list[Tensor]:
        attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
        if node.op_type == "Constant":
            return [_constant(attributes)]
        if node.op_type == "ConstantOfShape":
            return [_constant_of_shape(operands, attributes)]
        try:
            return KERNELS[node.op_type](operands, attributes, self._opset)
        except Exception as error:
            shapes = [None if operand is None else list(operand.shape) for operand in operands]
            raise ReferenceGapError(f"{node.op_type} '{node.name}' at {shapes}: {error}") from error


def to_double(tensor: TensorProto) -> Tensor:
    """Return a stored tensor, its floating-point values as doubles."""
    return _promote(torch.from_numpy(np.array(onnx.numpy_helper.to_array(tensor))))


def _promote(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def _array(tensor: Tensor | None) -> NDArray[np.generic]:
    if tensor is None:
        raise ReferenceGapError("a graph output has no value")
    return tensor.contiguous().numpy()


def _constant(attributes: Mapping[str, Any]) -> Tensor:
    if "value" not in attributes:
        raise ReferenceGapError(f"Constant with {', '.join(attributes)}")
    return to_double(attributes["value"])


def _constant_of_shape(operands: list[Tensor | None], attributes: Mapping[str, Any]) -> Tensor:
    shape = operands[0]
    if shape is None:
        raise ReferenceGapError("ConstantOfShape without a shape")
    value = to_double(attributes["value"]) if "value" in attributes else torch.zeros(1, dtype=torch.float64)
    return value.reshape(()).expand(shape.tolist())


def _last_uses(model: ModelProto) -> Counter[str]:
    """How often each value is read; weights and outputs get one more, so that they are never dropped."""
    uses = Counter(name for node in model.graph.node for name in node.input)
    uses.update({output.name: 1 for output in model.graph.output})
    uses.update(tensor.name for tensor in model.graph.initializer)
    uses.update({"": 1})
    return uses
