"""Resizing, sampling, spectra and matrices in native code, at random settings and sizes, against ONNX Runtime."""

import numpy as np
import pytest
from tests.driver.test_operators import check_natively, compile_natively
from tests.frontend.onnx_models import add_initializer, model

RNG = np.random.default_rng()


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def interpolated(x: np.ndarray, sizes: np.ndarray, kind: str) -> np.ndarray:
    """Images of other sizes in float64: ONNX Runtime has positions in float32, and ONNX's reference takes weights and
    pixels of different neighbours where a position is an integer but for rounding."""
    result = x.astype(np.float64)
    for axis, size in zip((2, 3), sizes, strict=True):
        extent = x.shape[axis]
        positions = (np.arange(size) + 0.5) * extent / size - 0.5
        first = np.floor(positions).astype(int)
        taps = range(2) if kind == "linear" else range(-1, 3)
        weights = [interpolation_weight(np.abs(positions - first - k), kind) for k in taps]
        result = sum(
            np.take(result, np.clip(first + k, 0, extent - 1), axis) * (w if axis == 3 else w[:, None])
            for k, w in zip(taps, weights, strict=True)
        )
    return result


def interpolation_weight(d: np.ndarray, kind: str) -> np.ndarray:
    """The weight of a pixel at these distances: a hat, or Keys' kernel with -0.75."""
    if kind == "linear":
        return 1 - d
    near, far = 1.25 * d**3 - 2.25 * d**2 + 1, -0.75 * (d**3 - 5 * d**2 + 8 * d - 4)
    return np.where(d <= 1, near, far)


@pytest.mark.parametrize("kind", ["nearest", "linear", "cubic"])
def test_resize_by_scales_and_sizes_of_data(kind):
    attributes = f'mode = "{kind}", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"'
    by_scales = model(f'y = Resize <{attributes}> (x, "", s)', inputs="float[b, 2, h, w] x, float[4] s",
                      outputs="float y", opset=19)  # fmt: skip
    by_sizes = model(f'y = Resize <mode = "{kind}"> (x, "", "", s)', inputs="float[b, 2, h, w] x, int64[4] s",
                     outputs="float[b, 2, p, q] y", opset=19)  # fmt: skip
    images = [normal(1, 2, *RNG.integers(2, 20, 2)) for _ in range(3)]
    scales = [np.array([1, 1, *RNG.choice([0.5, 2, 3, 0.75], 2)], np.float32) for _ in images]
    check_natively(by_scales, *({"x": x, "s": s} for x, s in zip(images, scales, strict=True)))
    if kind == "nearest":
        return
    executable = compile_natively(by_sizes)
    for x in images:
        sizes = np.array([1, 2, *RNG.integers(2, 30, 2)])
        (actual,) = executable.run({"x": x, "s": sizes}).values()
        assert actual.dtype == np.float32
        np.testing.assert_allclose(actual, interpolated(x, sizes[2:], kind), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["linear", "cubic"])
def test_antialias(kind):
    height, width = RNG.integers(4, 12, 2)
    proto = model(f'y = Resize <mode = "{kind}", antialias = 1, axes = [2, 3]> (x, "", "", s)',
                  inputs="float[b, 3, h, w] x, int64[2] s", outputs="float y", opset=19)  # fmt: skip
    check_natively(proto, {"x": normal(2, 3, 40, 33), "s": np.array([height, width])},
                   {"x": normal(1, 3, 9, 17), "s": np.array([4, 17])})  # fmt: skip
    fixed = model(f'y = Resize <mode = "{kind}", antialias = 1, axes = [2, 3]> (x, "", "", s)',
                  inputs="float[b, 3, 40, 33] x", outputs="float y", opset=19)  # fmt: skip
    add_initializer(fixed, "s", np.array([height, width]))
    check_natively(fixed, {"x": normal(3, 3, 40, 33)})


def test_determinants():
    proto = model("y = Det (x)", inputs="float[b, n, n] x", outputs="float y")
    check_natively(proto, *({"x": normal(b, n, n)} for b, n in ((3, 4), (1, 1), (5, 2))))


