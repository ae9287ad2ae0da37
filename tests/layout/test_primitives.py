"""Every primitive: shapes, accesses and data agree, and the inverse restores the original."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.layout.strategies import SIZES, access, layouts, numbered, numbers, shapes, values

from tilewright.expr.nodes import TRUE, Symbol
from tilewright.layout.layout import Layout


def shape(*sizes):
    return Layout.of(sizes).shape


@given(st.data())
def test_forward_indices_match_the_data(data):
    layout = data.draw(shapes().flatmap(layouts))
    logical, bounds = access(layout.shape)
    for sizes in SIZES:
        grid = numbers(layout.shape, sizes)
        array = numbered(grid)
        stored = layout.transform(array, sizes=sizes)
        assert stored.shape == numbers(layout.physical_shape, sizes)
        place = values(layout.forward(logical, bounds), logical, grid, sizes)
        np.testing.assert_array_equal(stored[place], array)


@given(st.data())
def test_backward_indices_match_the_data(data):
    layout = data.draw(shapes().flatmap(layouts))
    physical, bounds = access(layout.physical_shape)
    place, exists = layout.backward(physical, bounds)
    for sizes in SIZES:
        grid = numbers(layout.physical_shape, sizes)
        array = numbered(numbers(layout.shape, sizes))
        (there,) = values((exists,), physical, grid, sizes)
        inside = [np.clip(i, 0, n - 1) for i, n in zip(values(place, physical, grid, sizes), array.shape, strict=True)]
        np.testing.assert_array_equal(layout.transform(array, sizes=sizes), np.where(there, array[tuple(inside)], 0))


@given(st.data())
def test_inverse_restores_the_data(data):
    layout = data.draw(shapes().flatmap(layouts))
    assert layout.inverse().physical_shape == layout.shape
    assert layout.inverse().inverse() == layout
    for sizes in SIZES:
        array = numbered(numbers(layout.shape, sizes))
        np.testing.assert_array_equal(layout.restore(layout.transform(array, sizes=sizes), sizes), array)


@given(st.data())
def test_inverse_of_each_primitive_is_the_identity_on_accesses(data):
    layout = data.draw(shapes().flatmap(layouts))
    for p, before in zip(layout.primitives, layout.shapes, strict=False):
        logical, bounds = access(before)
        there = p.forward(logical, before, bounds)
        assert p.inverse(before).forward(there, p.shape(before), bounds) == logical
        assert p.backward(there, before, bounds) == (logical, TRUE)


def sequences(basic: bool = False) -> st.SearchStrategy[Layout]:
    """Sequences whose inverse the simplifier is expected to recognise; shorter ones where tiles that overlap are fused,
    as S*t + (x - S*t) with t = min(x // S, T - 1) is x at once, which hides t."""
    long = shapes().flatmap(lambda s: layouts(s, most=5, basic=basic, fused_tiles=False))
    return long | shapes().flatmap(lambda s: layouts(s, most=2, basic=basic))


@given(sequences())
def test_sequences_and_their_inverse_are_the_identity_on_accesses(layout):
    logical, bounds = access(layout.shape)
    there = layout.forward(logical, bounds)
    assert layout.inverse().forward(there, bounds) == logical
    assert layout.backward(there, bounds) == (logical, TRUE)


@given(sequences(basic=True))
def test_basic_sequences_backward_and_forward_are_the_identity(layout):
    physical, bounds = access(layout.physical_shape)
    logical, exists = layout.backward(physical, bounds)
    assert exists is TRUE
    assert layout.forward(logical, bounds) == physical


M = Symbol("M", 2, 7)
RECOGNISED = {
    "rows of several terms in blocks": Layout.of((8, M + 3)).split(0, (2, 4)).fuse(1, 2).fuse(0, 2),
    "remainders of numbers whose quotients are fused": Layout.of((2, 12)).fuse(0).pad(0, 0, 8).split(0, (2, 4, 4)),
    "the same with symbols": Layout.of((8, M + 3)).pad(1, 1).fuse(0).split(0, (M + 4, 4, 2)),
    "overlapping tiles in a row": Layout.of((M + 3,)).unfold(0, 3, 2).fuse(0),
    "overlapping tiles of a number": Layout.of((2, 2)).fuse(0).unfold(0, 2, 1).fuse(0),
}


@pytest.mark.parametrize("layout", RECOGNISED.values(), ids=RECOGNISED)
def test_inverses_that_are_recognised(layout):
    logical, bounds = access(layout.shape)
    there = layout.forward(logical, bounds)
    assert layout.inverse().forward(there, bounds) == logical
    assert layout.backward(there, bounds) == (logical, TRUE)
