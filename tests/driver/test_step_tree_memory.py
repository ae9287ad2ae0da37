"""Memory of step trees: results are handed over or copied, workspaces shared, and all of it is freed."""

import ctypes
import gc
import os
import resource
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
from benchmarks.common.model_builders import make_node as node
from onnx import helper
from tests.driver.control_flow_models import BOOL, FLOAT, INT, RNG, made, normal, value
from tests.driver.test_step_tree import branching_loop

import tilewright
from tilewright.runtime import Executable
from tilewright.runtime.workspace import MAX_IDLE_CALLS


def compressed() -> onnx.ModelProto:
    """Chosen rows twice, and one of two inputs."""
    then_block = helper.make_graph([node("Identity", "x", "a")], "then", [], [value("a", FLOAT, ["N", 4])])
    else_block = helper.make_graph([node("Neg", "x", "b")], "else", [], [value("b", FLOAT, ["N", 4])])
    nodes = [node("Compress", "x chosen", "rows", axis=0), node("Relu", "rows", "positive"),
             node("If", "same", "one", then_branch=then_block, else_branch=else_block)]  # fmt: skip
    inputs = [value("x", FLOAT, ["N", 4]), value("chosen", BOOL, ["N"]), value("same", BOOL, [])]
    outputs = [value("positive", FLOAT, None), value("one", FLOAT, ["N", 4])]
    return made(nodes, inputs, outputs)


def _with_tree(model: onnx.ModelProto) -> Executable:
    exe = tilewright.compile(model, threads=1, optimizer="rule")
    assert exe.manifest.tree is not None
    return exe


