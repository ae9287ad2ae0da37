"""Python functions of users' operators: what they may write, and how many results they give."""

from collections.abc import Callable, Iterator

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tilewright
from tilewright.custom_operators import PYTHON_OPERATORS
from tilewright.errors import EvaluatorError

DOMAIN = "com.example"


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    """Leaves the registry as it was."""
    before = dict(PYTHON_OPERATORS)
    yield
    PYTHON_OPERATORS.clear()
    PYTHON_OPERATORS.update(before)


def model(*nodes: onnx.NodeProto) -> onnx.ModelProto:
    """Nodes from a vector x to a vector y of as many elements."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in "xy")
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(helper.make_graph(nodes, "g", [x], [y]), opset_imports=imports, ir_version=9)


def own(source: str, *results: str) -> onnx.NodeProto:
    """A node of the registered operator."""
    return helper.make_node("Own", [source], results, name="own", domain=DOMAIN)


def register(function: Callable[..., object], num_results: int = 1) -> None:
    tilewright.register_operator(
        DOMAIN, "Own", fallback=function, result_types=lambda inputs, _: [inputs[0]] * num_results
    )


def increment(x: np.ndarray) -> np.ndarray:
    """Adds one in place."""
    x += 1
    return x


def normal() -> np.ndarray:
    return np.random.default_rng().standard_normal(7).astype(np.float32)


def test_a_function_writes_neither_intermediates_nor_feeds() -> None:
    register(increment)
    difference = [helper.make_node("Exp", ["x"], ["e"]), own("e", "i"), helper.make_node("Sub", ["i", "e"], ["y"])]
    x = normal()
    before = x.copy()
    for proto in (model(*difference), model(own("x", "y"))):
        with pytest.raises(EvaluatorError, match=r"own \(Own\): failed .*read-only"):
            tilewright.compile(proto)(x)
        np.testing.assert_array_equal(x, before)
    register(lambda x: increment(x.copy()))
    np.testing.assert_allclose(tilewright.compile(model(*difference))(x), np.ones(7), rtol=1e-5)


def test_a_function_that_gives_its_input_does_not_give_the_feed() -> None:
    register(lambda x: x)
    x = normal()
    y = tilewright.compile(model(own("x", "y")))(x)
    np.testing.assert_array_equal(y, x)
    assert y.flags.writeable
    assert not np.shares_memory(x, y)


@pytest.mark.parametrize("count", [0, 3])
def test_another_number_of_results_than_outputs_is_refused(count: int) -> None:
    register(lambda x: (x,) * count)
    with pytest.raises(EvaluatorError, match=rf"own \(Own\): failed .*com.example::Own gave {count} results, not 1"):
        tilewright.compile(model(own("x", "y")))(normal())


def test_a_node_may_omit_the_last_of_the_declared_results() -> None:
    register(lambda x: (x + 1, x + 2), num_results=2)
    x = normal()
    np.testing.assert_array_equal(tilewright.compile(model(own("x", "y")))(x), x + 1)
