"""Models whose compilation could take for ever: shared expressions, huge extents, long chains."""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tests.hostile.case import raises, works

import tilewright


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: dict[str, Sequence[int | str]],
    initializers: Iterable[onnx.TensorProto] = (),
    outputs: Sequence[str] = ("y",),
) -> onnx.ModelProto:
    """Nodes from float inputs to outputs of any shape."""
    input_infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, list(s)) for n, s in inputs.items()]
    out = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs]
    graph = helper.make_graph(list(nodes), "g", input_infos, out, list(initializers))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def compiled(proto: onnx.ModelProto, **options: object) -> tilewright.Executable:
    """The model compiled by the plain rule, which does not search."""
    return tilewright.compile(proto, **{"optimizer": "rule", **options})  # type: ignore[arg-type]


def chain(count: int, node: Callable[[str, str], onnx.NodeProto]) -> list[onnx.NodeProto]:
    """x -> v1 -> ... -> y."""
    names = ["x", *(f"v{k}" for k in range(1, count)), "y"]
    return [node(a, b) for a, b in pairwise(names)]


def _squares(count: int, **options: object) -> None:
    compilation = compiled(
        model(chain(count, lambda a, b: helper.make_node("Mul", [a, a], [b])), {"x": [5]}), **options
    )
    x = np.random.default_rng(1).uniform(0.9999, 1.0001, 5).astype(np.float32)
    expected = x
    for _ in range(count):
        expected = expected * expected
    np.testing.assert_allclose(compilation(x), expected, rtol=1e-6)


@works
def squares(place: Path) -> None:
    _squares(18)


@works
def squares_constructed(place: Path) -> None:
    _squares(24, optimizer="gensor")


@works
def sums_of_shared_terms(place: Path) -> None:
    """v + relu(v), forty times: no node is a plain square."""
    nodes: list[onnx.NodeProto] = []
    value = "x"
    for k in range(40):
        nodes.append(helper.make_node("Sigmoid", [value], [f"r{k}"]))
        nodes.append(helper.make_node("Mul", [value, f"r{k}"], [f"s{k}"]))
        value = f"s{k}"
    nodes.append(helper.make_node("Identity", [value], ["y"]))
    compilation = compiled(model(nodes, {"x": [7]}))
    x = np.random.default_rng(1).normal(size=7).astype(np.float32)
    expected = x.astype(np.float64)
    for _ in range(40):
        expected = expected / (1 + np.exp(-expected))
    np.testing.assert_allclose(compilation(x), expected, rtol=1e-4, atol=1e-30)


@raises("ModelError", "outputs")
def split_into_a_million(place: Path) -> None:
    node = helper.make_node("Split", ["x"], [f"y{k}" for k in range(1 << 20)], axis=0)
    compiled(model([node], {"x": [1 << 20]}, outputs=["y0"]))


@works
def split_counted_a_million(place: Path) -> None:
    node = helper.make_node("Split", ["x"], ["y", "z"], axis=0, num_outputs=1 << 20)
    x = np.random.default_rng(1).normal(size=1 << 20).astype(np.float32)
    y, z = compiled(model([node], {"x": [1 << 20]}, outputs=["y", "z"]))(x)
    np.testing.assert_array_equal([*y, *z], x[:2])


@works
def split_into_many(place: Path) -> None:
    names = [f"p{k}" for k in range(200)]
    nodes = [helper.make_node("Split", ["x"], names, axis=0), helper.make_node("Concat", names[::-1], ["y"], axis=0)]
    x = np.random.default_rng(1).normal(size=(200, 3)).astype(np.float32)
    np.testing.assert_array_equal(compiled(model(nodes, {"x": [200, 3]}))(x), x[::-1])


def _huge_reduction(operator: str, **options: object) -> None:
    compiled(model([helper.make_node(operator, ["x"], ["y"])], {"x": [1 << 40]}), **options)


@works
def reduction_of_2_to_the_40(place: Path) -> None:
    _huge_reduction("ReduceSum")


@works
def reduction_constructed(place: Path) -> None:
    _huge_reduction("ReduceSum", optimizer="gensor")


@works
def maximum_of_2_to_the_40(place: Path) -> None:
    _huge_reduction("ReduceMax", optimizer="gensor")


