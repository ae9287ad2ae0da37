"""A detector of objects in pictures of any size, compiled once: what it computes, and for which sizes."""

import functools

import numpy as np
import onnx
import onnxruntime
import pytest
from benchmarks.zoo.yolo import yolov8

from tilewright.codegen.segment import KernelCall
from tilewright.driver.compilation import Compilation
from tilewright.driver.compile import make_compilation
from tilewright.driver.diagnostics.float64_reference import evaluate_program
from tilewright.driver.diagnostics.verification import relative_error
from tilewright.driver.kernel_build.kernels import BoundKernel
from tilewright.driver.options import CompileOptions
from tilewright.expr.traversal import free_vars
from tilewright.runtime import Executable


@functools.cache
def detector() -> onnx.ModelProto:
    """YOLOv8 with a quarter of the channels of n, and as many layers."""
    return yolov8(width=4, classes=5)


@functools.cache
def compiled() -> Compilation:
    return make_compilation(detector().SerializeToString(), CompileOptions(optimizer="rule"))


@functools.cache
def executable() -> Executable:
    return Executable(compiled().artifact(), 2)


@pytest.mark.parametrize(("height", "width"), [(64, 96), (32, 32), (128, 64)])
def test_boxes_are_as_exact_as_those_of_onnx_runtime(height: int, width: int) -> None:
    images = np.random.default_rng().random((1, 3, height, width), np.float32)
    peer = onnxruntime.InferenceSession(detector().SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {"images": images}
    compilation = compiled()
    ((_, buffer),) = compilation.lowered.outputs
    exact = evaluate_program(compilation.lowered, feeds)[buffer.name]
    actual, theirs = executable().run(feeds)["boxes"], np.asarray(peer.run(None, feeds)[0])
    assert actual.shape == (1, 4 + 5, height * width * 21 // 1024)
    assert relative_error(actual, exact) <= max(1e-6, 3 * relative_error(theirs, exact))


def test_everything_of_a_detector_is_native() -> None:
    compilation = compiled()
    assert len(compilation.segments) == len(compilation.manifest.steps) == 1
    assert any(isinstance(call, KernelCall) for call in compilation.segments[0].segment.calls)


def test_kernels_are_chosen_for_maps_of_a_picture_of_hundreds_of_pixels() -> None:
    compilation = compiled()
    height = next(v for v in compilation.program.symbols if v.name == "height")
    convolutions = [u for u in compilation.units if isinstance(u, BoundKernel) and "Conv" in u.kernel.label]
    sizes: set[int] = set()
    for unit in convolutions:
        chosen = unit.compiled.samples
        assert chosen is not None
        values = {v: unit.sizes.get(v, v) for v in unit.compiled.origin.symbols}
        rows = [chosen.representative[v] for v, e in values.items() if height in free_vars(e)]
        assert all(n >= 11 for n in rows), unit.kernel.label
        sizes.update(rows)
    # from the picture to its 32nd
    assert max(sizes) >= 32 * 11
