"""Small ONNX models for tests of the pipeline."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

MACHINE_LEARNING = "ai.onnx.ml"
"""The domain of ONNX's operators for trees, scalers and the like, which have no native code."""


def array(seed: int, *shape: int, scale: float = 1.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def value(name: str, shape, kind: int = TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def model(nodes, inputs, outputs, constants=None, opset: int = 18, name: str = "test") -> onnx.ModelProto:
    weights = [numpy_helper.from_array(np.asarray(a), n) for n, a in (constants or {}).items()]
    graph = helper.make_graph(nodes, name, inputs, outputs, weights)
    opsets = [helper.make_opsetid("", opset)]
    if any(node.domain == MACHINE_LEARNING for node in nodes):
        opsets.append(helper.make_opsetid(MACHINE_LEARNING, 3))
    proto = helper.make_model(graph, opset_imports=opsets, producer_name="tests")
    proto.ir_version = 9
    onnx.checker.check_model(proto)
    return proto


def mlp(batch: int | str = "batch") -> onnx.ModelProto:
    """Two dense layers; with a batch of known size, which takes a third of the work to compile, for other tests."""
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h0"], name="dense1", transB=1),
        helper.make_node("Relu", ["h0"], ["h"], name="relu1"),
        helper.make_node("MatMul", ["h", "w2"], ["y0"], name="dense2"),
        helper.make_node("Add", ["y0", "b2"], ["y1"], name="bias2"),
        helper.make_node("Softmax", ["y1"], ["y"], name="softmax", axis=-1),
    ]
    constants = {"w1": array(1, 40, 24), "b1": array(2, 40), "w2": array(3, 40, 10, scale=0.3), "b2": array(4, 10)}
    return model(nodes, [value("x", [batch, 24])], [value("y", [batch, 10])], constants, name="mlp")


def convnet(height: int | str = "h", width: int | str = "w") -> onnx.ModelProto:
    """Convolutions (dense, depthwise, strided), a residual, pooling; dynamic in batch, height and width."""
    nodes = [
        helper.make_node("Conv", ["x", "k1", "c1"], ["a0"], name="conv1", pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Relu", ["a0"], ["a"], name="relu1"),
        helper.make_node("Conv", ["a", "k2"], ["b0"], name="depthwise", pads=[1, 1, 1, 1], group=8),
        helper.make_node("Sigmoid", ["b0"], ["b1"], name="gate"),
        helper.make_node("Mul", ["b1", "a"], ["b"], name="gated"),
        helper.make_node("Conv", ["b", "k3", "c3"], ["d0"], name="pointwise"),
        helper.make_node("MaxPool", ["d0"], ["p"], name="pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("GlobalAveragePool", ["p"], ["q"], name="mean"),
        helper.make_node("Flatten", ["q"], ["y"], name="flatten"),
    ]
    constants = {
        "k1": array(1, 8, 3, 3, 3, scale=0.3), "c1": array(2, 8), "k2": array(3, 8, 1, 3, 3, scale=0.3),
        "k3": array(4, 12, 8, 1, 1, scale=0.3), "c3": array(5, 12),
    }  # fmt: skip
    outputs = [value("y", ["n", 12]), value("p", ["n", 12, "p2", "p3"])]
    return model(nodes, [value("x", ["n", 3, height, width])], outputs, constants, name="convnet")


def small_convnet() -> onnx.ModelProto:
    """`convnet` for pictures of 16 x 16, dynamic in batch: a third of the work to compile, for other tests."""
    return convnet(16, 16)


def passing_on() -> onnx.ModelProto:
    """Outputs that are an input, a constant, a view of an input, and one tensor twice."""
    nodes = [
        helper.make_node("Identity", ["x"], ["same"]),
        helper.make_node("Reshape", ["x", "flat"], ["view"]),
        helper.make_node("Identity", ["w"], ["constant"]),
        helper.make_node("Exp", ["x"], ["e"]),
        helper.make_node("Identity", ["e"], ["again"]),
    ]
    outputs = [
        value("same", ["n", 4]), value("view", [None]), value("constant", [3]), value("e", ["n", 4]),
        value("again", ["n", 4]),
    ]  # fmt: skip
    constants = {"w": array(1, 3), "flat": np.array([-1], np.int64)}
    return model(nodes, [value("x", ["n", 4])], outputs, constants, name="passing on")


def with_fallback() -> onnx.ModelProto:
    """A normalizer, which has no native code, between native operators; its input and output names are odd."""
    nodes = [
        helper.make_node("Tanh", ["in put"], ["t"], name="before"),
        normalizer("t", "d", "normalizer"),
        helper.make_node("Mul", ["d", "two"], ["out/put"], name="after"),
    ]
    constants = {"two": np.array(2, np.float32)}
    outputs = [value("out/put", ["n", 9]), value("d", ["n", 9])]
    return model(nodes, [value("in put", ["n", 9])], outputs, constants, name="with fallback")


def normalizer(source: str, result: str, name: str) -> onnx.NodeProto:
    """Rows of the length 1, by an operator that the reference evaluator runs."""
    return helper.make_node("Normalizer", [source], [result], name=name, domain=MACHINE_LEARNING, norm="L2")


def residual_conv(channels, size, shape=None):
    """A convolution with bias, activation and a residual sum."""
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["t"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["t"], ["r"], name="relu"),
        helper.make_node("Add", ["r", "x"], ["y"], name="sum"),
    ]
    constants = {"w": array(1, channels, channels, 3, 3, scale=(9 * channels) ** -0.5), "b": array(2, channels)}
    sizes = shape or [1, channels, size, size]
    return model(nodes, [value("x", sizes)], [value("y", sizes)], constants)
