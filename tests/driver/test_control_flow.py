"""Compiled control flow gives what ONNX Runtime gives."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from tests.driver.control_flow_models import (
    BOOL,
    FLOAT,
    INT,
    growing_loop,
    made,
    normal,
    same_as_onnxruntime,
    scan_rnn,
    value,
)

import tilewright
from tilewright.driver.compile import make_compilation
from tilewright.driver.diagnostics import show
from tilewright.driver.diagnostics.float64_reference import evaluate_program
from tilewright.driver.diagnostics.profile import profile_compilation
from tilewright.driver.options import CompileOptions
from tilewright.errors import LoopError, OptionError, ShapeError
from tilewright.runtime.manifest import LoopStep, NativeStep


def conditional(*, data: bool) -> object:
    """A layer whose nonlinearity an input or the data selects, in front of and behind other layers."""
    branches = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node("MatMul", ["a", w], [f"{name}m"]), helper.make_node(op, [f"{name}m"], [f"{name}r"])],
            name, [], [value(f"{name}r", FLOAT, None)],
        )
        for name, op, w in (("then", "Tanh", "w"), ("else", "Relu", "v"))
    }  # fmt: skip
    nodes = [helper.make_node("Relu", ["x"], ["a"])]
    if data:
        nodes += [
            helper.make_node("ReduceMax", ["a"], ["m"], keepdims=0),
            helper.make_node("Greater", ["m", "half"], ["c"]),
        ]
    nodes += [helper.make_node("If", ["c"], ["b"], name="choice", **branches), helper.make_node("Exp", ["b"], ["y"])]
    inputs = [value("x", FLOAT, ["N", 16]), *([] if data else [value("c", BOOL, [1])])]
    constants = {"w": normal(16, 8), "v": normal(16, 8), "half": np.float32(0.5).reshape(())}
    return made(nodes, inputs, [value("y", FLOAT, ["N", 8])], constants)


@pytest.mark.parametrize("rows", [1, 5])
def test_conditional(tmp_path: Path, rows: int) -> None:
    x = np.abs(normal(rows, 16)) / 100
    by_data = [{"x": x}, {"x": x + 1}]
    exe = same_as_onnxruntime(conditional(data=True), by_data, tmp_path)
    assert [type(s).__name__ for s in exe.manifest.steps] == ["NativeStep"]
    same_as_onnxruntime(conditional(data=False), [{"x": x, "c": np.array([c])} for c in (True, False)], tmp_path)


def test_loop_until_the_data_say_stop(tmp_path: Path) -> None:
    feeds = [{"first": normal(2, 4), "x": normal(n, 4), "limit": np.array(k)} for n, k in ((3, 1), (1, 4), (2, 40))]
    exe = same_as_onnxruntime(growing_loop(), feeds, tmp_path)
    (step, _) = exe.manifest.steps
    assert isinstance(step, LoopStep)
    assert not step.is_counted


@pytest.mark.parametrize(
    ("reverse", "input_axis", "output_axis", "output_reverse"),
    [(0, 0, 0, 0), (1, 0, 0, 0), (0, 1, 0, 1), (1, 1, 1, 1), (0, 0, -1, 0), (1, 0, -1, 1), (0, 1, 1, 0), (1, 0, 0, 1)],
)
def test_scan(tmp_path: Path, reverse: int, input_axis: int, output_axis: int, output_reverse: int) -> None:
    model = scan_rnn(5, reverse=reverse, input_axis=input_axis, output_axis=output_axis, output_reverse=output_reverse)
    feeds = [{"h0": normal(2, 5), "x": normal(2, n, 3) if input_axis else normal(n, 2, 3)} for n in (1, 7, 20)]
    same_as_onnxruntime(model, feeds, tmp_path)


def counted_loop(body: list, outputs: list[str], constants: dict | None = None, **shapes: list) -> onnx.ModelProto:
    """A loop over `n` iterations that carries v [N, 4]."""
    kinds = {o: value(o, FLOAT, shapes.get(o)) for o in outputs}
    graph = helper.make_graph(
        body, "body", [value("i", INT, []), value("go", BOOL, []), value("v", FLOAT, [None, 4])],
        [value("go", BOOL, []), *kinds.values()],
    )  # fmt: skip
    results = [f"y{k}" for k in range(len(outputs))]
    return made(
        [helper.make_node("Loop", ["n", "", "x"], results, name="loop", body=graph)],
        [value("n", INT, []), value("x", FLOAT, ["N", 4])],
        [value(r, FLOAT, None) for r in results],
        constants,
    )


def test_results_that_are_inputs_constants_and_each_other(tmp_path: Path) -> None:
    """What a caller gets is its own, whatever a body returns."""
    model = counted_loop(
        [helper.make_node("Add", ["v", "one"], ["w"]),
         *(helper.make_node("Identity", [a], [b]) for a, b in (("w", "w2"), ("x", "x2"), ("one", "one2")))],
        ["w", "w2", "x2", "one2"], {"one": np.float32(1).reshape(1)}, x=["N", 4],
    )  # fmt: skip
    x = normal(3, 4)
    same_as_onnxruntime(model, [{"n": np.array(n), "x": x} for n in (1, 5)], tmp_path)
    branches = {f"{k}_branch": helper.make_graph([], k, [], [value(v, FLOAT, None)] * 2)
                for k, v in (("then", "x"), ("else", "z"))}  # fmt: skip
    model = made(
        [helper.make_node("If", ["c"], ["p", "q"], **branches)],
        [value("c", BOOL, []), value("x", FLOAT, [4])],
        [value("p", FLOAT, None), value("q", FLOAT, None)],
        {"z": normal(4)},
    )
    exe = tilewright.compile(model, threads=1)
    x, z = normal(4), exe(np.array(False), normal(4))[0].copy()
    for truth, meant in ((True, x.copy()), (False, z)):
        p, q = exe(np.array(truth), x)
        p[:] = 7
        np.testing.assert_array_equal(q, meant)
        q[:] = 8
        np.testing.assert_array_equal(exe(np.array(truth), x)[0], meant)


def test_no_iteration(tmp_path: Path) -> None:
    model = counted_loop(
        [helper.make_node("Add", ["v", "v"], ["w"]), helper.make_node("ReduceMax", ["w"], ["s"], keepdims=1)],
        ["w", "s"], w=[None, 4], s=[1, 1],
    )  # fmt: skip
    same_as_onnxruntime(model, [{"n": np.array(n), "x": normal(3, 4)} for n in (2, 0, -3)], tmp_path)


def test_stacked_results_of_other_shapes() -> None:
    model = counted_loop([helper.make_node("Concat", ["v", "v"], ["w"], axis=0),
                          helper.make_node("Relu", ["w"], ["s"])], ["w", "s"])  # fmt: skip
    exe = tilewright.compile(model, threads=1)
    with pytest.raises(ShapeError, match=r"loop \(Loop\): stacks \[4, 4\] after \[2, 4\] in 'y1'; all iterations must"):
        exe(np.array(2), normal(1, 4))


def endless() -> object:
    """A loop whose condition always holds."""
    body = helper.make_graph(
        [helper.make_node("Add", ["v", "v"], ["w"])], "body",
        [value("i", INT, []), value("go", BOOL, []), value("v", FLOAT, [2])],
        [value("go", BOOL, []), value("w", FLOAT, [2])],
    )  # fmt: skip
    nodes = [helper.make_node("Loop", ["", "", "x"], ["y"], name="forever", body=body)]
    return made(nodes, [value("x", FLOAT, [2])], [value("y", FLOAT, [2])])


def test_loop_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_MAX_ITERATIONS", "1000")
    exe = tilewright.compile(endless(), threads=1)
    with pytest.raises(LoopError, match=r"\[loop\] forever \(Loop\): has no trip count, and did not end after 1000"):
        exe(np.zeros(2, np.float32))
    monkeypatch.setenv("TILEWRIGHT_MAX_ITERATIONS", "many")
    with pytest.raises(OptionError, match="TILEWRIGHT_MAX_ITERATIONS: expected a number of iterations of at least 1"):
        tilewright.compile(endless(), threads=1)


@pytest.mark.parametrize(("count", "step"), [(1 << 24, "NativeStep"), (1 << 40, "LoopStep")])
def test_loops_that_take_long_are_not_native(count: int, step: str) -> None:
    """Nothing interrupts native code."""
    model = counted_loop([helper.make_node("Add", ["v", "v"], ["w"])], ["w"], w=[None, 4])
    del model.graph.input[0]
    model.graph.initializer.append(numpy_helper.from_array(np.array(count), "n"))
    exe = tilewright.compile(model, threads=1, optimizer="rule")
    assert [type(s).__name__ for s in exe.manifest.steps] == [step]


def test_interrupted_loop(tmp_path: Path) -> None:
    """Ctrl-C ends a loop without end."""
    tilewright.compile(endless(), threads=1).save(tmp_path / "m.tw")
    code = f"""if True:
        import signal, numpy as np, tilewright
        # a shell ignores it for what it runs in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
        exe = tilewright.load({str(tmp_path / "m.tw")!r}, threads=1)
        try:
            print("ready", flush=True)
            exe(np.zeros(2, np.float32))
        except KeyboardInterrupt:
            print("interrupted", exe.threads)"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=os.environ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "interrupted 1\n"
        assert process.wait(60) == 0


