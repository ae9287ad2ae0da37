"""Slicing of kernel groups: which groups are sliced, and that slices cover what whole kernels compute."""

import numpy as np
import onnx
import pytest
from onnx import helper
from tests.driver import models

from tilewright.codegen.segment import KernelCall
from tilewright.driver.artifact.plan_units import calls_in_order
from tilewright.driver.compile import make_compilation
from tilewright.driver.kernel_build.kernels import BoundKernel
from tilewright.driver.options import CompileOptions
from tilewright.expr.nodes import const
from tilewright.frontend.onnx import load_onnx
from tilewright.graph.buffer_location import InputLocation, OutputLocation, WorkspaceLocation
from tilewright.graph.kernel import Kernel
from tilewright.graph.lower import lower_graph
from tilewright.graph.partition import partition
from tilewright.graph.passes import simplify_graph
from tilewright.graph.slice_kernels import slice_kernels
from tilewright.runtime import Executable


def attention(heads: int, m: int, k: int, n: int, h: int, constant: bool = False) -> onnx.ModelProto:
    """softmax(q[heads, m, k] * t[heads, k, n]) * v[heads, n, h]."""
    nodes = [
        helper.make_node("MatMul", ["q", "t"], ["s"], name="scores"),
        helper.make_node("Softmax", ["s"], ["p"], name="softmax", axis=-1),
        helper.make_node("MatMul", ["p", "v"], ["y"], name="mix"),
    ]
    inputs = [models.value("q", [heads, m, k]), models.value("t", [heads, k, n])]
    constants = {"v": models.array(1, heads, n, h)} if constant else {}
    inputs += [] if constant else [models.value("v", [heads, n, h])]
    return models.model(nodes, inputs, [models.value("y", [heads, m, h])], constants)


def cut(model: onnx.ModelProto, near: int) -> list[Kernel]:
    """The model's kernels where intermediates of a slice have at most `near` bytes."""
    program = lower_graph(simplify_graph(load_onnx(model)))
    parts = partition(program)
    return [u for u in slice_kernels(parts.units, parts.program, near) if isinstance(u, Kernel)]


def counts(kernels: list[Kernel]) -> list[int]:
    return [1 if k.slices is None else k.slices.count for k in kernels]


def test_kernels_with_large_intermediates_are_sliced() -> None:
    kernels = cut(attention(6, 200, 16, 220, 16), 500 << 10)
    # 6 heads hand on 2 x 1.06 MB, three slices of two heads 2 x 352 kB too much, six of one head 2 x 176 kB
    assert counts(kernels) == [6, 6, 6]
    assert {k.slices for k in kernels} == {kernels[0].slices}
    assert kernels[0].stages[-1].axes[0].extent is const(1)
    assert [p.shape[0] for p in kernels[-1].params] == [const(1)] * 3
    # one loop over all rows of all heads
    assert kernels[1].stages[-1].axes[0].extent is const(200)


def test_operands_common_to_all_slices_are_not_sliced() -> None:
    kernels = cut(attention(1, 1200, 16, 600, 16), 2 << 20)
    assert counts(kernels) == [3, 3, 3]
    assert [p.shape[0] for p in kernels[0].params] == [const(400), const(16), const(400)]
    assert kernels[0].sliced_params == {"a0", "out"}


@pytest.mark.parametrize(
    "model",
    [
        attention(6, 200, 16, 220, 16),  # all of it is near
        attention(6, 200, 400, 220, 16),  # operands are as large as the intermediates
        attention(6, 200, 16, 220, 16, constant=True),  # constants are packed as wholes
        attention(7, 10, 8, 40, 8),  # slices would have nothing to do
    ],
    ids=["near", "operands", "constants", "small"],
)
def test_unprofitable_groups_are_not_sliced(model: onnx.ModelProto, request: pytest.FixtureRequest) -> None:
    near = 1 << 30 if "near" in request.node.name else 1 << 10
    assert [k.slices for k in cut(model, near)][-1] is None


