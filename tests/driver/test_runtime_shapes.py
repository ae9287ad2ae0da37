"""Shapes that fallback steps report at run time, against declared sizes and each other."""

import warnings
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from tests.frontend.onnx_models import add_initializer, model

import tilewright
from tilewright.errors import EvaluatorError, FallbackWarning, ShapeError
from tilewright.runtime import Executable
from tilewright.runtime.manifest import SizesStep

RNG = np.random.default_rng(41)
THREE = np.array([3])
KEPT = np.array([1, 0, 1, 1, 0, 0], bool)


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def compiled(proto: onnx.ModelProto) -> Executable:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        return tilewright.compile(proto, optimizer="rule", threads=1)


def made(body: str, inputs: str, outputs: Sequence[str] = ("float y",), **constants: np.ndarray) -> onnx.ModelProto:
    proto = model(body, inputs=inputs, outputs=", ".join(outputs))
    for value in proto.graph.output:
        value.type.tensor_type.ClearField("shape")
    for name, array in constants.items():
        add_initializer(proto, name, array)
    return proto


def assert_right(proto: onnx.ModelProto, *calls: Mapping[str, np.ndarray]) -> Executable:
    """The compiled model gives what the reference evaluator gives."""
    exe = compiled(proto)
    for feeds in calls:
        for name, expected in zip(exe.run(feeds), ReferenceEvaluator(proto).run(None, dict(feeds)), strict=True):
            np.testing.assert_allclose(exe.run(feeds)[name], expected, rtol=1e-5, atol=1e-6)
    return exe


TOP_K = "v, i = TopK(x, k)  f = Cast <to = 1> (i)  y = Add(v, f)"
COMPRESS = "d = Compress <axis = 0> (x, c)  y = Add(d, w)"


@pytest.mark.parametrize(
    ("body", "inputs", "feeds"),
    [
        (TOP_K, "float[b, n] x, int64[1] k", {"x": normal(4, 7), "k": THREE}),
        (COMPRESS, "float[n] x, bool[n] c, float[m] w", {"x": normal(6), "c": KEPT, "w": normal(3)}),
        ("d = Compress <axis = 0> (x, c)  y = Add(d, x)", "float[n] x, bool[n] c", {"x": normal(6), "c": KEPT > -1}),
        ("d = Compress(x, c)  e = Compress(w, c)  y = Add(d, e)", "float[n] x, bool[n] c, float[n] w",
         {"x": normal(6), "c": KEPT, "w": normal(6)}),
        ("u, i, j, c = Unique(x)  f = Cast <to = 1> (c)  y = Add(u, f)", "float[n] x", {"x": np.float32([1, 2, 1])}),
        ("u = Unique(x)  y = Add(u, w)", "float[n] x, float[m] w", {"x": np.float32([1, 2, 1]), "w": normal(2)}),
        ("a = Constant <value_ints = [0]> ()  u, i, j = Unique <axis = 1> (x)  f = Cast <to = 1> (j)  z = Add(x, f) "
         "r = ReduceSum <keepdims = 0> (u, a) "
         "g = Cast <to = 1> (i)  h = Add(r, g)  t = ReduceSum(h)  y = Add(z, t)", "float[2, n] x",
         {"x": np.float32([[1, 2, 1], [3, 4, 3]])}),
        ("v, i = TopK <axis = 1> (x, k)  y = MatMul(v, w)", "float[b, n] x, int64[1] k, float[3, 5] w",
         {"x": normal(4, 7), "k": THREE, "w": normal(3, 5)}),
        ("v, i = TopK <axis = 1> (x, k)  y = MatMul(v, w)", "float[b, n] x, int64[1] k, float[m, 5] w",
         {"x": normal(4, 7), "k": THREE, "w": normal(3, 5)}),
        ("t = NonZero(x)  e = Split <num_outputs = 2, axis = 0> (t)  r = Cast <to = 1> (t)  g = Transpose(t) "
         "h = GatherND(x, g)  y = Add(r, h)", "float[b, n] x", {"x": np.float32([[0, 2, 1], [3, 0, 3]])}),
        ("d = Compress <axis = 3> (x, c)  y = MaxPool <kernel_shape = [2, 2]> (d)", "float[1, 2, 5, n] x, bool[n] c",
         {"x": normal(1, 2, 5, 6), "c": KEPT}),
        ("d = Compress <axis = 0> (x, c)  e = Concat <axis = 0> (d, d)  y = Add(e, w)",
         "float[n] x, bool[n] c, float[m] w", {"x": normal(6), "c": KEPT, "w": normal(6)}),
        ("d = Compress <axis = 0> (x, c)  e = Concat <axis = 0> (w, w)  y = Add(d, e)",
         "float[n] x, bool[n] c, float[m] w", {"x": normal(6), "c": KEPT > -1, "w": normal(3)}),
        ("e = Concat <axis = 0> (x, x)  f = Concat <axis = 0> (w, w, w)  g = Add(e, f)  y = Exp(g)",
         "float[n] x, float[m] w", {"x": normal(6), "w": normal(4)}),
        ("e = Concat <axis = 1> (x, x)  f = Concat <axis = 0> (w, w, w)  y = MatMul(e, f)",
         "float[2, n] x, float[m, 5] w", {"x": normal(2, 6), "w": normal(4, 5)}),
    ],
)  # fmt: skip
def test_sizes_meet(body: str, inputs: str, feeds: Mapping[str, np.ndarray]) -> None:
    assert_right(made(body, inputs), feeds)


