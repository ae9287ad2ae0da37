"""ONNX models written down in a few lines: inputs, constants from a fixed seed, and operators one after the other."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

OPSET = 18


@dataclass(frozen=True)
class Model:
    """A small model by name: made on demand, with the dimensions' ranges as `--shape` takes them."""

    name: str
    make: Callable[[], onnx.ModelProto]
    shapes: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


Models = Iterator[Model]


class Graph:
    """A graph that grows operator by operator; every method returns the name of a value."""

    def __init__(self, opset: int = OPSET) -> None:
        self._rng = np.random.default_rng(7)
        self._opset = opset
        self._inputs: list[onnx.ValueInfoProto] = []
        self._constants: list[onnx.TensorProto] = []
        self._nodes: list[onnx.NodeProto] = []

    def input(self, *shape: int | str, dtype: str = "float32") -> str:
        """An input; sizes are numbers or names of dimensions."""
        name = f"x{len(self._inputs)}"
        self._inputs.append(helper.make_tensor_value_info(name, tensor_type(dtype), shape))
        return name

    def constant(self, values: object, dtype: str = "float32") -> str:
        """A constant of given values."""
        name = f"w{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.asarray(values).astype(dtype), name))
        return name

    def weight(self, *shape: int, dtype: str = "float32", scale: float = 0.3) -> str:
        """A constant of random values, always the same ones for the same calls before."""
        if dtype in ("int8", "uint8", "int32", "int64"):
            low, high = (0, 200) if dtype == "uint8" else (-100, 100)
            return self.constant(self._rng.integers(low, high, shape), dtype)
        return self.constant(self._rng.standard_normal(shape) * scale, dtype)

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """An operator of one output."""
        return self.ops(kind, 1, *inputs, **attributes)[0]

    def ops(self, kind: str, count: int, *inputs: str, **attributes: Any) -> list[str]:
        """An operator of several outputs."""
        k = len(self._nodes)
        names = [f"v{k}" if i == 0 else f"v{k}_{i}" for i in range(count)]
        self._nodes.append(helper.make_node(kind, inputs, names, name=f"node{k}", **attributes))
        return names

    def done(self, *outputs: str, dtype: str | tuple[str, ...] = "float32", name: str = "replay") -> onnx.ModelProto:
        """The model with these outputs, all of one type or of a type each."""
        types = (dtype,) * len(outputs) if isinstance(dtype, str) else dtype
        values = [helper.make_tensor_value_info(o, tensor_type(t), None) for o, t in zip(outputs, types, strict=True)]
        graph = helper.make_graph(self._nodes, name, self._inputs, values, self._constants)
        opsets = [helper.make_opsetid("", self._opset)]
        model = helper.make_model(graph, opset_imports=opsets, producer_name="replay")
        model.ir_version = 9
        return model


def tensor_type(dtype: str) -> int:
    """ONNX's number of an element type."""
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
