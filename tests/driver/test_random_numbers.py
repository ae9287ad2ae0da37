"""Random numbers in compiled models: natively, the same for a seed, others in every call and iteration without one."""

import warnings

import numpy as np
from onnx import helper
from tests.ops.harness import NodeCase, define, run_stages

import tilewright


def compiled(nodes, inputs, outputs):
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info(n, 1, None) for n in outputs])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)])
    with warnings.catch_warnings():
        warnings.simplefilter("error", tilewright.FallbackWarning)
        return tilewright.compile(model, optimizer="rule", threads=1)


def test_seeds_decide():
    given = helper.make_tensor_value_info("x", 1, ["n", 3])
    nodes = [
        helper.make_node("RandomNormalLike", ["x"], ["a"], seed=4.0, mean=2.0),
        helper.make_node("RandomUniformLike", ["x"], ["b"], seed=4.0),
        helper.make_node("RandomUniformLike", ["x"], ["c"]),
        helper.make_node("RandomUniformLike", ["x"], ["e"]),
    ]
    run = compiled(nodes, [given], "abce")
    x = np.zeros((7, 3), np.float32)
    first, second = (run.run({"x": x}) for _ in range(2))
    for name, op, attributes in (("a", "RandomNormalLike", {"mean": 2.0}), ("b", "RandomUniformLike", {})):
        d, results = define(NodeCase(op, [x], {"seed": 4.0, **attributes}, opset=22))
        (expected,) = run_stages(d, results, [x])
        np.testing.assert_allclose(first[name], expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(first[name], second[name])
    for a, b in ((first["c"], second["c"]), (first["e"], second["e"]), (first["c"], first["e"])):
        assert (a != b).mean() > 0.9
    assert run.run({"x": x[:2]})["a"].shape == (2, 3)


def test_each_iteration_draws_anew():
    body = helper.make_graph(
        [
            helper.make_node("RandomUniform", [], ["r"], shape=[5]),
            helper.make_node("Bernoulli", ["r"], ["z"]),
            helper.make_node("Add", ["r", "z"], ["t"]),
            helper.make_node("Identity", ["go"], ["on"]),
        ],
        "body", [helper.make_tensor_value_info("i", 7, []), helper.make_tensor_value_info("go", 9, [])],
        [helper.make_tensor_value_info("on", 9, []), helper.make_tensor_value_info("t", 1, [5])],
    )  # fmt: skip
    loop = helper.make_node("Loop", ["n", ""], ["y"], body=body)
    run = compiled([loop], [helper.make_tensor_value_info("n", 7, [])], "y")
    y = run.run({"n": np.array(6)})["y"]
    assert y.shape == (6, 5)
    assert len(np.unique(y)) > 25
