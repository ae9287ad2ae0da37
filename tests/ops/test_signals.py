"""STFT and MelWeightMatrix against ONNX's reference and NumPy."""

import numpy as np
import pytest
from tests.ops.harness import NodeCase, Tolerance, check, define

from tilewright.errors import ShapeError, UnsupportedError
from tilewright.expr.nodes import Symbol

RNG = np.random.default_rng(61)
CLOSE = Tolerance(1e-4, 2e-5)


def normal(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


def spectra(x, step, window, length, onesided):
    """The Fourier transforms of the frames of x[batch, length, parts]."""
    signal = x[..., 0] + 1j * (x[..., 1] if x.shape[2] == 2 else 0)
    length = len(window) if length is None else int(length)
    starts = range(0, signal.shape[1] - length + 1, int(step))
    frames = np.stack([signal[:, s : s + length] * (1 if window is None else window) for s in starts], 1)
    y = np.fft.fft(frames)
    y = y[..., : length // 2 + 1] if onesided else y
    return np.stack([y.real, y.imag], -1).astype(x.dtype)


@pytest.mark.parametrize("constants", [(1, 3), ()])
@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize(("size", "step", "length"), [(40, 5, 16), (33, 7, 9), (12, 3, 12), (20, 30, 1)])
def test_stft(size, step, length, parts, onesided, constants):
    x, window = normal(2, size, parts), RNG.random(length).astype(np.float32)
    for inputs in ([x, np.int64(step), window, None], [x, np.int32(step), None, np.int32(length)],
                   [x, np.int64(step), window, np.int64(length)]):  # fmt: skip
        case = NodeCase("STFT", inputs, {"onesided": onesided}, opset=17)
        sizes = {(0, 0): Symbol("b", 1, 9), (0, 1): Symbol("n", 1, 999)}
        check(case, constants=constants, symbolic=False, sizes=sizes, tolerance=CLOSE,
              reference=lambda *v: spectra(*v, onesided))  # fmt: skip


def test_stft_of_the_reference():
    inputs = [normal(1, 64, 1), np.int64(8), np.hanning(16).astype(np.float32), np.int64(16)]
    check(NodeCase("STFT", inputs, opset=17), symbolic=False, tolerance=CLOSE)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([normal(2, 30), np.int64(5), None, np.int64(8)], "signal: expected 3 dimensions, got 2"),
        ([normal(2, 30, 3), np.int64(5), None, np.int64(8)], "signal: expected a last dimension of 1 or 2, got 3"),
        ([normal(2, 30, 1), np.int64(0), None, np.int64(8)], "frame_step: expected at least 1, got 0"),
        ([normal(2, 30, 1), np.int64(5), None, np.int64(31)], "a frame of 31 does not fit a signal of 30"),
        ([normal(2, 30, 1), np.int64(5), None, np.int64(0)], "a frame of 0 does not fit"),
        ([normal(2, 30, 1), np.int64(5), normal(7), np.int64(8)], "window: expected 8, got 7"),
        ([normal(2, 30, 1), np.int64(5), None, None], "expected a window or frame_length, got neither"),
    ],
)
def test_stft_rejects(inputs, message):
    with pytest.raises(ShapeError, match=message):
        define(NodeCase("STFT", inputs, opset=17), constants=(1, 3))


def test_very_long_frames_fall_back():
    inputs = [normal(1, 9000, 1), np.int64(5), None, np.int64(2_000_000)]
    with pytest.raises(UnsupportedError, match="frames of length 2000000"):
        define(NodeCase("STFT", inputs, opset=17), constants=(1, 3))


@pytest.mark.parametrize("constants", [(0, 1, 2, 3, 4), (2, 3, 4), ()])
@pytest.mark.parametrize("numbers", [(8, 16, 8192, 0, 4096), (20, 400, 16000, 20.5, 7600), (40, 16, 8000, 125, 3800)])
def test_mel_weights(numbers, constants):
    bands, length, rate, low, high = numbers
    inputs = [np.int64(bands), np.int64(length), np.int32(rate), np.float32(low), np.float32(high)]
    for number in (1, 11):
        case = NodeCase("MelWeightMatrix", inputs, {"output_datatype": number}, opset=17)
        check(case, constants=constants, symbolic=False, tolerance=CLOSE)


def test_no_mel_bands():
    inputs = [np.int64(0), np.int64(16), np.int64(8000), np.float32(0), np.float32(4000)]
    check(NodeCase("MelWeightMatrix", inputs, opset=17), symbolic=False)
    with pytest.raises(ShapeError, match="expected sizes of at least 0"):
        define(NodeCase("MelWeightMatrix", [np.int64(-1), *inputs[1:]], opset=17))
    with pytest.raises(ShapeError, match="num_mel_bins: expected one element"):
        define(NodeCase("MelWeightMatrix", [np.array([1, 2]), *inputs[1:]], opset=17))
