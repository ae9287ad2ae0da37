"""Values that native code never touches: strings, float8, 4- and 2-bit numbers, sequences and optional values."""

import tempfile
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.frontend.onnx_models import model

import tilewright
from tilewright.errors import FallbackWarning, FeedError

RNG = np.random.default_rng(83)
pytestmark = pytest.mark.filterwarnings("ignore::tilewright.errors.FallbackWarning")

LOOSE = {
    TensorProto.FLOAT8E4M3FN: ml_dtypes.float8_e4m3fn, TensorProto.FLOAT8E4M3FNUZ: ml_dtypes.float8_e4m3fnuz,
    TensorProto.FLOAT8E5M2: ml_dtypes.float8_e5m2, TensorProto.FLOAT8E5M2FNUZ: ml_dtypes.float8_e5m2fnuz,
    TensorProto.FLOAT4E2M1: ml_dtypes.float4_e2m1fn, TensorProto.INT4: ml_dtypes.int4,
    TensorProto.UINT4: ml_dtypes.uint4, TensorProto.INT2: ml_dtypes.int2, TensorProto.UINT2: ml_dtypes.uint2,
}  # fmt: skip


def compiled(proto: onnx.ModelProto) -> tilewright.Executable:
    """The model after a way through its file."""
    with tempfile.TemporaryDirectory() as folder:
        tilewright.compile(proto, optimizer="rule", threads=1).save(Path(folder) / "model.tw")
        return tilewright.load((Path(folder) / "model.tw").read_bytes(), threads=1)


def make(nodes, inputs, outputs, initializers=(), opset=25) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", inputs, outputs, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def tensor(name, number, shape):
    return helper.make_tensor_value_info(name, number, shape)


@pytest.mark.parametrize(("number", "dtype"), LOOSE.items(), ids=lambda x: getattr(x, "__name__", ""))
def test_input_and_output(number, dtype):
    nodes = [helper.make_node("Cast", ["x"], ["a"], to=TensorProto.FLOAT), helper.make_node("Abs", ["a"], ["b"]),
             helper.make_node("Cast", ["b"], ["y"], to=number)]  # fmt: skip
    x = RNG.integers(0, 2, (3, 4)).astype(np.float32).astype(dtype)
    run = compiled(make(nodes, [tensor("x", number, ["N", 4])], [tensor("y", number, ["N", 4])]))
    assert [(s.dtype, s.dims) for s in (*run.inputs, *run.outputs)] == [(np.dtype(dtype).name, ("N", 4))] * 2
    y = run(x)
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(y.astype(np.float32), x.astype(np.float32))
    # what lies between is native
    assert [type(s).__name__ for s in run.manifest.steps] == ["FallbackStep", "NativeStep", "FallbackStep"]
    with pytest.raises(FeedError, match=np.dtype(dtype).name):
        run(x.astype(np.float32))


@pytest.mark.parametrize(("number", "dtype"), LOOSE.items(), ids=lambda x: getattr(x, "__name__", ""))
def test_initializer(number, dtype):
    w = RNG.integers(0, 2, (4, 5)).astype(np.float32).astype(dtype)
    held = helper.make_tensor("w", number, w.shape, w.astype(np.float32).reshape(-1))
    nodes = [helper.make_node("Cast", ["w"], ["a"], to=1), helper.make_node("MatMul", ["x", "a"], ["y"])]
    proto = make(nodes, [tensor("x", 1, ["N", 4])], [tensor("y", 1, ["N", 5])], [held])
    x = RNG.normal(size=(3, 4)).astype(np.float32)
    np.testing.assert_allclose(compiled(proto)(x), x @ w.astype(np.float32), rtol=1e-5, atol=1e-6)


def test_string_and_complex_initializers():
    words = numpy_helper.from_array(np.array(["a", "bc"], object), "w")
    run = compiled(make([helper.make_node("StringConcat", ["x", "w"], ["y"])], [tensor("x", TensorProto.STRING, ["N"])],
                        [tensor("y", TensorProto.STRING, ["N"])], [words]))  # fmt: skip
    assert run(["x", "y"]).tolist() == ["xa", "ybc"]
    assert run(np.array(["ä", ""])).tolist() == ["äa", "bc"]
    number = numpy_helper.from_array(np.array([1 + 2j, 3j], np.complex64), "w")
    run = compiled(make([helper.make_node("Identity", ["w"], ["y"])], [], [tensor("y", TensorProto.COMPLEX64, [2])],
                        [number]))  # fmt: skip
    np.testing.assert_array_equal(run(), [1 + 2j, 3j])


def test_initializer_that_is_an_output_too():
    held = helper.make_tensor("w", TensorProto.INT4, [3], [1, -2, 3])
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    run = compiled(make(nodes, [tensor("x", 1, ["N"])], [tensor("y", 1, ["N"]), tensor("w", TensorProto.INT4, [3])],
                        [held]))  # fmt: skip
    _, w = run(RNG.normal(size=4).astype(np.float32))
    assert w.astype(int).tolist() == [1, -2, 3]


def test_old_files_list_initializers_among_the_inputs():
    held = helper.make_tensor("w", TensorProto.INT4, [3], [1, -2, 3])
    nodes = [helper.make_node("Cast", ["w"], ["a"], to=1), helper.make_node("Mul", ["x", "a"], ["y"])]
    inputs = [tensor("x", 1, ["N", 3]), tensor("w", TensorProto.INT4, [3])]
    run = compiled(make(nodes, inputs, [tensor("y", 1, ["N", 3])], [held]))
    x = RNG.normal(size=(2, 3)).astype(np.float32)
    np.testing.assert_array_equal(run(x), x * np.array([1, -2, 3], np.float32))


