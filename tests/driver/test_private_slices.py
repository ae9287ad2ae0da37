"""Models whose kernels keep all private buffers in slices of the workspace, as there is no room on the stack."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator
from tests.driver import models
from tests.driver.models import array, model, value

import tilewright
from tilewright.driver.compilation import Compilation
from tilewright.driver.compile import make_compilation
from tilewright.driver.diagnostics import show
from tilewright.driver.kernel_build.kernels import BoundKernel
from tilewright.driver.options import CompileOptions
from tilewright.loops import private_memory
from tilewright.loops.private_memory import is_private
from tilewright.runtime.artifact import Artifact
from tilewright.runtime.executable import Executable


def normalised() -> onnx.ModelProto:
    """Rows of 300 that are normalised and multiplied, and their softmax: row-wise kernels with private rows."""
    nodes = [
        helper.make_node("LayerNormalization", ["x", "g", "b"], ["n"], name="norm"),
        helper.make_node("MatMul", ["n", "w"], ["p"], name="dense"),
        helper.make_node("Softmax", ["p"], ["y"], name="softmax", axis=-1),
    ]
    constants = {"g": array(1, 300), "b": array(2, 300), "w": array(3, 300, 190, scale=0.1)}
    return model(nodes, [value("x", ["rows", 300])], [value("y", ["rows", 190])], constants, name="normalised")


@pytest.fixture(scope="module", autouse=True)
def no_stack() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(private_memory, "MAX_STACK_BYTES", 0)
        yield


def feeds_of(proto: onnx.ModelProto, size: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(size)
    shapes = {"x": (size, 300)} if proto.graph.name == "normalised" else {"x": (1, 3, size, size + 7)}
    shapes = shapes if proto.graph.name != "mlp" else {"x": (size, 24)}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def slices_of(compilation: Compilation) -> list[str]:
    kernels = [u.compiled for u in compilation.units if isinstance(u, BoundKernel)]
    return [b.name for k in kernels for own in k.scratch for b in own if is_private(b)]


@pytest.mark.parametrize("optimizer", ["gensor", "rule"])
@pytest.mark.parametrize("make", [normalised, models.mlp, models.convnet])
def test_results_are_the_same_for_every_team(
    make: Callable[[], onnx.ModelProto], optimizer: str, tmp_path: Path
) -> None:
    proto = make()
    compilation = make_compilation(proto, CompileOptions(optimizer=optimizer))
    assert slices_of(compilation)
    path = tmp_path / "model.tw"
    Executable(compilation.artifact(), 2).save(path)
    loaded = {n: tilewright.load(path, threads=n) for n in (1, 2)}
    for size in (40, 65, 300) if proto.graph.name != "convnet" else (33, 64):
        feeds = feeds_of(proto, size)
        (expected, *_), results = ReferenceEvaluator(proto).run(None, feeds), {}
        for threads, executable in loaded.items():
            results[threads] = next(iter(executable.run(feeds).values()))
            np.testing.assert_allclose(results[threads], expected, rtol=2e-4, atol=2e-5 * np.abs(expected).max())
        np.testing.assert_array_equal(results[1], results[2])


@pytest.fixture(scope="module")
def compilation(no_stack: None) -> Compilation:
    return make_compilation(normalised())


@pytest.fixture(scope="module")
def artifact(compilation: Compilation) -> Artifact:
    return compilation.artifact()


@pytest.fixture(scope="module")
def executable(artifact: Artifact) -> Executable:
    return Executable(artifact, 2)


def test_a_forked_child_uses_the_first_slice(executable: Executable) -> None:
    feeds = feeds_of(normalised(), 257)
    expected = executable.run(feeds)["y"].copy()
    child = os.fork()
    if not child:
        status = 1
        try:
            status = int(not np.array_equal(executable.run(feeds)["y"], expected))
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    np.testing.assert_array_equal(executable.run(feeds)["y"], expected)


def test_overlapping_calls_have_slices_of_their_own(executable: Executable) -> None:
    cases = [feeds_of(normalised(), 100 + k) for k in range(8)]
    expected = [executable.run(c)["y"].copy() for c in cases]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(10):
            for actual, right in zip(pool.map(lambda c: executable.run(c)["y"].copy(), cases), expected, strict=True):
                np.testing.assert_array_equal(actual, right)


@pytest.mark.parametrize("threads", [1, 2, 64])
def test_the_workspace_has_a_slice_per_thread(
    threads: int, compilation: Compilation, artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 threads on any number of processors: the team is as large as it is asked for."""
    monkeypatch.setattr("tilewright.runtime.executable.team_size", lambda n: n)
    alone, team = (Executable(artifact, n) for n in (1, threads))
    feeds = feeds_of(normalised(), 600)
    np.testing.assert_array_equal(alone.run(feeds)["y"], team.run(feeds)["y"])
    sizes = {"rows": 600}
    alone_bytes, team_bytes = (e._single_call.plan(sizes).workspace_bytes for e in (alone, team))
    scratch = [own for k in compilation.kernels for own in k.scratch]
    largest = max(sum(int(str(private_memory.slice_bytes(b))) for b in own if is_private(b)) for own in scratch)
    assert team_bytes - alone_bytes >= (threads - 1) * largest > 0 or threads == 1


