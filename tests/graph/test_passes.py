"""Graph passes: what they remove, and that results stay the same."""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from tests.frontend.onnx_models import add_initializer, model
from tests.graph.running import assert_same, program_of

from tilewright.frontend.onnx import load_onnx
from tilewright.graph.passes import PASSES, simplify_graph
from tilewright.graph.passes.bias import fold_bias
from tilewright.graph.passes.constant_folding import fold_constants
from tilewright.graph.passes.cse import eliminate_common_subexpressions
from tilewright.graph.passes.dce import eliminate_dead_code
from tilewright.graph.passes.identity import drop_identities
from tilewright.graph.passes.merge_reshape_transpose import merge_reshapes_and_transposes
from tilewright.graph.passes.unused_outputs import drop_unused_outputs
from tilewright.graph.program import Fallback

RNG = np.random.default_rng(11)


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def ops(graph) -> list[str]:
    return [n.op_type for n in graph.nodes]


def test_identity_is_dropped():
    graph = drop_identities(load_onnx(model("a = Identity(x)  b = Identity(a)  y = Relu(b)")))
    assert ops(graph) == ["Relu"]
    assert graph.nodes[0].inputs == ("x",)


def test_identity_of_an_output_stays():
    proto = model("a = Relu(x)  y = Identity(a)  z = Neg(y)", outputs="float[N, 4] y, float[N, 4] z")
    graph = drop_identities(load_onnx(proto))
    assert ops(graph) == ["Relu", "Identity", "Neg"]
    assert_same(proto, {"x": normal(3, 4)})


@pytest.mark.parametrize(("body", "remaining"), [
    ("a = Dropout(x)  y = Relu(a)", ["Relu"]),
    ("a, m = Dropout(x)  y = Relu(a)", ["Relu"]),
    ("a, m = Dropout(x)  b = Not(m)  y = Relu(a)", ["Dropout", "Not", "Relu"]),
    ("a = Dropout(x, r, f)  y = Relu(a)", ["Relu"]),
    ("a = Dropout(x, r, t)  y = Relu(a)", ["Dropout", "Relu"]),
])  # fmt: skip
def test_dropout(body, remaining):
    proto = model(body)
    for name, value in (("r", np.float32(0.5)), ("t", True), ("f", False)):
        add_initializer(proto, name, np.array(value))
    assert ops(drop_identities(load_onnx(proto))) == remaining


def test_dead_nodes_and_constants():
    proto = model("a = Add(x, w)  b = Relu(a)  y = Neg(x)")
    add_initializer(proto, "w", normal(4))
    graph = eliminate_dead_code(load_onnx(proto))
    assert ops(graph) == ["Neg"]
    assert not graph.constants


def test_captured_values_are_live():
    body = """a = Abs(x)  y = If (c) <then_branch = t () => (float[N, 4] r) { r = Relu(a) },
                                      else_branch = e () => (float[N, 4] r) { r = Neg(x) }>"""
    graph = eliminate_dead_code(load_onnx(model(body, inputs="bool c, float[N, 4] x")))
    assert ops(graph) == ["Abs", "If"]


def test_common_nodes_are_merged():
    proto = model(
        "a = Softmax <axis = 1> (x)  b = Softmax <axis = 1> (x)  c = Softmax <axis = 0> (x) "
        "d = Add(a, b)  e = Relu(c)  y = Add(d, e)"
    )
    assert ops(eliminate_common_subexpressions(load_onnx(proto))) == ["Softmax", "Softmax", "Add", "Relu", "Add"]
    assert_same(proto, {"x": normal(3, 4)})


def test_common_nodes_over_equal_constants():
    proto = model("a = Add(x, v)  b = Add(x, w)  c = Add(x, u)  d = Mul(a, b)  y = Mul(d, c)")
    for name, value in (("v", 2.0), ("w", 2.0), ("u", 3.0)):
        add_initializer(proto, name, np.array(value, np.float32))
    assert ops(eliminate_common_subexpressions(load_onnx(proto))) == ["Add", "Add", "Mul", "Mul"]
    assert_same(proto, {"x": normal(3, 4)})


