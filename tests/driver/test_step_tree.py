"""Step trees: a whole model in one native call, with the results of the runtime that walks the same steps."""

import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx
import pytest
from benchmarks.common.model_builders import make_node as node
from onnx import TensorProto, helper
from tests.driver.control_flow_models import BOOL, FLOAT, INT, RNG, growing_loop, made, normal, value

import tilewright
from tilewright.errors import ShapeError
from tilewright.machine.tree_call import TREE_NAME
from tilewright.runtime import Artifact, Executable, step_tree_call
from tilewright.runtime.block_calls import BlockCalls

DOUBLE = TensorProto.DOUBLE


def nonzero() -> onnx.ModelProto:
    """The rows that are positive somewhere, and how many there are."""
    nodes = [node("ReduceMax", "x axis", "most", keepdims=0), node("Greater", "most zero", "is_positive"),
             node("Compress", "x is_positive", "rows", axis=0), node("Shape", "rows", "shape"),
             node("NonZero", "is_positive", "where")]  # fmt: skip
    constants = {"axis": np.array([1]), "zero": np.array(0, np.float32)}
    outputs = [value("rows", FLOAT, None), value("shape", INT, [2]), value("where", INT, None)]
    return made(nodes, [value("x", FLOAT, ["N", 3])], outputs, constants)


def passing_loop() -> onnx.ModelProto:
    """A loop that carries the number of the iteration and an unchanged captured value, and stacks both."""
    body = helper.make_graph(
        [node("Identity", "i", "number"), node("Concat", "all x", "longer", axis=1), node("Identity", "x", "given"),
         node("ReduceSum", "longer", "sum", keepdims=0), node("Less", "sum limit", "more")],
        "body",
        [value("i", INT, []), value("go", BOOL, []), value("before", INT, []), value("kept", FLOAT, [2, 1]),
         value("all", FLOAT, [2, None])],
        [value("more", BOOL, []), value("number", INT, []), value("given", FLOAT, [2, 1]), value("longer", FLOAT, None),
         value("number", INT, []), value("given", FLOAT, [2, 1])],
    )  # fmt: skip
    inputs = [value("n", INT, []), value("x", FLOAT, [2, 1]), value("limit", FLOAT, [])]
    outputs = [value("last", INT, None), value("kept_last", FLOAT, None), value("all_last", FLOAT, None),
               value("numbers", INT, None), value("copies", FLOAT, None)]  # fmt: skip
    loop = helper.make_node("Loop", ["n", "", "minus", "x", "x"], [o.name for o in outputs], name="loop", body=body)
    return made([loop], inputs, outputs, {"minus": np.array(-1)})


def branching_loop() -> onnx.ModelProto:
    """A loop that appends a row or drops the first one, by the number of rows, and returns the longest."""
    append = helper.make_graph([node("Concat", "v x", "a", axis=0)], "append", [], [value("a", FLOAT, [None, 4])])
    drop = helper.make_graph([node("Slice", "v one end", "d")], "drop", [], [value("d", FLOAT, [None, 4])])
    body = helper.make_graph(
        [node("Shape", "v", "shape"), node("Gather", "shape nil", "rows"), node("Less", "rows most", "is_short"),
         node("If", "is_short", "w", then_branch=append, else_branch=drop),
         node("ReduceSum", "w nils", "s", keepdims=0)],
        "body", [value("i", INT, []), value("go", BOOL, []), value("v", FLOAT, [None, 4])],
        [value("go", BOOL, []), value("w", FLOAT, [None, 4]), value("s", FLOAT, [4])],
    )  # fmt: skip
    loop = helper.make_node("Loop", ["n", "", "x"], ["y", "sums"], name="loop", body=body)
    constants = {"nil": np.array(0), "nils": np.array([0]), "one": np.array([1]), "end": np.array([1 << 40])}
    inputs = [value("n", INT, []), value("x", FLOAT, ["N", 4]), value("most", INT, [])]
    return made([loop], inputs, [value("y", FLOAT, None), value("sums", FLOAT, None)], constants)


def _as_walked(exe: Executable) -> Executable:
    """The same code, whose steps the runtime walks."""
    artifact = exe.artifact
    return Executable(Artifact(replace(artifact.manifest, tree=None), artifact.code, artifact.weights), threads=1)


