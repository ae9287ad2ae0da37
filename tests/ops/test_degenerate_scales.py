"""Quantization with scales of 0 and NaN: ONNX Runtime's results, in which NaN becomes the lowest integer."""

import numpy as np
import pytest
from tests.fuzz_contrib.check import check_setting_natively, compare
from tests.fuzz_contrib.setting import Setting, whole
from tests.ops.harness import EXACT, Array, NodeCase, define, reference_outputs, run_stages

RNG = np.random.default_rng(61)
SPECIAL = (0.0, -0.0, np.inf, -np.inf, np.nan, 1e30, -1e30)
SCALES = pytest.mark.parametrize("scale", [0.0, -0.0, np.nan])
TYPES = pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16, np.int16])


def scalar(value: float, dtype: type = np.float32) -> Array:
    return np.asarray(value, dtype)


def floats(*shape: int) -> Array:
    """Random numbers, some of them 0, infinite or NaN."""
    x = RNG.standard_normal(shape).astype(np.float32)
    x.flat[RNG.permutation(x.size)[: len(SPECIAL)]] = SPECIAL
    return x


def check_as_onnxruntime(case: NodeCase) -> None:
    """Compares native code and evaluated computations with ONNX Runtime: sizes and scales are literal or not."""
    parameters = tuple(range(1, len(case.inputs)))
    for constants, symbolic in ((parameters, True), ((), False)):
        setting = Setting(case, constants, EXACT)
        check_setting_natively(setting, symbolic)
        definition, results = define(case, constants=constants, symbolic=symbolic)
        compare(setting, run_stages(definition, results, case.inputs), reference_outputs("ort", case))


@SCALES
@TYPES
def test_quantize(dtype: type, scale: float) -> None:
    inputs = [floats(5, 9), scalar(scale), scalar(3, dtype)]
    check_as_onnxruntime(NodeCase("QuantizeLinear", inputs, opset=21))
    (y,) = reference_outputs("ort", NodeCase("QuantizeLinear", inputs, opset=21))
    with np.errstate(all="ignore"):
        has_no_quotient = np.isnan(inputs[0] / inputs[1])
    assert (y[has_no_quotient] == np.iinfo(dtype).min).all()


@TYPES
def test_quantize_nan_with_a_usual_scale(dtype: type) -> None:
    check_as_onnxruntime(NodeCase("QuantizeLinear", [floats(5, 9), scalar(0.1), scalar(3, dtype)], opset=21))


@SCALES
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_one_of_the_scales_of_an_axis(dtype: type, scale: float) -> None:
    scales, zeros = np.array([0.5, scale, 0.25], np.float32), np.array([3, 4, 5], dtype)
    for op_type, x in (("QuantizeLinear", floats(7, 3)), ("DequantizeLinear", whole(RNG, dtype, 7, 3))):
        check_as_onnxruntime(NodeCase(op_type, [x, scales, zeros], {"axis": 1}, opset=21))


@SCALES
@TYPES
def test_dequantize(dtype: type, scale: float) -> None:
    inputs = [whole(RNG, dtype, 5, 9), scalar(scale), scalar(3, dtype)]
    inputs[0][0, 0] = 3
    check_as_onnxruntime(NodeCase("DequantizeLinear", inputs, opset=21))


@SCALES
@pytest.mark.parametrize("position", [1, 4, 6])
@pytest.mark.parametrize("types", [(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)])
def test_product(types: tuple[type, type], position: int, scale: float) -> None:
    a, b = RNG.integers(0, 9, (3, 4)).astype(types[0]), RNG.integers(0, 9, (4, 5)).astype(types[1])
    a[0] = 4  # a row of zeros
    inputs = [
        a, scalar(0.1), scalar(4, types[0]), b, scalar(0.1), scalar(2, types[1]), scalar(0.2), scalar(3, types[0]),
    ]  # fmt: skip
    inputs[position] = scalar(scale)
    check_as_onnxruntime(NodeCase("QLinearMatMul", inputs, opset=21))


@pytest.mark.parametrize(
    "elements",
    [(0.0, -0.0), (1e-45, 0.0), (-1e-45, 0.0), (np.inf, 1.0), (-np.inf, 1.0), (np.inf, -np.inf), (np.nan, np.nan)],
)
def test_range_without_a_finite_scale(elements: tuple[float, float]) -> None:
    """The scale is 0 where the range is too small for one."""
    x = np.array(elements * 32, np.float32)
    check_as_onnxruntime(NodeCase("DynamicQuantizeLinear", [x], opset=21, outputs=3))


@pytest.mark.parametrize("position", [0, 17, 62])
def test_range_with_nan_has_no_scale(position: int) -> None:
    """ONNX Runtime's range ignores NaN in some positions; here the result is that of NaN alone, wherever it is."""
    x = RNG.standard_normal(63).astype(np.float32)
    x[position] = np.nan
    case = NodeCase("DynamicQuantizeLinear", [x], opset=21, outputs=3)
    definition, results = define(case, symbolic=True)
    y, scale, zero = run_stages(definition, results, case.inputs)
    assert (y == 0).all()
    assert np.isnan(scale)
    assert zero == 255