def test_inspect_names_the_bytes_per_thread(compilation: Compilation, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = show.memory(compilation).splitlines()
    private = [x for x in lines if "per thread in the workspace" in x]
    assert private
    assert not any("on the stack" in x for x in lines)
    assert any("threads" in x for x in lines if "slot" in x)
    monkeypatch.setattr(private_memory, "MAX_STACK_BYTES", 256 << 10)
    lines = show.memory(make_compilation(normalised(), CompileOptions())).splitlines()
    assert [x.split(":")[0] for x in lines if "per thread on the stack" in x] == [x.split(":")[0] for x in private]
    assert not any("threads" in x for x in lines)


def test_long_rows_of_a_softmax_are_private(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of 400 KB, as large as the logits of a language model, by one kernel whose rows exceed the stack."""
    monkeypatch.setattr(private_memory, "MAX_STACK_BYTES", 256 << 10)
    nodes = [helper.make_node("Softmax", ["x"], ["y"], name="softmax", axis=-1)]
    proto = model(nodes, [value("x", [9, 100_003])], [value("y", [9, 100_003])])
    (kernel,) = make_compilation(proto, CompileOptions()).kernels
    assert [str(b) for own in kernel.scratch for b in own if is_private(b)]
    x = np.random.default_rng(0).standard_normal((9, 100_003)).astype(np.float32)
    results = [tilewright.compile(proto, threads=n)(x) for n in (1, 2)]
    np.testing.assert_array_equal(results[0], results[1])
    exponentials = np.exp(x.astype(np.float64) - x.max(axis=-1, keepdims=True))
    np.testing.assert_allclose(results[0], exponentials / exponentials.sum(axis=-1, keepdims=True), rtol=3e-6)


@pytest.mark.parametrize("shapes", [{"heads": "8..64", "keys": "1..5000"}, {"heads": "8..64"}])
def test_rows_of_symbolic_length_are_private(shapes: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """One kernel for sizes of any length, which keeps a row per thread instead of all exponentials."""
    monkeypatch.setattr("tilewright.runtime.executable.team_size", lambda n: n)
    monkeypatch.setattr(private_memory, "MAX_STACK_BYTES", 256 << 10)
    nodes = [helper.make_node("Softmax", ["x"], ["y"], name="softmax", axis=-1)]
    proto = model(nodes, [value("x", ["heads", "keys"])], [value("y", ["heads", "keys"])])
    (kernel,) = make_compilation(proto, CompileOptions(shapes=shapes)).kernels
    (row,) = [b for own in kernel.scratch for b in own if is_private(b)]
    assert len(row.shape) == 1
    executables = [tilewright.compile(proto, shapes=shapes, threads=n) for n in (1, 2)]
    for heads, keys in ((8, 1), (9, 17), (64, 300), (40, 4999)):
        x = np.random.default_rng(keys).standard_normal((heads, keys)).astype(np.float32)
        results = [e(x) for e in executables]
        np.testing.assert_array_equal(results[0], results[1])
        exponentials = np.exp(x.astype(np.float64) - x.max(axis=-1, keepdims=True))
        np.testing.assert_allclose(results[0], exponentials / exponentials.sum(axis=-1, keepdims=True), rtol=3e-6)
        plans = [e._single_call.plan({"heads": heads, "keys": keys}) for e in executables]
        assert plans[1].workspace_bytes == 2 * plans[0].workspace_bytes
        assert plans[0].workspace_bytes < 4 * keys + 4 * private_memory.PRIVATE_PADDING + 64
