"""Resize with scales, sizes or regions that are data, and with antialiasing, against ONNX's reference."""

import numpy as np
import pytest
from tests.ops.harness import EXACT, NodeCase, Tolerance, check, define, run_stages

from tilewright.errors import ShapeError, UnsupportedError
from tilewright.expr.nodes import Symbol

RNG = np.random.default_rng(27)
MODES = ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "half_pixel_symmetric"]
ROUNDINGS = ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]
CLOSE = Tolerance(1e-4, 1e-5)
CLOSE_TO_FLOAT32 = Tolerance(1e-4, 1e-4)
"""Where the reference has positions in float32."""


def normal(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


def compare(x, attributes, *, scales=None, sizes=None, roi=None, tolerance=CLOSE, known=False):
    """Literal and symbolic sizes of x; the other inputs are data, unless they are `known`."""
    inputs = [x, roi, None if scales is None else np.array(scales, np.float32)]
    inputs += [] if sizes is None else [np.array(sizes, np.int64)]
    symbols = {(0, k): Symbol(f"s{k}", 1, 99) for k in range(x.ndim)}
    constants = tuple(range(1, len(inputs))) if known else ()
    for shape in (None, symbols):
        check(NodeCase("Resize", inputs, attributes, opset=19), constants=constants, symbolic=False, sizes=shape,
              tolerance=tolerance)  # fmt: skip


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("mode", MODES)
def test_nearest_of_data(mode, rounding):
    attributes = {"mode": "nearest", "coordinate_transformation_mode": mode, "nearest_mode": rounding}
    x = RNG.integers(-99, 99, (1, 2, 6, 8))
    for scales in ((1, 1, 2, 2), (1, 1, 0.5, 3), (1, 1, 4, 0.25)):
        compare(x, attributes, scales=scales, tolerance=EXACT)
    # both references round coordinates such as 7 * (1 / 0.7); sizes here divide exactly
    compare(x[:, :, :4], attributes, sizes=(1, 2, 12, 4), tolerance=EXACT)


@pytest.mark.parametrize("exclude", [0, 1])
@pytest.mark.parametrize("kind", ["linear", "cubic"])
@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "half_pixel_symmetric"])
def test_interpolation_of_data(mode, kind, exclude):
    attributes = {"mode": kind, "coordinate_transformation_mode": mode, "exclude_outside": exclude}
    scales = RNG.uniform(0.55, 2.5, 2).astype(np.float32)
    compare(normal(1, 2, 6, 7), attributes, scales=(1, 1, *scales))
    compare(normal(1, 2, 6, 7), attributes, sizes=(1, 2, *RNG.integers(2, 14, 2)))


@pytest.mark.parametrize(("kind", "exclude"), [("linear", 0), ("cubic", 0), ("cubic", 1)])
def test_symmetric_interpolation_of_data(kind, exclude):
    """By ONNX Runtime, which copies images whose size stays: ONNX's reference takes weights and pixels of different
    neighbours where a position is an integer but for rounding, as the middle one is."""
    mode = {"mode": kind, "coordinate_transformation_mode": "half_pixel_symmetric", "exclude_outside": exclude}
    shorter, taller = RNG.uniform(0.55, 0.95), RNG.uniform(1.2, 2.5)
    x, scales = normal(1, 2, 6, 7), np.array([RNG.choice([shorter, taller]), RNG.uniform(0.55, 2.5)])
    for is_constant in (False, True):
        for inputs in ([x, None, np.array([1, 1, *scales], np.float32)], [x, None, None, np.array([1, 2, 9, 11])]):
            case, constants = NodeCase("Resize", inputs, mode, opset=19), range(1, len(inputs)) if is_constant else ()
            check(case, constants=constants, reference="ort", tolerance=CLOSE_TO_FLOAT32)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("exclude", [0, 1])
@pytest.mark.parametrize("kind", ["linear", "cubic"])
@pytest.mark.parametrize("mode", ["half_pixel", "asymmetric", "pytorch_half_pixel"])
def test_antialias(mode, kind, exclude, known):
    attributes = {"mode": kind, "coordinate_transformation_mode": mode, "exclude_outside": exclude, "antialias": 1}
    x, scales = normal(1, 2, 9, 8), RNG.uniform(0.3, 1.8, 2).astype(np.float32)
    compare(x, attributes, scales=(1, 1, *scales), known=known)
    compare(x, attributes, sizes=(1, 2, *RNG.integers(2, 9, 2)), known=known)
    compare(x, attributes | {"axes": [3, 2], "cubic_coeff_a": -0.5}, sizes=(5, 4), known=known)


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
def test_aspect_ratio_of_data(policy):
    attributes = {"mode": "nearest", "axes": [2, 3], "keep_aspect_ratio_policy": policy}
    for fixed in (False, True):
        compare(normal(1, 1, 2, 4), attributes, sizes=(7, 8), known=fixed, tolerance=EXACT)
        compare(normal(1, 1, 4, 2), attributes | {"mode": "linear"}, sizes=(12, 5), known=fixed)


