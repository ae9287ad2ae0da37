"""Det, Col2Im, DeformConv, AffineGrid and BitCast against ONNX's reference."""

import ml_dtypes
import numpy as np
import pytest
from tests.ops.harness import EXACT, NodeCase, Tolerance, check, define, run_stages

from tilewright.errors import ShapeError, UnsupportedError
from tilewright.expr.nodes import Symbol

RNG = np.random.default_rng(53)
CLOSE = Tolerance(1e-4, 2e-5)


def normal(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


# Det


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("shape", [(3, 3), (1, 1), (0, 0), (2, 4, 4), (2, 0, 5, 5), (3, 2, 6, 6), (2, 3, 0, 0)])
def test_determinants(shape, dtype):
    x = normal(*shape, dtype=dtype)
    tolerance = Tolerance(2e-3, 2e-3) if dtype == np.float16 else CLOSE
    check(NodeCase("Det", [x]), constants=(), tolerance=tolerance,
          reference=lambda x: np.asarray(np.linalg.det(x.astype(np.float64)).astype(dtype)))  # fmt: skip


def test_singular_matrices_have_determinant_zero():
    x = normal(4, 4, 4)
    x[0] = 0
    x[1, 2] = x[1, 0]
    x[2, :, 1] = 0
    x[3, 0, 0] = 0
    y = check(NodeCase("Det", [x]), tolerance=CLOSE)[0]
    assert (y[[0, 2]] == 0).all()
    assert abs(y[1]) < 1e-6
    x[0, 1, 1] = np.nan
    d, results = define(NodeCase("Det", [x]))
    assert np.isnan(run_stages(d, results, [x])[0][0])


@pytest.mark.parametrize(("shape", "message"), [((3,), "at least 2 dimensions"), ((2, 3), "columns of X: expected 2")])
def test_det_rejects(shape, message):
    with pytest.raises(ShapeError, match=message):
        define(NodeCase("Det", [normal(*shape)]))


# Col2Im


def window_counts(image, kernel, strides, dilations, pads):
    """The number of places of a window along each dimension."""
    rank = len(image)
    return [(image[k] + pads[k] + pads[rank + k] - (kernel[k] - 1) * dilations[k] - 1) // strides[k] + 1
            for k in range(rank)]  # fmt: skip


def added_blocks(x, image, block, strides, dilations, pads):
    """Blocks added up to an image one by one."""
    rank, taps = len(image), int(np.prod(block))
    counts = window_counts(image, block, strides, dilations, pads)
    y = np.zeros((x.shape[0], x.shape[1] // taps, *image), x.dtype)
    columns = x.reshape(x.shape[0], -1, *block, *counts)
    for tap in np.ndindex(*block):
        for b in np.ndindex(*counts):
            at = [b[k] * strides[k] - pads[k] + tap[k] * dilations[k] for k in range(rank)]
            if all(0 <= p < n for p, n in zip(at, image, strict=True)):
                y[(slice(None), slice(None), *at)] += columns[(slice(None), slice(None), *tap, *b)]
    return y


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_blocks_are_added_up(rank, seed):
    rng = np.random.default_rng([7, rank, seed])
    block, strides, dilations = (rng.integers(1, 4, rank).tolist() for _ in range(3))
    pads = rng.integers(0, 3, 2 * rank).tolist()
    image = [(block[k] - 1) * dilations[k] + 1 + int(rng.integers(0, 5)) for k in range(rank)]
    counts = window_counts(image, block, strides, dilations, pads)
    x = normal(2, 2 * int(np.prod(block)), int(np.prod(counts)))
    attributes = {"strides": strides, "dilations": dilations, "pads": pads}
    for constants in ((1, 2), ()):
        case = NodeCase("Col2Im", [x, np.array(image), np.array(block)], attributes, opset=18)
        check(case, constants=constants, symbolic=False, tolerance=CLOSE,
              sizes={(0, k): Symbol(f"s{k}", 0, 9999) for k in range(3)},
              reference=lambda x, i, b: added_blocks(x, i, b, strides, dilations, pads))  # fmt: skip


@pytest.mark.parametrize(
    ("image", "block", "shape", "message"),
    [
        ((5, 5), (2,), (1, 4, 16), "block_shape: expected a size for each of 2 dimensions, got 1"),
        ((5, 5), (2, 0), (1, 4, 16), "block_shape: expected positive sizes, got 0"),
        ((5, 5), (2, 6), (1, 12, 16), "dimension 1: a block of 6 does not fit the image"),
        ((5, 5), (2, 2), (1, 6, 16), "input: expected a multiple of 4 in dimension 1, got 6"),
        ((5, 5), (2, 2), (1, 4, 17), "blocks of input: expected 16, got 17"),
        ((5, 5), (2, 2), (4, 16), "input: expected 3 dimensions, got 2"),
    ],
)
def test_col2im_rejects(image, block, shape, message):
    with pytest.raises(ShapeError, match=message):
        define(NodeCase("Col2Im", [normal(*shape), np.array(image), np.array(block)], opset=18))


# DeformConv


@pytest.mark.parametrize("has_mask", [False, True])
@pytest.mark.parametrize(("group", "parts"), [(1, 1), (2, 1), (1, 2), (2, 4)])
def test_deformed_convolutions(group, parts, has_mask):
    kernel, strides, dilations = (RNG.integers(1, 3, 2).tolist() for _ in range(3))
    pads = RNG.integers(0, 3, 4).tolist()
    x, w = normal(2, 4, 6, 7), normal(4, 4 // group, *kernel)
    out = window_counts(x.shape[2:], kernel, strides, dilations, pads)
    taps = int(np.prod(kernel)) * parts
    # offsets of several elements: many taps are outside of the picture
    inputs = [x, w, normal(2, 2 * taps, *out) * 3, normal(4), normal(2, taps, *out)][: 5 if has_mask else 4]
    attributes = {"group": group, "offset_group": parts, "strides": strides, "dilations": dilations, "pads": pads}
    check(NodeCase("DeformConv", inputs, attributes, opset=22), constants=(), symbolic=False,
          tolerance=Tolerance(1e-4, 1e-4), sizes={(0, 2): Symbol("h", 1, 99), (0, 3): Symbol("w", 1, 99)})  # fmt: skip


def test_offsets_far_outside_of_the_picture():
    x, w, offset = normal(1, 1, 4, 4), normal(1, 1, 2, 2), np.zeros((1, 8, 3, 3), np.float32)
    offset[0, 0] = [[np.inf, -np.inf, np.nan], [1e30, -1e30, 5], [-3.5, 0, 0]]
    case = NodeCase("DeformConv", [x, w, offset], opset=22)
    d, results = define(case)
    (y,) = run_stages(d, results, case.inputs)
    (dense,) = check(NodeCase("Conv", [x, w]), tolerance=CLOSE)
    first_tap = x[0, 0, :3, :3] * w[0, 0, 0, 0]
    lost = ~np.isin(offset[0, 0], [0])
    np.testing.assert_allclose(y[0, 0], dense[0, 0] - np.where(lost, first_tap, 0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("offset", "attributes", "message"),
    [
        ((1, 8, 3, 4), {}, "offset: expected shape"),
        ((1, 6, 3, 3), {}, "offset: expected shape"),
        ((1, 8, 3, 3), {"offset_group": 0}, "offset_group: expected a positive number"),
        ((1, 8, 3, 3), {"offset_group": 3}, "X: expected a multiple of offset_group 3, got 2 channels"),
        ((1, 8, 3, 3), {"group": 2}, "channels of X"),
        ((1, 8, 3, 3), {"kernel_shape": [3, 2]}, "dimension 2 of W"),
    ],
)
def test_deform_conv_rejects(offset, attributes, message):
    with pytest.raises(ShapeError, match=message):
        define(NodeCase("DeformConv", [normal(1, 2, 4, 4), normal(2, 2, 2, 2), normal(*offset)], attributes, opset=22))


# AffineGrid


@pytest.mark.parametrize("constants", [(1,), ()])
@pytest.mark.parametrize("aligns", [0, 1])
@pytest.mark.parametrize("sizes", [(2, 3, 4, 5), (1, 1, 7, 2), (2, 1, 3, 4, 5)])
def test_affine_grids(sizes, aligns, constants):
    theta = normal(sizes[0], len(sizes) - 2, len(sizes) - 1)
    case = NodeCase("AffineGrid", [theta, np.array(sizes)], {"align_corners": aligns}, opset=20)
    check(case, constants=constants, symbolic=False, tolerance=CLOSE)


def test_affine_grid_rejects():
    with pytest.raises(ShapeError, match="size: expected 4 or 5 sizes, got 3"):
        define(NodeCase("AffineGrid", [normal(1, 2, 3), np.array([1, 2, 3])], opset=20))
    with pytest.raises(ShapeError, match="theta: expected shape"):
        define(NodeCase("AffineGrid", [normal(1, 2, 3), np.array([2, 1, 3, 4])], opset=20))


# BitCast


@pytest.mark.parametrize(
    ("source", "number", "target"),
    [(np.float32, 6, np.int32), (np.int64, 11, np.float64), (np.uint16, 10, np.float16), (np.float16, 5, np.int16),
     (ml_dtypes.bfloat16, 4, np.uint16), (np.int8, 2, np.uint8), (np.uint32, 1, np.float32)],
)  # fmt: skip
def test_bits_as_another_type(source, number, target):
    x = RNG.integers(0, 256, (3, 4 * np.dtype(source).itemsize), dtype=np.uint8).view(source)
    check(NodeCase("BitCast", [x], {"to": number}, opset=26), reference=lambda x: x.view(target), tolerance=EXACT)


def test_bit_cast_refuses():
    with pytest.raises(ShapeError, match="to: expected a type of 32 bits as float32, got int64"):
        define(NodeCase("BitCast", [normal(2)], {"to": 7}, opset=26))
    with pytest.raises(UnsupportedError, match="the bits of uint8 as bools"):
        define(NodeCase("BitCast", [np.ones(2, np.uint8)], {"to": 9}, opset=26))
