"""DFT against NumPy, as ONNX's reference uses it."""

import numpy as np
import pytest
from tests.ops.harness import NodeCase, Tolerance, check, define

from tilewright.errors import ShapeError, UnsupportedError

RNG = np.random.default_rng()


def signals(parts: int) -> np.ndarray:
    return RNG.normal(size=(2, 10, 3, parts)).astype(np.float32)


@pytest.mark.parametrize("axis", [1, 2])
@pytest.mark.parametrize(
    ("parts", "attributes"),
    [(1, {}), (2, {}), (2, {"inverse": 1}), (1, {"onesided": 1}), (2, {"inverse": 1, "onesided": 1})],
)
def test_spectra(axis, parts, attributes):
    inputs = [signals(parts), None, np.array(axis)]
    check(NodeCase("DFT", inputs, attributes), symbolic=False, tolerance=Tolerance(1e-5, 1e-5))


@pytest.mark.parametrize("length", [1, 7, 10, 16])
@pytest.mark.parametrize("onesided", [0, 1])
def test_lengths_cut_and_extend(length, onesided):
    inputs = [signals(1), np.array(length)]
    case = NodeCase("DFT", inputs, {"axis": 1, "onesided": onesided}, opset=19)
    check(case, symbolic=False, tolerance=Tolerance(1e-5, 1e-5))


def test_refusals():
    with pytest.raises(ShapeError, match="size 1 or 2, got axis 1 and size 3"):
        define(NodeCase("DFT", [RNG.normal(size=(2, 5, 3))], {"axis": 1}, opset=19))
    with pytest.raises(UnsupportedError, match="a transform of length 5000"):
        define(NodeCase("DFT", [signals(1), np.array(5000)], {"axis": 1}, opset=19))
