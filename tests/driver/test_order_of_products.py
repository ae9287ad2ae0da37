"""Products of floats are those of float64 in the order of the elements: partial ones of narrower floats overflow, and
infinity times zero is NaN."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tilewright

CASES = {
    "rows": ((7, 191), [1]),
    "columns": ((191, 7), [0]),
    "all": ((3, 4000), [0, 1]),
    "long": ((2, 5000), [1]),
    "apart": ((2, 16, 200, 64), [0, 2]),
    "far_apart": ((8, 30, 12, 64), [0, 2]),
}
"""Shapes and the axes of the products."""


def products(shape: tuple[int | str, ...], axes: list[int], has_reader: bool) -> onnx.ModelProto:
    """The products over some axes, alone or with the input times them."""
    reduced: list[int | str] = [1 if k in axes else n for k, n in enumerate(shape)]
    nodes = [helper.make_node("ReduceProd", ["x", "axes"], ["y"])]
    results = [helper.make_tensor_value_info("y", TensorProto.FLOAT, reduced)]
    if has_reader:
        nodes.append(helper.make_node("Add", ["x", "y"], ["z"]))
        results.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, list(shape)))
    graph = helper.make_graph(
        nodes, "products", [helper.make_tensor_value_info("x", TensorProto.FLOAT, list(shape))], results,
        [helper.make_tensor("axes", TensorProto.INT64, [len(axes)], axes)],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def in_order(x: np.ndarray, axes: list[int]) -> np.ndarray:
    """The products in the order of the elements, in float64, rounded once."""
    kept = [k for k in range(x.ndim) if k not in axes]
    rows = x.transpose(*kept, *axes).reshape(*(x.shape[k] for k in kept), -1)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        last = np.multiply.accumulate(rows, axis=-1, dtype=np.float64)[..., -1].astype(np.float32)
    return last.reshape([1 if k in axes else n for k, n in enumerate(x.shape)])


@pytest.mark.parametrize("optimizer", ["rule", "roller", "gensor"])
@pytest.mark.parametrize("has_reader", [False, True])
@pytest.mark.parametrize("is_dynamic", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_products_are_taken_in_order(name: str, is_dynamic: bool, has_reader: bool, optimizer: str) -> None:
    shape, axes = CASES[name]
    model = products(tuple("nmpq"[k] if is_dynamic else n for k, n in enumerate(shape)), axes, has_reader)
    x = np.random.default_rng().uniform(6.0, 9.0, shape).astype(np.float32)
    # 41 factors overflow in float32, 350 in float64: where there are more, a zero among the first ones comes in time
    # only in the order of the elements; the last product has none
    places = {k: min(30, shape[k] - 1) if k == axes[-1] else 0 for k in axes}
    x[tuple(places.get(k, slice(None, -1)) for k in range(len(shape)))] = 0.0
    executable = tilewright.compile(model, optimizer=optimizer, threads=2)
    results = executable.run({"x": x})
    expected = in_order(x, axes)
    np.testing.assert_array_equal(results["y"], expected)
    assert (expected == 0).any()
    assert name == "all" or not np.isfinite(expected).all()
    if has_reader:
        np.testing.assert_array_equal(results["z"], x + expected)


@pytest.mark.parametrize("optimizer", ["rule", "gensor"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_factors_before_a_zero_may_exceed_the_type(dtype: type, optimizer: str) -> None:
    model = products((3, 54), [1], has_reader=False)
    for info in (model.graph.input[0], model.graph.output[0]):
        info.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    x = np.random.default_rng().integers(11, 20, (3, 54)).astype(dtype)
    x[0, 37], x[1, 40:] = 0, 1 / 16
    expected = x.astype(np.float64).prod(1, keepdims=True)
    assert expected[0] == 0
    assert expected[1] < np.finfo(np.float32).max < x[1, :40].astype(np.float64).prod()
    with np.errstate(over="ignore"):
        expected = expected.astype(dtype)
    (y,) = tilewright.compile(model, optimizer=optimizer, threads=2).run({"x": x}).values()
    np.testing.assert_allclose(y, expected, rtol=np.finfo(dtype).eps)
