"""Programs written for ONNX Runtime's session: bindings, tensors, replaced initializers, profiling."""

import json
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright
from tilewright.driver.interfaces.ort_value import OrtValue
from tilewright.errors import FeedError, OptionError

RNG = np.random.default_rng(41)
W, B = (RNG.standard_normal(s).astype(np.float32) for s in ((3, 4), (4,)))
X = RNG.standard_normal((2, 3)).astype(np.float32)
BOTH = pytest.mark.parametrize("engine", [onnxruntime, tilewright], ids=["onnxruntime", "tilewright"])


def affine(overridable: bool = True, dim: str | None = "n") -> onnx.ModelProto:
    """y = x w + b, z = -y; b is an input, too."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Add", ["p", "b"], ["y"]),
        helper.make_node("Neg", ["y"], ["z"]),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [dim, 3])]
    if overridable:
        inputs.append(helper.make_tensor_value_info("b", TensorProto.FLOAT, [4]))
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [dim, 4]) for name in "yz"]
    constants = [numpy_helper.from_array(W, "w"), numpy_helper.from_array(B, "b")]
    graph = helper.make_graph(nodes, "affine", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def session_of(engine: ModuleType, options: Any = None, model: onnx.ModelProto | None = None) -> Any:
    """A session of either engine."""
    content = (model or affine()).SerializeToString()
    keywords = {"optimizer": "rule"} if engine is tilewright else {}
    return engine.InferenceSession(content, options, providers=["CPUExecutionProvider"], **keywords)


def assert_close(actual: Any, expected: Any) -> None:
    """Asserts that results agree."""
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


@BOTH
def test_tensors(engine: ModuleType) -> None:
    session = session_of(engine)
    x = X.copy()
    value = engine.OrtValue.ortvalue_from_numpy(x)
    (y,) = session.run_with_ort_values(["y"], {"x": value})
    assert_close(y.numpy(), X @ W + B)
    assert (y.shape(), y.data_type(), y.element_type()) == ([2, 4], "tensor(float)", 1)
    assert (y.device_name(), y.is_tensor(), y.has_value(), y.is_tensor_sequence()) == ("cpu", True, True, False)
    value.update_inplace(-X)
    np.testing.assert_array_equal(x, -X)  # it is the same memory
    assert_close(session.run_with_ort_values(None, {"x": value})[1].numpy(), X @ W - B)
    empty = engine.OrtValue.ortvalue_from_shape_and_type([2, 5], np.int64)
    assert (empty.shape(), empty.data_type()) == ([2, 5], "tensor(int64)")


@BOTH
def test_bound_arrays_and_new_outputs(engine: ModuleType) -> None:
    session = session_of(engine)
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_output("z")
    binding.bind_output("y", "cpu")
    binding.synchronize_inputs()
    session.run_with_iobinding(binding)
    binding.synchronize_outputs()
    z, y = binding.copy_outputs_to_cpu()
    assert_close(z, -(X @ W + B))
    assert_close([v.numpy() for v in binding.get_outputs()], [z, y])
    binding.clear_binding_outputs()
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    assert_close(binding.copy_outputs_to_cpu(), [y])


@BOTH
def test_memory_of_the_caller(engine: ModuleType) -> None:
    session = session_of(engine)
    x, y = X.copy(), np.zeros((2, 4), np.float32)
    z = engine.OrtValue.ortvalue_from_numpy(np.zeros((2, 4), np.float32))
    binding = session.io_binding()
    binding.bind_input("x", "cpu", 0, np.float32, x.shape, x.ctypes.data)
    binding.bind_output("y", "cpu", 0, np.float32, y.shape, y.ctypes.data)
    binding.bind_ortvalue_output("z", z)
    for factor in (1, 3):
        x[:] = factor * X
        session.run_with_iobinding(binding)
        assert_close(y, factor * X @ W + B)
        assert_close(z.numpy(), -y)


@BOTH
def test_a_feed_replaces_an_initializer(engine: ModuleType) -> None:
    session = session_of(engine)
    (argument,) = session.get_overridable_initializers()
    assert (argument.name, argument.shape, argument.type) == ("b", [4], "tensor(float)")
    assert [arg.name for arg in session.get_inputs()] == ["x"]
    for bias in (np.zeros(4, np.float32), np.ones(4, np.float32)):
        assert_close(session.run(["y"], {"x": X, "b": bias})[0], X @ W + bias)
    assert_close(session.run(["y"], {"x": X})[0], X @ W + B)
    assert session_of(engine, model=affine(overridable=False)).get_overridable_initializers() == []


def test_a_replaced_initializer_has_its_declared_shape() -> None:
    session = session_of(tilewright)
    with pytest.raises(FeedError, match="'b'"):
        session.run(None, {"x": X, "b": np.zeros(5, np.float32)})
    with pytest.raises(FeedError, match="w"):
        session.run(None, {"x": X, "w": W})


def test_options_replace_initializers(tmp_path: Path) -> None:
    options = tilewright.SessionOptions()
    options.add_initializer("b", OrtValue(np.zeros(4, np.float32)))
    options.add_external_initializers(["w"], [onnxruntime.OrtValue.ortvalue_from_numpy(2 * W)])
    options.optimized_model_filepath = str(tmp_path / "compiled.tw")
    assert_close(session_of(tilewright, options).run(["y"], {"x": X})[0], X @ (2 * W))
    assert_close(tilewright.InferenceSession(tmp_path / "compiled.tw").run(["y"], {"x": X})[0], X @ (2 * W))
    with pytest.raises(OptionError, match="no effect on a model that is compiled already"):
        tilewright.InferenceSession(tmp_path / "compiled.tw", options)
    for name, value, message in (
        ("b", np.zeros(5, np.float32), "initializer 'b': expected float32 [4], got float32 [5]"),
        ("q", B, "initializer 'q': the model has no such initializer"),
    ):
        wrong = tilewright.SessionOptions()
        wrong.add_initializer(name, value)
        with pytest.raises(OptionError) as error:
            session_of(tilewright, wrong)
        assert error.value.where + ": " + error.value.what == message
    with pytest.raises(OptionError, match="expected a value per name, got 1 for 2"):
        options.add_external_initializers(["w", "b"], [W])


def test_sizes_by_denotation() -> None:
    model = affine()
    model.graph.input[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    options = tilewright.SessionOptions()
    options.add_free_dimension_override_by_denotation("DATA_BATCH", 2)
    session = session_of(tilewright, options, model)
    assert session.get_inputs()[0].shape == [2, 3]
    assert_close(session.run(["y"], {"x": X})[0], X @ W + B)


def test_profiling(tmp_path: Path) -> None:
    options = tilewright.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "run_")
    session = session_of(tilewright, options)
    assert session.get_profiling_start_time_ns() > 0
    for _ in range(3):
        session.run(None, {"x": X})
    file = Path(session.end_profiling())
    events = json.loads(file.read_text())
    assert file.name.startswith("run_")
    assert [event["name"] for event in events] == ["model_run"] * 3
    assert all(event["dur"] > 0 for event in events)
    assert session_of(tilewright).end_profiling() == ""
    options.profile_file_prefix = str(tmp_path / "absent" / "run_")
    with pytest.raises(OptionError, match="can't be written"):
        session_of(tilewright, options).end_profiling()


@BOTH
def test_runs_in_a_thread(engine: ModuleType) -> None:
    session, done = session_of(engine), threading.Event()
    received: list[Any] = []

    def callback(results: Any, user_data: Any, error: str) -> None:
        received.append((results, user_data, error))
        done.set()

    session.run_async(["y"], {"x": X}, callback, "mine")
    assert done.wait(60)
    ((results, user_data, error),) = received
    assert_close(results[0], X @ W + B)
    assert (user_data, error) == ("mine", "")


def test_errors_of_a_thread_reach_the_callback() -> None:
    done, received = threading.Event(), list[str]()

    def callback(results: Any, user_data: Any, error: str) -> None:
        received.append(error)
        done.set()

    session_of(tilewright).run_async(["y"], {"absent": X}, callback)
    assert done.wait(60)
    assert "absent" in received[0]


def test_names_of_a_refused_binding_are_in_the_order_of_the_model() -> None:
    names = [f"x{k}" for k in range(12)]
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in names]
    total = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
    graph = helper.make_graph([helper.make_node("Sum", names, ["y"])], "sum", inputs, [total])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    with pytest.raises(FeedError, match=f"those that exist are {', '.join(names)}$"):
        session_of(tilewright, model=model).io_binding().bind_cpu_input("q", X)


def test_bindings_refuse_what_does_not_fit() -> None:
    session = session_of(tilewright)
    binding = session.io_binding()
    with pytest.raises(FeedError, match=r"input 'q': no such input; those that exist are x, b"):
        binding.bind_cpu_input("q", X)
    with pytest.raises(FeedError, match="output 'q': no such output; those that exist are y, z"):
        binding.bind_output("q")
    with pytest.raises(FeedError, match="no output is bound; call bind_output"):
        session.run_with_iobinding(binding)
    with pytest.raises(OptionError, match="expected 'cpu', got 'cuda'"):
        binding.bind_output("y", "cuda")
    with pytest.raises(OptionError, match="expected an element type and a shape with an address"):
        binding.bind_output("y", buffer_ptr=1)
    for element_type in (99, "no type"):
        with pytest.raises(OptionError, match=f"there is no element type {element_type}"):
            OrtValue.ortvalue_from_shape_and_type([1], element_type)
    binding.bind_cpu_input("x", X)
    binding.bind_ortvalue_output("y", OrtValue(np.zeros((3, 4), np.float32)))
    with pytest.raises(FeedError, match=r"the bound memory is float32 \[3, 4\], the result float32 \[2, 4\]"):
        session.run_with_iobinding(binding)
    with pytest.raises(FeedError, match=r"expected float32 \[2, 3\], got float64 \[2, 3\]"):
        OrtValue.ortvalue_from_numpy(X.copy()).update_inplace(X.astype(np.float64))