def _recorded_copies(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of every copy that the runtime makes from now on."""
    sizes: list[int] = []
    copy = ctypes.memmove

    def record(target: int, source: int, count: int) -> int:
        sizes.append(count)
        return copy(target, source, count)

    monkeypatch.setattr(ctypes, "memmove", record)
    return sizes


def test_large_results_are_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    exe = _with_tree(compressed())
    x, chosen = normal(100_000, 4), RNG.random(100_000) < 0.7
    copies = _recorded_copies(monkeypatch)
    kept: list[tuple[np.ndarray, np.ndarray]] = []
    for _ in range(3):
        positive, negated = exe(x, chosen, np.array(False))
        kept.append((positive, negated))
        assert positive.flags.writeable
        assert positive.flags.c_contiguous
    assert copies == []
    # arrays of their own, which outlive the executable
    assert not any(np.shares_memory(a, b) for a, b in zip(kept[0], kept[1], strict=True))
    kept[0][0][:] = 7
    del exe
    gc.collect()
    np.testing.assert_array_equal(kept[2][0], np.maximum(x[chosen], 0))
    np.testing.assert_array_equal(kept[2][1], -x)


def test_results_that_are_inputs_are_copied() -> None:
    exe = _with_tree(compressed())
    x = normal(50_000, 4)
    for _ in range(2):
        _, one = exe(x, np.ones(50_000, bool), np.array(True))
        assert not np.shares_memory(one, x)
        np.testing.assert_array_equal(one, x)


def test_one_block_for_two_results() -> None:
    """A loop that carries its value into both results: arrays of their own all the same."""
    body = helper.make_graph(
        [node("Concat", "a x", "longer", axis=0)], "body",
        [value("i", INT, []), value("go", BOOL, []), value("a", FLOAT, [None, 4]), value("b", FLOAT, [None, 4])],
        [value("go", BOOL, []), value("longer", FLOAT, [None, 4]), value("longer", FLOAT, [None, 4])],
    )  # fmt: skip
    loop = helper.make_node("Loop", ["n", "", "x", "x"], ["y", "z"], name="loop", body=body)
    inputs = [value("n", INT, []), value("x", FLOAT, ["N", 4])]
    exe = _with_tree(made([loop], inputs, [value("y", FLOAT, None), value("z", FLOAT, None)]))
    x = normal(20_000, 4)
    y, z = exe(np.array(2), x)
    assert not np.shares_memory(y, z)
    for result in (y, z):
        np.testing.assert_array_equal(result, np.concatenate([x, x, x]))


def test_few_stacked_results_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """One slice in memory for 16 does not keep that memory; many in most of it are handed over."""
    body = helper.make_graph(
        [node("Concat", "a one", "b", axis=0), node("Neg", "x", "slice")], "body",
        [value("i", INT, []), value("go", BOOL, []), value("a", FLOAT, [None])],
        [value("go", BOOL, []), value("b", FLOAT, [None]), value("slice", FLOAT, ["N"])],
    )  # fmt: skip
    loop = helper.make_node("Loop", ["n", "", "one"], ["a_last", "y"], name="loop", body=body)
    inputs, outputs = [value("n", INT, []), value("x", FLOAT, ["N"])], [value("y", FLOAT, [None, "N"])]
    exe = _with_tree(made([loop], inputs, outputs, {"one": np.ones(1, np.float32)}))
    x = normal(20_000)
    copies = _recorded_copies(monkeypatch)
    for count, expected in ((1, [x.nbytes]), (16, [])):
        copies.clear()
        np.testing.assert_array_equal(exe(np.array(count), x), np.stack([-x] * count))
        assert copies == expected


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def wide_model() -> onnx.ModelProto:
    """Columns' sums of chosen rows of a product of products, which are in the workspace."""
    nodes = [node("MatMul", "x w", "a"), node("Softmax", "a", "a_soft", axis=0), node("MatMul", "a_soft w", "b"),
             node("Softmax", "b", "b_soft", axis=0), node("MatMul", "b_soft w", "c"),
             node("Compress", "c chosen", "rows", axis=0), node("ReduceSum", "rows nil", "y", keepdims=0)]  # fmt: skip
    constants = {"w": np.ones((128, 128), np.float32), "nil": np.array([0])}
    inputs = [value("x", FLOAT, ["N", 128]), value("chosen", BOOL, ["N"])]
    return made(nodes, inputs, [value("y", FLOAT, [128])], constants)


def _workspace_bytes(exe: Executable) -> int:
    return exe._pool.bytes  # pyright: ignore[reportPrivateUsage]


def _call_wide(exe: Executable, counts: Sequence[int]) -> None:
    for count in counts:
        exe(np.zeros((count, 128), np.float32), np.ones(count, bool))


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the resident memory that Linux tells")
def test_workspace_is_shared_by_sizes() -> None:
    """Calls of eight sizes share one workspace, which grows to what they need and is dropped when it is idle."""
    exe = _with_tree(wide_model())
    _call_wide(exe, [20_000])
    size = _workspace_bytes(exe)
    assert size >= 20_000 * 128 * 4
    before = _resident_bytes()
    _call_wide(exe, range(20_001, 20_008))
    assert size < _workspace_bytes(exe) < 1.01 * size
    assert _resident_bytes() - before < 3 * size
    _call_wide(exe, [5, 6] * (MAX_IDLE_CALLS // 2 + 1))
    assert _workspace_bytes(exe) < size / 100


def test_simultaneous_calls() -> None:
    """Calls of several threads with sizes of their own, in workspaces and results of their own."""
    exe = _with_tree(wide_model())

    def sums(number: int) -> np.ndarray:
        chosen = np.arange(200 * (number % 5 + 1)) % (number % 3 + 2) == 0
        return exe(np.full((len(chosen), 128), number, np.float32), chosen) * len(chosen) / chosen.sum()

    with ThreadPoolExecutor(4) as pool:
        for result in pool.map(sums, range(60)):
            # a softmax along equal rows gives each the same share: 1 / rows
            np.testing.assert_allclose(result, np.full(128, 128), rtol=1e-3)


def test_memory_is_freed() -> None:
    """Values of the tree and large results do not pile up; 100 calls would hold 800 MB."""
    exe = _with_tree(branching_loop())
    feeds = {"n": np.array(2), "x": normal(250_000, 4), "most": np.array(250_001)}
    exe.run(feeds)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(100):
        exe.run(feeds)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000
