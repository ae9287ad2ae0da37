"""Feeds whose broadcast sizes are beyond all memory: an error, never a wrapped size and a crash.

The feeds have strides of 0 or few elements, so that the tests need little memory themselves.
"""

import numpy as np
import pytest
from onnx import helper
from tests.driver import models

import tilewright
from tilewright.errors import OptionError, ShapeError

TOO_LARGE = "these sizes need more than 2^46 bytes or 2^62 operations"


def test_a_product_of_three_sizes_that_wraps() -> None:
    nodes = [helper.make_node("Sum", ["a", "b", "c"], ["s"]), helper.make_node("Reshape", ["s", "flat"], ["y"])]
    inputs = [models.value("a", ["n", 1, 1]), models.value("b", [1, "m", 1]), models.value("c", [1, 1, "k"])]
    constants = {"flat": np.array([-1], np.int64)}
    executable = tilewright.compile(models.model(nodes, inputs, [models.value("y", [None])], constants), threads=1)

    def call(n: int, m: int, k: int) -> np.ndarray:
        rng = np.random.default_rng(n)
        shapes = ((n, 1, 1), (1, m, 1), (1, 1, k))
        a, b, c = (rng.standard_normal(s).astype(np.float32) for s in shapes)
        y = executable(a, b, c)
        np.testing.assert_allclose(y, (a + b + c).ravel(), rtol=1e-5, atol=1e-5)
        return y

    call(3, 5, 7)
    n = 1 << 22
    with pytest.raises(ShapeError) as error:
        call(n, n, n)
    assert str(error.value) == f"[shape] call: {TOO_LARGE}: n={n}, m={n}, k={n}; feed smaller arrays"
    with pytest.raises(ShapeError, match=rf"not enough memory: these sizes need {1 << 46} bytes: n=16384, m=16384"):
        call(1 << 14, 1 << 14, 1 << 16)
    call(2, 3, 4)


def test_a_workspace_that_wraps() -> None:
    axes = {f"axis{i}": np.array(i, np.int64) for i in (0, 1)}
    nodes = [
        helper.make_node("Sum", ["a", "b", "c", "d"], ["s"]),
        helper.make_node("CumSum", ["s", "axis0"], ["t"]),
        helper.make_node("CumSum", ["t", "axis1"], ["u"]),
        helper.make_node("ReduceMax", ["u"], ["y"], keepdims=0),
    ]
    names = ("n", "m", "k", "l")
    inputs = [models.value(x, [s if i == j else 1 for j, s in enumerate(names)]) for i, x in enumerate("abcd")]
    executable = tilewright.compile(models.model(nodes, inputs, [models.value("y", [])], axes), threads=1)
    n = 1 << 16
    large = [np.ones([n if i == j else 1 for j in range(4)], np.float32) for i in range(4)]
    with pytest.raises(ShapeError) as error:
        executable(*large)
    assert str(error.value) == f"[shape] call: {TOO_LARGE}: n={n}, m={n}, k={n}, l={n}; feed smaller arrays"
    small = [np.full([2 if i == j else 1 for j in range(4)], 0.25, np.float32) for i in range(4)]
    assert executable(*small) == 4.0


def test_a_reduction_that_never_ends() -> None:
    nodes = [helper.make_node("Sum", ["a", "b", "c"], ["s"]), helper.make_node("ReduceSum", ["s"], ["y"], keepdims=0)]
    inputs = [models.value("a", ["n", 1, 1]), models.value("b", [1, "m", 1]), models.value("c", [1, 1, "k"])]
    executable = tilewright.compile(models.model(nodes, inputs, [models.value("y", [])]), threads=1)
    n = 1 << 22
    with pytest.raises(ShapeError, match=f"call: .*2.46 bytes or 2.62 operations: n={n}, m={n}, k={n}; feed smaller"):
        executable(*(np.ones(s, np.float32) for s in ((n, 1, 1), (1, n, 1), (1, 1, n))))
    assert executable(*(np.full(s, 0.5, np.float32) for s in ((2, 1, 1), (1, 3, 1), (1, 1, 5)))) == 45.0


@pytest.mark.parametrize(("shapes", "kind"), [([1], "list"), ("batch:1", "str"), (7, "int"), ([], "list")])
def test_shapes_that_are_no_mapping(shapes: object, kind: str) -> None:
    with pytest.raises(OptionError) as error:
        tilewright.compile(models.mlp(), shapes=shapes)
    assert str(error.value) == (
        f'[option] argument \'shapes\': expected a mapping, got {kind}; pass for example {{"batch": "1..64"}}'
    )
