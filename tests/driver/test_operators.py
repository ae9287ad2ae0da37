"""Operators in native code against ONNX Runtime and ONNX's reference, where code and not only meaning may fail."""

import warnings

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator
from tests.frontend.onnx_models import model

import tilewright
from tilewright.errors import FallbackWarning

RNG = np.random.default_rng(67)


def normal(*shape: int) -> np.ndarray:
    return np.asarray(RNG.standard_normal(shape), np.float32)


def compile_natively(proto: onnx.ModelProto) -> tilewright.Executable:
    """Returns the model's executable; fails if a node goes to the reference evaluator."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        return tilewright.compile(proto, threads=2, optimizer="rule")


def check_natively(
    proto: onnx.ModelProto, *calls: dict[str, np.ndarray], reference: bool = False, in_float64: bool = False
) -> None:
    """Asserts that one executable without fallbacks gives what ONNX Runtime, or the reference evaluator, gives.

    Args:
        proto: the model.
        calls: feeds.
        reference: by the reference evaluator.
        in_float64: by that, with feeds in float64: where float32 positions err by more than the results may.
    """
    for value in proto.graph.output:
        value.type.tensor_type.ClearField("shape")
    executable = compile_natively(proto)
    if reference or in_float64:
        peer = ReferenceEvaluator(proto)
    else:
        peer = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for feeds in calls:
        expected_results = peer.run(None, {n: _as_float64(x) for n, x in feeds.items()} if in_float64 else feeds)
        for actual, expected in zip(executable.run(feeds).values(), expected_results, strict=True):
            expected_dtype = np.float32 if in_float64 and expected.dtype == np.float64 else expected.dtype
            assert (actual.dtype, actual.shape) == (expected_dtype, expected.shape)
            np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def _as_float64(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64) if x.dtype == np.float32 else x


IMAGES = [(2, 3, 9, 7), (1, 3, 5, 16), (3, 3, 40, 33)]


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize(
    "attributes",
    [
        "kernel_shape = [3, 3]",
        "kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]",
        'kernel_shape = [3, 3], auto_pad = "SAME_UPPER"',
        "kernel_shape = [3, 4], ceil_mode = 1, strides = [2, 3], dilations = [2, 1]",
    ],
)
def test_indices_of_max_pool(attributes, order):
    proto = model(f"y, i = MaxPool <{attributes}, storage_order = {order}> (x)", inputs="float[b, 3, h, w] x",
                  outputs="float y, int64 i", opset=12)  # fmt: skip
    check_natively(proto, *({"x": normal(*shape)} for shape in IMAGES))


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
def test_windows_larger_than_some_inputs(op):
    proto = model(f"y = {op} <kernel_shape = [7, 5], ceil_mode = 1, strides = [4, 3], pads = [0, 1, 1, 0]> (x)",
                  inputs="float[b, 3, h, w] x", outputs="float y", opset=22)  # fmt: skip
    check_natively(proto, *({"x": normal(*shape)} for shape in (*IMAGES, (2, 3, 3, 2))))


@pytest.mark.parametrize("corners", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_grid_sample(mode, padding, corners):
    attributes = f'mode = "{mode}", padding_mode = "{padding}", align_corners = {corners}'
    proto = model(f"y = GridSample <{attributes}> (x, grid)", inputs="float[b, c, h, w] x, float[b, p, q, 2] grid",
                  outputs="float y", opset=16)  # fmt: skip
    calls = [((2, 3, 5, 7), (2, 4, 3, 2)), ((1, 2, 1, 9), (1, 16, 33, 2)), ((1, 1, 1, 1), (1, 1, 5, 2))]
    check_natively(proto, *({"x": normal(*x), "grid": RNG.uniform(-2.5, 2.5, g).astype(np.float32)} for x, g in calls))


def test_positions_that_are_no_numbers_read_inside():
    proto = model("y = GridSample (x, grid)", inputs="float[b, c, h, w] x, float[b, p, q, 2] grid", outputs="float y",
                  opset=20)  # fmt: skip
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    grid = np.full((1, 3, 40, 2), np.nan, np.float32)
    grid[0, 1], grid[0, 2] = np.inf, -1e30
    y = tilewright.compile(proto).run({"x": normal(1, 2, 3, 4), "grid": grid})["y"]
    assert (y[0, :, 2] == 0).all()


@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
def test_bit_shift_of_signed_integers(dtype, direction):
    proto = model(f'y = BitShift <direction = "{direction}"> (a, b)', inputs=f"{dtype}[n] a, {dtype}[n] b",
                  outputs=f"{dtype} y", opset=28)  # fmt: skip
    info = np.iinfo(dtype)
    a = RNG.integers(info.min, info.max, 67, dtype=dtype, endpoint=True)
    b = RNG.integers(-2, info.bits + 3, 67).astype(dtype)
    b[:4] = -1, info.bits - 1, info.bits, info.min
    check_natively(proto, {"a": a, "b": b}, reference=True)


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize(("left", "right"), [(2, -1), (-1, 3), (5, 1), (0, 0)])
def test_windows_of_attention(left, right, causal):
    attributes = f"left_window_size = {left}, right_window_size = {right}, is_causal = {causal}"
    proto = model(f"y = Attention <{attributes}> (q, k, v)", opset=25, outputs="float y",
                  inputs="float[b, 2, s, 16] q, float[b, 2, t, 16] k, float[b, 2, t, 24] v")  # fmt: skip
    calls = [(1, 20, 20), (2, 7, 33), (2, 40, 5)]
    check_natively(proto, *({"q": normal(b, 2, s, 16), "k": normal(b, 2, t, 16), "v": normal(b, 2, t, 24)}
                     for b, s, t in calls), reference=True)  # fmt: skip


@pytest.mark.parametrize("limits", ["x, limit", "x, , limit", "x"])
def test_clip_without_a_limit_makes_infinities_finite(limits):
    proto = model(f"y = Clip({limits})  z = Add(y, limit)", inputs="float[n] x, float limit",
                  outputs="float y, float z", opset=13)  # fmt: skip
    x = normal(67)
    x[::5], x[1::5], x[2::5] = np.inf, -np.inf, np.nan
    check_natively(proto, {"x": x, "limit": normal()})


def test_images_without_elements():
    """Windows of padding alone hold no element, and a position in no image reads 0; nothing divides by a size of 0."""
    pool = model("y, i = MaxPool <kernel_shape = [2, 2], pads = [1, 1, 1, 1], storage_order = 1> (x)", opset=12,
                 inputs="float[b, 2, h, w] x", outputs="float[b, 2, p, q] y, int64[b, 2, p, q] i")  # fmt: skip
    sample = model('y = GridSample <padding_mode = "reflection", align_corners = 1> (x, grid)', opset=16,
                   inputs="float[b, 2, h, w] x, float[b, p, q, 2] grid", outputs="float[b, 2, p, q] y")  # fmt: skip
    sizes = {"h": "0..64", "w": "0..64"}
    pooled, sampled = tilewright.compile(pool, shapes=sizes), tilewright.compile(sample, shapes=sizes)
    for h, w in ((0, 5), (5, 0), (0, 0)):
        results = pooled.run({"x": normal(1, 2, h, w)})
        assert results["i"].shape == (1, 2, h + 1, w + 1)
        assert (results["i"] == -1).all()
        assert np.isneginf(results["y"]).all()
        assert (sampled.run({"x": normal(1, 2, h, w), "grid": normal(1, 3, 3, 2)})["y"] == 0).all()
