"""DFT against NumPy, as ONNX's reference uses it."""

import numpy as np
import pytest
from tests.ops.harness import NodeCase, Tolerance, check, define, run_stages

from tilewright.errors import ShapeError, UnsupportedError
from tilewright.expr.nodes import Symbol

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
    for constants in ((2,), ()):
        case = NodeCase("DFT", inputs, attributes)
        check(case, constants=constants, symbolic=False, tolerance=Tolerance(1e-5, 1e-5))


@pytest.mark.parametrize("attributes", [{}, {"inverse": 1}, {"onesided": 1}, {"inverse": 1, "onesided": 1}])
@pytest.mark.parametrize("length", [2, 9, 12])
def test_symbolic_lengths(length, attributes):
    inputs = [RNG.normal(size=(3, length, 1 if "onesided" in attributes and len(attributes) == 1 else 2))]
    sizes = {(0, 0): Symbol("b", 1, 9), (0, 1): Symbol("n", 2, 99)}
    check(NodeCase("DFT", inputs, attributes), symbolic=False, sizes=sizes, tolerance=Tolerance(1e-9, 1e-9))


def test_axes_of_data_are_checked():
    for axis in (3, -1, -5):
        inputs = [signals(2), None, np.array(axis)]
        d, results = define(NodeCase("DFT", inputs), constants=())
        with pytest.raises(AssertionError, match="the axis is out of range, or the last one"):
            run_stages(d, results, inputs)


@pytest.mark.parametrize("length", [1, 7, 10, 16])
@pytest.mark.parametrize("onesided", [0, 1])
def test_lengths_cut_and_extend(length, onesided):
    inputs = [signals(1), np.array(length)]
    case = NodeCase("DFT", inputs, {"axis": 1, "onesided": onesided}, opset=19)
    check(case, symbolic=False, tolerance=Tolerance(1e-5, 1e-5))


def test_refusals():
    with pytest.raises(ShapeError, match="expected a last dimension of size 1 or 2, got 3"):
        define(NodeCase("DFT", [RNG.normal(size=(2, 5, 3))], {"axis": 1}, opset=19))
    with pytest.raises(ShapeError, match="expected an axis before the last dimension, got axis 3"):
        define(NodeCase("DFT", [signals(2)], {"axis": 3}, opset=19))
    with pytest.raises(UnsupportedError, match="a transform of length 2000000"):
        define(NodeCase("DFT", [signals(1), np.array(2_000_000)], {"axis": 1}, opset=19))
