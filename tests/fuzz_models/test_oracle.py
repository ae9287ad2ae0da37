"""What random models are judged by: others' answers, in float32 and in float64."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, parser
from tests.fuzz.check import WrongError
from tests.fuzz_models.check import compare
from tests.fuzz_models.float64 import float64_values
from tests.fuzz_models.oracle import evaluated, oracle, runtime
from tests.fuzz_models.rounding import MAX_RATIO, MOST_ROUNDINGS, is_rounding, largest_error

CANCELLING = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[n,8] x) => (float[] y) {
    scores = LogSoftmax <axis: int = 0> (x)
    y = ReduceLogSumExp <keepdims: int = 0> (scores)
}
"""
"""log(8) of 8 columns of probabilities; with one column 0."""

STACKING = """
<ir_version: 8, opset_import: ["" : 16]>
g (float[2,3] x, int64 count, bool go) => (float[] sum, float[] all) {
    sum, all = Loop (count, go, x) <body = b (int64 i, bool on, float[2,3] v) => (bool next, float[2,3] w, float[2,3] s)
    {
        next = Identity (on)
        w = Add (v, x)
        s = Neg (w)
    }>
}
"""

BRANCHING = """
<ir_version: 8, opset_import: ["" : 16]>
g (float[n,3] x, bool q) => (float[] y) {
    y = If (q) <then_branch = t () => (float[2,3] r) { r = Tanh (x) },
                else_branch = e () => (float[] s) { s = Neg (x) }>
}
"""


def data(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_the_evaluator_stacks_scan_outputs():
    model, x = parser.parse_model(STACKING), data(2, 3)
    feeds = {"x": x, "count": np.asarray(3), "go": np.asarray(True)}
    expected = [4 * x, np.stack([-2 * x, -3 * x, -4 * x])]
    # the same graph in a version that ONNX Runtime does not know
    newer = parser.parse_model(STACKING.replace("16]", f"{onnx.defs.onnx_opset_version() + 9}]"))
    with pytest.raises(Exception, match="opset"):
        runtime(newer, feeds)
    for m in (model, newer):
        for actual, right in zip(oracle(m, feeds), expected, strict=True):
            np.testing.assert_allclose(actual, right, rtol=1e-6)


def test_declared_shapes_of_branches_do_not_matter():
    model = parser.parse_model(BRANCHING)
    x = data(5, 3)
    feeds = {"x": x, "q": np.asarray(True)}
    with pytest.raises(Exception, match="shape"):
        runtime(model, feeds)
    np.testing.assert_allclose(oracle(model, feeds)[0], np.tanh(x), rtol=1e-6)
    assert model == parser.parse_model(BRANCHING)


def test_declared_shapes_of_results_do_not_matter():
    text = BRANCHING.replace("(float[] y)", "(float[2,3] h, float[2,3] y)").replace("y = If", "h = Neg (x)\n y = If")
    model, x = parser.parse_model(text.replace("Tanh (x)", "Tanh (h)").replace("float[2,3] r", "float[] r")), data(5, 3)
    feeds = {"x": x, "q": np.asarray(True)}
    with pytest.raises(Exception, match="shape"):
        runtime(model, feeds)
    np.testing.assert_allclose(oracle(model, feeds)[1], np.tanh(-x), rtol=1e-6)


@pytest.mark.parametrize(("version", "axes"), [(11, (0, 1)), (13, (0,))])
def test_the_evaluator_has_softmax_of_each_version(version, axes):
    """Before version 13 all axes from `axis` on are one."""
    node = helper.make_node("Softmax", ["x"], ["y"], axis=0)
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])
    graph = helper.make_graph([node], "g", [value], [onnx.ValueInfoProto(name="y")])
    x = data(2, 3)
    power = np.exp(x)
    (y,) = evaluated(helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)], ir_version=8), {"x": x})
    np.testing.assert_allclose(y, power / power.sum(axes, keepdims=True), rtol=1e-5)


def test_float64_values_of_branches_sequences_and_conversions():
    x = data(5, 3)
    y = float64_values(parser.parse_model(BRANCHING), {"x": x, "q": np.asarray(True)}, ["y"])["y"]
    np.testing.assert_allclose(y, np.tanh(x.astype(np.float64)), rtol=1e-15)
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], to=TensorProto.FLOAT16),
        helper.make_node("Constant", [], ["third"], value_float=1 / 3),
        helper.make_node("Cast", ["h"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["f", "third"], ["m"]),
        helper.make_node("SequenceConstruct", ["m", "x"], ["q"]),
        helper.make_node("ConcatFromSequence", ["q"], ["y"], axis=0),
        helper.make_node("UnknownOperator", ["x"], ["z"]),
    ]
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])
    graph = helper.make_graph(nodes, "g", [given], [onnx.ValueInfoProto(name=n) for n in "yz"])
    values = float64_values(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), {"x": x}, ["y"])
    wide = x.astype(np.float64)
    np.testing.assert_array_equal(values["y"], np.concatenate([wide * np.float32(1 / 3), wide]))
    assert "z" not in values


@pytest.fixture(scope="module")
def draws():
    return [{"x": data(20, 8, seed=k)} for k in range(8)]


def test_what_cancels_is_judged_by_float64(draws):
    model = parser.parse_model(CANCELLING.replace("n,8", "n,1"))
    narrow = [{"x": d["x"].reshape(-1, 1)} for d in draws]
    peers = [oracle(model, d)[0] for d in narrow]
    # the exact result is 0
    off = max(abs(float(p)) for p in peers)
    assert 0 < off < 1e-6
    assert is_rounding(model, narrow, "y", np.float32(MAX_RATIO * off))
    assert not is_rounding(model, narrow, "y", np.float32(1.01 * MAX_RATIO * off))
    assert not is_rounding(model, narrow, "y", np.float32(np.nan))
    assert not is_rounding(model, narrow, "y", np.zeros(1, np.float32))


def test_other_values_excuse_nothing(draws):
    # rounding to float16 is no rounding of float32: the values in float64 are those of another computation
    text = CANCELLING.replace("(scores)", "(half)").replace(
        "y = ", "narrow = Cast <to: int = 10> (scores)\n    half = Cast <to: int = 1> (narrow)\n    y = "
    )
    model = parser.parse_model(text)
    peer = oracle(model, draws[0])[0]
    exact = float64_values(model, draws[0], ["y"])
    assert largest_error(peer, exact["y"]) > MOST_ROUNDINGS * 2**-24 * np.abs(exact["scores"]).max()
    assert not is_rounding(model, draws, "y", peer)
    assert not is_rounding(model, draws, "y", exact["y"].astype(np.float32))


def test_what_nobody_evaluates_in_float64_is_no_rounding(draws):
    model = parser.parse_model(CANCELLING.replace("LogSoftmax", "UnknownOperator"))
    assert not is_rounding(model, draws, "y", np.float32(0))


@pytest.mark.parametrize(
    ("right", "wrong"), [(np.inf, 3e38), (-np.inf, -3e38), (np.inf, -np.inf), (np.nan, 0), (1, np.inf), (1, np.nan)]
)
def test_numbers_are_far_from_infinity_and_nan(right, wrong):
    expected = np.array([2, right], np.float32)
    compare("", {"y": expected.copy()}, {"y": expected}, lambda name, actual: False)
    with pytest.raises(WrongError, match="1 of 2 wrong"):
        compare("", {"y": np.array([2, wrong], np.float32)}, {"y": expected}, lambda name, actual: False)
