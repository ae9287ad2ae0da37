"""The Python examples of README, run as they stand, one after the other, on a small model."""

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

README = Path(__file__).parent.parent / "README.md"


def small_model() -> onnx.ModelProto:
    """y = max(x, 0) / 2 with a dynamic batch."""
    dims = ["batch", 3, 224, 224]
    graph = helper.make_graph(
        [helper.make_node("Relu", ["input"], ["r"]), helper.make_node("Mul", ["r", "half"], ["output"])],
        "small",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, dims)],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, dims)],
        [helper.make_tensor("half", TensorProto.FLOAT, [], [0.5])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def test_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(small_model(), "model.onnx")
    x = np.random.default_rng(3).standard_normal((2, 3, 224, 224)).astype(np.float32)
    names: dict[str, object] = {"x": x}
    examples = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(examples) == 2
    for example in examples:
        exec(compile(example, str(README), "exec"), names)
    np.testing.assert_array_equal(names["y"], np.full((8, 3, 224, 224), 0.5, np.float32))
    (output,) = names["outputs"]
    np.testing.assert_array_equal(output, np.maximum(x, 0) / 2)
    assert Path("model.tw").stat().st_size < 100_000