def test_two_uses_of_a_name_are_still_found():
    held = helper.make_tensor("w", TensorProto.INT4, [3], [1, -2, 3])
    nodes = [helper.make_node("Relu", ["x"], ["w"]), helper.make_node("Relu", ["w"], ["y"])]
    with pytest.raises(tilewright.ModelError, match="produces 'w', which"):
        tilewright.compile(make(nodes, [tensor("x", 1, ["N"])], [tensor("y", 1, ["N"])], [held]))


def test_sequences_in_and_out():
    proto = model("a = Relu(x)  t = SequenceInsert(s, a)  n = SequenceLength(t)",
                  inputs="seq(float[N, 4]) s, float[N, 4] x", outputs="seq(float[N, 4]) t, int64 n")  # fmt: skip
    run = compiled(proto)
    first, x = (RNG.normal(size=(2, 4)).astype(np.float32) for _ in range(2))
    t, n = run([first], x)
    assert n == 2
    np.testing.assert_array_equal(t, [first, np.maximum(x, 0)])
    # what the caller gets is the caller's own
    t[0][:] = 7
    assert not (first == 7).any()


def test_optional_values():
    proto = model("h = OptionalHasElement(x)", inputs="optional(float[3]) x", outputs="bool h")
    run = compiled(proto)
    assert bool(run(np.zeros(3, np.float32))) is True
    assert bool(run(None)) is False
    proto = model("o = Optional(x)  e = OptionalGetElement(o)  y = Neg(e)", inputs="float[N] x", outputs="float[N] y")
    x = RNG.normal(size=5).astype(np.float32)
    np.testing.assert_array_equal(compiled(proto)(x), -x)


@pytest.mark.parametrize("shape", [(), (2,), (2, 3), (2, 1, 3)])
def test_scan_outputs_of_a_loop_are_stacked(shape):
    dims = ", ".join(map(str, shape))
    v = f"float[{dims}]"
    body = f"""r, y = Loop (n, t, x) <body = b (int64 i, bool c, {v} v) => (bool d, {v} w, {v} s)
               {{ d = Identity(c)  w = Add(v, v)  s = Identity(w) }}>"""
    sizes = ", ".join(["M", *map(str, shape)])
    proto = model(body, inputs=f"int64 n, bool t, float[{dims}] x",
                  outputs=f"float[{dims}] r, float[{sizes}] y")  # fmt: skip
    body_graph = next(a.g for a in proto.graph.node[0].attribute if a.name == "body")
    for value in (*proto.graph.input, *proto.graph.output, *body_graph.input, *body_graph.output):
        value.type.tensor_type.shape.SetInParent()  # the text form has no scalars
    x = RNG.normal(size=shape).astype(np.float32)
    r, y = compiled(proto)(np.array(3), np.array(True), x)
    np.testing.assert_array_equal(y, np.stack([2 * x, 4 * x, 8 * x]))
    np.testing.assert_array_equal(r, 8 * x)


@pytest.mark.parametrize("trips", [0, 3])
def test_a_loop_without_a_condition_runs_as_often_as_it_says(trips):
    """Of no iteration there are no scan outputs, in the type and shape that the body declares."""
    proto = model("""r, y = Loop (n, , x) <body = b (int64 i, bool c, float[2] v) => (bool d, float[2] w, int32[2] s)
                     { d = Identity(c)  w = Add(v, v)  s = Cast<to = 6>(w) }>""",
                  inputs="int64 n, float[2] x", outputs="float[2] r, int32[M, 2] y")  # fmt: skip
    proto.graph.input[0].type.tensor_type.shape.SetInParent()  # the text form has no scalars
    for value in proto.graph.node[0].attribute[0].g.input[:2]:
        value.type.tensor_type.shape.SetInParent()
    proto.graph.node[0].attribute[0].g.output[0].type.tensor_type.shape.SetInParent()
    x = RNG.normal(size=2).astype(np.float32) * 10
    r, y = compiled(proto)(np.array(trips), x)
    np.testing.assert_array_equal(r, x * 2**trips)
    doubled = np.array([x * 2 ** (k + 1) for k in range(trips)]).reshape(trips, 2)
    np.testing.assert_array_equal(y, doubled.astype(np.int32))
    assert y.dtype == np.int32


def test_empty_inputs_of_the_evaluator():
    proto = model("s = SplitToSequence(x, k)  n = SequenceLength(s)", inputs="float[N] x, int64[K] k",
                  outputs="int64 n")  # fmt: skip
    run = compiled(proto)
    assert run(np.zeros(0, np.float32), np.zeros(2, np.int64)) == 2
    assert run(np.zeros(3, np.float32), np.array([1, 2])) == 2
    # what native code reads is not empty unless that is declared
    proto = model("s = SplitToSequence(x, k)  n = SequenceLength(s)  y = Neg(x)", inputs="float[N] x, int64[K] k",
                  outputs="int64 n, float[N] y")  # fmt: skip
    with pytest.raises(tilewright.ShapeError, match=r"expected a size for 'N' within 1\.\."):
        compiled(proto)(np.zeros(0, np.float32), np.zeros(2, np.int64))


def test_model_without_the_standard_operators():
    node = helper.make_node("Binarizer", ["x"], ["y"], domain="ai.onnx.ml", threshold=0.25)
    graph = helper.make_graph([node], "g", [tensor("x", 1, ["N", 3])], [tensor("y", 1, ["N", 3])])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("ai.onnx.ml", 1)])
    x = RNG.random((4, 3)).astype(np.float32)
    with pytest.warns(FallbackWarning):
        run = tilewright.compile(proto)
    np.testing.assert_array_equal(run(x), (x > 0.25).astype(np.float32))
