"""Small convolutional models, layout choices for them, and the check that layouts preserve results."""

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import helper
from tests.driver.models import array, model, value
from tests.graph.running import program_of, run_program

from tilewright.driver.diagnostics.float64_reference import evaluate_program
from tilewright.expr.computation import Computation
from tilewright.graph.kernel import Kernel
from tilewright.graph.layouts.plan import Choice, Variant
from tilewright.graph.layouts.propagate import Propagation, propagate
from tilewright.graph.partition import partition
from tilewright.graph.program import Program
from tilewright.layout.primitives import Primitive, Reorder, Split

Primitives = tuple[Primitive, ...]


def blocked(channels: int, block: int = 16) -> Primitives:
    """[N, C, H, W] as [N, C/b, H, W, b]."""
    return (Split(1, (channels // block, block)), Reorder((0, 1, 3, 4, 2)))


def rows(height: int, block: int = 4) -> Primitives:
    """[N, O, H, W] as [N, H/4, W, O, 4], the layout of ALT's Figures 6 and 7."""
    return (Split(2, (height // block, block)), Reorder((0, 2, 4, 1, 3)))


def weight(outputs: int, inputs: int, block: int = 16) -> Primitives:
    """[O, I, KH, KW] as [O/b, I/b, KH, KW, b (I), b (O)]."""
    return (
        Split(0, (outputs // block, block)), Split(2, (inputs // block, block)), Reorder((0, 2, 4, 5, 3, 1)),
    )  # fmt: skip


class Net:
    """A model that grows node by node; every method returns the name of the value that it adds."""

    def __init__(self, channels: int = 3, size: int | None = 12) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}
        self.channels = {"x": channels}
        self.input = value("x", ["n", channels, size or "h", size or "w"])

    def conv(self, x: str, name: str, outputs: int, kernel: int = 3, stride: int = 1, bias: bool = True) -> str:
        """A convolution with the padding that keeps the size; its weights are called w_<name>."""
        seed, inputs = len(self.constants), self.channels[x]
        scale = (kernel * kernel * inputs) ** -0.5
        self.constants[f"w_{name}"] = array(seed, outputs, inputs, kernel, kernel, scale=scale)
        operands = [x, f"w_{name}"]
        if bias:
            self.constants[f"b_{name}"] = array(seed + 100, outputs)
            operands.append(f"b_{name}")
        pad = kernel // 2
        return self._add("Conv", operands, name, outputs, pads=[pad] * 4, strides=[stride] * 2)

    def op(self, kind: str, *operands: str, name: str = "", **attributes: object) -> str:
        """Any other operator that keeps the number of channels."""
        return self._add(kind, list(operands), name or f"{kind.lower()}{len(self.nodes)}", self.channels[operands[0]],
                         **attributes)  # fmt: skip

    def _add(self, kind: str, operands: list[str], name: str, channels: int, **attributes: object) -> str:
        self.nodes.append(helper.make_node(kind, operands, [f"{name}_y"], name=name, **attributes))
        self.channels[f"{name}_y"] = channels
        return f"{name}_y"

    def model(self, *outputs: str, rank: int = 4) -> onnx.ModelProto:
        """The model with these outputs."""
        return model(self.nodes, [self.input], [value(y, [None] * rank) for y in outputs], self.constants)


def feeds(n: int = 2, channels: int = 3, h: int = 12, w: int = 12) -> dict[str, np.ndarray]:
    return {"x": array(77, n, channels, h, w)}


def placed(
    source: onnx.ModelProto | Program,
    choices: Mapping[str, Choice],
    variant: Variant = Variant.FULL,
    x: Mapping[str, np.ndarray] | None = None,
) -> Propagation:
    """The propagation, after checking that the program computes what it did, before and after partition."""
    program = source if isinstance(source, Program) else program_of(source)
    propagation = propagate(program, choices, variant)
    inputs = x or feeds()
    expected_results = run_program(program, inputs)
    exact = evaluate_program(program, inputs)
    for changed in (propagation.program, partition(propagation.program).program):
        for actual, expected in zip(run_program(changed, inputs), expected_results, strict=True):
            assert actual.shape == expected.shape
            np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)
        for name, array64 in evaluate_program(changed, inputs).items():
            np.testing.assert_allclose(array64, exact[name], rtol=1e-12, atol=1e-12)
    return propagation


def kernels_of(propagation: Propagation) -> list[Kernel]:
    """The kernels into which a program is grouped."""
    return [u for u in partition(propagation.program).units if isinstance(u, Kernel)]


def shape_of(propagation: Propagation, name: str) -> str:
    """The physical shape of the buffer that holds a value of the model."""
    return str(propagation.program.values[name]).partition("[")[2].rstrip("]")


def step_of(propagation: Propagation, name: str) -> Computation:
    """The step that writes a buffer."""
    (step,) = [s for s in propagation.program.steps if isinstance(s, Computation) and s.output.name == name]
    return step