def test_results_with_other_readers_are_not_sliced() -> None:
    model = attention(6, 200, 16, 220, 16)
    model.graph.output.append(models.value("s", [6, 200, 220]))
    kernels = cut(model, 64 << 10)
    assert kernels[0].slices is None


def test_dynamic_sizes_are_not_sliced() -> None:
    model = attention(6, 200, 16, 220, 16)
    for v in (*model.graph.input, *model.graph.output):
        v.type.tensor_type.shape.dim[0].dim_param = "heads"
    assert set(counts(cut(model, 64 << 10))) == {1}


def test_calls_receive_parts_of_their_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.driver.compile.SLICE_CACHE_FRACTION", 1e-3)
    result = make_compilation(attention(6, 200, 16, 220, 16), CompileOptions(target="x86-64-v3", fusion="unfused"))
    kernels = [u for u in result.units if isinstance(u, BoundKernel)]
    assert [k for _, k in calls_in_order(result.units)] == [k for k in range(6) for _ in kernels]
    calls = [c for c in result.segments[0].segment.calls if isinstance(c, KernelCall)]
    assert [c.kernel for c in calls] == [u.compiled.name for u in kernels] * 6
    inputs = [x for c in calls for x in c.args if isinstance(x, InputLocation) and x.index == 0]
    assert [x.offset for x in inputs] == [k * 200 * 16 * 4 for k in range(6)]
    outputs = [x for c in calls for x in c.args if isinstance(x, OutputLocation)]
    assert [x.offset for x in outputs] == [k * 200 * 16 * 4 for k in range(6)]
    # scores, exponentials and inverse sums have the same locations in all slices
    assert len({x for c in calls for x in c.args if isinstance(x, WorkspaceLocation)}) == 3
    total = result.segments[0].memory.total
    assert int(str(total)) < 2 * 6 * 200 * 220 * 4


def test_operands_from_earlier_kernels_are_sliced_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.driver.compile.SLICE_CACHE_FRACTION", 1e-3)
    model = attention(6, 200, 16, 220, 16)
    # t and v come from kernels of their own, and y goes to one
    for name in ("t", "v"):
        before = helper.make_node("CumSum", [f"{name}_in", "axis"], [name], name=f"sum of {name}")
        model.graph.node.insert(0, before)
        next(i for i in model.graph.input if i.name == name).name = f"{name}_in"
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(2, np.int64), "axis"))
    result = make_compilation(model, CompileOptions(fusion="unfused"))
    assert any(k for _, k in calls_in_order(result.units))
    _check(model, result.artifact(), 2)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("sizes", [(3, 61, 7, 103, 5), (1, 96, 20, 151, 18), (4, 150, 1, 117, 20)])
def test_sliced_model_matches_the_reference(
    sizes: tuple[int, int, int, int, int], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tilewright.driver.compile.SLICE_CACHE_FRACTION", 1e-4)
    monkeypatch.setattr("tilewright.graph.slice_kernels.MIN_SLICE_POINTS", 1 << 10)
    monkeypatch.setattr("tilewright.graph.slice_kernels.MIN_INTERMEDIATE_RATIO", 0)
    model = attention(*sizes)
    result = make_compilation(model, CompileOptions(fusion="unfused"))
    assert len({k for _, k in calls_in_order(result.units)}) > 1
    _check(model, result.artifact(), threads)


def _check(model: onnx.ModelProto, artifact: object, threads: int) -> None:
    """Compares with the sums of products in float64."""
    rng = np.random.default_rng(0)
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.input}
    feeds = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    wide = {k.removesuffix("_in"): v.astype(np.float64) for k, v in feeds.items()}
    for name in ("t", "v"):
        if f"{name}_in" in feeds:
            wide[name] = np.cumsum(wide[name], axis=2)
    s = wide["q"] @ wide["t"]
    p = np.exp(s - s.max(-1, keepdims=True))
    expected = p / p.sum(-1, keepdims=True) @ wide["v"]
    result = Executable(artifact, threads).run(feeds)["y"]  # pyright: ignore[reportArgumentType]
    scale = np.abs(wide["v"]).max() * max(1.0, float(np.abs(s).max()))
    assert np.abs(result - expected).max() <= 1e-5 * scale
