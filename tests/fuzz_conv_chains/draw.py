"""Random chains of convolutions as models, and their fused kernels."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tests.graph.chains.chain_models import partition_of

from tilewright.graph.chains.find import Dataflow, KernelChain, Link
from tilewright.graph.chains.fuse import fused_kernel
from tilewright.graph.kernel import Kernel

KINDS = ("depthwise, pointwise", "inverted residual", "two windows", "window, depthwise, pointwise")
ACTIVATIONS = ("none", "Relu", "Clip", "SiLU", "HardSwish")


@dataclass(frozen=True)
class Drawn:
    """A chain.

    Attributes:
        kind: one of `KINDS`.
        text: what was drawn.
        source: the model.
    """

    kind: str
    text: str
    source: onnx.ModelProto


class _Model:
    """A model in the making: the shape [batch, channels, rows, columns] of its last value, and the scale of its sums.

    Clipping at less than this scale would leave small results, by which rounding of the sums must not be judged.
    """

    def __init__(self, rng: np.random.Generator, shape: tuple[int, int, int, int]) -> None:
        self.rng, self.shape, self.value, self.scale = rng, shape, "x", 1.0
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.notes: list[str] = [f"x {shape}"]

    def name(self) -> str:
        return f"v{len(self.nodes)}_{len(self.weights)}"

    def constant(self, *shape: int) -> str:
        name = f"w{len(self.weights)}"
        array = self.rng.standard_normal(shape).astype(np.float32)
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        output = self.name()
        self.nodes.append(helper.make_node(op, inputs, [output], f"n{len(self.nodes)}", **attributes))
        return output

    def convolution(self, outputs: int | None, kernel: int, stride: int = 1) -> None:
        """A convolution with `outputs` channels; depthwise without."""
        batch, channels, *image = self.shape
        dilation = int(self.rng.integers(1, 3)) if kernel > 1 else 1
        reach = dilation * (kernel - 1) + 1
        pads = [int(self.rng.integers(0, reach)) for _ in range(4)] if self.rng.integers(4) else [reach // 2] * 4
        for k in (0, 1):
            while image[k] + pads[k] + pads[k + 2] < reach + stride:
                pads[k] += 1
        strides = (stride, stride if self.rng.integers(4) else 1)
        image = [(n + pads[k] + pads[k + 2] - reach) // strides[k] + 1 for k, n in enumerate(image)]
        group = channels if outputs is None else 1
        weights = self.constant(outputs or channels, channels // group, kernel, kernel)
        bias = [self.constant(outputs or channels)] if self.rng.integers(3) else []
        self.value = self.node("Conv", self.value, weights, *bias, group=group, kernel_shape=[kernel] * 2,
                               pads=pads, strides=strides, dilations=[dilation] * 2)  # fmt: skip
        self.shape = (batch, outputs or channels, image[0], image[1])
        self.scale *= (channels // group * kernel * kernel) ** 0.5
        self.notes.append(f"conv {outputs} kernel {kernel} pads {pads} strides {strides} dilation {dilation}")

    def activation(self) -> None:
        """One of `ACTIVATIONS`."""
        which = ACTIVATIONS[self.rng.integers(len(ACTIVATIONS))]
        self.notes.append(which)
        if which == "SiLU":
            self.value = self.node("Mul", self.value, self.node("Sigmoid", self.value))
        elif which == "Clip":
            names = [f"{x}_{len(self.nodes)}" for x in ("least", "most")]
            limits = zip((0.0, self.scale), names, strict=True)
            self.weights += [numpy_helper.from_array(np.array(x, np.float32), n) for x, n in limits]
            self.value = self.node("Clip", self.value, *names)
        elif which != "none":
            self.value = self.node(which, self.value)

    def residual(self) -> None:
        """Adds the model's input where it has the shape of the result."""
        if self.notes[0] == f"x {self.shape}" and self.rng.integers(2):
            self.value = self.node("Add", self.value, "x")
            self.notes.append("residual")


def draw(rng: np.random.Generator) -> Drawn:
    """A random chain."""
    kind = KINDS[rng.integers(len(KINDS))]
    batch, rows, columns = int(rng.choice([1, 1, 2])), int(rng.integers(3, 22)), int(rng.integers(3, 40))
    channels = int(rng.choice([2, 3, 5, 8, 16, 17, 24, 32]))
    if kind == "depthwise, pointwise" and rng.integers(2):
        columns += 16
    m = _Model(rng, (batch, channels, rows, columns))
    kernel, stride = int(rng.choice([3, 3, 3, 5, 2])), int(rng.choice([1, 1, 2, 3]))
    wide = int(rng.choice([4, 7, 16, 32, 33, 48]))
    if kind == "two windows":
        m.convolution(wide, 3)
        m.activation()
        m.convolution(int(rng.choice([channels, 8, 19])), kernel, stride)
    else:
        if kind != "depthwise, pointwise":
            m.convolution(wide, 1 if kind == "inverted residual" else 3)
            m.activation()
        m.convolution(None, kernel, stride)
        m.activation()
        m.convolution(int(rng.choice([channels, channels, 6, 16, 24])), 1)
    m.residual()
    if rng.integers(3) == 0:
        m.activation()
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, (batch, channels, rows, columns))]
    outputs = [helper.make_tensor_value_info(m.value, TensorProto.FLOAT, m.shape)]
    graph = helper.make_graph(m.nodes, "g", inputs, outputs, m.weights)
    opset = [helper.make_opsetid("", 18)]
    return Drawn(kind, f"{kind}: {', '.join(m.notes)}", helper.make_model(graph, opset_imports=opset, ir_version=10))


def fused(drawn: Drawn) -> Kernel:
    """All kernels of a chain as one."""
    parts = partition_of(drawn.source)
    count = len(parts.units)
    links = (Link(0, count - 1, frozenset(range(1, count - 1))),)
    kernel = fused_kernel(KernelChain(links, tuple(range(count))), Dataflow(parts), parts.program)
    assert kernel is not None
    return kernel
