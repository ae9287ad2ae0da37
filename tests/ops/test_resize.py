"""Resize and Upsample against ONNX Runtime and ONNX's reference."""

import numpy as np
import pytest
from tests.ops.harness import EXACT, NodeCase, Tolerance, check, define, reference_outputs

from tilewright.errors import ShapeError, UnsupportedError
from tilewright.expr.nodes import Cast, Symbol
from tilewright.expr.traversal import loads, post_order
from tilewright.ops.resize_scale import short_fraction

RNG = np.random.default_rng(17)
MODES = ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "half_pixel_symmetric"]
ROUNDINGS = ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]


def normal(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


CLOSE = Tolerance(1e-5, 2e-6)


def compare(inputs, attributes, reference="ort", opset=19, op="Resize", tolerance=CLOSE):
    """Literal sizes, then symbolic ones of the input; scales and sizes are constants."""
    case, constants = NodeCase(op, inputs, attributes, opset=opset), tuple(range(1, len(inputs)))
    symbols = {(0, k): Symbol(f"s{k}", 1, 99) for k in range(inputs[0].ndim)}
    for sizes in (None, symbols):
        check(case, constants=constants, symbolic=False, sizes=sizes, reference=reference, tolerance=tolerance)


def by_scale(x, *scales):
    return [x, None, np.array(scales, np.float32)]


def by_size(x, *sizes):
    return [x, None, None, np.array(sizes, np.int64)]


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("scales", [(1, 1, 2, 2), (1, 1, 3, 1), (1, 1, 0.5, 0.5), (1, 1, 2, 0.5), (1, 1, 4, 0.25)])
def test_nearest_by_scale(scales, mode, rounding):
    attributes = {"mode": "nearest", "coordinate_transformation_mode": mode, "nearest_mode": rounding}
    compare(by_scale(normal(1, 2, 6, 8), *scales), attributes, reference="onnx", tolerance=EXACT)


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("sizes", [(1, 2, 12, 16), (1, 2, 8, 8), (1, 2, 3, 4), (1, 2, 1, 24)])
def test_nearest_by_size(sizes, mode, rounding):
    attributes = {"mode": "nearest", "coordinate_transformation_mode": mode, "nearest_mode": rounding}
    # Both references round coordinates such as 7 * (1 / 0.7); sizes here divide exactly.
    compare(by_size(normal(1, 2, 4, 8), *sizes), attributes, reference="onnx", tolerance=EXACT)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("scales", [(1, 1, 2, 2), (1, 1, 1.7, 0.6), (1, 1, 0.5, 3)])
def test_linear_by_scale(scales, mode):
    x = normal(2, 2, 6, 7)
    attributes = {"mode": "linear", "coordinate_transformation_mode": mode}
    compare(by_scale(x, *scales), attributes, reference="onnx", tolerance=Tolerance(1e-4, 1e-5))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("sizes", [(2, 2, 12, 14), (2, 2, 3, 5), (2, 2, 6, 13), (2, 2, 1, 1)])
def test_linear_by_size(sizes, mode):
    attributes = {"mode": "linear", "coordinate_transformation_mode": mode}
    compare(by_size(normal(2, 2, 6, 7), *sizes), attributes, reference="onnx", tolerance=Tolerance(1e-4, 1e-5))


@pytest.mark.parametrize("exclude", [0, 1])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("scales", [(1, 1, 2, 2), (1, 1, 1.7, 0.6)])
def test_cubic(scales, mode, exclude):
    x = normal(1, 2, 6, 7)
    attributes = {"mode": "cubic", "coordinate_transformation_mode": mode, "exclude_outside": exclude}
    compare(by_scale(x, *scales), attributes, reference="onnx", tolerance=Tolerance(1e-4, 1e-5))
    # ONNX Runtime aligns corners by the length of the result, the reference by size * scale before rounding.
    if mode != "align_corners" or min(scales) >= 1:
        compare(by_scale(x, *scales), attributes | {"cubic_coeff_a": -0.5}, tolerance=Tolerance(1e-4, 1e-5))


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_resize_matches_onnxruntime(mode):
    for x, scales in ((normal(2, 3, 5, 6), (1, 1, 2, 3)), (normal(2, 3, 8, 6), (1, 1, 0.5, 2)), (normal(3, 5), (2, 4))):
        compare(by_scale(x, *scales), {"mode": mode})


def test_linear_in_three_dimensions():
    compare(by_scale(normal(1, 2, 3, 4, 5), 1, 1, 2, 1.5, 3), {"mode": "linear"}, tolerance=Tolerance(1e-4, 1e-5))


@pytest.mark.parametrize("opset", [11, 13, 18, 19])
def test_every_opset_since_11(opset):
    x = normal(1, 2, 5, 6)
    empty = np.zeros(0, np.float32) if opset == 11 else None
    for inputs in ([x, empty, np.array([1, 1, 2, 2], np.float32)], [x, empty, empty, np.array([1, 2, 7, 9], np.int64)]):
        compare(inputs, {"mode": "linear"}, opset=opset)
        compare(
            inputs,
            {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
            opset=opset,
        )


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("scales", [(1, 1, 2, 2), (1, 1, 0.5, 0.5), (1, 1, 3, 2), (1, 1, 0.6, 0.6)])
def test_opset_10_and_upsample(mode, scales):
    x = normal(1, 2, 6, 10)
    values = np.array(scales, np.float32)
    compare([x, values], {"mode": mode}, opset=10)
    if min(scales) >= 1:
        compare([x, values], {"mode": mode}, opset=9, op="Upsample")
        compare([x], {"mode": mode, "scales": [float(s) for s in scales]}, opset=7, op="Upsample")


def test_axes_select_dimensions():
    x = normal(2, 5, 6, 3)
    compare([x, None, np.array([2, 0.5], np.float32)], {"axes": [1, 2], "mode": "linear"}, reference="onnx")
    full = reference_outputs("onnx", NodeCase("Resize", by_size(x, 2, 9, 4, 3), {"mode": "nearest"}, opset=19))
    for axes, sizes in (([1, -2], [9, 4]), ([2, 1], [4, 9])):
        inputs = [x, None, None, np.array(sizes, np.int64)]
        compare(inputs, {"axes": axes, "mode": "nearest"}, reference=lambda *_: full, tolerance=EXACT)


@pytest.mark.parametrize("policy", ["stretch", "not_larger", "not_smaller"])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_keep_aspect_ratio(policy, mode):
    x = normal(1, 2, 4, 8)
    for sizes in ((8, 12), (6, 8), (3, 2)):
        inputs = [x, None, None, np.array(sizes, np.int64)]
        attributes = {"axes": [2, 3], "keep_aspect_ratio_policy": policy, "mode": mode}
        check(
            NodeCase("Resize", inputs, attributes, opset=19),
            constants=(3,),
            symbolic=False,
            reference="onnx",
            tolerance=Tolerance(1e-4, 1e-5),
        )


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_crop_and_resize(mode):
    x = normal(1, 1, 4, 8)
    roi = np.array([0, 0, 0.25, -0.25, 1, 1, 0.75, 1.25], np.float32)
    attributes = {"mode": mode, "coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 10.0}
    for sizes in ((1, 1, 3, 5), (1, 1, 1, 1), (1, 1, 6, 4)):
        inputs = [x, roi, None, np.array(sizes, np.int64)]
        compare(inputs, attributes, reference="onnx", tolerance=Tolerance(1e-4, 1e-5))


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float16, np.float64])
def test_nearest_of_any_type(dtype):
    x = (RNG.random((1, 2, 4, 5)) * 2).astype(dtype)
    compare(by_scale(x, 1, 1, 2, 3), {"mode": "nearest"}, reference="onnx", tolerance=EXACT)


def test_linear_of_half_precision_is_computed_in_float32():
    x = normal(1, 2, 4, 5, dtype=np.float16)
    compare(by_scale(x, 1, 1, 2, 3), {"mode": "linear"}, reference="onnx", tolerance=Tolerance(1e-3, 1e-3))


def test_symbolic_sizes():
    height, width = Symbol("h", 1, 99), Symbol("w", 1, 99)
    x = normal(1, 2, 5, 6)
    sizes = np.array([1, 2, 10, 12], np.int64)
    _, (y,) = define(
        NodeCase("Resize", [x, None, None, sizes], {"mode": "nearest"}),
        constants=(3,),
        sizes={(0, 2): height, (0, 3): width},
    )
    assert [str(n) for n in y.shape] == ["1", "2", "10", "12"]


def indices(mode, rounding, *scales):
    h, w = Symbol("h", 1, 99), Symbol("w", 1, 99)
    attributes = {"coordinate_transformation_mode": mode, "nearest_mode": rounding}
    d, _ = define(
        NodeCase("Resize", by_scale(normal(1, 2, 4, 4), *scales), attributes),
        constants=(2,),
        sizes={(0, 2): h, (0, 3): w},
    )
    return [str(load) for load in loads(d.stages[0].body)]


def test_integer_factors_give_plain_quotients():
    assert indices("asymmetric", "floor", 1, 1, 2, 4) == ["x0[i0, i1, i2 // 2, i3 // 4]"]
    assert indices("half_pixel", "round_prefer_floor", 1, 1, 2, 2) == ["x0[i0, i1, i2 // 2, i3 // 2]"]
    assert indices("asymmetric", "floor", 1, 1, 0.5, 0.25) == ["x0[i0, i1, i2 * 2, i3 * 4]"]


def test_indices_contain_no_floats():
    d, _ = define(
        NodeCase("Resize", by_scale(normal(1, 2, 5, 5), 1, 1, 1.7, 0.3), {"mode": "nearest"}),
        constants=(2,),
        symbolic=True,
    )
    inside = [n for load in loads(d.stages[0].body) for i in load.indices for n in post_order(i)]
    assert not any(isinstance(n, Cast) or n.dtype.is_float for n in inside)


def test_identity_resize_is_the_input():
    d, (y,) = define(NodeCase("Resize", by_scale(normal(1, 2, 5, 5), 1, 1, 1, 1), {"mode": "linear"}), constants=(2,))
    assert d.stages == []
    assert y.buffer.name == "x0"


def test_simplest_fraction_of_a_scale():
    assert str(short_fraction(float(np.float32(0.6)))) == "3/5"
    assert str(short_fraction(2.0)) == "2"
    assert str(short_fraction(float(np.float32(1 / 3)))) == "1/3"
    value = float(np.float32(np.pi))
    assert float(short_fraction(value)) == value


@pytest.mark.parametrize(
    ("inputs", "attributes", "message"),
    [
        (by_scale(normal(1, 2, 4, 4), 1, 2, 2), {}, "scales: expected 4 values, got 3"),
        (by_size(normal(1, 2, 4, 4), 1, 2), {}, "sizes: expected 4 values, got 2"),
        ([normal(1, 2, 4, 4)], {}, "expected either scales or sizes, got neither"),
        (
            [normal(2), None, np.ones(1, np.float32), np.ones(1, np.int64)],
            {},
            "expected either scales or sizes, got both",
        ),
        (by_scale(normal(1, 2, 4, 4), 1, 1, 0, 2), {}, "scales: expected positive values, got 0.0"),
        (by_scale(normal(2, 2), 2, 2), {"mode": "area"}, "mode: expected nearest, linear or cubic, got 'area'"),
        (by_scale(normal(2, 2), 2, 2), {"nearest_mode": "simple"}, "nearest_mode: expected one of .*, got 'simple'"),
        (
            by_scale(normal(2, 2), 2, 2),
            {"coordinate_transformation_mode": "x"},
            "coordinate_transformation_mode: 'x' is unknown",
        ),
        (
            by_scale(normal(2, 2), 2, 2),
            {"coordinate_transformation_mode": "tf_crop_and_resize"},
            "tf_crop_and_resize needs input roi",
        ),
        (
            by_size(normal(2, 2), 2, 3),
            {"keep_aspect_ratio_policy": "x"},
            "keep_aspect_ratio_policy: expected stretch, .*, got 'x'",
        ),
        (by_scale(normal(2, 2), 2, 2), {"axes": [0, 5]}, "axis 5 is out of range for 2 dimensions"),
    ],
)
def test_resize_rejects(inputs, attributes, message):
    with pytest.raises(ShapeError, match=message):
        define(NodeCase("Resize", inputs, attributes), constants=(1, 2, 3))


def test_unsupported_resize_falls_back():
    with pytest.raises(UnsupportedError, match="mode linear on uint8"):
        define(NodeCase("Resize", by_scale(np.ones((2, 2), np.uint8), 2, 2), {"mode": "linear"}), constants=(2,))