@pytest.mark.parametrize("fixed", [False, True])
def test_blocks_added_up(fixed):
    stride, pad = RNG.integers(1, 3, 2)
    attributes = f"strides = [{stride}, 1], pads = [{pad}, 0, {pad}, 1]"
    feeds = {"i": np.array([7, 6]), "k": np.array([3, 2])}
    inputs = "float[b, c, n] x" if fixed else "float[b, c, n] x, int64[2] i, int64[2] k"
    proto = model(f"y = Col2Im <{attributes}> (x, i, k)", inputs=inputs, outputs="float y", opset=18)
    for name, array in feeds.items() if fixed else ():
        add_initializer(proto, name, array)
    blocks = ((7 + 2 * pad - 3) // stride + 1) * 6
    check_natively(proto, *({"x": normal(b, 12, blocks), **({} if fixed else feeds)} for b in (1, 3)))


@pytest.mark.parametrize("has_mask", [False, True])
def test_deformed_convolutions(has_mask):
    stride, pad, dilation = RNG.integers(1, 3, 3)
    inputs = "float[n, 4, h, v] x, float[6, 2, 3, 2] w, float[n, 24, p, q] o, float[6] b"
    proto = model(
        f"""y = DeformConv <group = 2, offset_group = 2, strides = [{stride}, 1], pads = [{pad}, 1, {pad}, 1],
            dilations = [1, {dilation}]> (x, w, o, b{", m" if has_mask else ""})""",
        inputs=inputs + (", float[n, 12, p, q] m" if has_mask else ""), outputs="float y", opset=22,
    )  # fmt: skip
    for batch, height, width in ((1, 6, 8), (2, 9, 5)):
        out = (height + 2 * pad - 3) // stride + 1, width + 2 - dilation
        feeds = {"x": normal(batch, 4, height, width), "w": normal(6, 2, 3, 2), "b": normal(6)}
        feeds["o"] = normal(batch, 24, *out) * 4
        check_natively(proto, feeds | ({"m": normal(batch, 12, *out)} if has_mask else {}))


@pytest.mark.parametrize("onesided", [0, 1])
def test_spectra_of_frames(onesided):
    """Judged by float64: ONNX Runtime's error is up to 30 times ours at lengths with large prime factors."""
    length, step = (int(size) for size in RNG.integers(4, 20, 2))
    proto = model(f"y = STFT <onesided = {onesided}> (x, s, w)", inputs=f"float[b, n, 1] x, int64 s, float[{length}] w",
                  outputs="float[b, f, k, 2] y", opset=17)  # fmt: skip
    executable = compile_natively(proto)
    window = np.hanning(length).astype(np.float32)
    for batch, samples in ((1, 64), (2, 33)):
        x = normal(batch, samples, 1)
        (actual,) = executable.run({"x": x, "s": np.array(step), "w": window}).values()
        starts = range(0, samples - length + 1, step)
        frames = np.stack([x[:, start : start + length, 0] * window.astype(np.float64) for start in starts], axis=1)
        spectrum = np.fft.rfft(frames) if onesided else np.fft.fft(frames)
        assert (actual.dtype, actual.shape) == (np.float32, (*spectrum.shape, 2))
        np.testing.assert_allclose(actual, np.stack([spectrum.real, spectrum.imag], axis=-1), rtol=1e-6, atol=5e-6)


@pytest.mark.parametrize("corners", [0, 1])
def test_sampling_along_an_affine_map(corners):
    inputs = "float[b, 2, 3] t, int64[4] s, float[b, 2, h, w] x"
    proto = model(f"""g = AffineGrid <align_corners = {corners}> (t, s)
                      y = GridSample <align_corners = {corners}> (x, g)""",
                  inputs=inputs, outputs="float y, float g", opset=20)  # fmt: skip
    for batch in (1, 3):
        sizes = np.array([batch, 2, *RNG.integers(2, 9, 2)])
        feeds = {"t": normal(batch, 2, 3), "s": sizes, "x": normal(batch, 2, 6, 5)}
        check_natively(proto, feeds, in_float64=True)