def test_random_nodes_are_not_merged():
    graph = load_onnx(model("a = RandomNormalLike(x)  b = RandomNormalLike(x)  y = Sub(a, b)"))
    assert ops(eliminate_common_subexpressions(graph)) == ["RandomNormalLike", "RandomNormalLike", "Sub"]


def test_outputs_are_not_merged_away():
    proto = model("y = Relu(x)  z = Relu(x)", outputs="float[N, 4] y, float[N, 4] z")
    assert load_onnx(proto).outputs == eliminate_common_subexpressions(load_onnx(proto)).outputs == ("y", "z")
    assert_same(proto, {"x": normal(2, 4)})


def test_constants_are_folded():
    proto = model(
        "a = Mul(v, v)  s = Shape(a)  b = Transpose(a)  c = MatMul(x, b)  d = Cast <to = 1> (s)  e = ReduceSum(d) "
        "y = Add(c, e)"
    )
    add_initializer(proto, "v", normal(5, 4))
    graph = fold_constants(load_onnx(proto))
    assert ops(graph) == ["MatMul", "Add"]
    assert graph.constants["e"].tolist() == [9.0]
    proto.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 5
    assert_same(proto, {"x": normal(2, 4)})


def test_large_results_are_not_folded():
    proto = model("a = ConstantOfShape(s)  y = Add(x, a)", outputs="float y")
    add_initializer(proto, "s", np.array([512, 512, 4]))
    assert ops(fold_constants(load_onnx(proto))) == ["ConstantOfShape", "Add"]


def test_random_nodes_are_not_folded():
    graph = load_onnx(model("a = RandomNormal <shape = [4]> ()  y = Add(x, a)"))
    assert ops(fold_constants(graph)) == ["RandomNormal", "Add"]


def test_nodes_that_fail_are_not_folded():
    proto = model("a = MatMul(v, v)  y = Add(x, a)", outputs="float y")
    add_initializer(proto, "v", normal(5, 4))
    assert ops(fold_constants(load_onnx(proto))) == ["MatMul", "Add"]


def test_reshapes_are_merged():
    proto = model(
        "a = Reshape(x, s)  b = Flatten(a)  y = Reshape(b, t)", inputs="float[3, 4] x", outputs="float[6, 2] y"
    )
    add_initializer(proto, "s", np.array([2, -1]))
    add_initializer(proto, "t", np.array([6, 2]))
    assert ops(simplify_graph(load_onnx(proto))) == ["Reshape"]
    assert_same(proto, {"x": normal(3, 4)})


def test_reshape_that_copies_a_size_is_not_merged():
    proto = model("a = Reshape(x, s)  y = Reshape(a, t)", inputs="float[3, 4] x", outputs="float[2, 6] y")
    add_initializer(proto, "s", np.array([2, 6]))
    add_initializer(proto, "t", np.array([0, -1]))
    assert ops(merge_reshapes_and_transposes(load_onnx(proto))) == ["Reshape", "Reshape"]
    assert_same(proto, {"x": normal(3, 4)})


@pytest.mark.parametrize(("first", "second", "count"), [([1, 2, 0], [2, 0, 1], 0), ([1, 2, 0], [1, 2, 0], 1)])
def test_transposes_are_merged(first, second, count):
    proto = model(
        f"a = Transpose <perm = {first}> (x)  b = Transpose <perm = {second}> (a)  y = Relu(b)",
        inputs="float[2, 3, 4] x",
        outputs="float y",
    )
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    graph = simplify_graph(load_onnx(proto))
    assert ops(graph).count("Transpose") == count
    assert_same(proto, {"x": normal(2, 3, 4)})
    for node in graph.nodes:
        if node.op_type == "Transpose":
            attributes = onnx.NodeProto.FromString(node.source).attribute
            assert [tuple(a.ints) for a in attributes] == [node.attributes["perm"]]