@works
def softmax_over_2_to_the_40(place: Path) -> None:
    compiled(model([helper.make_node("Softmax", ["x"], ["y"])], {"x": [1 << 40]}), optimizer="gensor")


@works
def product_over_2_to_the_40(place: Path) -> None:
    compiled(model([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": [2, 1 << 40], "w": [1 << 40, 2]}),
             optimizer="gensor")  # fmt: skip


@works
def product_over_a_large_prime(place: Path) -> None:
    n = (1 << 40) - 87
    compiled(model([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": [2, n], "w": [n, 2]}), optimizer="gensor")


def _powers_of_sizes(k: int) -> None:
    """y has (a + b + c) ** (2 ** k) elements: every step squares the number of rows."""
    nodes = [helper.make_node("Concat", ["p", "q", "r"], ["s0"], axis=0)]
    for i in range(k):
        nodes.append(helper.make_node("Shape", [f"s{i}"], [f"n{i}"]))
        nodes.append(helper.make_node("Mul", [f"n{i}", f"n{i}"], [f"m{i}"]))
        nodes.append(helper.make_node("ConstantOfShape", [f"m{i}"], [f"s{i + 1}"]))
    nodes.append(helper.make_node("ReduceSum", [f"s{k}"], ["y"]))
    compiled(model(nodes, {"p": ["a"], "q": ["b"], "r": ["c"]}))


@works
def sizes_to_the_8(place: Path) -> None:
    _powers_of_sizes(3)


@raises("ModelError", "formula")
def sizes_to_the_32(place: Path) -> None:
    _powers_of_sizes(5)


@raises("ModelError", "formula")
def sizes_to_the_64(place: Path) -> None:
    _powers_of_sizes(6)


@raises("ModelError", "formula")
def sizes_to_the_4096(place: Path) -> None:
    _powers_of_sizes(12)


@raises("ModelError", "terms")
def sizes_by_flattening(place: Path) -> None:
    """(a + b + c) ** 32 elements through broadcasting and reshaping."""
    nodes = [helper.make_node("Concat", ["p", "q", "r"], ["s0"], axis=0)]
    for i in range(5):
        nodes.append(helper.make_node("Unsqueeze", [f"s{i}", "one"], [f"u{i}"]))
        nodes.append(helper.make_node("Mul", [f"s{i}", f"u{i}"], [f"m{i}"]))
        nodes.append(helper.make_node("Reshape", [f"m{i}", "flat"], [f"s{i + 1}"]))
    nodes.append(helper.make_node("Identity", ["s5"], ["y"]))
    constants = [numpy_helper.from_array(np.array([v]), n) for n, v in (("one", 1), ("flat", -1))]
    compiled(model(nodes, {"p": ["a"], "q": ["b"], "r": ["c"]}, constants))


@raises("ModelError", "nodes once functions are put in place")
def functions_that_double(place: Path) -> None:
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    proto = model([helper.make_node("F0", ["x"], ["y"], domain="own")], {"x": [3]})
    proto.opset_import.append(imports[1])
    for k in range(60):
        called = {"op_type": f"F{k + 1}", "domain": "own"} if k < 59 else {"op_type": "Relu"}
        body = [onnx.NodeProto(input=[a], output=[b], **called) for a, b in (("a", "b"), ("b", "c"))]  # type: ignore[arg-type]
        proto.functions.append(helper.make_function("own", f"F{k}", ["a"], ["c"], body, imports))
    compiled(proto)


@works
def sequences_one_after_the_other(place: Path) -> None:
    """Each pair of nodes passes a value that is no tensor, and is a group of its own."""
    nodes: list[onnx.NodeProto] = []
    for k in range(60):
        value = f"v{k}" if k else "x"
        nodes.append(helper.make_node("SequenceConstruct", [value, value], [f"s{k}"]))
        nodes.append(helper.make_node("ConcatFromSequence", [f"s{k}"], [f"c{k}"], axis=0))
        nodes.append(helper.make_node("ReduceMax", [f"c{k}", "axis"], [f"v{k + 1}" if k < 59 else "y"]))
    x = np.random.default_rng(1).normal(size=(1, 3)).astype(np.float32)
    compilation = compiled(model(nodes, {"x": [1, 3]}, [numpy_helper.from_array(np.array([0]), "axis")]))
    np.testing.assert_array_equal(compilation(x), x)


@works
def names_that_look_alike(place: Path) -> None:
    """Identifiers are made of names; these all give the same one."""
    names = ["x", *("." * k for k in range(1, 1500)), "y"]
    nodes = [helper.make_node("Relu", [a], [b], name="n") for a, b in pairwise(names)]
    x = np.random.default_rng(1).normal(size=3).astype(np.float32)
    np.testing.assert_array_equal(compiled(model(nodes, {"x": [3]}))(x), np.maximum(x, 0))


@works
def many_outputs(place: Path) -> None:
    from tilewright.frontend.onnx import load_onnx
    from tilewright.graph.lower import lower_graph
    from tilewright.graph.passes import simplify_graph

    names = [f"y{k}" for k in range(3000)]
    nodes = [helper.make_node("Add", ["x", f"w{k}"], [n]) for k, n in enumerate(names)]
    weights = [numpy_helper.from_array(np.array(k, np.float32), f"w{k}") for k in range(3000)]
    program = lower_graph(simplify_graph(load_onnx(model(nodes, {"x": [3]}, weights, names))))
    assert len(program.steps) == 3000


@raises("ModelError", "formula has more than")
def slices_of_an_unknown_size(place: Path) -> None:
    """Each size is a formula of the one before it, in which that stands twice."""
    constants = [numpy_helper.from_array(np.array([v]), n) for n, v in (("s", 1), ("e", 1 << 60))]
    nodes = chain(300, lambda a, b: helper.make_node("Slice", [a, "s", "e"], [b]))
    compiled(model(nodes, {"x": ["n"]}, constants))


@raises("ModelError", "formula has more than")
def pools_beside_their_inputs(place: Path) -> None:
    """n becomes n + n // 2 thirty times."""
    nodes: list[onnx.NodeProto] = []
    value = "x"
    for k in range(30):
        nodes.append(helper.make_node("MaxPool", [value], [f"p{k}"], kernel_shape=[2], strides=[2]))
        nodes.append(helper.make_node("Concat", [f"p{k}", value], [f"c{k}"], axis=2))
        value = f"c{k}"
    compiled(model([*nodes, helper.make_node("Identity", [value], ["y"])], {"x": [1, 1, "n"]}))


def _softmaxes(count: int) -> None:
    compilation = compiled(model(chain(count, lambda a, b: helper.make_node("Softmax", [a], [b])), {"x": [2, 5]}))
    expected = np.random.default_rng(1).normal(size=(2, 5)).astype(np.float32)
    y = compilation(expected)
    for _ in range(count):
        power = np.exp(expected - expected.max(1, keepdims=True))
        expected = power / power.sum(1, keepdims=True)
    np.testing.assert_allclose(y, expected, rtol=1e-5)


@works
def softmaxes_100(place: Path) -> None:
    _softmaxes(100)


@works
def softmaxes_1000(place: Path) -> None:
    _softmaxes(1000)


@works
def nodes_listed_last_first(place: Path) -> None:
    from tilewright.frontend.onnx import load_onnx

    nodes = chain(10_000, lambda a, b: helper.make_node("Relu", [a], [b]))
    graph = load_onnx(model(nodes[::-1], {"x": [3]}))
    assert [n.outputs[0] for n in graph.nodes] == [n.output[0] for n in nodes]


@raises("ModelError", "-> 9984 more -> ")
def a_long_circle(place: Path) -> None:
    from tilewright.frontend.onnx import load_onnx

    nodes = chain(10_000, lambda a, b: helper.make_node("Relu", [a], [b]))
    nodes[0].input[0] = "v9999"
    load_onnx(model(nodes, {"x": [3]}))


@works
def many_relus_in_a_row(place: Path) -> None:
    nodes = chain(3000, lambda a, b: helper.make_node("Relu", [a], [b]))
    x = np.random.default_rng(1).normal(size=3).astype(np.float32)
    np.testing.assert_array_equal(compiled(model(nodes, {"x": [3]}))(x), np.maximum(x, 0))
