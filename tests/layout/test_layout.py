"""Layouts as data: building, text, JSON, errors."""

import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.layout.strategies import M, N, attaching, layouts, numbered, shapes

from tilewright.errors import LayoutError
from tilewright.expr.nodes import Symbol, Var, as_expr, const
from tilewright.layout.layout import Layout
from tilewright.layout.primitives import PRIMITIVES, DecoupleAt, Fold, Fuse, Pad, Reorder, Split, StoreAt, Unfold, Unpad

Z = Symbol("Z", 0, 9)


def shape(*sizes):
    return Layout.of(sizes).shape


def test_text():
    layout = Layout.of((N, 64, 7)).split(1, (4, 16)).reorder((0, 1, 3, 2)).pad(2, 0, 1)
    assert str(layout) == "[N, 64, 7] -> split(1, (4, 16)) -> reorder((0, 1, 3, 2)) -> pad(2, 0, 1) -> [N, 4, 8, 16]"
    assert str(layout.inverse()) == (
        "[N, 4, 8, 16] -> unpad(2, 0, 1) -> reorder((0, 1, 3, 2)) -> fuse(1, 2) -> [N, 64, 7]"
    )
    attached = Layout.of((5, 8)).store_at("bias", (8,), 0)
    assert str(attached) == "[5, 8] -> store_at(bias, (8,), 0) -> [6, 8]"


def test_equal_layouts_are_equal():
    assert Layout.of((N, 8)).split(1, (const(2), 4)) == Layout.of((N, const(8))).split(1, (None, 4))
    assert hash(Split(0, (const(2), 4))) == hash(Split(0, (2, 4)))


def test_names_follow_the_dimensions():
    layout = Layout.of((2, 12, 6, 6)).split(1, (3, 2, 2)).fuse(4, 2).unfold(4, 6, 5).reorder((0, 4, 5, 1, 2, 3))
    assert layout.rename("nchw") == ("n", "h_w_o", "h_w_i", "c_0", "c_1", "c_2")


def test_layouts_that_expand():
    plain = Layout.of((N, 12))
    assert not plain.expands
    assert not plain.split(1, (3, 4)).reorder((1, 0, 2)).fuse(0).expands
    assert not plain.pad(1, 0, 0).expands
    assert not plain.unfold(1, 4, 4).expands
    assert not plain.unfold(1, 12, 3).expands
    assert plain.unfold(1, 4, 3).expands
    assert plain.pad(1, 0, 1).expands
    assert plain.pad(1, 0, 1).unpad(1, 0, 1).expands
    assert plain.store_at("b", (N,), 1).expands