ONE = np.array([0, 0, 1, 0, 0, 0], bool)


@pytest.mark.parametrize(
    ("body", "inputs", "feeds"),
    [
        (COMPRESS, "float[n] x, bool[n] c, float[m] w", {"x": normal(6), "c": ONE, "w": normal(4)}),
        (COMPRESS, "float[n] x, bool[n] c, float[m] w", {"x": normal(6), "c": KEPT, "w": normal(1)}),
        (COMPRESS, "float[6] x, bool[6] c, float[4] w", {"x": normal(6), "c": ONE, "w": normal(4)}),
        (COMPRESS, "float[6] x, bool[6] c, float[0] w", {"x": normal(6), "c": ONE, "w": normal(0)}),
        (f"{COMPRESS.replace('y', 's')}  t = Mul(s, w)  y = Sub(t, d)", "float[n] x, bool[n] c, float[m] w",
         {"x": normal(6), "c": ONE, "w": normal(4)}),
        ("d = Compress <axis = 0> (x, c)  e = Compress <axis = 0> (x, b)  y = Where(p, d, e)",
         "float[n] x, bool[n] c, bool[n] b, bool[m] p", {"x": normal(6), "c": ONE, "b": KEPT, "p": KEPT[:3]}),
        ("d = Compress <axis = 0> (x, c)  y = MatMul(d, w)", "float[n, 2, 3] x, bool[n] c, float[m, 3, 4] w",
         {"x": normal(6, 2, 3), "c": ONE, "w": normal(5, 3, 4)}),
        ("d = Compress <axis = 0> (x, c)  y = Gemm(a, b, d)", "float[n, 5] x, bool[n] c, float[4, 3] a, float[3, 5] b",
         {"x": normal(6, 5), "c": ONE, "a": normal(4, 3), "b": normal(3, 5)}),
        ("d = Compress <axis = 0> (x, c)  s = Shape(w)  y = Expand(d, s)", "float[n] x, bool[n] c, float[m] w",
         {"x": normal(6), "c": ONE, "w": normal(4)}),
        ("d = Compress <axis = 0> (x, c)  y = LayerNormalization(w, d)", "float[n] x, bool[n] c, float[m, 4] w",
         {"x": normal(6), "c": ONE, "w": normal(3, 4)}),
    ],
)  # fmt: skip
def test_runtime_sizes_of_1_are_broadcast(body: str, inputs: str, feeds: Mapping[str, np.ndarray]) -> None:
    assert_right(made(body, inputs), feeds)


def by_runtime(exe: Executable) -> list[str]:
    """Nodes of steps that the runtime executes: those whose sizes are data."""
    return [label for step in exe.manifest.steps if not hasattr(step, "prefix") for label in step.nodes]


def test_sizes_from_the_same_data_are_equal() -> None:
    """What meets a size of its own source, or can't be 1, stays native."""
    body = "d = Compress <axis = 0> (x, c)  e = Compress <axis = 1> (w, c)  y = Add(d, e)"
    exe = assert_right(made(body, "float[n] x, bool[n] c, float[3, n] w"), *(
        {"x": normal(6), "c": c, "w": normal(3, 6)} for c in (KEPT, ONE, ONE & False)
    ))  # fmt: skip
    assert by_runtime(exe) == ["n0 (Compress)"]
    body = "d = Compress(x, c)  e = Concat <axis = 0> (d, k)  y = Add(e, w)"
    exe = assert_right(made(body, "float[n] x, bool[n] c, float[5] w", k=normal(2)),
                       {"x": normal(6), "c": KEPT, "w": normal(5)})  # fmt: skip
    assert by_runtime(exe) == ["n0 (Compress)"]


def test_mismatching_runtime_sizes_are_errors() -> None:
    exe = compiled(made(COMPRESS, "float[n] x, bool[n] c, float[m] w"))
    for count in (2, 4):
        with pytest.raises(EvaluatorError, match=r"n1 \(Add\): failed on ONNX's reference evaluator"):
            exe.run({"x": normal(6), "c": KEPT, "w": normal(count)})
    exe = compiled(made("d = Compress <axis = 1> (x, c)  y = MatMul(d, w)", "float[2, n] x, bool[n] c, float[m, 3] w"))
    for count in (2, 4):
        with pytest.raises(ShapeError, match=r"node n1 \(MatMul\): rows of B: expected d_n1, got m"):
            exe.run({"x": normal(2, 6), "c": KEPT, "w": normal(count, 3)})


