"""YOLOv8 (Jocher et al. 2023, Ultralytics), a detector of objects in pictures of any size, as an ONNX graph.

Written node by node as exporters write it: batch normalisation is folded into the convolutions, SiLU is `Sigmoid` and
`Mul`, and the grid of anchors is computed from the shapes of the three maps, as the picture's size is known only later.
Weights are random, scaled so that activations stay of order one through the whole depth.
"""

from dataclasses import dataclass, field
from math import sqrt
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
DISTANCE_BINS = 16
"""Distances from an anchor to a side of its box are expectations over so many bins, of one step each."""

STRIDES = (8, 16, 32)
"""Pixels between the anchors of the three maps: height and width of a picture are multiples of the last."""

SILU_GAIN = 1.3
"""By how much weights before a SiLU are larger than by their fan-in alone, so that its results stay of order one."""


@dataclass(slots=True)
class _GraphBuilder:
    """A graph that grows by nodes; values are known by name."""

    rng: np.random.Generator
    nodes: list[onnx.NodeProto] = field(default_factory=list[onnx.NodeProto])
    initializers: dict[str, onnx.TensorProto] = field(default_factory=dict[str, onnx.TensorProto])

    def constant(self, values: npt.ArrayLike, dtype: npt.DTypeLike = np.int64) -> str:
        array = np.asarray(values, dtype)
        name = f"constant_{len(self.initializers)}"
        self.initializers[name] = numpy_helper.from_array(array, name)
        return name

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        return self.multi_output_node(op, 1, *inputs, **attributes)[0]

    def multi_output_node(self, op: str, outputs: int, *inputs: str, **attributes: Any) -> list[str]:
        name = f"{op.lower()}_{len(self.nodes)}"
        names = [name] if outputs == 1 else [f"{name}_{k}" for k in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, names, name, **attributes))
        return names

    def convolution(
        self, x: str, channels: tuple[int, int], kernel: int = 1, stride: int = 1, gain: float = 1.0
    ) -> str:
        """A convolution with bias from channels to channels, with padding that keeps sizes at stride 1."""
        before, after = channels
        scale = gain / sqrt(before * kernel * kernel)
        weight = self.constant(self.rng.normal(0.0, scale, (after, before, kernel, kernel)), np.float32)
        bias = self.constant(self.rng.normal(0.0, 0.1, after), np.float32)
        pads = [kernel // 2] * 4
        return self.node("Conv", x, weight, bias, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=pads)

    def conv_silu(self, x: str, channels: tuple[int, int], kernel: int = 1, stride: int = 1) -> str:
        """A convolution and its SiLU."""
        y = self.convolution(x, channels, kernel, stride, SILU_GAIN)
        return self.node("Mul", y, self.node("Sigmoid", y))

    def c2f(self, x: str, channels: tuple[int, int], count: int, residual: bool = True) -> str:
        """Half of the channels through `count` bottlenecks one after the other; all that they give is joined."""
        before, after = channels
        half = after // 2
        y = self.conv_silu(x, (before, after))
        parts = self.multi_output_node("Split", 2, y, self.constant([half, half]), axis=1)
        for _ in range(count):
            z = self.conv_silu(self.conv_silu(parts[-1], (half, half), 3), (half, half), 3)
            parts.append(self.node("Add", parts[-1], z) if residual else z)
        return self.conv_silu(self.node("Concat", *parts, axis=1), (half * len(parts), after))

    def sppf(self, x: str, channels: int) -> str:
        """Maxima over windows of 5, 9 and 13 positions, each from the one before, beside what they are of."""
        half = channels // 2
        parts = [self.conv_silu(x, (channels, half))]
        for _ in range(3):
            pooled = self.node("MaxPool", parts[-1], kernel_shape=[5, 5], pads=[2] * 4, strides=[1, 1])
            parts.append(pooled)
        return self.conv_silu(self.node("Concat", *parts, axis=1), (half * 4, channels))

    def upsample(self, x: str) -> str:
        scales = self.constant([1, 1, 2, 2], np.float32)
        how = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        return self.node("Resize", x, "", scales, **how)

    def size(self, x: str, axis: int) -> str:
        """The size of one axis, a vector of one element."""
        return self.node("Gather", self.node("Shape", x), self.constant([axis]), axis=0)

    def anchors(self, x: str) -> str:
        """The middles of a map's positions (x, y), in steps of the map: float32 [2, height * width]."""
        sizes = [self.size(x, 2), self.size(x, 3)]
        whole = self.node("Concat", *sizes, axis=0)
        axes: list[str] = []
        for k, size in enumerate(sizes):
            last = self.node("Squeeze", size, self.constant([0]))
            steps = self.node("Range", self.constant(0), last, self.constant(1))
            middles = self.node("Add", self.node("Cast", steps, to=TensorProto.FLOAT), self.constant(0.5, np.float32))
            column = self.node("Reshape", middles, self.constant([-1, 1] if k == 0 else [1, -1]))
            axes.append(self.node("Reshape", self.node("Expand", column, whole), self.constant([1, -1])))
        return self.node("Concat", axes[1], axes[0], axis=0)

    def boxes(self, distances: str, anchors: str, strides: str) -> str:
        """Boxes (middle, size) [1, 4, anchors] in pixels of scores [1, 4 * DISTANCE_BINS, anchors] of distances to
        the sides."""
        bins = self.node("Reshape", distances, self.constant([1, 4, DISTANCE_BINS, -1]))
        scores = self.node("Softmax", self.node("Transpose", bins, perm=[0, 2, 1, 3]), axis=1)
        weight = self.constant(np.arange(DISTANCE_BINS).reshape(1, DISTANCE_BINS, 1, 1), np.float32)
        expected = self.node("Reshape", self.node("Conv", scores, weight), self.constant([1, 4, -1]))
        low, high = self.multi_output_node("Split", 2, expected, self.constant([2, 2]), axis=1)
        first, last = self.node("Sub", anchors, low), self.node("Add", anchors, high)
        middle = self.node("Div", self.node("Add", first, last), self.constant(2.0, np.float32))
        box = self.node("Concat", middle, self.node("Sub", last, first), axis=1)
        return self.node("Mul", box, strides)

    def head(self, maps: list[str], widths: list[int], classes: int) -> str:
        """Boxes and probabilities of classes [1, 4 + classes, anchors] of three maps of features."""
        boxes_width, class_width = max(16, widths[0] // 4, 4 * DISTANCE_BINS), max(widths[0], min(classes, 100))
        predictions: list[str] = []
        grids: list[str] = []
        strides: list[str] = []
        for x, width, stride in zip(maps, widths, STRIDES, strict=True):
            ends: list[str] = []
            for inner, last in ((boxes_width, 4 * DISTANCE_BINS), (class_width, classes)):
                y = self.conv_silu(self.conv_silu(x, (width, inner), 3), (inner, inner), 3)
                ends.append(self.convolution(y, (inner, last)))
            joined = self.node("Concat", *ends, axis=1)
            predictions.append(self.node("Reshape", joined, self.constant([1, 4 * DISTANCE_BINS + classes, -1])))
            grids.append(self.anchors(x))
            count = self.node("Mul", self.size(x, 2), self.size(x, 3))
            strides.append(self.node("Expand", self.constant([stride], np.float32), count))
        everything = self.node("Concat", *predictions, axis=2)
        parts = self.constant([4 * DISTANCE_BINS, classes])
        distances, scores = self.multi_output_node("Split", 2, everything, parts, axis=1)
        anchors = self.node("Unsqueeze", self.node("Concat", *grids, axis=1), self.constant([0]))
        steps = self.node("Reshape", self.node("Concat", *strides, axis=0), self.constant([1, 1, -1]))
        return self.node("Concat", self.boxes(distances, anchors, steps), self.node("Sigmoid", scores), axis=1)


def yolov8(width: int = 16, depth: int = 1, classes: int = 80, seed: int = 8) -> onnx.ModelProto:
    """YOLOv8 for one picture `images`, float32 [1, 3, height, width] of multiples of 32; `boxes` is [1, 4 + classes,
    anchors].

    Args:
        width: channels of the first convolution: 16 for YOLOv8n, 32 for s.
        depth: bottlenecks of the shallow stages, of the deep ones twice as many: 1 for n and s, 2 for m.
        classes: kinds of objects.
        seed: of the weights.
    """
    g = _GraphBuilder(np.random.default_rng(seed))
    stages = [width << k for k in range(5)]
    x = g.conv_silu("images", (3, stages[0]), 3, 2)
    kept: list[str] = []
    for k, count in enumerate((depth, 2 * depth, 2 * depth, depth)):
        x = g.conv_silu(x, (stages[k], stages[k + 1]), 3, 2)
        x = g.c2f(x, (stages[k + 1], stages[k + 1]), count)
        kept.append(x)
    _, fine, middle, _ = kept
    _, _, c3, c4, c5 = stages
    coarse = g.sppf(x, c5)
    joined = g.c2f(g.node("Concat", g.upsample(coarse), middle, axis=1), (c5 + c4, c4), depth, False)
    first = g.c2f(g.node("Concat", g.upsample(joined), fine, axis=1), (c4 + c3, c3), depth, False)
    down = g.node("Concat", g.conv_silu(first, (c3, c3), 3, 2), joined, axis=1)
    second = g.c2f(down, (c3 + c4, c4), depth, False)
    down = g.node("Concat", g.conv_silu(second, (c4, c4), 3, 2), coarse, axis=1)
    third = g.c2f(down, (c4 + c5, c5), depth, False)
    boxes = g.head([first, second, third], [c3, c4, c5], classes)
    g.nodes.append(helper.make_node("Identity", [boxes], ["boxes"], "boxes"))
    images = helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 3, "height", "width"])
    result = helper.make_tensor_value_info("boxes", TensorProto.FLOAT, [1, 4 + classes, "anchors"])
    graph = helper.make_graph(g.nodes, "yolov8", [images], [result], list(g.initializers.values()))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    return model