def test_padding_to_a_multiple():
    assert Layout.of((12,)).pad_to(0, 4).is_plain
    assert Layout.of((N * 4,)).pad_to(0, 4).is_plain
    padded = Layout.of((N, 13)).pad_to(1, 4).pad_to(0, 8)
    assert padded.physical_shape == ((N + 7) // 8 * 8, const(16))
    assert padded.split(0, (None, 8)).physical_shape == ((N + 7) // 8, const(8), const(16))


def test_data_of_attached_tensors():
    layout = Layout.of((2, 3)).store_at("bias", (3,), 0)
    weights, bias = numbered((2, 3)), np.array([-1, -2, -3])
    stored = layout.transform(weights, {"bias": bias})
    np.testing.assert_array_equal(stored, [[1, 2, 3], [4, 5, 6], [-1, -2, -3]])
    np.testing.assert_array_equal(layout.restore(stored), weights)


def test_symbols_are_bound_by_the_data():
    layout = Layout.of((N, 6)).pad_to(0, 4).split(0, (None, 4))
    assert layout.transform(numbered((6, 6))).shape == (2, 4, 6)
    assert layout.at({N: 6}).physical_shape == shape(2, 4, 6)
    np.testing.assert_array_equal(layout.restore(layout.transform(numbered((6, 6))), {N: 6}), numbered((6, 6)))


@given(st.data())
def test_json_round_trip(data):
    layout = data.draw(shapes().flatmap(lambda s: layouts(s) | attaching(s)))
    for x in (layout, layout.inverse()):
        assert Layout.from_json(json.loads(json.dumps(x.to_json()))) == x


def test_json_form():
    layout = Layout.of((N, 64)).pad_to(0, 4).split(1, (4, 16)).store_at("bias", (4, 16), 0)
    assert layout.to_json() == {
        "shape": ["N", 64],
        "symbols": {"N": [1, 9]},
        "primitives": [["pad", 0, 0, "(N + 3) // 4 * 4 - N"], ["split", 1, [4, 16]], ["store_at", "bias", [4, 16], 0]],
    }


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "layout: expected an object, got []"),
        ({"shape": [1], "primitive": []}, "layout: expected shape, symbols and primitives, got 'primitive'"),
        ({"shape": 4, "primitives": []}, "shape: expected a list, got 4"),
        ({"shape": [1.5], "primitives": []}, "shape: expected an integer or an expression, got 1.5"),
        ({"shape": [True], "primitives": []}, "shape: expected an integer or an expression, got True"),
        ({"shape": ["K"], "primitives": []}, "shape: expected an expression (unknown variable 'K'), got 'K'"),
        ({"shape": ["1 <"], "primitives": []}, "shape: expected an expression (expected"),
        ({"shape": ["4 // 0"], "primitives": []}, "shape: expected an expression that does not divide by 0, got '4 //"),
        ({"shape": [10**30], "primitives": []}, "shape: expected an integer of at most 281474976710656, got 1000"),
        ({"shape": [str(10**30)], "primitives": []}, "shape: expected an integer of at most 281474976710656, got '10"),
        ({"shape": [-4], "primitives": []}, "dimension 0: expected a size of at least 0, got -4"),
        ({"shape": ["(" * 4000], "primitives": []}, "shape: expected an expression (it is nested too deeply), got '("),
        ({"shape": ["1" * 5000], "primitives": []}, "shape: expected an expression of at most 4096 characters, got '1"),
        ({"shape": [4], "primitives": [["pad", 0, 10**20, 0]]}, "before of pad: expected an integer of at most"),
        ({"shape": [4], "symbols": {"n": [5, 3]}, "primitives": []}, "symbol 'n': expected a lower end that is not"),
        ({"shape": [4], "symbols": {"n": [-5, 3]}, "primitives": []}, "symbol 'n': expected ends of at least 0, got"),
        ({"shape": [4], "symbols": {"n": [1, 10**30]}, "primitives": []}, "symbol 'n': expected ends of at most 2814"),
        ({"shape": ["1 < 2"], "primitives": []}, "shape: expected an integer or an int64 expression without loads"),
        ({"shape": [4]}, "primitives: expected a list, got None"),
        ({"shape": [4], "symbols": [], "primitives": []}, "symbols: expected an object, got []"),
        ({"shape": [4], "symbols": {"N": [1]}, "primitives": []}, "symbol 'N': expected two integers or null, got [1]"),
    ],
)
def test_malformed_json(data, message):
    with pytest.raises(LayoutError, match=re.escape(message)):
        Layout.from_json(data)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("split", "primitive 0: expected a list, got 'split'"),
        ([], "primitive 0: there is no primitive None"),
        (["tile", 1], "primitive 0: there is no primitive 'tile'; there are decouple_at, fold, fuse"),
        (["split", 0], "primitive 0: expected split(dim, factors), got 1 arguments"),
        (["split", "0", [4]], "primitive 0, dim of split: expected an integer, got '0'"),
        (["reorder", [0.0]], "primitive 0, order of reorder: expected an integer, got 0.0"),
        (["store_at", 1, [], 0], "primitive 0, other of store_at: expected a name, got 1"),
        (["split", 0, [3]], "primitive 0, split of dimension 0: expected factors whose product is 4, got (3,)"),
    ],
)
def test_malformed_primitives_in_json(step, message):
    with pytest.raises(LayoutError, match=re.escape(message)):
        Layout.from_json({"shape": [4], "primitives": [step]})


