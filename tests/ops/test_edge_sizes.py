"""Operators at the edges: ranges beyond a dimension, empty dimensions, zero divisors; compiled and run."""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import tilewright
from tilewright.errors import ModelError, ShapeError

FLOAT, INT64 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64


def model(op, inputs, constants=None, opset=19, **attributes):
    """A model of one node; `inputs` are (name, type, shape), `constants` follow them."""
    constants = constants or {}
    node = helper.make_node(op, [*(name for name, _, _ in inputs), *constants], ["y"], name="node", **attributes)
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info(*i) for i in inputs], [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(v, k) for k, v in constants.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def values(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def sliced(starts, ends, steps, shape, shapes=None):
    constants = {
        "starts": np.array(starts), "ends": np.array(ends),
        "axes": np.arange(len(starts)), "steps": np.array(steps),
    }  # fmt: skip
    return tilewright.compile(model("Slice", [("x", FLOAT, shape)], constants), shapes=shapes or {})


def as_numpy(x, starts, ends, steps):
    # ONNX limits the start of a range that goes backwards to the first element, Python to the place before it.
    starts = [max(s, -n) if t < 0 else s for s, t, n in zip(starts, steps, x.shape, strict=False)]
    return x[tuple(slice(*s) for s in zip(starts, ends, steps, strict=True))]


@pytest.mark.parametrize("bounds", [(3, 2, 1), (19, 8, 3), (-3, -1000, -1), (5, -1000, -1), (-1000, 3, -1), (2, 5, -1)])
@pytest.mark.parametrize("sizes", ["1..", "0..64"])
def test_slice_of_any_size(bounds, sizes):
    run = sliced(*([b] for b in bounds), ["n"], {"n": sizes})
    for n in (0, 1, 2, 4, 30):
        if n or sizes[0] == "0":
            x = values(n)
            np.testing.assert_array_equal(run(x), as_numpy(x, *([b] for b in bounds)))


def test_slices_match_numpy():
    rng = np.random.default_rng(17)
    for case in range(24):
        rank = 1 + case % 2
        starts, ends = rng.integers(-25, 25, rank).tolist(), rng.integers(-25, 25, rank).tolist()
        steps = [int(rng.choice([-3, -2, -1, 1, 2, 5])) for _ in range(rank)]
        shape = rng.integers(1, 24, rank).tolist()
        run = sliced(starts, ends, steps, ["n", "m"][:rank] if case % 3 else shape)
        for seed in range(3 if case % 3 else 1):
            x = values(*(rng.integers(1, 40, rank) if case % 3 else shape), seed=seed)
            np.testing.assert_array_equal(run(x), as_numpy(x, starts, ends, steps), err_msg=f"{starts} {ends} {steps}")


INDICES = np.array([1, 0, 2, -1])


@pytest.mark.parametrize(
    ("op", "dims", "spread"),
    [("Gather", ["k"], lambda i: i), ("GatherElements", ["k", 3], lambda i: i[:, None].repeat(3, 1)),
     ("GatherND", ["k", 1], lambda i: i[:, None])],
)  # fmt: skip
def test_gather_from_a_possibly_empty_dimension(op, dims, spread):
    proto = model(op, [("x", FLOAT, ["n", 3]), ("i", INT64, dims)])
    run = tilewright.compile(proto, shapes={"n": "0..9", "k": "0..9"})
    x = values(5, 3)
    np.testing.assert_array_equal(run(x, spread(INDICES)), x[INDICES])
    assert run(x[:0], spread(INDICES[:0])).shape == (0, 3)
    with pytest.raises(ShapeError, match=r"indices into dimension 0, which has no elements: expected 1 <= n or 0 == k"):
        run(x[:0], spread(INDICES))


def test_gather_from_an_empty_dimension():
    with pytest.raises(ModelError, match="indices into dimension 0, which has no elements"):
        tilewright.compile(model("Gather", [("x", FLOAT, [0, 3]), ("i", INT64, [4])]), shapes={"x": [0, 3]})
    run = tilewright.compile(model("Gather", [("x", FLOAT, ["n", 3]), ("i", INT64, [4])]), shapes={"n": "0..9"})
    x = values(5, 3)
    np.testing.assert_array_equal(run(x, INDICES), x[INDICES])
    with pytest.raises(ShapeError, match=r"within 1\.\.9, got 0"):
        run(x[:0], INDICES)


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
def test_arg_extremum_of_an_empty_dimension(op):
    run = tilewright.compile(model(op, [("x", FLOAT, ["n", 3])], axis=0, keepdims=0), shapes={"n": "0..9"})
    x = values(5, 3)
    np.testing.assert_array_equal(run(x), x.argmax(0) if op == "ArgMax" else x.argmin(0))
    with pytest.raises(ShapeError, match=r"within 1\.\.9, got 0"):
        run(x[:0])
    with pytest.raises(ModelError, match=r"node \(.*\): dimension 0 is empty and has no extremum"):
        tilewright.compile(model(op, [("x", FLOAT, [0, 3])], axis=0), shapes={"x": [0, 3]})


@pytest.mark.parametrize("op", ["Div", "Mod"])
@pytest.mark.parametrize("divisor", [0, [1, 0, 2, 1]])
def test_literal_division_by_zero(op, divisor):
    with pytest.raises(ModelError, match=r"node \(.*\): integer division by zero"):
        tilewright.compile(model(op, [("x", INT64, [4])], {"d": np.array(divisor, np.int64)}))


@pytest.mark.parametrize("op", ["Div", "Mod"])
def test_division_by_zero_in_the_data_does_not_trap(op):
    run = tilewright.compile(model(op, [("x", INT64, [4]), ("d", INT64, [4])]))
    result = run(np.array([7, 8, 9, 10]), np.array([2, 0, 4, 3]))
    assert result[[0, 2, 3]].tolist() == ([3, 2, 3] if op == "Div" else [1, 1, 1])


def test_float_division_by_zero_is_infinite():
    run = tilewright.compile(model("Div", [("x", FLOAT, [2])], {"d": np.zeros((), np.float32)}))
    assert run(np.array([1, -1], np.float32)).tolist() == [np.inf, -np.inf]


@pytest.mark.parametrize("pads", [[2, 1, -1, -1], [-1, -1, 2, 1], [1, 2, -2, 2], [0, -2, 0, 3]])
@pytest.mark.parametrize("shape", [[18, 8], ["n", "m"]])
def test_wrapped_border_repeats_the_cropped_input(pads, shape):
    x = values(18, 8)
    before, after = np.array(pads).reshape(2, 2)
    cropped = x[tuple(slice(max(-a, 0), n + min(b, 0)) for a, b, n in zip(before, after, x.shape, strict=True))]
    expected = np.pad(cropped, [(max(a, 0), max(b, 0)) for a, b in zip(before, after, strict=True)], mode="wrap")
    run = tilewright.compile(model("Pad", [("x", FLOAT, shape)], {"pads": np.array(pads)}, mode="wrap"))
    np.testing.assert_array_equal(run(x), expected)


def test_border_of_an_empty_dimension():
    proto = model("Pad", [("x", FLOAT, [2, 3])], {"pads": np.array([-1, 0, -1, 0])}, mode="wrap")
    assert tilewright.compile(proto)(values(2, 3)).shape == (0, 3)
    proto = model("Pad", [("x", FLOAT, [2, 3])], {"pads": np.array([-2, 0, 1, 0])}, mode="wrap")
    with pytest.raises(ModelError, match="dimension 0: no elements for the border to repeat"):
        tilewright.compile(proto)


@pytest.mark.parametrize(
    ("shapes", "limits"),
    [({"b[0]": "2..9"}, "for 'b\\[0\\]' within 2..9"), ({"a[0]": "0..9"}, "for 'a\\[0\\]' within 0..9"),
     ({"b[0]": "0..9"}, "for 'b\\[0\\]' within 0..9")],
)  # fmt: skip
def test_declared_range_takes_precedence_over_an_assumed_one(shapes, limits):
    run = tilewright.compile(model("Add", [("a", FLOAT, [None]), ("b", FLOAT, [None])]), shapes=shapes)
    lowest = int(next(iter(shapes.values()))[0])
    for n in (lowest, 9):
        np.testing.assert_array_equal(run(values(n), values(n, seed=1)), values(n) + values(n, seed=1))
    with pytest.raises(ShapeError, match=limits + ", got 10"):
        run(values(10), values(10))
