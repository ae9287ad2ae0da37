"""Models with control flow, and a comparison with ONNX Runtime."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

import tilewright
from tilewright.errors import FallbackWarning
from tilewright.runtime import Executable
from tilewright.runtime.manifest import FallbackStep, all_steps

FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
RNG = np.random.default_rng(0)


def value(name: str, kind: int, shape: Sequence[int | str | None] | None) -> onnx.ValueInfoProto:
    """A typed value."""
    return helper.make_tensor_value_info(name, kind, shape)


def normal(*shape: int) -> np.ndarray:
    """Random float32."""
    return RNG.normal(size=shape).astype(np.float32)


def made(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    constants: Mapping[str, np.ndarray] | None = None,
    opset: int = 18,
) -> onnx.ModelProto:
    """A model."""
    tensors = [onnx.numpy_helper.from_array(a, n) for n, a in (constants or {}).items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    return model


def same_as_onnxruntime(
    model: onnx.ModelProto,
    feeds: Sequence[Mapping[str, Any]],
    folder: Path,
    *,
    fallbacks: Sequence[str] = (),
    tolerance: float = 1e-5,
) -> Executable:
    """The compiled model, which gives what ONNX Runtime gives, also once it is saved and loaded.

    Args:
        model: the model.
        feeds: inputs of several calls.
        folder: for the file.
        fallbacks: operators that the evaluator runs.
        tolerance: relative, and absolute.
    """
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    with warnings.catch_warnings():
        if fallbacks:
            warnings.simplefilter("ignore", FallbackWarning)
        exe = tilewright.compile(model, threads=1, optimizer="rule")
    evaluated = [n for s in all_steps(exe.manifest.steps) if isinstance(s, FallbackStep) for n in s.nodes]
    assert [n.partition("(")[2].rstrip(")") for n in evaluated] == list(fallbacks)
    exe.save(folder / "model.tw")
    loaded = tilewright.load(folder / "model.tw", threads=1)
    for arrays in feeds:
        expected = dict(zip([o.name for o in session.get_outputs()], session.run(None, dict(arrays)), strict=True))
        for run in (exe.run, loaded.run, exe.run):
            for name, actual in run(arrays).items():
                right = expected[name]
                assert (actual.shape, actual.dtype) == (right.shape, right.dtype), name
                np.testing.assert_allclose(actual, right, rtol=tolerance, atol=tolerance, err_msg=name)
    return exe


def growing_loop() -> onnx.ModelProto:
    """Concatenates rows until the data says stop, and stacks a product of every iteration."""
    body = helper.make_graph(
        [
            helper.make_node("Concat", ["all", "x"], ["longer"], axis=0),
            helper.make_node("ReduceSum", ["longer"], ["sum"], keepdims=0),
            helper.make_node("Add", ["i", "one"], ["next"]),
            helper.make_node("Less", ["next", "limit"], ["more"]),
            helper.make_node("Mul", ["x", "sum"], ["product"]),
        ],
        "body",
        [value("i", INT, []), value("go", BOOL, []), value("all", FLOAT, [None, 4])],
        [value("more", BOOL, []), value("longer", FLOAT, [None, 4]), value("product", FLOAT, [None, 4])],
    )
    return made(
        [helper.make_node("Loop", ["", "", "first"], ["y", "p"], name="loop", body=body),
         helper.make_node("Relu", ["p"], ["z"])],
        [value("first", FLOAT, ["N", 4]), value("x", FLOAT, ["M", 4]), value("limit", INT, [])],
        [value("y", FLOAT, [None, 4]), value("z", FLOAT, [None, None, 4])],
        {"one": np.array(1)},
    )  # fmt: skip


def scan_rnn(
    hidden: int, *, reverse: int = 0, input_axis: int = 0, output_axis: int = 0, output_reverse: int = 0
) -> onnx.ModelProto:
    """A recurrent layer as a Scan; its inputs are h0 [B, hidden] and x with 3 features.

    Its recurrent weights are contracting, so that rounding errors fade: with larger ones they grow with every step.
    """
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["now", "w"], ["a"]),
            helper.make_node("MatMul", ["h", "r"], ["b"]),
            helper.make_node("Add", ["a", "b"], ["c"]),
            helper.make_node("Tanh", ["c"], ["new"]),
            helper.make_node("Identity", ["new"], ["out"]),
        ],
        "body",
        [value("h", FLOAT, ["B", hidden]), value("now", FLOAT, ["B", 3])],
        [value("new", FLOAT, ["B", hidden]), value("out", FLOAT, ["B", hidden])],
    )
    scan = helper.make_node(
        "Scan", ["h0", "x"], ["last", "all"], name="scan", body=body, num_scan_inputs=1, scan_input_axes=[input_axis],
        scan_input_directions=[reverse], scan_output_axes=[output_axis], scan_output_directions=[output_reverse],
    )  # fmt: skip
    return made(
        [scan],
        [value("h0", FLOAT, ["B", hidden]), value("x", FLOAT, ["B", "S", 3] if input_axis == 1 else ["S", "B", 3])],
        [value("last", FLOAT, ["B", hidden]), value("all", FLOAT, [None, None, None])],
        {"w": normal(3, hidden), "r": normal(hidden, hidden) * np.float32(0.4 / hidden**0.5)},
    )
