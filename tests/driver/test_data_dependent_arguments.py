"""Shapes, axes, ranges, borders and positions that are inputs of the model, as native code."""

import numpy as np
import pytest
from tests.driver.data_dependent import assert_close, assert_native, compile_natively, feeds_of, one_node, reference
from tests.frontend.onnx_models import model

from tilewright.errors import ModelError, ShapeError

RNG = np.random.default_rng()
F32 = np.float32
INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(F32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def check_like_onnx(
    op: str, given: list, attributes: dict | None = None, changes: tuple = (), by: str = "onnx", **options: int
) -> None:
    """Asserts that one compiled model gives the results of the reference for several values of its inputs."""
    executable = compile_natively(one_node(op, given, attributes, **options))
    for inputs in (given, *changes):
        model, feeds = one_node(op, inputs, attributes, **options), feeds_of(inputs)
        for k, expected in enumerate(reference(model, feeds, by)):
            assert_close(executable.run(feeds)[f"y{k}"], expected, f"{op} of {inputs[1:]}")


X = normal(2, 6, 4)


def test_reshape():
    changes = [[X, ints(*shape)] for shape in ((4, -1, 3), (0, 0, 4), (-1, 1, 2), (48, 1, 1))]
    check_like_onnx("Reshape", [X, ints(3, 4, 4)], changes=tuple(changes))
    executable = compile_natively(one_node("Reshape", [X, ints(1, 2)]))
    for shape in (ints(5, 5), ints(-1, -1), ints(-2, 24)):
        with pytest.raises(ShapeError, match=r"node \(Reshape\): the shape does not fit the number of elements"):
            executable.run({"x0": X, "x1": shape})


def test_expand():
    check_like_onnx("Expand", [normal(2, 1, 4), ints(3, 1, 5, 1)], changes=([normal(2, 1, 4), ints(1, 2, 3, 4)],))
    executable = compile_natively(one_node("Expand", [normal(2, 3), ints(2, 3)], static=[1]))
    for shape, target in (((1, 3), (4, 3)), ((2, 1), (1, 5)), ((2, 3), (2, 3))):
        x = normal(*shape)
        expected = np.broadcast_to(x, np.broadcast_shapes(shape, target))
        assert_close(executable.run({"x0": x, "x1": ints(*target)})["y0"], np.ascontiguousarray(expected))
    with pytest.raises(ShapeError, match="cannot be broadcast"):
        executable.run({"x0": normal(2, 3), "x1": ints(2, 4)})


def test_sizes():
    check_like_onnx("Tile", [X, ints(1, 2, 3)], changes=([X, ints(2, 0, 1)],))
    check_like_onnx("ConstantOfShape", [ints(2, 3)], changes=([ints(0, 4)],))
    check_like_onnx("Split", [X, ints(1, 2, 3)], {"axis": 1}, changes=([X, ints(3, 0, 3)],), outputs=3)
    executable = compile_natively(one_node("ConstantOfShape", [ints(2, 3)]))
    with pytest.raises(ShapeError, match="expected a size of at least 0"):
        executable.run({"x0": ints(2, -3)})
    executable = compile_natively(one_node("Split", [X, ints(1, 2, 3)], {"axis": 1}, outputs=3))
    with pytest.raises(ShapeError, match="add up"):
        executable.run({"x0": X, "x1": ints(1, 2, 4)})


@pytest.mark.parametrize("dtype", [np.int32, np.int64, F32, np.float64])
def test_range(dtype):
    values = [(0, 5, 1), (3, -9, -2), (7, 3, 1), (1, 30, 7)]
    given = [[np.array(v, dtype) for v in row] for row in values]
    check_like_onnx("Range", given[0], changes=tuple(given[1:]))
    with pytest.raises(ShapeError, match="the step is 0"):
        compile_natively(one_node("Range", given[0])).run(feeds_of([np.array(v, dtype) for v in (0, 5, 0)]))


def test_range_between_distant_integers():
    """Distances that int64 does not hold, as inputs and as constants."""
    rows = [(INT64_MIN, INT64_MAX, 1 << 62), (INT64_MAX, INT64_MIN, INT64_MIN), (INT64_MAX, INT64_MIN, -INT64_MAX),
            (5, INT64_MIN, INT64_MIN), (INT64_MAX, INT64_MIN, INT64_MAX)]  # fmt: skip
    for _ in range(20):
        step = int(RNG.integers(1 << 58, INT64_MAX)) * (-1) ** int(RNG.integers(2))
        rows.append((*map(int, RNG.integers(INT64_MIN, INT64_MAX, 2)), step))
    scalars = [[np.array(v) for v in row] for row in rows]
    executable = compile_natively(one_node("Range", scalars[0]))
    for row, given in zip(rows, scalars, strict=True):
        assert_close(executable.run(feeds_of(given))["y0"], np.array(range(*row), np.int64), f"{row}")
    folded = compile_natively(one_node("Range", scalars[-1], constants=[0, 1, 2]))
    assert_close(folded.run({})["y0"], np.array(range(*rows[-1]), np.int64), f"{rows[-1]}")
    for row in ((0, INT64_MIN, -1), (INT64_MIN, INT64_MAX, 1), (-5, INT64_MAX, 2), (0, 1 << 31, 1)):
        with pytest.raises(ShapeError, match=r"\(Range\): the data ask for a size of \d+, expected at most 2147483647"):
            executable.run(feeds_of([np.array(v) for v in row]))


@pytest.mark.parametrize("limits", [f"Range({name}, n, d)" for name in "ab"] + ["Range(n, b, d)"])
def test_range_between_a_distant_integer_and_a_size(limits):
    body = f"""s = Shape(x)  z = Constant <value_ints = [0]> ()  n = Squeeze(s, z)
               a = Constant <value = int64 {{{INT64_MIN}}}> ()  b = Constant <value = int64 {{{INT64_MAX}}}> ()
               d = Constant <value = int64 {{{1 << 62}}}> ()  y = {limits}"""
    with pytest.raises(ModelError, match=r"expected limits from -2\^62 to 2\^62"):
        compile_natively(model(body, inputs="float[N] x", outputs="int64[M] y", opset=20))


def test_range_without_end():
    given = [np.array(v, F32) for v in (0, np.inf, 1)]
    with pytest.raises(ShapeError, match="the data ask for a size of"):
        compile_natively(one_node("Range", given)).run(feeds_of(given))
    with pytest.raises(ModelError, match="whose bytes no array can count"):
        compile_natively(one_node("Range", given, constants=[0, 1, 2]))


def test_ranges():
    huge = (1 << 63) - 1
    rows = [((0, 1), (2, 4), (1, 2), (1, 1)), ((5, -1), (0, -9), (1, -1), (-2, -1)),
            ((-3, 0), (huge, huge), (-2, 0), (2, huge)), ((4, 2), (2, 2), (1, 0), (1, 3)),
            ((huge, 3), (-huge, -huge - 1), (1, 2), (-1, -huge))]  # fmt: skip
    given = [[X, *(np.array(v, np.int64) for v in row)] for row in rows]
    check_like_onnx("Slice", given[0], changes=tuple(given[1:]))
    assert_native("Slice", given[1], static=[1, 2, 3, 4])
    executable = compile_natively(one_node("Slice", given[0]))
    for row, message in (((0, 1), (2, 4), (1, 3), (1, 1)), "axis"), (((0, 1), (2, 4), (1, 2), (0, 1)), "a step is 0"):
        with pytest.raises(ShapeError, match=message):
            executable.run(feeds_of([X, *(np.array(v, np.int64) for v in row)]))


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
def test_borders(mode):
    given = [[X, ints(*pads)] for pads in ((0, 1, 2, 1, 0, 3), (1, 0, 0, 0, 5, 2), (0, -2, 1, 0, 0, -1))]
    check_like_onnx("Pad", given[0], {"mode": mode}, tuple(given[1:]), "ort")
    executable = compile_natively(one_node("Pad", [X, ints(1, 2), None, ints(-1)], {"mode": mode}))
    expected = np.pad(X, ((0, 0), (0, 0), (1, 2)), mode=mode)
    assert_close(executable.run({"x0": X, "x1": ints(1, 2), "x3": ints(-1)})["y0"], expected)
    if mode != "reflect":
        with pytest.raises(ShapeError, match="the data ask for a size of"):
            executable.run({"x0": X, "x1": ints(INT64_MAX, INT64_MAX), "x3": ints(0)})
    with pytest.raises(ShapeError, match="the borders remove more elements than there are"):
        executable.run({"x0": X, "x1": ints(INT64_MIN, INT64_MIN), "x3": ints(0)})


def test_axes():
    x = normal(1, 3, 1, 4)
    check_like_onnx("Squeeze", [x, ints(0)], changes=([x, ints(-2)],))
    check_like_onnx("Unsqueeze", [x, ints(0, 3)], changes=([x, ints(-1, 1)],))
    executable = compile_natively(one_node("Squeeze", [x, ints(0)]))
    for axis, message in ((1, "another size than 1"), (4, "out of range")):
        with pytest.raises(ShapeError, match=message):
            executable.run({"x0": x, "x1": ints(axis)})


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceLogSumExp", "ReduceL2"])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_reductions(op, keepdims):
    check_like_onnx(op, [X, ints(0, 2)], {"keepdims": keepdims}, changes=([X, ints(1, -1)], [X, ints(0, 1)]))


def test_running_sums():
    check_like_onnx("CumSum", [X, np.array(0)], {"exclusive": 1}, changes=([X, np.array(-1)], [X, np.array(1)]))
    for attributes in ({}, {"reverse": 1}, {"reverse": 1, "exclusive": 1}):
        for axis in (1, 2):
            model = one_node("CumSum", [X, np.array(axis)], attributes, constants=[1], static=())
            assert_close(compile_natively(model).run({"x0": X})["y0"], reference(model, {"x0": X})[0])
    with pytest.raises(ShapeError, match="the axis is out of range"):
        compile_natively(one_node("CumSum", [X, np.array(0)])).run({"x0": X, "x1": np.array(3)})


# scattering


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "min", "max"])
def test_scatter_elements(reduction):
    indices = RNG.integers(-6, 6, (2, 5, 3))
    if reduction == "none":
        indices = np.argsort(RNG.random((2, 6, 3)), 1)[:, :5]
    attributes = {"axis": 1, "reduction": reduction}
    executable = assert_native("ScatterElements", [X, indices, normal(2, 5, 3)], attributes, by="ort")
    for wrong in (6, -7):
        indices[1, 2, 0] = wrong
        with pytest.raises(ShapeError, match=r"node \(ScatterElements\): an index is out of range"):
            executable.run(feeds_of([X, indices, normal(2, 5, 3)]))


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "min", "max"])
def test_scatter_slices(reduction):
    given = [X, np.array([[[0, 1]], [[1, -1]]]), normal(2, 1, 4)]
    assert_native("ScatterND", given, {"reduction": reduction}, by="ort", static=[1])
    model = one_node("ScatterND", given, {"reduction": reduction})
    with pytest.raises(ShapeError, match="an index is out of range"):
        compile_natively(model).run(feeds_of([X, np.array([[[0, 6]], [[1, 1]]]), normal(2, 1, 4)]))