Feeds = Sequence[Mapping[str, np.ndarray]]
CASES: Sequence[tuple[onnx.ModelProto, Feeds]] = [
    (nonzero(), [{"x": normal(n, 3)} for n in (1, 5, 5, 4000, 2)]),
    (passing_loop(), [{"n": np.array(n), "x": np.abs(normal(2, 1)), "limit": np.array(limit, np.float32)}
                      for n, limit in ((0, 5), (1, 5), (40, 5), (40, 1e9), (-3, 5))]),
    (branching_loop(), [{"n": np.array(n), "x": normal(rows, 4), "most": np.array(most)}
                        for n, rows, most in ((0, 3, 5), (30, 3, 5), (3, 7, 5), (50, 1, 40))]),
    (growing_loop(), [{"first": normal(1, 4), "x": normal(n, 4), "limit": np.array(k)}
                      for n, k in ((3, 1), (300, 9), (2, 60))]),
]  # fmt: skip


@pytest.mark.parametrize(("model", "feeds"), CASES)
def test_same_as_walked(model: onnx.ModelProto, feeds: Feeds, monkeypatch: pytest.MonkeyPatch) -> None:
    exe = tilewright.compile(model, threads=1, optimizer="rule")
    walked = _as_walked(exe)
    expected = [walked.run(arrays) for arrays in feeds]

    def refuse(*_: object) -> None:
        raise AssertionError("the runtime walks the steps")

    monkeypatch.setattr(BlockCalls, "run_steps", refuse)
    for arrays, right in zip(feeds, expected, strict=True):
        for actual in (exe.run(arrays), exe.run(arrays)):
            for name, result in right.items():
                assert (actual[name].shape, actual[name].dtype) == (result.shape, result.dtype), name
                np.testing.assert_array_equal(actual[name], result, err_msg=name)


def test_results_are_the_callers() -> None:
    """Later calls do not change earlier results, small or large."""
    exe = tilewright.compile(nonzero(), threads=1, optimizer="rule")
    for rows in (4, 5000):
        x = np.abs(RNG.normal(size=(rows, 3))).astype(np.float32) + 1
        first, _, _ = exe(x)
        exe(-x)
        exe(x + 1)
        np.testing.assert_array_equal(first, x)


def test_sizes_out_of_range() -> None:
    """What is wrong with data is told as by the runtime, and the next call is as good as any."""
    nodes = [node("Expand", "x sizes", "y")]
    exe = tilewright.compile(
        made(nodes, [value("x", FLOAT, [1]), value("sizes", INT, [2])], [value("y", FLOAT, [None, None])]), threads=1
    )
    with pytest.raises(ShapeError, match="Expand_y"):
        exe(np.ones(1, np.float32), np.array([-3, 2]))
    np.testing.assert_array_equal(exe(np.ones(1, np.float32), np.array([3, 2])), np.ones((3, 2)))


def constant_branches() -> onnx.ModelProto:
    """One of two constants."""
    blocks = [
        helper.make_graph([helper.make_node("Constant", [], ["c"], value=onnx.numpy_helper.from_array(c))], "block", [],
                          [value("c", FLOAT, None)])
        for c in (np.ones(2, np.float32), np.zeros(3, np.float32))
    ]  # fmt: skip
    chosen = node("If", "which", "y", then_branch=blocks[0], else_branch=blocks[1])
    return made([chosen], [value("which", BOOL, [])], [value("y", FLOAT, ["M"])])


def swapping_loop() -> onnx.ModelProto:
    """A loop that swaps its values."""
    body = helper.make_graph(
        [node("Identity", "go", "more")], "body",
        [value("i", INT, []), value("go", BOOL, []), value("a", FLOAT, ["K"]), value("b", FLOAT, ["K"])],
        [value("more", BOOL, []), value("b", FLOAT, ["K"]), value("a", FLOAT, ["K"])],
    )  # fmt: skip
    loop = helper.make_node("Loop", ["n", "", "x", "z"], ["y", "w"], name="loop", body=body)
    inputs = [value("n", INT, []), value("x", FLOAT, ["N"]), value("z", FLOAT, ["M"])]
    return made([loop], inputs, [value("y", FLOAT, ["U"]), value("w", FLOAT, ["V"])])