def test_a_one_hot_depth_that_is_a_vector() -> None:
    assert_right(made("e = Squeeze(d)  y = OneHot(i, e, v)", "int64[n] i, int64[1] d, float[2] v"),
                 {"i": np.array([1, -1, 4]), "d": THREE, "v": normal(2)})  # fmt: skip
    feeds = {"i": np.array([1, -1, 4]), "d": THREE, "v": np.float32([0, 2])}
    exe = compiled(made("y = OneHot(i, d, v)", "int64[n] i, int64[1] d, float[2] v"))
    np.testing.assert_array_equal(exe.run(feeds)["y"], [[0, 2, 0], [0, 0, 2], [0, 0, 0]])
    exe = compiled(made("y = OneHot(i, d, v)", "int64[n] i, int64[k] d, float[2] v"))
    with pytest.raises(EvaluatorError) as error:
        exe.run(feeds | {"d": np.array([3, 3])})
    assert str(error.value) == (
        "[evaluator] n0 (OneHot): failed on ONNX's reference evaluator, which runs it: ValueError: cannot reshape "
        "array of size 2 into shape (); given int64 [3], int64 [2], float32 [2]: either these do not suit the node, or "
        "the evaluator can't run it"
    )


def test_a_negative_size_of_reshape_other_than_minus_one_is_refused_on_the_evaluator() -> None:
    exe = compiled(made("y = Reshape(x, s)", "float[n] x, int64[k] s"))
    x = normal(12)
    for shape in ([-1, 6], [3, -1, 2], [0, 1]):
        expected = x.reshape(12, 1) if shape[0] == 0 else x.reshape(shape)
        np.testing.assert_array_equal(exe.run({"x": x, "s": np.array(shape)})["y"], expected)
    for shape in ([-2, 6], [-3], [-1, -1]):
        with pytest.raises(EvaluatorError, match=r"n0 \(Reshape\): failed"):
            exe.run({"x": x, "s": np.array(shape)})


def test_sizes_that_are_multiples_are_compared() -> None:
    exe = compiled(made("e = Concat <axis = 0> (x, x)  f = Concat <axis = 0> (w, w, w)  y = Add(e, f)",
                        "float[n] x, float[m] w"))  # fmt: skip
    with pytest.raises(ShapeError, match="broadcast along dimension 0"):
        exe.run({"x": normal(6), "w": normal(5)})


def test_a_size_that_is_too_small_names_the_node() -> None:
    exe = compiled(made("d = Compress <axis = 3> (x, c)  y = Conv(d, w)", "float[1, 2, 5, n] x, bool[n] c",
                        w=normal(4, 2, 3, 3)))  # fmt: skip
    exe.run({"x": normal(1, 2, 5, 6), "c": KEPT})
    with pytest.raises(ShapeError) as error:
        exe.run({"x": normal(1, 2, 5, 3), "c": KEPT[:3]})
    assert str(error.value) == (
        "[shape] n0 (Compress): the data ask for a size of 2, expected at least 3; these data do not suit the model"
    )


def test_outputs_share_a_size() -> None:
    exe = compiled(made(TOP_K, "float[b, n] x, int64[1] k"))
    (step,) = [s for s in exe.manifest.steps if isinstance(s, SizesStep)]
    assert step.symbols == ("v_n1",)
    assert str(exe.outputs[0]) == "float32 [b, v_n1]"


def test_a_size_has_the_bound_of_what_it_is_taken_from() -> None:
    proto = made("a = NonZero(x)  y = Neg(a)", "float[3, 4] x", ["int64 y"])
    symbols = {s.name: (s.lo, s.hi) for s in compiled(proto).manifest.symbols}
    assert symbols == {"a_n1": (0, 12)}


def test_k_that_is_computed_from_a_size() -> None:
    body = "s = Shape(x)  n = Gather(s, one)  m = Min(n, ten)  k = Unsqueeze(m, zero)  v, i = TopK(x, k)  y = Exp(v)"
    proto = made(body, "float[b, n] x", one=np.array(1), ten=np.array(10), zero=np.array([0]))
    exe = assert_right(proto, {"x": normal(2, 6)}, {"x": normal(3, 17)})
    assert str(exe.outputs[0]).startswith("float32 [b, min(10, n)]")


def test_a_declared_size_of_one_run_does_not_bind() -> None:
    body = "t = Relu(x)  a = If (c) <then_branch = t1 () => (int64[2, 7] r) { r = NonZero(t) }, \
            else_branch = e1 () => (int64[2, 7] r) { q = Neg(t)  r = NonZero(q) }>  y = Neg(a)"  # fmt: skip
    proto = made(body, "bool c, float[N, 4] x", ["int64 y"])
    for truth in (True, False):
        assert_right(proto, {"c": np.array(truth), "x": normal(5, 4)})