def test_calls_of_several_threads() -> None:
    exe = tilewright.compile(growing_loop(), threads=1)
    wrong: list[int] = []

    def run(k: int) -> None:
        first, x = np.full((1, 4), k, np.float32), np.full((1, 4), 1, np.float32)
        for _ in range(20):
            y, _ = exe(first, x, np.array(k + 1))
            if y.shape != (k + 2, 4) or y[0, 0] != k:
                wrong.append(k)

    workers = [threading.Thread(target=run, args=(k,)) for k in range(4)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert not wrong


def test_condition_of_several_elements() -> None:
    branches = {f"{k}_branch": helper.make_graph([helper.make_node(op, ["x"], [k])], k, [], [value(k, FLOAT, None)])
                for k, op in (("then", "Neg"), ("else", "Abs"))}  # fmt: skip
    model = made([helper.make_node("If", ["c"], ["y"], name="choice", **branches)],
                 [value("c", BOOL, ["K"]), value("x", FLOAT, [4])], [value("y", FLOAT, [4])])  # fmt: skip
    exe = tilewright.compile(model, threads=1)
    np.testing.assert_array_equal(exe(np.array([True]), np.ones(4, np.float32)), -np.ones(4))
    with pytest.raises(ShapeError, match=r"choice \(If\): expected a condition of one element, got \[2\]"):
        exe(np.array([True, False]), np.ones(4, np.float32))


def test_double_precision_reference() -> None:
    """`verify` compares with the same steps in float64."""
    for model, feeds in (
        (growing_loop(), {"first": normal(2, 4), "x": normal(3, 4), "limit": np.array(3)}),
        (conditional(data=True), {"x": normal(3, 16)}),
    ):
        compilation = make_compilation(model, CompileOptions())
        exact = evaluate_program(compilation.lowered, feeds)
        results = tilewright.compile(model, threads=1).run(feeds)
        for name, b in compilation.program.outputs:
            assert exact[b.name].dtype == np.float64
            np.testing.assert_allclose(results[name], exact[b.name], rtol=1e-4, atol=1e-5)


def test_texts_of_bodies() -> None:
    compilation = make_compilation(conditional(data=True), CompileOptions(optimizer="rule"))
    text = show.summary(compilation)
    assert "if                       -> b  # choice (If)" in text
    assert "\n  then:\n" in text
    assert "\n  else:\n" in text
    assert "if choice (If) -> b: float32[N, 8]" in show.expressions(compilation)
    compilation = make_compilation(growing_loop(), CompileOptions(optimizer="rule"))
    assert len(compilation.all_segments) > len(compilation.segments)
    assert "\n  body:\n" in show.summary(compilation)


@pytest.mark.parametrize(
    ("model", "feeds", "kinds"),
    [
        (conditional(data=True), {"x": normal(3, 16)}, {"if": 1}),
        (growing_loop(), {"first": normal(2, 4), "x": normal(3, 4), "limit": np.array(3)}, {"loop": 1}),
        (scan_rnn(5), {"h0": normal(2, 5), "x": normal(4, 2, 3)}, {"loop": 1}),
    ],
)
def test_profile(model: object, feeds: dict, kinds: dict[str, int]) -> None:
    compilation = make_compilation(model, CompileOptions(optimizer="rule"))
    profile = profile_compilation(compilation, feeds, seconds=0.05, threads=1)
    entries = [e.kind for e in profile.entries]
    assert {kind: entries.count(kind) for kind in kinds} == kinds
    assert all(e.us >= 0 for e in profile.entries)


def test_blocks_of_a_manifest() -> None:
    """A loop until the data say stop is the runtime's; its body is native code."""
    (step, last) = tilewright.compile(growing_loop(), threads=1, optimizer="rule").manifest.steps
    assert isinstance(step, LoopStep)
    assert isinstance(last, NativeStep)
    assert step.body.captures == ("x", "limit")
    assert [type(s).__name__ for s in step.body.steps] == ["NativeStep"]


def test_native_loop_of_threads() -> None:
    """Kernels inside a native loop are stages of one team."""
    model = scan_rnn(256)
    feeds = {"h0": normal(64, 256), "x": normal(20, 64, 3)}
    alone, team = (tilewright.compile(model, threads=n, optimizer="rule").run(feeds) for n in (1, 2))
    for name, expected in alone.items():
        np.testing.assert_allclose(team[name], expected, rtol=1e-4, atol=1e-4)


def test_nested_native_control_flow(tmp_path: Path) -> None:
    """A conditional in a loop in a branch, all in one native call."""
    odd = {f"{k}_branch": helper.make_graph([helper.make_node(op, ["v", "x"], [k])], k, [], [value(k, FLOAT, [3])])
           for k, op in (("then", "Add"), ("else", "Mul"))}  # fmt: skip
    body = helper.make_graph(
        [helper.make_node("Mod", ["i", "two"], ["m"]), helper.make_node("Equal", ["m", "nil"], ["even"]),
         helper.make_node("If", ["even"], ["w"], **odd), helper.make_node("Neg", ["w"], ["s"])],
        "body", [value("i", INT, []), value("go", BOOL, []), value("v", FLOAT, [3])],
        [value("go", BOOL, []), value("w", FLOAT, [3]), value("s", FLOAT, [3])],
    )  # fmt: skip
    then = helper.make_graph([helper.make_node("Loop", ["n", "", "x"], ["a", "b"], body=body)], "then", [],
                             [value("a", FLOAT, [3]), value("b", FLOAT, [5, 3])])  # fmt: skip
    other = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["c"]), helper.make_node("Expand", ["x", "size"], ["d"])], "else", [],
        [value("c", FLOAT, [3]), value("d", FLOAT, [5, 3])],
    )  # fmt: skip
    model = made(
        [helper.make_node("If", ["c0"], ["p", "q"], then_branch=then, else_branch=other)],
        [value("c0", BOOL, []), value("x", FLOAT, [3])], [value("p", FLOAT, [3]), value("q", FLOAT, [5, 3])],
        {"n": np.array(5), "two": np.array(2), "nil": np.array(0), "size": np.array([5, 3])},
    )  # fmt: skip
    exe = same_as_onnxruntime(model, [{"c0": np.array(c), "x": normal(3)} for c in (True, False)], tmp_path)
    assert [type(s).__name__ for s in exe.manifest.steps] == ["NativeStep"]