@pytest.mark.parametrize("kind", ["linear", "cubic"])
def test_region_of_data(kind):
    attributes = {"mode": kind, "coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 7.5}
    for roi in ((0, 0, 0.2, 0.3, 1, 1, 0.7, 0.9), (0, 0, 0.4, 0.6, 1, 1, 1.2, 1.7), (0, 0, 0.5, 0, 1, 1, 0.5, -0.5)):
        compare(normal(1, 1, 4, 5), attributes, sizes=(1, 1, 3, 6), roi=np.array(roi, np.float32))
    compare(normal(1, 1, 4, 5), attributes | {"axes": [3, 2]}, sizes=(1, 6), roi=np.float32([0.1, 0.2, 0.9, 0.8]))


def test_one_value_by_data_leaves_infinities_alone():
    """Along dimensions that stay, and at places that an element has exactly, its neighbours do not count."""
    x = normal(2, 3, 4, 5)
    x[1, 1, 2, 2], x[0, 0, 0, 0] = np.inf, np.nan
    case = NodeCase("Resize", [x, None, np.array([1, 1, 1, 2], np.float32)], {"mode": "linear"}, opset=19)
    d, results = define(case, constants=())
    (y,) = run_stages(d, results, case.inputs)
    assert y.shape == (2, 3, 4, 10)
    assert np.isfinite(y).sum() == y.size - 7


def test_early_operator_sets():
    x = normal(1, 2, 5, 6)
    for kind in ("nearest", "linear"):
        inputs = [x, np.array([1, 1, 2, 3], np.float32)]
        check(NodeCase("Upsample", inputs, {"mode": kind}, opset=9), constants=(), reference="ort", tolerance=CLOSE)
        inputs = [x, np.array([1, 1, 0.6, 0.5], np.float32)]
        check(NodeCase("Resize", inputs, {"mode": kind}, opset=10), constants=(), reference="ort", tolerance=CLOSE)


@pytest.mark.parametrize("scale", [0.0, -1.0, np.nan, np.inf, 1e30])
def test_scales_that_are_none(scale):
    case = NodeCase("Resize", [normal(2, 3), None, np.array([1, scale], np.float32)], {}, opset=19)
    d, results = define(case, constants=())
    with pytest.raises(AssertionError, match="expected a positive scale"):
        run_stages(d, results, case.inputs)


@pytest.mark.parametrize(
    ("x", "sizes", "message"),
    [((2, 0), (2, 3), "empty dimension cannot be enlarged"), ((2, 3), (2, -1), "a size is out of range")],
)
def test_sizes_that_are_none(x, sizes, message):
    case = NodeCase("Resize", [normal(*x), None, None, np.array(sizes, np.int64)], {}, opset=19)
    d, results = define(case, constants=())
    with pytest.raises(AssertionError, match=message):
        run_stages(d, results, case.inputs)


def test_results_without_elements():
    for sizes in ((2, 0), (0, 0)):
        case = NodeCase("Resize", [normal(2, 3), None, None, np.array(sizes, np.int64)], {"mode": "linear"}, opset=19)
        d, results = define(case, constants=())
        assert run_stages(d, results, case.inputs)[0].shape == sizes


def test_what_is_refused():
    x, two = normal(2, 3), np.array([1, 2], np.float32)
    for attributes, message in (
        ({"mode": "sinc"}, "expected nearest, linear or cubic"),
        ({"nearest_mode": "round"}, "nearest_mode: expected one of .*, got 'round'"),
        ({"coordinate_transformation_mode": "corner"}, "'corner' is unknown"),
        ({"axes": [5]}, "axis 5 is out of range"),
        ({"axes": [1]}, "scales: expected shape"),
        ({"coordinate_transformation_mode": "tf_crop_and_resize"}, "needs input roi"),
    ):
        with pytest.raises(ShapeError, match=message):
            define(NodeCase("Resize", [x, None, two], attributes, opset=19), constants=())
    case = NodeCase("Resize", [x, None, None, np.array([1, 2])], {"keep_aspect_ratio_policy": "crop"}, opset=19)
    with pytest.raises(ShapeError, match="keep_aspect_ratio_policy"):
        define(case, constants=())
    with pytest.raises(UnsupportedError, match="linear on int64"):
        define(NodeCase("Resize", [x.astype(np.int64), None, two], {"mode": "linear"}, opset=19), constants=())