def test_scatter_into_caches():
    cache, update = normal(2, 3, 6, 4), normal(2, 3, 2, 4)
    assert_native("TensorScatter", [cache, update, ints(1, 4)], opset=24)
    executable = assert_native("TensorScatter", [cache, update, ints(5, 4)], {"mode": "circular"}, opset=24)
    with pytest.raises(ShapeError, match="out of range"):
        executable.run(feeds_of([cache, update, ints(6, 0)]))


def test_reverse_sequence():
    executable = assert_native("ReverseSequence", [normal(5, 3, 2), ints(1, 5, 4)])
    assert_native("ReverseSequence", [normal(3, 5, 2), ints(1, 0, 4)], {"batch_axis": 0, "time_axis": 1})
    for lengths in (ints(1, -1, 2), ints(1, 6, 2)):
        with pytest.raises(ShapeError, match="a length is out of range"):
            executable.run(feeds_of([normal(5, 3, 2), lengths]))


def test_max_unpool():
    indices = np.array([[[[5, 7], [13, 15]]]])
    attributes = {"kernel_shape": [2, 2], "strides": [2, 2]}
    assert_native("MaxUnpool", [normal(1, 1, 2, 2), indices], attributes)
    assert_native("MaxUnpool", [normal(1, 1, 2, 2), indices, ints(1, 1, 5, 6)], attributes, constants=[2])