def test_control_flow_without_native_steps() -> None:
    """Models without machine code are compiled, saved, loaded and called; a tree in the manifest changes nothing."""
    x, z = normal(3), normal(4)
    cases = [(constant_branches(), [(np.array(True),), (np.array(False),)], [[np.ones(2)], [np.zeros(3)]]),
             (swapping_loop(), [(np.array(3), x, z), (np.array(2), x, z)], [[z, x], [x, z]])]  # fmt: skip
    for model, feeds, results in cases:
        artifact = tilewright.compile(model, threads=1).artifact
        named = Artifact(replace(artifact.manifest, tree=TREE_NAME), artifact.code, artifact.weights)
        for exe in (Executable(artifact, threads=1), Executable(named, threads=1)):
            for arrays, right in zip(feeds, results, strict=True):
                outputs = exe(*arrays)
                for actual, expected in zip(outputs if len(right) > 1 else [outputs], right, strict=True):
                    np.testing.assert_array_equal(actual, expected)


def test_trees_of_another_agreement_are_walked(monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = tilewright.compile(nonzero(), threads=1, optimizer="rule").artifact
    other = Artifact(replace(artifact.manifest, tree="tw_tree"), artifact.code, artifact.weights)

    def refuse(*_: object) -> None:
        raise AssertionError("calls the tree")

    monkeypatch.setattr(step_tree_call.StepTreeCall, "call", refuse)
    x = normal(50, 3)
    np.testing.assert_array_equal(Executable(other, threads=1)(x)[0], x[x.max(1) > 0])


def test_failing_calls_run_once(caplog: pytest.LogCaptureFixture) -> None:
    """A native call that fails is not repeated before the steps are walked, and says so to who wants to know."""
    exe = tilewright.compile(
        made([node("Expand", "x sizes", "y")], [value("x", FLOAT, [1]), value("sizes", INT, [2])],
             [value("y", FLOAT, [None, None])]), threads=1
    )  # fmt: skip
    x = np.ones(1, np.float32)
    for _ in range(2):
        exe(x, np.array([3, 2]))
        caplog.clear()
        with caplog.at_level("DEBUG", "tilewright.runtime"), pytest.raises(ShapeError):
            exe(x, np.array([-3, 2]))
        assert len([m for m in caplog.messages if "walked" in m]) == 1


def test_arguments_are_kept_per_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call's arguments are prepared once for every shape, not for every call."""
    exe = tilewright.compile(nonzero(), threads=1, optimizer="rule")
    shapes: list[int] = []
    prepare = step_tree_call.make_fast_call

    def record(context: np.ndarray) -> Callable[..., int] | None:
        shapes.append(len(context))
        return prepare(context)

    monkeypatch.setattr(step_tree_call, "make_fast_call", record)
    for _ in range(3):
        for rows in range(1, 21):
            x = normal(rows, 3)
            np.testing.assert_array_equal(exe(x)[0], x[x.max(1) > 0])
            np.testing.assert_array_equal(exe(x.tolist())[0], x[x.max(1) > 0])
    assert len(shapes) == 20
    for rows in range(1, 200):
        exe(normal(rows, 3))
    assert len(exe._tree._frames) <= step_tree_call.MAX_SHAPES  # pyright: ignore


def adding_loop() -> onnx.ModelProto:
    """A loop without a trip count that adds 1.0 until it reaches a limit."""
    body = helper.make_graph(
        [node("Add", "v one", "w"), node("Less", "w limit", "more")], "body",
        [value("i", INT, []), value("go", BOOL, []), value("v", DOUBLE, [])],
        [value("more", BOOL, []), value("w", DOUBLE, [])],
    )  # fmt: skip
    loop = helper.make_node("Loop", ["", "", "nil"], ["y"], name="loop", body=body)
    constants = {"one": np.array(1.0), "nil": np.array(0.0)}
    return made([loop], [value("limit", DOUBLE, [])], [value("y", DOUBLE, [])], constants)


def test_limit_beyond_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_MAX_ITERATIONS", str((1 << 64) + 3))
    assert tilewright.compile(adding_loop(), threads=1)(np.array(60.0)) == 60


def test_signal_that_is_handled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that raises nothing runs while a loop does, which goes on."""
    monkeypatch.setenv("TILEWRIGHT_MAX_ITERATIONS", "100000000")
    exe = tilewright.compile(adding_loop(), threads=1)
    calls: list[int] = []
    previous = signal.signal(signal.SIGALRM, lambda number, _: calls.append(number))
    try:
        exe(np.array(10.0))
        signal.setitimer(signal.ITIMER_REAL, 0.005)
        assert exe(np.array(5e6)) == 5e6
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert calls == [signal.SIGALRM]
