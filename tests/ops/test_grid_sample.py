"""GridSample against ONNX's reference, and ONNX Runtime where the reference fails."""

import numpy as np
import pytest
from tests.ops.harness import NodeCase, Tolerance, check, define

from tilewright.errors import ShapeError, UnsupportedError

RNG = np.random.default_rng(53)

IMAGES = [(2, 3, 5, 7), (1, 2, 1, 4), (2, 1, 3, 1), (1, 1, 1, 1)]
"""Also with sides of 1, between whose corners there is a single point to reflect at."""


def normal(*shape: int, dtype=np.float32) -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def places(shape: tuple[int, ...], *out: int) -> np.ndarray:
    """Positions in images of a shape and outside of them, on either side."""
    return RNG.uniform(-2.7, 2.7, (shape[0], *out, len(shape) - 2)).astype(np.float32)


def compare(x: np.ndarray, grid: np.ndarray, attributes: dict, opset: int, reference: str = "onnx") -> None:
    case = NodeCase("GridSample", [x, grid], attributes, opset=opset)
    check(case, constants=(), reference=reference, tolerance=Tolerance(1e-4, 1e-5))


@pytest.mark.parametrize("corners", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize(("opset", "mode"), [(16, "bilinear"), (16, "bicubic"), (16, "nearest"),
                                             (20, "linear"), (22, "cubic"), (22, "nearest")])  # fmt: skip
@pytest.mark.parametrize("shape", IMAGES)
def test_two_dimensional_images(shape, opset, mode, padding, corners):
    attributes = {"mode": mode, "padding_mode": padding, "align_corners": corners}
    compare(normal(*shape), places(shape, 4, 3), attributes, opset=opset, reference="ort")


AS_IN_THE_REFERENCE = [
    (mode, padding) for mode in ("linear", "nearest", "cubic") for padding in ("zeros", "border", "reflection")
    if (mode, padding) != ("cubic", "border")
]  # fmt: skip
"""All but one: the reference moves coordinates to the edge before it interpolates, ONNX Runtime and PyTorch do not."""


@pytest.mark.parametrize("corners", [0, 1])
@pytest.mark.parametrize(("mode", "padding"), AS_IN_THE_REFERENCE)
@pytest.mark.parametrize("shape", [(2, 2, 6), (1, 2, 3, 5), (1, 2, 4, 3, 5)])
def test_any_number_of_dimensions(shape, mode, padding, corners):
    attributes = {"mode": mode, "padding_mode": padding, "align_corners": corners}
    compare(normal(*shape), places(shape, *range(2, len(shape))), attributes, opset=22)


def test_defaults_and_coordinates_at_the_edges():
    x = normal(1, 2, 4, 6)
    corners = np.array([[-1, -1], [1, -1], [-1, 1], [1, 1], [0, 0], [1e6, 0]], np.float32).reshape(1, 2, 3, 2)
    compare(x, corners, {}, opset=16, reference="ort")
    compare(x, corners, {}, opset=20)


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int32, np.uint8])
def test_types(dtype):
    x = (normal(1, 2, 4, 5) * 50).astype(dtype)
    grid = places(x.shape, 3, 3)
    check(NodeCase("GridSample", [x, grid], {"mode": "nearest"}, opset=22), constants=())
    if np.dtype(dtype).kind == "f":
        wide = check(
            NodeCase("GridSample", [x.astype(np.float64), grid], {}, opset=22), constants=(), tolerance=Tolerance(1e-6)
        )[0]
        check(NodeCase("GridSample", [x, grid], {}, opset=22), constants=(), reference=lambda *_: wide.astype(dtype))
    else:
        with pytest.raises(UnsupportedError, match="mode linear on"):
            define(NodeCase("GridSample", [x, grid], {}, opset=22), constants=())


def test_nan_coordinates_load_in_bounds():
    x = normal(1, 1, 3, 4)
    grid = np.array([np.nan, 0, 0, np.inf, -np.inf, np.nan, 1e30, -1e30], np.float32).reshape(1, 2, 2, 2)
    for padding in ("zeros", "border", "reflection"):
        for mode in ("nearest", "linear", "cubic"):
            y = check(
                NodeCase("GridSample", [x, grid], {"mode": mode, "padding_mode": padding}, opset=20),
                constants=(),
                reference=lambda *_: (),
            )[0]
            assert y.shape == (1, 1, 2, 2)
            assert np.isfinite(y[0, 0, 1, 1]) or padding == "reflection"


@pytest.mark.parametrize(
    ("shapes", "attributes", "message"),
    [
        ([(1, 2, 3, 4), (1, 5, 6, 3)], {}, "last dimension of grid: expected 2, got 3"),
        ([(1, 2, 3, 4), (2, 5, 6, 2)], {}, "batch of grid: expected 1, got 2"),
        ([(1, 2, 3, 4), (1, 5, 2)], {}, "grid: expected 4 dimensions, got 3"),
        ([(1, 2), (1, 2)], {}, "X: expected at least 3 dimensions, got 2"),
        ([(1, 2, 3, 4), (1, 5, 6, 2)], {"mode": "trilinear"}, "mode: expected one of nearest, linear, cubic"),
        ([(1, 2, 3, 4), (1, 5, 6, 2)], {"padding_mode": "wrap"}, "padding_mode: expected one of zeros, border"),
    ],
)
def test_grid_sample_rejects(shapes, attributes, message):
    with pytest.raises(ShapeError, match=message):
        define(NodeCase("GridSample", [normal(*s) for s in shapes], attributes), constants=())
