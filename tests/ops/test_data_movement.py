"""Operators that move elements: concat, split, slice, gather, pad, transpose, expand, tile, generators."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.ops.arrays import floats, index, rng
from tests.ops.harness import EXACT, NodeCase, Tolerance, check, define

from tilewright.errors import UnsupportedError
from tilewright.expr.computation import View
from tilewright.expr.nodes import Binary, Select, Symbol, const
from tilewright.expr.traversal import post_order


def operations(d):
    """The kinds of operations in all bodies that a definition emitted."""
    nodes = [e for stage in d.stages if not isinstance(stage, View) for e in post_order(stage.body)]
    return {e.op for e in nodes if isinstance(e, Binary)} | {"select" for e in nodes if isinstance(e, Select)}


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_concat(axis, count):
    parts = []
    for k in range(count):
        shape = [2, 3, 4]
        shape[axis] = k + 1
        parts.append(floats(*shape))
    check(NodeCase("Concat", parts, {"axis": axis}))


def test_concat_skips_empty_inputs():
    d, _ = define(NodeCase("Concat", [floats(0, 3), floats(2, 3), floats(0, 3)], {"axis": 0}))
    assert d.stages == []
    check(NodeCase("Concat", [floats(0, 3), floats(2, 3), floats(4, 3)], {"axis": 0}), symbolic=False)
    check(NodeCase("Concat", [floats(0, 3), floats(0, 3)], {"axis": 0}), symbolic=False)


def test_concat_of_one_symbolic_batch_keeps_indices_affine():
    batch = Symbol("batch", 1, 99)
    d, (y,) = define(
        NodeCase("Concat", [floats(5, 2), floats(5, 3)], {"axis": 1}), sizes={(0, 0): batch, (1, 0): batch}
    )
    assert (y.shape[0], str(y.shape[1])) == (batch, "5")
    assert operations(d) <= {"select", "lt", "add", "sub", "mul"}


@pytest.mark.parametrize("axis", [0, 2, -2])
def test_split_into_given_sizes(axis):
    x = floats(6, 6, 6)
    check(NodeCase("Split", [x], {"axis": axis, "split": [1, 2, 3]}, opset=11, outputs=3))
    check(NodeCase("Split", [x, index(1, 2, 3)], {"axis": axis}, opset=13, outputs=3))


def test_split_into_equal_parts():
    x = floats(6, 4)
    check(NodeCase("Split", [x], {"axis": 0}, opset=11, outputs=3))
    check(NodeCase("Split", [x], {"axis": 0}, opset=13, outputs=2))
    check(NodeCase("Split", [x], {"axis": 0, "num_outputs": 3}, opset=18, outputs=3))
    check(NodeCase("Split", [x], {"axis": 0, "num_outputs": 1}, opset=18, outputs=1))


def test_split_with_a_smaller_last_part():
    check(NodeCase("Split", [floats(7, 4)], {"axis": 0, "num_outputs": 4}, opset=18, outputs=4))


def test_split_of_a_literal_size_keeps_indices_affine():
    d, _ = define(NodeCase("Split", [floats(2, 12)], {"axis": 1, "num_outputs": 3}, outputs=3))
    assert operations(d) == {"add"}


SLICES = [
    ([0], [2], [0], [1]), ([1, 2], [3, 4], None, None), ([1], [100], [1], [2]), ([-3], [-1], [-1], [1]),
    ([4], [0], [1], [-1]), ([-1], [-1000], [2], [-2]), ([9223372036854775807], [-9223372036854775808], [0], [-1]),
    ([0], [9223372036854775807], [1], [1]), ([3], [1], [1], [1]), ([0, 0], [5, 3], [1, 2], [1, 2]),
    ([-100], [3], [0], [1]),
    ([2147483647], [0], [1], [-1]), ([100], [200], [1], [1]), ([-1], [-2147483648], [1], [-3]),
]  # fmt: skip


@pytest.mark.parametrize(("starts", "ends", "axes", "steps"), SLICES)
@pytest.mark.parametrize("dtype", [np.int64, np.int32])
def test_slice(starts, ends, axes, steps, dtype):
    limits = np.iinfo(dtype)
    inputs = [floats(4, 5, 6)]
    for values in (starts, ends, axes, steps):
        clipped = None if values is None else np.array([min(max(v, limits.min), limits.max) for v in values], dtype)
        inputs.append(clipped)
    while inputs[-1] is None:
        inputs.pop()
    check(NodeCase("Slice", inputs))


def test_slice_with_attributes():
    check(NodeCase("Slice", [floats(4, 5)], {"starts": [1, -3], "ends": [3, 1000], "axes": [0, 1]}, opset=7))
    check(
        NodeCase("Slice", [floats(4, 5)], {"starts": [1, 0], "ends": [-1, 2]}, opset=9),
        reference=lambda x: x[1:-1, 0:2],
    )


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9), st.integers(-12, 12), st.integers(-12, 12), st.sampled_from([-3, -2, -1, 1, 2, 3]))
def test_slice_of_random_bounds(size, start, end, step):
    x = floats(size)
    inputs = [x, index(start), index(end), index(0), index(step)]
    check(NodeCase("Slice", inputs), reference=lambda *_: x[_positions(size, start, end, step)])


def _positions(size, start, end, step):
    """ONNX's rule; unlike Python's, a negative step never starts before the first element."""
    start, end = (v + size if v < 0 else v for v in (start, end))
    if step > 0:
        return list(range(min(max(start, 0), size), min(max(end, 0), size), step))
    return list(range(min(max(start, 0), size - 1), min(max(end, -1), size - 1), step))


def test_slice_of_everything_is_a_view():
    x = floats(4, 5)
    d, _ = define(NodeCase("Slice", [x, index(0, 0), index(4, 9)]), symbolic=False)
    assert d.stages == []
    d, _ = define(NodeCase("Slice", [x, index(0), index(1 << 62), index(1)]), symbolic=True)
    assert d.stages == []


def test_slice_inside_a_symbolic_size_needs_no_clamp():
    n = Symbol("n", 4, 512)
    d, (y,) = define(NodeCase("Slice", [floats(2, 9), index(1), index(-1), index(1)]), sizes={(0, 1): n})
    assert str(y.shape[1]) == "n - 2"
    assert operations(d) == {"add"}


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_gather(axis, dtype):
    x = floats(4, 5, 6)
    for indices in (
        index(0, 3, -1, 2, dtype=dtype),
        index(2, dtype=dtype),
        np.array(-2, dtype),
        index(0, 1, dtype=dtype).reshape(1, 2),
    ):
        check(NodeCase("Gather", [x, indices], {"axis": axis}))
        check(NodeCase("Gather", [x, indices], {"axis": axis}), constants=())


def test_gather_of_a_literal_index_is_affine():
    n = Symbol("n", 1, 512)
    for value in (0, 3):
        d, _ = define(NodeCase("Gather", [floats(2, 9, 4), np.array(value)], {"axis": 2}), sizes={(0, 0): n})
        assert operations(d) == set()


def test_gather_of_out_of_range_indices_loads_in_bounds():
    x = floats(4, 3)
    check(NodeCase("Gather", [x, index(-100, 100, 4, -5)]), constants=(), reference=lambda *_: x[[0, 3, 3, 0]])
    check(
        NodeCase("GatherElements", [x, index(-100, 50, 1)[None]]),
        constants=(),
        reference=lambda *_: x[[0, 3, 1], [0, 1, 2]][None],
    )
    check(
        NodeCase("GatherND", [x, index(-100, 50)[None]]), constants=(), symbolic=False, reference=lambda *_: x[0:1, 2]
    )


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gather_elements(axis):
    x = floats(3, 4, 5)
    shape = [2, 3, 4]
    shape[axis] = 6
    indices = rng.integers(-x.shape[axis], x.shape[axis], shape)
    check(
        NodeCase("GatherElements", [x, indices], {"axis": axis}, opset=13),
        constants=(),
        symbolic=False,
        reference="ort",
    )
    square = rng.integers(0, 3, x.shape)
    check(NodeCase("GatherElements", [x, square], {"axis": axis}))


@pytest.mark.parametrize(("shape", "indices", "batch"), [
    ((3, 4), [[0, 1], [2, -1]], 0), ((3, 4), [[1], [0]], 0), ((2, 3, 4), [[[0, 1]], [[1, 2]]], 0),
    ((2, 3, 4), [[1], [2]], 1), ((2, 2, 3, 4), [[[1], [2]], [[0], [1]]], 2), ((3, 4), [1, 2], 0),
])  # fmt: skip
def test_gather_nd(shape, indices, batch):
    inputs = [floats(*shape), np.array(indices)]
    for constants in ((), (1,)):
        sizes = {(0, k): Symbol(f"n{k}", 1, 9) for k in range(batch)}
        check(
            NodeCase("GatherND", inputs, {"batch_dims": batch}, opset=13),
            constants=constants,
            symbolic=False,
            sizes=sizes,
            reference="ort",
        )


PADS = [[1, 0, 2, 1], [0, 0, 0, 0], [-1, 1, 1, -2], [0, 2, 0, 0], [0, -1, -1, 0]]


@pytest.mark.parametrize("pads", PADS)
@pytest.mark.parametrize("opset", [7, 11, 18])
def test_pad_with_a_constant(pads, opset):
    x = floats(3, 4)
    modern = opset >= 11
    inputs = [x, index(*pads), np.array(1.5, np.float32)] if modern else [x]
    check(
        NodeCase("Pad", inputs, {} if modern else {"pads": pads, "value": 1.5}, opset=opset),
        reference=lambda x, *_: _padded(x, pads, 1.5),
    )


def _padded(x, pads, value):
    rank = x.ndim
    wide = np.pad(
        x, [(max(pads[k], 0), max(pads[k + rank], 0)) for k in range(rank)], constant_values=np.float32(value)
    )
    cut = tuple(slice(max(-pads[k], 0), n - max(-pads[k + rank], 0)) for k, n in enumerate(wide.shape))
    return wide[cut]


@pytest.mark.parametrize("mode", ["edge", "reflect", "wrap"])
@pytest.mark.parametrize("pads", [[1, 2, 2, 1], [0, 3, 0, 2], [2, 0, 0, 0]])
def test_pad_with_other_modes(mode, pads):
    check(NodeCase("Pad", [floats(3, 4), index(*pads)], {"mode": mode}, opset=19))
    check(
        NodeCase("Pad", [floats(1, 3, 4), index(*pads), None, index(1, -1)], {"mode": mode}, opset=19),
        reference=lambda x, *_: np.pad(x, [(0, 0), (pads[0], pads[2]), (pads[1], pads[3])], mode=mode),
    )


def test_pad_of_integers_and_default_value():
    check(NodeCase("Pad", [rng.integers(0, 9, (3, 4)), index(1, 1, 1, 1)]))


def test_pad_by_a_symbolic_width():
    width = Symbol("width", 0, 9)
    d, (y,) = define(NodeCase("Pad", [floats(3, 4), index(0, 0, 0, 2)]))
    assert operations(d) == {"lt", "select"}
    assert [str(n) for n in y.shape] == ["3", "6"]
    from dataclasses import replace

    from tilewright.ops.library import OPERATORS

    d.operands = [d.operands[0], replace(d.operands[1], known_elements=(const(0), const(0), const(0), width))]
    assert str(OPERATORS["", "Pad"](d).shape[1]) == "width + 4"


@pytest.mark.parametrize("order", [None, [0, 1, 2], [2, 0, 1], [1, 0, 2], [2, 1, 0]])
def test_transpose(order):
    check(NodeCase("Transpose", [floats(3, 4, 5)], {} if order is None else {"perm": order}))


def test_transpose_of_unit_dimensions_is_a_view():
    d, _ = define(NodeCase("Transpose", [floats(1, 4, 1, 5)], {"perm": [1, 2, 0, 3]}))
    assert all(isinstance(s, View) for s in d.stages)
    check(NodeCase("Transpose", [floats(1, 4, 1, 5)], {"perm": [1, 2, 0, 3]}))
    check(NodeCase("Transpose", [floats()], {}))


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_depth_to_space(mode):
    check(NodeCase("DepthToSpace", [floats(2, 12, 3, 5)], {"blocksize": 2, "mode": mode}), symbolic=False)
    sizes = {(0, 0): Symbol("n", 1, 9), (0, 2): Symbol("h", 1, 99), (0, 3): Symbol("w", 1, 99)}
    check(NodeCase("DepthToSpace", [floats(2, 12, 3, 5)], {"blocksize": 2, "mode": mode}), symbolic=False, sizes=sizes)


@pytest.mark.parametrize("mode", [None, "DCR", "CRD"])
def test_space_to_depth(mode):
    attributes = {"blocksize": 2} if mode is None else {"blocksize": 2, "mode": mode}
    check(NodeCase("SpaceToDepth", [floats(2, 3, 4, 6)], attributes, opset=28), symbolic=False)
    sizes = {(0, 2): Symbol("h", 1, 99), (0, 3): Symbol("w", 1, 99)}
    check(NodeCase("SpaceToDepth", [floats(2, 3, 4, 6)], attributes, opset=28), symbolic=False, sizes=sizes)


@pytest.mark.parametrize(
    ("shape", "target"), [((3, 1), (2, 3, 4)), ((4,), (1,)), ((1, 4), (3, 1)), ((), (2, 2)), ((2, 3), (2, 3))]
)
def test_expand(shape, target):
    check(NodeCase("Expand", [floats(*shape), index(*target)]), symbolic=False)


@pytest.mark.parametrize("repeats", [(1, 1), (2, 3), (1, 2), (0, 1)])
def test_tile(repeats):
    check(NodeCase("Tile", [floats(3, 4), index(*repeats)]))
    check(NodeCase("Tile", [floats(1, 4), index(*repeats)]))


@pytest.mark.parametrize("value", [None, np.array([3], np.int64), np.array([True]), np.array([1.5], np.float16)])
def test_constant_of_shape(value):
    import onnx

    attributes = {} if value is None else {"value": onnx.numpy_helper.from_array(value)}
    check(NodeCase("ConstantOfShape", [index(2, 3)], attributes), constants=(0,))
    check(NodeCase("ConstantOfShape", [np.zeros(0, np.int64)], attributes), constants=(0,))


@pytest.mark.parametrize(
    ("start", "limit", "delta", "dtype"),
    [
        (0, 5, 1, np.int64),
        (2, 11, 3, np.int64),
        (5, -4, -2, np.int32),
        (5, 2, 1, np.int64),
        (1, 2, 0.25, np.float32),
        (0, 1, 0.3, np.float64),
    ],
)
def test_range(start, limit, delta, dtype):
    check(NodeCase("Range", [np.array(v, dtype) for v in (start, limit, delta)]), tolerance=Tolerance(1e-6))


@pytest.mark.parametrize("stash", [None, 1, 11])
def test_range_of_half_precision_is_computed_in_the_stash_type(stash):
    """In half precision, 0.3 times 2049 to 2059 would be 0.3 times the even numbers among them."""
    numbers = [np.array(v, np.float16) for v in (0.5, 640, 0.3)]
    check(NodeCase("Range", numbers, {} if stash is None else {"stash_type": stash}, opset=27), tolerance=EXACT)
    with pytest.raises(UnsupportedError, match="stash_type 10 is not float32 or float64"):
        define(NodeCase("Range", numbers, {"stash_type": 10}, opset=27))


@pytest.mark.parametrize("axis", [-1, 0, 1])
@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.float32])
def test_one_hot(axis, dtype):
    indices = rng.integers(-4, 4, (2, 3)).astype(dtype)
    check(
        NodeCase("OneHot", [indices, np.array(4), np.array([-1, 2], np.float32)], {"axis": axis}),
        constants=(1,),
        sizes={(2, 0): const(2)},
    )


@pytest.mark.parametrize("k", [0, 1, -2])
def test_eye_like(k):
    check(NodeCase("EyeLike", [floats(3, 5)], {"k": k}))
    check(NodeCase("EyeLike", [floats(4, 4)], {"k": k, "dtype": 7}))


@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("k", [None, 0, 1, -2, 9])
def test_trilu(upper, k):
    inputs = [floats(2, 4, 5)] + ([] if k is None else [np.array(k)])
    check(NodeCase("Trilu", inputs, {"upper": upper}))
    check(NodeCase("Trilu", inputs, {"upper": upper}), constants=())


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("axis", [0, -1])
def test_cumsum(exclusive, reverse, axis):
    attributes = {"exclusive": exclusive, "reverse": reverse}
    check(NodeCase("CumSum", [floats(3, 4), np.array(axis)], attributes), tolerance=Tolerance(1e-5, 1e-5))
    check(NodeCase("CumSum", [rng.integers(0, 9, (3, 4)), np.array(axis, np.int32)], attributes))


def test_cumprod():
    check(
        NodeCase("CumProd", [floats(3, 4), np.array(1)]),
        reference=lambda x, _: np.cumprod(x, 1),
        tolerance=Tolerance(1e-5, 1e-5),
    )
