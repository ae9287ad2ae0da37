"""Models under construction, node by node."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

Array = np.ndarray[Any, Any]


@dataclass
class Net:
    """A model under construction, with an attention of its own sizes.

    Attributes:
        inputs: types and shapes by name.
    """

    inputs: dict[str, tuple[Any, tuple[int | str, ...]]] = field(default_factory=dict[str, Any])
    nodes: list[onnx.NodeProto] = field(default_factory=list[onnx.NodeProto])
    constants: dict[str, Array] = field(default_factory=dict[str, Array])

    def input(self, name: str, *shape: int | str, dtype: Any = np.float32) -> str:
        self.inputs[name] = (dtype, shape)
        return name

    def __call__(self, op: str, *inputs: "str | Array | float | list[int]", outputs: int = 1, **attributes: Any) -> str:
        names = [x if isinstance(x, str) else self._constant(x) for x in inputs]
        results = [f"v{len(self.nodes)}_{k}" for k in range(outputs)]
        self.nodes.append(helper.make_node(op, names, results, f"n{len(self.nodes)}", **attributes))
        return results[0]

    def _constant(self, value: "Array | float | list[int]") -> str:
        name = f"c{len(self.constants)}"
        array = np.asarray(value)
        self.constants[name] = array.astype(np.float32) if array.dtype == np.float64 else array
        return name

    def model(self, *results: str) -> onnx.ModelProto:
        feeds = [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(np.dtype(t)), s)
            for n, (t, s) in self.inputs.items()
        ]
        outs = [helper.make_empty_tensor_value_info(r) for r in results]
        constants = [numpy_helper.from_array(v, n) for n, v in self.constants.items()]
        graph = helper.make_graph(self.nodes, "net", feeds, outs, constants)
        opsets = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=11)
