"""Whether threads pay for a kernel is decided once: by the estimate that generated code evaluates."""

import numpy as np
import onnx
import pytest
from onnx import helper
from tests.driver import models

from tilewright.cost.parallel_grains import MIN_GRAINS, parallel_grains
from tilewright.driver.compile import make_compilation
from tilewright.driver.kernel_build.kernels import CompiledKernel
from tilewright.driver.options import CompileOptions
from tilewright.expr.nodes import Const
from tilewright.loops.ir import For, LoopKind, walk
from tilewright.machine.shipped import machine_named

MACHINE = "zen3"


def elementwise(operator: str, size: int | str) -> onnx.ModelProto:
    node = helper.make_node(operator, ["x"], ["y"], name="e")
    return models.model([node], [models.value("x", [size])], [models.value("y", [size])], {})


def product(m: int, k: int, n: int) -> onnx.ModelProto:
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="mm")
    weight = {"w": np.ones((k, n), np.float32)}
    return models.model([node], [models.value("x", [m, k])], [models.value("y", [m, n])], weight)


def only_kernel(model: onnx.ModelProto, optimizer: str) -> CompiledKernel:
    options = CompileOptions(target="x86-64-v3", optimizer=optimizer, machine=None if optimizer == "rule" else MACHINE)
    (kernel,) = make_compilation(model, options).kernels
    return kernel


def has_parallel_loops(kernel: CompiledKernel) -> bool:
    return any(isinstance(s, For) and s.kind is LoopKind.PARALLEL for s, _ in walk(kernel.programs[0].scheduled.body))


@pytest.mark.parametrize("optimizer", ["rule", "gensor", "roller"])
def test_small_kernels_are_serial_and_large_ones_parallel(optimizer: str) -> None:
    small = [elementwise("Relu", 4096), elementwise("Exp", 512), product(16, 16, 16)]
    large = [elementwise("Exp", 1 << 20), product(512, 512, 512)]
    assert [has_parallel_loops(only_kernel(m, optimizer)) for m in small] == [False] * 3
    assert [has_parallel_loops(only_kernel(m, optimizer)) for m in large] == [True] * 2


@pytest.mark.parametrize("optimizer", ["rule", "gensor"])
def test_symbolic_sizes_are_decided_at_every_call(optimizer: str) -> None:
    kernel = only_kernel(elementwise("Exp", "N"), optimizer)
    assert has_parallel_loops(kernel)
    assert kernel.parallel_grains is not None
    assert not isinstance(kernel.parallel_grains, Const)


@pytest.mark.parametrize("size", [1 << k for k in range(9, 21)])
def test_loops_are_parallel_where_the_estimate_says_so(size: int) -> None:
    """No constant of the rule's own decides: where the rule has loops to share, the estimate alone does."""
    kernel = only_kernel(elementwise("Exp", size), "rule")
    grains = parallel_grains(kernel.origin, machine_named("x86-64-v3"), vectorized=True)
    assert isinstance(grains, Const)
    assert has_parallel_loops(kernel) == (grains.value >= MIN_GRAINS)
    assert (kernel.parallel_grains is not None) == has_parallel_loops(kernel)
