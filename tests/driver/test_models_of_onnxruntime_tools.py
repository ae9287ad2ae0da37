"""Models that ONNX Runtime's optimizer and quantization tools wrote run unchanged, natively, with its results."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from tests.driver.quantizable_models import Feeds, convolutional, encoder, images, sentences

import tilewright
from tilewright.errors import ModelError
from tilewright.runtime.manifest import FallbackStep, all_steps

EXTENDED, ALL = (
    onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
)
STEP = 1 / 256
"""One step of the quantized probabilities."""


class _Batches(CalibrationDataReader):
    def __init__(self, feeds: Callable[[np.random.Generator], Feeds]) -> None:
        rng = np.random.default_rng(3)
        self._remaining: Iterator[Feeds] = iter([feeds(rng) for _ in range(4)])

    def get_next(self) -> Feeds | None:
        return next(self._remaining, None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both models."""
    folder = tmp_path_factory.mktemp("models")
    onnx.save(convolutional(), folder / "convolutional.onnx")
    onnx.save(encoder(), folder / "encoder.onnx")
    return folder


def saved_by_optimizer(path: Path, level: onnxruntime.GraphOptimizationLevel) -> Path:
    """The model as ONNX Runtime's optimizer saves it."""
    target = path.with_name(f"{path.stem}_{level.name}.onnx")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level, options.optimized_model_filepath = level, str(target)
    options.log_severity_level = 4
    onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return target


def contrib_operators(path: Path) -> set[str]:
    """The operators of com.microsoft in a model."""
    return {n.op_type for n in onnx.load(path).graph.node if n.domain == "com.microsoft"}


def check(path: Path, feeds: Feeds, largest: float) -> None:
    """Compiles a model and compares with ONNX Runtime."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    (expected,) = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"]).run(None, feeds)
    executable = tilewright.compile(path, optimizer="rule", threads=1)
    assert not [s for s in all_steps(executable.manifest.steps) if isinstance(s, FallbackStep)]
    actual = executable.run(feeds)["y"]
    assert actual.dtype == expected.dtype
    np.testing.assert_allclose(actual, expected, rtol=0, atol=largest)


@pytest.mark.parametrize("form", [QuantFormat.QDQ, QuantFormat.QOperator])
@pytest.mark.parametrize("kind", [QuantType.QUInt8, QuantType.QInt8])
def test_statically_quantized_network(folder: Path, form: QuantFormat, kind: QuantType) -> None:
    path = folder / f"{form.name}_{kind.name}.onnx"
    quantize_static(
        folder / "convolutional.onnx", path, _Batches(images), quant_format=form, activation_type=kind,
        weight_type=QuantType.QInt8, per_channel=kind == QuantType.QUInt8,
    )  # fmt: skip
    feeds = images(np.random.default_rng(7))
    check(path, feeds, 1.01 * STEP)
    if kind == QuantType.QUInt8:
        faster = saved_by_optimizer(path, ALL)
        assert contrib_operators(faster) >= {"QLinearConv", "QLinearAdd", "NhwcMaxPool", "QGemm", "QLinearSoftmax"}
        check(faster, feeds, 1.01 * STEP)


def test_statically_quantized_encoder(folder: Path) -> None:
    path = folder / "encoder_qoperator.onnx"
    quantize_static(
        folder / "encoder.onnx", path, _Batches(sentences), quant_format=QuantFormat.QOperator,
        weight_type=QuantType.QInt8,
    )  # fmt: skip
    assert contrib_operators(path) >= {"QLinearAdd", "QLinearMul", "QLinearSoftmax"}
    check(path, sentences(np.random.default_rng(7)), 0.05)


def test_dynamically_quantized_encoder(folder: Path) -> None:
    path = folder / "dynamic.onnx"
    quantize_dynamic(folder / "encoder.onnx", path, weight_type=QuantType.QInt8)
    feeds = sentences(np.random.default_rng(7))
    check(path, feeds, 0.02)
    faster = saved_by_optimizer(path, EXTENDED)
    assert contrib_operators(faster) >= {"DynamicQuantizeMatMul", "SkipLayerNormalization"}
    check(faster, feeds, 0.02)


@pytest.mark.parametrize("symmetric", [True, False])
def test_weights_of_four_bits(folder: Path, symmetric: bool) -> None:
    quantizer = MatMulNBitsQuantizer(onnx.load(folder / "encoder.onnx"), block_size=16, is_symmetric=symmetric)
    quantizer.process()
    path = folder / f"four_bits_{symmetric}.onnx"
    quantizer.model.save_model_to_file(str(path))
    assert "MatMulNBits" in contrib_operators(path)
    check(path, sentences(np.random.default_rng(7)), 1e-4)


def test_optimized_models(folder: Path) -> None:
    network, layer = (
        saved_by_optimizer(folder / "convolutional.onnx", EXTENDED),
        saved_by_optimizer(folder / "encoder.onnx", ALL),
    )
    assert contrib_operators(network) >= {"FusedConv", "QuickGelu"}
    assert contrib_operators(layer) >= {"BiasGelu", "FusedMatMul", "SkipLayerNormalization"}
    check(network, images(np.random.default_rng(7)), 1e-5)
    check(layer, sentences(np.random.default_rng(7)), 1e-5)


def test_layouts_of_one_machine_are_refused_with_advice() -> None:
    node = onnx.helper.make_node("ReorderInput", ["x"], ["y"], name="r", domain="com.microsoft.nchwc")
    values = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [1, 16, 4, 4]) for n in "xy"]
    graph = onnx.helper.make_graph([node], "g", values[:1], values[1:])
    imports = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft.nchwc", 1)]
    model = onnx.helper.make_model(graph, opset_imports=imports, ir_version=9)
    with pytest.raises(ModelError, match=r"node r \(ReorderInput\): .*save the model with ORT_ENABLE_EXTENDED"):
        tilewright.compile(model)
