"""Fourier transforms of all kinds of lengths, by compiled models, against NumPy in float64."""

import numpy as np
import pytest
from onnx import helper, numpy_helper

import tilewright
from tilewright.errors import FallbackWarning
from tilewright.ops.fourier import largest_prime_factor

RNG = np.random.default_rng()
# one pass of each radix, passes of several, factors that have no pass of their own, and convolutions with a chirp
LENGTHS = (1, 2, 3, 4, 5, 7, 30, 31, 37, 64, 74, 77, 120, 127, 225, 256, 343, 403, 509, 1000)


def model_of_transforms(signals, lengths, attributes):
    """A model with a DFT per signal, along dimension 1."""
    nodes = [
        helper.make_node("DFT", [f"x{k}", f"n{k}"], [f"y{k}"], axis=1, **attributes) for k in range(len(signals))
    ]
    inputs = [
        helper.make_tensor_value_info(f"x{k}", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for k, x in enumerate(signals)
    ]
    data = [numpy_helper.from_array(np.array(n), f"n{k}") for k, n in enumerate(lengths)]
    results = [helper.make_empty_tensor_value_info(f"y{k}") for k in range(len(signals))]
    graph = helper.make_graph(nodes, "g", inputs, results, data)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def spectra(x, length, attributes):
    """The float64 results for x[batch, n, parts]."""
    z = x[..., 0].astype(np.float64) + (1j * x[..., 1] if x.shape[-1] == 2 else 0)
    if attributes == {"inverse": 1, "onesided": 1}:
        return np.fft.irfft(z, length)[..., None]
    y = (np.fft.ifft if "inverse" in attributes else np.fft.fft)(z, length)
    y = y[..., : length // 2 + 1] if "onesided" in attributes else y
    return np.stack([y.real, y.imag], -1)


def check_transforms(signals, lengths, attributes):
    """Asserts that results are as near as rounding allows: more roundings where a pass sums many elements."""
    model = model_of_transforms(signals, lengths, attributes)
    results = tilewright.compile(model).run({f"x{k}": x for k, x in enumerate(signals)})
    for k, (x, n) in enumerate(zip(signals, lengths, strict=True)):
        expected = spectra(x, n, attributes)
        error = np.sqrt(np.mean((results[f"y{k}"] - expected) ** 2) / np.mean(expected**2))
        bound = (5 if largest_prime_factor(n) <= 5 else 20) * np.finfo(x.dtype).eps
        assert error < bound, f"length {n}, batch {len(x)}, {x.dtype}: {error}"


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("parts", "attributes"), [(2, {}), (1, {"onesided": 1}), (2, {"inverse": 1})])
def test_lengths(parts, attributes, dtype):
    signals = [RNG.normal(size=(RNG.choice([1, 3, 35]), n, parts)).astype(dtype) for n in LENGTHS]
    check_transforms(signals, LENGTHS, attributes)


@pytest.mark.parametrize("length", [8, 37])
def test_no_signals(length):
    model = model_of_transforms([np.zeros((0, length, 1), np.float32)], [length], {})
    assert tilewright.compile(model).run({"x0": np.zeros((0, length, 1), np.float32)})["y0"].shape == (0, length, 2)
    value = model.graph.input[0].type.tensor_type.shape.dim[0]
    value.dim_param = "batch"
    batches = tilewright.compile(model, shapes={"batch": "0..9"})
    for batch in (0, 3):
        x = RNG.normal(size=(batch, length, 1)).astype(np.float32)
        np.testing.assert_allclose(batches.run({"x0": x})["y0"], spectra(x, length, {}), atol=1e-4)


def test_long_transforms_of_dynamic_length_are_left_to_the_evaluator():
    model = model_of_transforms([np.zeros((2, 5000, 1), np.float32)], [5000], {})
    del model.graph.initializer[:], model.graph.node[0].input[1:]
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "n"
    with pytest.warns(FallbackWarning, match="DFT"):
        compiled = tilewright.compile(model, shapes={"n": "1..5000"})
    x = RNG.normal(size=(2, 4999, 1)).astype(np.float32)
    np.testing.assert_allclose(compiled.run({"x0": x})["y0"], spectra(x, 4999, {}), atol=1e-2)


def test_real_results_of_half_spectra():
    lengths = (2, 10, 21, 64, 82)
    signals = [RNG.normal(size=(RNG.choice([1, 20]), n // 2 + 1, 2)).astype(np.float32) for n in lengths]
    check_transforms(signals, lengths, {"inverse": 1, "onesided": 1})


def test_signals_are_cut_and_filled_up():
    signals = [RNG.normal(size=(3, 50, 2)) for _ in range(4)]
    check_transforms(signals, (16, 37, 64, 101), {})


def test_largest_prime_factors():
    assert [largest_prime_factor(n) for n in (1, 2, 12, 49, 97, 2 * 3 * 101, 1024)] == [1, 2, 3, 7, 97, 101, 2]


def test_the_middle_of_real_signals_is_real():
    lengths = (2, 4, 6, 8, 10, 12, 14, 20, 22, 40, 48, 60, 80, 210, 400)
    signals = [RNG.normal(size=(RNG.choice([1, 3]), n, 1)).astype(np.float32) for n in lengths]
    model = model_of_transforms(signals, lengths, {"onesided": 1})
    results = tilewright.compile(model).run({f"x{k}": x for k, x in enumerate(signals)})
    for k, n in enumerate(lengths):
        assert np.all(results[f"y{k}"][:, n // 2, 1] == 0), n
        assert np.all(results[f"y{k}"][:, 0, 1] == 0), n