@pytest.mark.parametrize(
    ("primitive", "sizes", "message"),
    [
        (Split(2, (2, 2)), (4, 4), "split: expected a dimension in 0..1, got 2; the shape here is [4, 4]"),
        (Split(-1, (2, 2)), (4, 4), "split: expected a dimension in 0..1, got -1"),
        (Split(0, ()), (4,), "split of dimension 0: expected at least one factor, got none"),
        (Split(0, (0, 4)), (4,), "split of dimension 0: expected factors of at least 1, got 0"),
        (Split(0, (-2, -2)), (4,), "split of dimension 0: expected factors of at least 1, got -2"),
        (Split(0, (3, 2)), (7,), "expected factors whose product is 7, got (3, 2) with product 6; pad the dimension"),
        (Split(0, (N // 4, 4)), (N,), "expected factors whose product is N, got (N // 4, 4) with product N // 4 * 4"),
        (Reorder((0, 0)), (4, 4), "reorder: expected a permutation of 0..1, got (0, 0); the shape here is [4, 4]"),
        (Reorder((0,)), (4, 4), "reorder: expected a permutation of 0..1, got (0,)"),
        (Fuse(1, 2), (4, 4), "fuse: expected a dimension in 0..0, got 1"),
        (Fuse(0, 3), (4, 4), "fuse: expected at least 3 dimensions, got 2"),
        (Fuse(0, 0), (4, 4), "fuse at dimension 0: expected a count of at least 1, got 0"),
        (Unfold(0, 2, 3), (9,), "unfold of dimension 0: expected a stride of at most the tile size 2, got 3"),
        (Unfold(0, 2, 0), (9,), "unfold of dimension 0: expected a stride of at least 1, got 0"),
        (Unfold(0, 9, 2), (7,), "unfold of dimension 0: expected a tile smaller than size + stride = 9, got 9"),
        (Unfold(0, 9, 2), (N,), "expected a tile smaller than size + stride = N + 2, got 9; choose a smaller tile"),
        (Fold(0, 3, 2, 5), (3, 3), "fold of dimension 0: expected size 2 of dimension 0, got 3"),
        (Fold(0, 3, 2, 5), (2, 4), "fold of dimension 0: expected size 3 of dimension 1, got 4"),
        (Pad(0, -1, 0), (4,), "pad of dimension 0: expected before of at least 0, got -1; cropping is `unpad`"),
        (Pad(0, 0, M - 3), (4,), "pad of dimension 0: expected after of at least 0, got M - 3"),
        (Unpad(0, 3, 2), (4,), "unpad of dimension 0: expected to drop at most 4 elements, got 5"),
        (Unpad(0, 0, -2), (4,), "unpad of dimension 0: expected after of at least 0, got -2"),
        (StoreAt("b", (4,), 0), (4, 5), "store_at along dimension 0: expected shape [5] of 'b', got [4]"),
        (StoreAt("b", (4,), 2), (4, 5), "store_at: expected a dimension in 0..1, got 2"),
        (DecoupleAt("b", (4,), 0), (4, 5), "store_at along dimension 0: expected shape [5] of 'b', got [4]"),
    ],
)
def test_illegal_primitives(primitive, sizes, message):
    with pytest.raises(LayoutError, match=re.escape(message)):
        primitive.shape(shape(*sizes))
    with pytest.raises(LayoutError, match=r"primitive 0, "):
        Layout(shape(*sizes), (primitive,))


def test_wrong_number_of_indices():
    layout = Layout.of((4, 5))
    with pytest.raises(LayoutError, match=r"access to a tensor of shape \[4, 5\]: expected 2 indices, got 1"):
        layout.forward((Var("i"),))
    with pytest.raises(LayoutError, match=r"access to a buffer of shape \[4, 5\]: expected 2 indices, got 3"):
        layout.backward((Var("i"),) * 3)


def test_unknown_attached_tensor():
    with pytest.raises(LayoutError, match=r"no tensor 'b' is stored here"):
        Layout.of((4, 5)).attached_forward("b", (as_expr(0),))


def test_data_of_another_shape():
    with pytest.raises(LayoutError, match=r"expected an array of shape \[4, 5\], got \[5, 4\]"):
        Layout.of((4, 5)).fuse(0).transform(np.zeros((5, 4)))
    with pytest.raises(LayoutError, match=r"expected an array of shape \[4, 8\], got \[4\]"):
        Layout.of((N, N * 2)).transform(np.zeros(4))


def test_data_with_unknown_symbols():
    with pytest.raises(
        LayoutError, match=r"of shape \[4\] does not determine the size of 'M'; pass sizes=\{M: \.\.\.\}"
    ):
        Layout.of((N,)).pad(0, 0, M).transform(np.zeros(4))


@pytest.mark.parametrize(("make", "message"), [
    (lambda: Layout.of((-4,)), "dimension 0: expected a size of at least 0, got -4"),
    (lambda: Layout.of((2.5,)), "expected an integer or an expression, got 2.5"),
    (lambda: Layout.of((1 << 70,)), "expected an integer of at most 281474976710656, got 1180591620717411303424"),
    (lambda: Layout.of(("n",)), "expected an integer or an expression, got 'n'"),
    (lambda: Layout.of(7), "shape: expected a sequence of sizes, got 7"),
    (lambda: Layout.of((4, 6)).split(1, 3), "split: expected a sequence of factors, got 3; write (3,) or (None, 3)"),
    (lambda: Layout.of((4, 6)).split(1, (None, 0)), "split: expected factors of at least 1 beside None, got (0,)"),
    (lambda: Layout.of((4, 6)).split(1, (6, 0)), "split of dimension 1: expected factors of at least 1, got 0"),
    (lambda: Layout.of((4, 6)).split(True, (2, 3)), "split: expected the number of a dimension, got True"),
    (lambda: Layout.of((4, 6)).reorder(1), "reorder: expected a sequence of integers, got 1"),
    (lambda: Layout.of((4, 6)).store_at("b", 6, 0), "store_at: expected a sequence of sizes, got 6"),
    (lambda: Layout.of((1,)).decouple_at("U", (), 0).decouple_at("V", (), 0),
     "decouple_at along dimension 0: expected a dimension of at least 1, got 0"),
])  # fmt: skip
def test_values_that_are_not_layouts(make, message):
    with pytest.raises(LayoutError, match=re.escape(message)):
        make()


@pytest.mark.parametrize("layout", [
    Layout.of((Z, 4)).fuse(0, 2), Layout.of((Z, 3)).pad_to(0, 4).split(0, (None, 4)), Layout.of((Z * 4, 3)).fuse(0, 2),
    Layout.of((3, Z)).reorder((1, 0)).fuse(0, 2), Layout.of((Z * 4, 3)).split(0, (None, 4)),
    Layout.of((4, Z)).pad(1, 0, 2), Layout.of((4, Z)).unfold(0, 2, 1), Layout.of((Z, 2, 3)).fuse(0, 3).pad(0, 1, 0),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("n", [0, 1, 5])
def test_tensors_without_elements(layout, n):
    data = numbered(tuple(int(s.value) for s in layout.at({Z: n}).shape))
    stored = layout.transform(data, sizes={Z: n})
    assert stored.shape == tuple(int(s.value) for s in layout.at({Z: n}).physical_shape)
    np.testing.assert_array_equal(layout.restore(stored, sizes={Z: n}), data)


def test_detached_tensors_go_back_to_their_place():
    layout = Layout.of((3, 4)).decouple_at("bias", (4,), 0)
    both = numbered((3, 4))
    stored = layout.transform(both)
    np.testing.assert_array_equal(layout.restore(stored, others={"bias": both[2]}), both)
    with pytest.raises(LayoutError, match="store_at: expected the data of 'bias', got none"):
        layout.restore(stored)


def test_restoring_needs_undetermined_symbols():
    layout = Layout.of((N, 3)).pad_to(0, 4).split(0, (None, 4))
    stored = layout.transform(np.ones((5, 3)))
    message = "an array of shape [2, 4, 3] does not determine the size of 'N'; pass sizes={N: ...}"
    with pytest.raises(LayoutError, match=re.escape(message)):
        layout.restore(stored)
    assert layout.restore(stored, sizes={N: 5}).shape == (5, 3)


def test_data_of_a_missing_attached_tensor():
    with pytest.raises(LayoutError, match="store_at: expected the data of 'bias', got none"):
        Layout.of((2, 3)).store_at("bias", (3,), 0).transform(np.zeros((2, 3)))


def test_every_primitive_is_a_method_and_has_an_inverse():
    for name, kind in PRIMITIVES.items():
        assert callable(getattr(Layout, name))
        assert kind.name == name
