"""Dimensions of size zero, known at compile time: every kind of schedule, as native code."""

import numpy as np
import pytest
from tests.driver.models import helper, model, value

import tilewright


def matmul(rows, depth, columns, constant):
    node = helper.make_node("MatMul", ["a", "b"], ["y"])
    w = np.random.default_rng(1).standard_normal((depth, columns)).astype(np.float32)
    inputs = [value("a", [rows, depth])] + ([] if constant else [value("b", [depth, columns])])
    return model([node], inputs, [value("y", [rows, columns])], {"b": w} if constant else {})


def ran(proto, *shapes, **options):
    """Outputs of the compiled model on random inputs of these shapes, without a fallback."""
    compiled = tilewright.compile(proto, **options)
    generator = np.random.default_rng(2)
    feeds = {
        s.name: generator.standard_normal(shape).astype(np.float32)
        for s, shape in zip(compiled.manifest.inputs, shapes, strict=True)
    }
    return compiled.run(feeds)["y"]


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("sizes", [(0, 20, 33), (20, 0, 33), (20, 33, 0), (0, 0, 5), (5, 0, 0), (0, 7, 0), (0, 0, 0)])
def test_matmul(sizes, constant):
    rows, depth, columns = sizes
    shapes = [(rows, depth)] if constant else [(rows, depth), (depth, columns)]
    y = ran(matmul(rows, depth, columns, constant), *shapes)
    np.testing.assert_array_equal(y, np.zeros((rows, columns), np.float32))


@pytest.mark.parametrize("position", ["rows", "columns"])
def test_matmul_of_a_dynamic_dimension_declared_empty(position):
    node = helper.make_node("MatMul", ["a", "b"], ["y"])
    a, b = (["batch", 24], [24, 40]) if position == "rows" else ([40, 24], [24, "batch"])
    proto = model([node], [value("a", a), value("b", b)], [value("y", [a[0], b[1]])])
    shapes = [[0 if n == "batch" else n for n in dims] for dims in (a, b)]
    y = ran(proto, *shapes, shapes={"batch": 0})
    assert y.shape == (shapes[0][0], shapes[1][1])


@pytest.mark.parametrize(("n", "c", "filters"), [(0, 3, 8), (2, 0, 8), (2, 3, 0), (0, 0, 0)])
def test_convolution(n, c, filters):
    w = np.random.default_rng(3).standard_normal((filters, c, 3, 3)).astype(np.float32)
    node = helper.make_node("Conv", ["x", "w"], ["y"], kernel_shape=[3, 3], pads=[1] * 4)
    proto = model([node], [value("x", [n, c, 8, 8])], [value("y", [n, filters, 8, 8])], {"w": w})
    np.testing.assert_array_equal(ran(proto, (n, c, 8, 8)), np.zeros((n, filters, 8, 8), np.float32))


@pytest.mark.parametrize(("op", "neutral"), [("ReduceSum", 0.0), ("ReduceProd", 1.0), ("ReduceMax", -np.inf)])
@pytest.mark.parametrize("shape", [(0, 33), (33, 0), (0, 0), (0,)])
def test_reduction(op, neutral, shape):
    axes = {"axes": np.array([len(shape) - 1], np.int64)}
    node = helper.make_node(op, ["x", "axes"], ["y"], keepdims=0)
    proto = model([node], [value("x", shape)], [value("y", shape[:-1])], axes, opset=13 if op == "ReduceSum" else 18)
    np.testing.assert_array_equal(ran(proto, shape), np.full(shape[:-1], neutral, np.float32))


@pytest.mark.parametrize("op", ["Relu", "Exp", "Softmax"])
@pytest.mark.parametrize("shape", [(0,), (0, 33), (33, 0), (2, 0, 33)])
def test_elementwise_and_softmax(op, shape):
    proto = model([helper.make_node(op, ["x"], ["y"])], [value("x", shape)], [value("y", shape)])
    assert ran(proto, shape).shape == shape
