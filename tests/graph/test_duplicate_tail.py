"""Conditionals whose branches' results differ in rank, or one of whose branches no sizes suit."""

import warnings

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.frontend.onnx_models import add_initializer, model, untyped

import tilewright
from tilewright.errors import FallbackWarning, FeedError, ShapeError
from tilewright.frontend.onnx import load_onnx
from tilewright.graph.control_flow.duplicate_tail import duplicate_tail
from tilewright.graph.lower import lower_graph
from tilewright.graph.passes import simplify_graph
from tilewright.graph.program import Conditional, Fallback, nested_programs

RNG = np.random.default_rng(3)

# what exporters write for a squeeze of an axis that may have one element
SQUEEZE = """s = Shape(x)  n = Gather(s, zero)  c = Equal(n, one)
             q = If (c) <then_branch = t () => (float[M] r) { r = Squeeze(x, axis) },
                         else_branch = e () => (float[N, M] r) { r = Identity(x) }>"""


def squeezing(tail: str, outputs: str, inputs: str = "float[N, M] x"):
    """A model that squeezes `x` to `q` where its first axis has one element."""
    proto = model(f"{SQUEEZE} {tail}", inputs=inputs, outputs=outputs)
    for name, value in (("zero", 0), ("one", 1), ("axis", [0]), ("last", [-1])):
        add_initializer(proto, name, np.array(value))
    return proto


def compiled_natively(proto):
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        return tilewright.compile(proto, optimizer="rule")


def assert_same_as_onnxruntime(executable, proto, feeds):
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for expected, output in zip(session.run(None, feeds), session.get_outputs(), strict=True):
        actual = executable.run(feeds)[output.name]
        assert actual.shape == expected.shape
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_ranks_that_differ_get_a_tail_each(rows):
    tail = "a = Relu(q)  b = ReduceSum(a, last)  d = Unsqueeze(b, axis)  y = ReduceMax<keepdims=0>(d)"
    proto = squeezing(tail, "float y")
    executable = compiled_natively(proto)
    assert_same_as_onnxruntime(executable, proto, {"x": RNG.normal(size=(rows, 7)).astype(np.float32)})


def test_one_conditional_holds_both_tails():
    proto = squeezing("b = ReduceSum(q, last)  y = ReduceMax<keepdims=0>(b)", "float y")
    program = lower_graph(simplify_graph(load_onnx(proto)))
    (step,) = [s for s in program.steps if isinstance(s, Conditional)]
    assert [len(b.program.outputs) for b in step.bodies] == [1, 1]
    assert not [s for p in (program, *nested_programs(program)) for s in p.steps if isinstance(s, Fallback)]


@given(rows=st.integers(1, 3), columns=st.integers(1, 3))
@settings(max_examples=5, deadline=None)
def test_conditions_inside_each_other(rows, columns):
    """The second squeeze depends on the first one; where both conditions are the same, the inner one is known."""
    again = """s2 = Shape(x)  n2 = Gather(s2, zero)  c2 = Equal(n2, one)  k = Identity(q)
               p = If (c2) <then_branch = t2 () => (float[M] r2) { r2 = Neg(k) },
                            else_branch = e2 () => (float[M] r2) { r2 = ReduceMax<axes=[0], keepdims=0>(k) }>
               y = Relu(p)"""
    proto = squeezing(again, "float[M] y")
    proto.opset_import[0].version = 17
    x = RNG.normal(size=(rows, columns)).astype(np.float32)
    assert_same_as_onnxruntime(compiled_natively(proto), proto, {"x": x})


SECOND = """s2 = Shape(z)  n2 = Gather(s2, zero)  c2 = Equal(n2, one)
            p = If (c2) <then_branch = t2 () => (float[M] r2) { r2 = Squeeze(z, axis) },
                         else_branch = e2 () => (float[K, M] r2) { r2 = Identity(z) }>"""