def convolution(op: str, group: int, *, bias: bool, tail: list) -> tuple[onnx.ModelProto, dict]:
    """Conv or ConvTranspose of 4 to 6 channels, followed by `tail` nodes."""
    weight = normal(6, 4 // group, 3, 3) if op == "Conv" else normal(4, 6 // group, 3, 3)
    values = {"w": weight, "b": normal(6), "scale": normal(6), "shift": normal(6), "mean": normal(6)}
    values |= {"variance": np.abs(normal(6)) + 0.1, "c": normal(6, 1, 1), "row": normal(1, 6, 1, 1), "one": normal(1)}
    nodes = [helper.make_node(op, ["x", "w", *(["b"] if bias else [])], ["h"], name="conv", group=group), *tail]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", 1, ["N", 4, 7, 6])],
        [helper.make_tensor_value_info("y", 1, None)],
        [numpy_helper.from_array(v.astype(np.float32), k) for k, v in values.items()],
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    return proto, {"x": normal(2, 4, 7, 6)}


BN = helper.make_node("BatchNormalization", ["h", "scale", "shift", "mean", "variance"], ["y"], name="bn", epsilon=1e-3)


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("bias", [False, True])
def test_batch_normalization_is_folded(op, group, bias):
    proto, feeds = convolution(op, group, bias=bias, tail=[BN])
    graph = simplify_graph(load_onnx(proto))
    assert [n.label for n in graph.nodes] == [f"conv ({op})"]
    assert graph.nodes[0].outputs == ("y",)
    assert_same(proto, feeds, rtol=2e-5)


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("constant", ["c", "row"])
def test_bias_is_folded(op, bias, constant):
    proto, feeds = convolution(op, 2, bias=bias, tail=[helper.make_node("Add", [constant, "h"], ["y"])])
    assert ops(simplify_graph(load_onnx(proto))) == [op]
    assert_same(proto, feeds, rtol=2e-5)


def test_the_name_of_a_folded_bias_is_unused():
    tail = [helper.make_node("Relu", ["x"], ["y.bias"]), helper.make_node("Add", ["h", "c"], ["y"])]
    proto, _ = convolution("Conv", 1, bias=False, tail=tail)
    graph = fold_bias(load_onnx(proto))
    (conv,) = (n for n in graph.nodes if n.op_type == "Conv")
    assert conv.inputs[2] == "y.bias_1"
    assert "y.bias" not in graph.constants


def test_bias_then_batch_normalization():
    after = helper.make_node("BatchNormalization", ["k", *BN.input[1:]], ["y"])
    proto, feeds = convolution("Conv", 1, bias=True, tail=[helper.make_node("Add", ["h", "c"], ["k"]), after])
    assert ops(simplify_graph(load_onnx(proto))) == ["Conv"]
    assert_same(proto, feeds, rtol=2e-5)


def test_two_additions():
    tail = [helper.make_node("Add", ["h", "c"], ["k"]), helper.make_node("Add", ["row", "k"], ["y"])]
    proto, feeds = convolution("Conv", 1, bias=False, tail=tail)
    assert ops(fold_bias(load_onnx(proto))) == ["Conv"]
    assert_same(proto, feeds, rtol=2e-5)


@pytest.mark.parametrize("tail", [
    [helper.make_node("Add", ["h", "one"], ["y"])],
    [helper.make_node("Add", ["h", "c"], ["k"]), helper.make_node("Mul", ["h", "k"], ["y"])],
    [BN, helper.make_node("Relu", ["h"], ["unused"])],
    [helper.make_node("ReduceSum", ["x"], ["total"], keepdims=0), helper.make_node("Abs", ["total"], ["positive"]),
     helper.make_node("Add", ["variance", "positive"], ["v"]),
     helper.make_node("BatchNormalization", ["h", "scale", "shift", "mean", "v"], ["y"])],
])  # fmt: skip
def test_cases_without_folding(tail):
    proto, feeds = convolution("Conv", 1, bias=False, tail=tail)
    graph = simplify_graph(load_onnx(proto))
    if any(n.op_type == "Relu" for n in tail):
        assert ops(graph) == ["Conv"]  # the other use is dead, and goes first
    else:
        assert sorted(ops(graph)) == sorted(["Conv", *(n.op_type for n in tail)])
    assert_same(proto, feeds, rtol=2e-5)


@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("bias", [None, (6,), (1, 6), (1,), ()])
def test_batch_normalization_after_gemm(transposed, bias):
    values = {"w": normal(6, 4) if transposed else normal(4, 6), "scale": normal(6), "shift": normal(6)}
    values |= {"mean": normal(6), "variance": np.abs(normal(6)) + 0.1}
    if bias is not None:
        values["b"] = normal(*bias)
    gemm = helper.make_node("Gemm", ["x", "w", *(["b"] if bias is not None else [])], ["h"],
                            transB=transposed, alpha=0.5, beta=2.0)  # fmt: skip
    graph = helper.make_graph(
        [gemm, BN], "g", [helper.make_tensor_value_info("x", 1, ["N", 4])],
        [helper.make_tensor_value_info("y", 1, None)],
        [numpy_helper.from_array(np.asarray(v, np.float32), k) for k, v in values.items()],
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    assert ops(simplify_graph(load_onnx(proto))) == ["Gemm"]
    assert_same(proto, {"x": normal(5, 4)}, rtol=2e-5)


def test_passes_are_pure():
    proto, _ = convolution("Conv", 1, bias=True, tail=[BN])
    graph = load_onnx(proto)
    before = (graph.nodes, {k: v.tobytes() for k, v in graph.constants.items()})
    for _, apply in PASSES:
        apply(graph)
    assert before == (graph.nodes, {k: v.tobytes() for k, v in graph.constants.items()})


NORMALIZED = "float[2, 4, 6] x, float[4] s, float[4] b, float[4] m, float[4] v, float[6] g"


@pytest.mark.parametrize(
    ("node", "outputs"),
    [
        ("y, i = MaxPool <kernel_shape = [3]> (x)", 1),
        ("y, mask = Dropout(x)", 1),
        ("y, mean, inverse = LayerNormalization(x, g)", 1),
        ("y, mean, used = LayerNormalization(x, g)", 3),
        ("y, used = MaxPool <kernel_shape = [3]> (x)", 2),
        ("y, rest = Split <axis = 2> (x)", 2),
        ("rest, y = Split <axis = 2> (x)", 2),
        ("y, rest = TopK <axis = 1> (x, two)", 2),
    ],
)
def test_unused_optional_outputs_are_dropped(node, outputs):
    end = "z = Identity(used)" if "used" in node else "z = Identity(y)"
    proto = model(f"{node}  {end}", inputs=NORMALIZED, outputs="float y, float z", opset=17)
    for value in proto.graph.output:
        value.type.Clear()
    add_initializer(proto, "two", np.array([2]))
    graph = drop_unused_outputs(load_onnx(proto))
    assert len(graph.nodes[0].outputs) == outputs
    assert graph.nodes[0].outputs[-1]
    feeds = {"x": normal(2, 4, 6), "g": normal(6)} | {n: normal(4) for n in "sbmv"}
    if "MaxPool" not in node:
        assert_same(proto, feeds)


def test_node_is_native_without_its_unused_outputs():
    """Each goes to the reference evaluator where its further outputs are used."""
    for node in ("y, i = MaxPool <kernel_shape = [3], storage_order = 1> (x)",
                 "y, m1, v1 = BatchNormalization <momentum = 0.7> (x, s, b, m, v)"):  # fmt: skip
        proto = model(node, inputs=NORMALIZED, outputs="float y", opset=14)
        proto.graph.output[0].type.Clear()
        assert not any(isinstance(s, Fallback) for s in program_of(proto).steps)


def test_normalization_with_unused_statistics_is_folded():
    proto = model("a = Conv(x, w)  y, m1, v1, m2, v2 = BatchNormalization(a, s, b, m, v)", inputs="float[2, 4, 6] x",
                  outputs="float y", opset=9)  # fmt: skip
    proto.graph.output[0].type.Clear()
    for name, shape in {"w": (4, 4, 3), "s": (4,), "b": (4,), "m": (4,)}.items():
        add_initializer(proto, name, normal(*shape))
    add_initializer(proto, "v", RNG.random(4).astype(np.float32) + np.float32(0.5))
    assert ops(simplify_graph(load_onnx(proto))) == ["Conv"]
