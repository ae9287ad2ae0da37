"""Small models as exporters write them, for ONNX Runtime's tools to quantize and to optimize."""

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray
Feeds = dict[str, Array]


class _GraphBuilder:
    """Nodes and weights of a graph."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, Array] = {}

    def weight(self, name: str, *shape: int) -> str:
        """A random weight."""
        fan_in = np.prod(shape[1:]) if len(shape) > 2 else shape[0]
        self.weights[name] = (self.rng.standard_normal(shape) / np.sqrt(fan_in)).astype(np.float32)
        return name

    def constant(self, name: str, value: object) -> str:
        """A constant."""
        self.weights[name] = np.asarray(value)
        return name

    def node(self, op_type: str, inputs: Sequence[str], output: str, **attributes: object) -> str:
        """A node; returns its output."""
        self.nodes.append(helper.make_node(op_type, inputs, [output], name=output, **attributes))
        return output

    def model(self, inputs: list[onnx.ValueInfoProto], output: onnx.ValueInfoProto) -> onnx.ModelProto:
        """The model of all nodes."""
        tensors = [numpy_helper.from_array(a, n) for n, a in self.weights.items()]
        graph = helper.make_graph(self.nodes, "g", inputs, [output], tensors)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def convolutional() -> onnx.ModelProto:
    """A residual network with a depthwise convolution, pools, Sigmoid, LeakyRelu, Concat and Softmax."""
    g = _GraphBuilder(0)

    def conv(x: str, outputs: int, inputs: int, name: str, kernel: int = 3, group: int = 1) -> str:
        weights = [g.weight(f"{name}w", outputs, inputs // group, kernel, kernel), g.weight(f"{name}b", outputs)]
        return g.node("Conv", [x, *weights], name, pads=[kernel // 2] * 4, group=group)

    a = g.node("Relu", [conv("x", 8, 3, "c1")], "r1")
    a = g.node("MaxPool", [a], "p1", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    b = conv(g.node("Relu", [conv(a, 8, 8, "c2")], "r2"), 8, 8, "c3")
    a = g.node("Relu", [g.node("Add", [a, b], "s1")], "r3")
    b = conv(a, 8, 8, "c4", group=8)
    b = g.node("Mul", [b, g.node("Sigmoid", [b], "g1")], "m1")
    b = g.node("AveragePool", [g.node("LeakyRelu", [b], "l1", alpha=0.1)], "p2", kernel_shape=[2, 2], strides=[2, 2])
    b = g.node("Relu", [conv(g.node("Concat", [b, b], "k1", axis=1), 12, 16, "c5", kernel=1)], "r4")
    b = g.node("Flatten", [g.node("GlobalAveragePool", [b], "p3")], "f1")
    b = g.node("Gemm", [b, g.weight("fw", 10, 12), g.weight("fb", 10)], "f2", transB=1)
    g.node("Softmax", [b], "y", axis=-1)
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 16, 16])]
    return g.model(inputs, helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 10]))


def images(rng: np.random.Generator) -> Feeds:
    """Inputs of `convolutional`."""
    return {"x": rng.standard_normal((2, 3, 16, 16)).astype(np.float32)}


LENGTH, WIDTH, HEADS, WORDS = 8, 16, 2, 20


def encoder() -> onnx.ModelProto:
    """A layer of a transformer with embeddings, a mask and Gelu, as torch exports it."""
    g = _GraphBuilder(1)
    one = g.constant("one", np.float32(1))
    mask = g.node("Unsqueeze", ["mask", g.constant("axes", np.array([1, 2], np.int64))], "m1")
    mask = g.node("Sub", [one, g.node("Cast", [mask], "m2", to=TensorProto.FLOAT)], "m3")
    mask = g.node("Mul", [mask, g.constant("low", np.float32(-10000))], "m4")
    x = g.node("Gather", [g.weight("words", WORDS, WIDTH), "ids"], "e1")
    x = g.node("Add", [x, g.weight("positions", LENGTH, WIDTH)], "e2")
    x = _normalized(g, x, "n0")
    split = g.constant("split", np.array([0, 0, HEADS, WIDTH // HEADS], np.int64))
    parts: dict[str, str] = {}
    for part, order in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        heads = g.node("Reshape", [_linear(g, x, WIDTH, WIDTH, part), split], f"{part}r")
        parts[part] = g.node("Transpose", [heads], f"{part}t", perm=order)
    scores = g.node("MatMul", [parts["q"], parts["k"]], "s1")
    scores = g.node("Div", [scores, g.constant("root", np.float32(np.sqrt(WIDTH // HEADS)))], "s2")
    weights = g.node("Softmax", [g.node("Add", [scores, mask], "s3")], "s4", axis=-1)
    merged = g.node("Transpose", [g.node("MatMul", [weights, parts["v"]], "a1")], "a2", perm=[0, 2, 1, 3])
    merged = g.node("Reshape", [merged, g.constant("merge", np.array([0, 0, WIDTH], np.int64))], "a3")
    x = _normalized(g, g.node("Add", [_linear(g, merged, WIDTH, WIDTH, "o"), x], "h1"), "n1")
    f = _linear(g, x, WIDTH, 4 * WIDTH, "f")
    erf = g.node("Erf", [g.node("Div", [f, g.constant("sqrt2", np.float32(np.sqrt(2)))], "g1")], "g2")
    f = g.node("Mul", [f, g.node("Add", [erf, one], "g3")], "g4")
    f = g.node("Mul", [f, g.constant("half", np.float32(0.5))], "g5")
    x = g.node("Add", [_linear(g, f, 4 * WIDTH, WIDTH, "d"), x], "h2")
    _normalized(g, x, "y")
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ["b", LENGTH]) for name in ("ids", "mask")]
    return g.model(inputs, helper.make_tensor_value_info("y", TensorProto.FLOAT, ["b", LENGTH, WIDTH]))


def _linear(g: _GraphBuilder, x: str, depth: int, width: int, name: str) -> str:
    product = g.node("MatMul", [x, g.weight(f"{name}w", depth, width)], f"{name}m")
    return g.node("Add", [g.weight(f"{name}b", width), product], f"{name}a")


def _normalized(g: _GraphBuilder, x: str, name: str) -> str:
    scale, bias = g.weight(f"{name}s", WIDTH), g.weight(f"{name}z", WIDTH)
    return g.node("LayerNormalization", [x, scale, bias], name, axis=-1, epsilon=1e-5)


def sentences(rng: np.random.Generator) -> Feeds:
    """Inputs of `encoder`."""
    mask = (rng.random((2, LENGTH)) > 0.2).astype(np.int64)
    return {"ids": rng.integers(0, WORDS, (2, LENGTH)), "mask": mask}