@pytest.mark.parametrize("rows", [(1, 1), (1, 3), (3, 1), (3, 3)])
def test_two_conditionals_with_one_tail(rows):
    tail = f"{SECOND}  a = Add(p, q)  y = ReduceMax<keepdims=0>(a)"
    proto = squeezing(tail, "float y", "float[N, M] x, float[K, M] z")
    feeds = {name: RNG.normal(size=(n, 5)).astype(np.float32) for name, n in zip("xz", rows, strict=True)}
    assert_same_as_onnxruntime(compiled_natively(proto), proto, feeds)


def test_two_conditionals_whose_tail_has_no_native_form():
    proto = untyped(squeezing(f"{SECOND}  y = Add(p, q)", "float[N, M] y", "float[N, M] x, float[K, M] z"))
    with pytest.warns(FallbackWarning, match="with 1 and 2 axes"):
        executable = tilewright.compile(proto, optimizer="rule")
    for n, k in ((1, 1), (1, 3), (3, 3)):
        feeds = {"x": RNG.normal(size=(n, 5)).astype(np.float32), "z": RNG.normal(size=(k, 5)).astype(np.float32)}
        assert_same_as_onnxruntime(executable, proto, feeds)


def test_a_branch_that_no_sizes_suit_is_a_constraint():
    # a transposition of one axis needs the squeezed x
    proto = squeezing("t = Transpose<perm=[0]>(q)  y = MatMul(t, w)", "float[4] y", "float[N, 6] x")
    weights = RNG.normal(size=(6, 4)).astype(np.float32)
    add_initializer(proto, "w", weights)
    executable = compiled_natively(proto)
    x = RNG.normal(size=(1, 6)).astype(np.float32)
    np.testing.assert_allclose(executable.run({"x": x})["y"], (x @ weights)[0], rtol=1e-5, atol=1e-6)
    with pytest.raises(FeedError, match=r"input 'x': expected shape \[1, 6\], got \[2, 6\]"):
        executable.run({"x": np.zeros((2, 6), np.float32)})


def test_results_of_the_model_that_differ_in_rank_stay_with_the_evaluator():
    proto = untyped(squeezing("", "float[M] q"))
    with pytest.warns(FallbackWarning, match="the branches compute 'q' with 1 and 2 axes"):
        executable = tilewright.compile(proto, optimizer="rule")
    for rows in (1, 3):
        x = RNG.normal(size=(rows, 4)).astype(np.float32)
        np.testing.assert_array_equal(executable.run({"x": x})["q"], x[0] if rows == 1 else x)


def test_nothing_depends_on_the_conditional():
    graph = load_onnx(squeezing("", "float[M] q"))
    (name,) = [n.name for n in graph.nodes if n.op_type == "If"]
    assert duplicate_tail(graph, name) is None


RECURRENT = """h = If (c) <then_branch = t () => (float[1, 1, B, 5] r) {
                              u, v = LSTM<hidden_size=5>(x, w, k, "", "", h0, h0)  r = Identity(u) },
                            else_branch = e () => (float[1, 1, B, 5] r) {
                              u2, v2 = LSTM<hidden_size=5>(x, w, k, "", "", h0, h0)  r = Neg(u2) }>
               y = Relu(h)"""


@pytest.mark.parametrize("truth", [True, False])
def test_sizes_that_both_branches_need_to_be_equal_are_equal_outside(truth):
    inputs = "bool c, float[1, B, 3] x, float[1, D, 5] h0"
    proto = model(RECURRENT.replace('""', ""), inputs=inputs, outputs="float[1, 1, B, 5] y")
    add_initializer(proto, "w", RNG.normal(size=(1, 20, 3)).astype(np.float32))
    add_initializer(proto, "k", RNG.normal(size=(1, 20, 5)).astype(np.float32))
    executable = compiled_natively(proto)
    feeds = {
        "c": np.array(truth),
        "x": RNG.normal(size=(1, 4, 3)).astype(np.float32),
        "h0": RNG.normal(size=(1, 4, 5)).astype(np.float32),
    }
    assert_same_as_onnxruntime(executable, proto, feeds)
    with pytest.raises(ShapeError, match="h0"):
        executable.run(feeds | {"h0": np.zeros((1, 3, 5), np.float32)})
