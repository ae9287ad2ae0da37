"""Early operator sets: attributes for what later versions express by inputs or broadcasting."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright
from tilewright.errors import ModelError

RNG = np.random.default_rng(61)


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def run(node: onnx.NodeProto, opset: int, *inputs: np.ndarray, constants: dict[str, np.ndarray] | None = None):
    """The result of one native node of an old operator set."""
    constants = constants or {}
    names = [n for n in node.input if n not in constants]
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for n, x in zip(names, inputs, strict=True)
    ]
    held = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    outputs = [onnx.ValueInfoProto(name=n) for n in node.output]
    graph = helper.make_graph([node], "g", infos, outputs, held)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=3)
    model = tilewright.compile(proto, optimizer="rule", threads=1)
    assert len(model.manifest.steps) == 1
    assert type(model.manifest.steps[0]).__name__ == "NativeStep"
    return model(*inputs)


@pytest.mark.parametrize(("op", "function"), [("Add", np.add), ("Sub", np.subtract), ("Mul", np.multiply),
                                          ("Div", np.divide)])  # fmt: skip
@pytest.mark.parametrize(("axis", "shape"), [(0, (2, 3)), (1, (3,)), (1, (3, 4)), (2, (4, 5)), (-1, (5,)), (0, (2,))])
def test_second_operand_at_an_axis(op, function, axis, shape):
    x, y = normal(2, 3, 4, 5), normal(*shape)
    start = axis % 4
    aligned = y.reshape(*shape, *[1] * (4 - start - len(shape)))
    node = helper.make_node(op, ["x", "y"], ["z"], axis=axis, broadcast=1)
    np.testing.assert_allclose(run(node, 6, x, y), function(x, aligned), rtol=1e-6)


def test_without_an_axis_the_last_dimensions_match():
    x, y = normal(2, 3, 4), normal(3, 4)
    node = helper.make_node("Add", ["x", "y"], ["z"], broadcast=1, consumed_inputs=[0, 0])
    np.testing.assert_array_equal(run(node, 1, x, y), x + y)


def test_logic_and_power_at_an_axis():
    x, y = RNG.random((2, 3, 4)) < 0.5, RNG.random(3) < 0.5
    node = helper.make_node("And", ["x", "y"], ["z"], axis=1, broadcast=1)
    np.testing.assert_array_equal(run(node, 6, x, y), x & y[:, None])
    a, b = np.abs(normal(2, 3, 4)) + 1, normal(3)
    node = helper.make_node("Pow", ["x", "y"], ["z"], axis=1, broadcast=1)
    np.testing.assert_allclose(run(node, 6, a, b), a ** b[:, None], rtol=1e-5)


def test_operand_that_does_not_fit_after_its_axis():
    node = helper.make_node("Add", ["x", "y"], ["z"], axis=2, broadcast=1)
    with pytest.raises(tilewright.ModelError, match="axis 2: 2 dimensions from there on exceed the rank 3"):
        run(node, 6, normal(2, 3, 4), normal(3, 4))


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 4), (2, 3, 3), (2, 3, 4, 5)])
@pytest.mark.parametrize("count", [1, 3])
def test_one_slope_per_channel(shape, count):
    x, slope = normal(*shape), normal(count)
    expected = np.where(x < 0, x * slope.reshape(1, -1, *[1] * (len(shape) - 2)), x)
    np.testing.assert_allclose(run(helper.make_node("PRelu", ["x", "s"], ["y"]), 6, x, slope), expected, rtol=1e-6)


def test_shape_is_an_attribute():
    x = normal(2, 6)
    node = helper.make_node("Reshape", ["x"], ["y"], shape=[3, -1], consumed_inputs=[0])
    np.testing.assert_array_equal(run(node, 1, x), x.reshape(3, 4))


def test_cast_to_the_name_of_a_type():
    x = 5 * normal(4)
    np.testing.assert_array_equal(run(helper.make_node("Cast", ["x"], ["y"], to="INT32"), 1, x), x.astype(np.int32))


def test_concat_along_the_second_dimension():
    x, y = normal(2, 3), normal(2, 4)
    np.testing.assert_array_equal(run(helper.make_node("Concat", ["x", "y"], ["z"]), 1, x, y), np.hstack([x, y]))


def test_pad_by_paddings():
    x = normal(2, 3)
    node = helper.make_node("Pad", ["x"], ["y"], paddings=[0, 1, 2, 0], value=1.5)
    np.testing.assert_array_equal(run(node, 1, x), np.pad(x, ((0, 2), (1, 0)), constant_values=1.5))


def test_pad_without_paddings():
    """Of a scalar there are none; a model that leaves them out, or names them as later versions do, is refused."""
    node = helper.make_node("Pad", ["x"], ["y"])
    with pytest.raises(ModelError, match=r"node Pad#0 \(Pad\): attribute 'paddings' is required"):
        run(node, 1, normal(2, 3))
    node.attribute.append(helper.make_attribute("paddings", [], attr_type=onnx.AttributeProto.INTS))
    x = normal()
    np.testing.assert_array_equal(run(node, 1, x), x)


def test_split_by_an_input():
    x = normal(2, 5)
    node = helper.make_node("Split", ["x", "s"], ["a", "b"], axis=1)
    a, b = run(node, 1, x, constants={"s": np.array([2, 3], np.float32)})
    np.testing.assert_array_equal(a, x[:, :2])
    np.testing.assert_array_equal(b, x[:, 2:])


def test_tile_along_an_axis():
    x = normal(2, 3)
    constants = {"n": np.array([3], np.float32), "axis": np.array([1], np.float32)}
    actual = run(helper.make_node("Tile", ["x", "n", "axis"], ["y"]), 1, x, constants=constants)
    np.testing.assert_array_equal(actual, np.tile(x, (1, 3)))


def test_upsample_by_height_and_width():
    x = normal(1, 2, 3, 4)
    node = helper.make_node("Upsample", ["x"], ["y"], height_scale=2.0, width_scale=3.0, mode="nearest")
    np.testing.assert_array_equal(run(node, 1, x), x.repeat(2, axis=2).repeat(3, axis=3))


def test_power_mean_with_a_float_for_p():
    x = normal(1, 2, 4, 4)
    node = helper.make_node("GlobalLpPool", ["x"], ["y"], p=3.0)
    expected = (np.abs(x) ** 3).sum((2, 3), keepdims=True) ** (1 / 3)
    np.testing.assert_allclose(run(node, 1, x), expected, rtol=1e-5)


def test_selu_with_its_old_constants():
    x = normal(20)
    expected = np.where(x <= 0, 1.0507 * (1.6732 * np.exp(x) - 1.6732), 1.0507 * x)
    np.testing.assert_allclose(run(helper.make_node("Selu", ["x"], ["y"]), 1, x), expected, rtol=2e-6, atol=1e-6)


def test_dropout_and_batch_normalization_are_inference():
    x, one = normal(2, 3, 4), [normal(3) for _ in range(3)]
    np.testing.assert_array_equal(run(helper.make_node("Dropout", ["x"], ["y"], is_test=0), 6, x), x)
    names = ["x", "s", "b", "m", "v"]
    node = helper.make_node("BatchNormalization", names, ["y"], consumed_inputs=[0] * 5, epsilon=0.5)
    variance = np.abs(normal(3))
    scale, bias, mean = (v[:, None] for v in one)
    expected = (x - mean) / np.sqrt(variance[:, None] + 0.5) * scale + bias
    np.testing.assert_allclose(run(node, 1, x, *one, variance), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("version", [9, 10])
def test_scatter_is_scatter_elements(version):
    x, index, updates = normal(3, 4), RNG.integers(0, 3, (2, 4)), normal(2, 4)
    node = helper.make_node("Scatter", ["x", "i", "u"], ["y"], axis=0)
    types = (("x", TensorProto.FLOAT, [3, 4]), ("i", TensorProto.INT64, [2, 4]), ("u", TensorProto.FLOAT, [2, 4]))
    inputs = [helper.make_tensor_value_info(*t) for t in types]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 4])]
    graph = helper.make_graph([node], "g", inputs, outputs)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)])
    model = tilewright.compile(proto, optimizer="rule")
    # equal indices of a column would make the result depend on the order
    index[1] = (index[0] + 1) % 3
    expected = x.copy()
    np.put_along_axis(expected, index, updates, axis=0)
    np.testing.assert_array_equal(model(x, index, updates), expected)


def test_axis_without_broadcasting_has_no_effect():
    x, y = np.abs(normal(2, 3)) + 1, normal(2, 3)
    node = helper.make_node("Pow", ["x", "y"], ["z"], axis=0, broadcast=0)
    np.testing.assert_allclose(run(node, 6, x, y), x**y, rtol=1e-5)
