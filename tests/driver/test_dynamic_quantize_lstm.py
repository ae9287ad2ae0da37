"""DynamicQuantizeLSTM: an LSTM with dequantized weights."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright
from tilewright.errors import ModelError
from tilewright.runtime.manifest import FallbackStep, all_steps

STEPS, BATCH, WIDTH, HIDDEN = 5, 2, 6, 8
RNG = np.random.default_rng(5)
X = RNG.standard_normal((STEPS, BATCH, WIDTH)).astype(np.float32)


def weights(directions: int, per_column: bool) -> dict[str, np.ndarray]:
    """Quantized weights with scales and zero points, and a bias."""
    count = (directions, 4 * HIDDEN) if per_column else (directions,)
    return {
        "W": RNG.integers(-128, 128, (directions, WIDTH, 4 * HIDDEN)).astype(np.int8),
        "R": RNG.integers(-128, 128, (directions, HIDDEN, 4 * HIDDEN)).astype(np.int8),
        "B": RNG.standard_normal((directions, 8 * HIDDEN)).astype(np.float32),
        "Ws": RNG.uniform(0.002, 0.005, count).astype(np.float32),
        "Rs": RNG.uniform(0.002, 0.005, count).astype(np.float32),
        "Wz": np.zeros(count, np.int8) if per_column else np.full(count, 3, np.int8),
        "Rz": np.zeros(count, np.int8) if per_column else np.full(count, -2, np.int8),
    }


def model(node: onnx.NodeProto, constants: dict[str, np.ndarray], domain: str = "com.microsoft") -> onnx.ModelProto:
    """The model of one recurrent node."""
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["steps", BATCH, WIDTH])]
    outputs = [helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in node.output]
    tensors = [numpy_helper.from_array(a, n) for n, a in constants.items()]
    graph = helper.make_graph([node], "g", inputs, outputs, tensors)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


def quantized(constants: dict[str, np.ndarray], direction: str) -> onnx.ModelProto:
    """The node of com.microsoft."""
    inputs = ["x", "W", "R", "B", "", "", "", "", "Ws", "Wz", "Rs", "Rz"]
    node = helper.make_node(
        "DynamicQuantizeLSTM", inputs, ["y", "h", "c"], name="lstm", domain="com.microsoft", direction=direction,
        hidden_size=HIDDEN,
    )  # fmt: skip
    return model(node, constants)


def in_float(constants: dict[str, np.ndarray], direction: str) -> onnx.ModelProto:
    """LSTM with the weights that the quantized ones stand for."""
    directions = constants["W"].shape[0]
    floats = {"B": constants["B"]}
    for letter in "WR":
        zero, scale = (constants[f"{letter}{p}"].reshape(directions, 1, -1).astype(np.float32) for p in "zs")
        floats[letter] = np.ascontiguousarray(((constants[letter] - zero) * scale).transpose(0, 2, 1))
    node = helper.make_node("LSTM", ["x", "W", "R", "B"], list("yhc"), direction=direction, hidden_size=HIDDEN)
    return model(node, floats)


def run_onnxruntime(proto: onnx.ModelProto) -> list[np.ndarray]:
    """ONNX Runtime's results."""
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": X})


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("per_column", [False, True])
def test_results(direction: str, per_column: bool) -> None:
    constants = weights(2 if direction == "bidirectional" else 1, per_column)
    proto = quantized(constants, direction)
    executable = tilewright.compile(proto, optimizer="rule", threads=1)
    assert not [s for s in all_steps(executable.manifest.steps) if isinstance(s, FallbackStep)]
    actual = executable(X)
    for value, exact in zip(actual, run_onnxruntime(in_float(constants, direction)), strict=True):
        np.testing.assert_allclose(value, exact, rtol=1e-5, atol=1e-5)
    # ONNX Runtime quantizes inputs and states as well
    for value, right in zip(actual, run_onnxruntime(proto), strict=True):
        np.testing.assert_allclose(value, right, rtol=0, atol=0.03)


def test_missing_inputs_are_named() -> None:
    proto = quantized(weights(1, False), "forward")
    del proto.graph.node[0].input[9:]
    with pytest.raises(ModelError, match=r"lstm.*input 9 \('W_zero_point'\) is required"):
        tilewright.compile(proto)
