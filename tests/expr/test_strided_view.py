"""Views of what affine loads read: equal to indexing element by element, and refused where they are not safe."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tilewright.expr.dtype import float32
from tilewright.expr.evaluate import Environment, evaluate_expr
from tilewright.expr.nodes import Buffer, Expr, Load, Var, const
from tilewright.expr.strided_view import strided_view

AXES = (Var("i"), Var("j"), Var("k"))
RANGES = st.tuples(st.integers(0, 3), st.integers(1, 4)).map(lambda x: (x[0], x[0] + x[1]))


@st.composite
def affine_loads(draw: st.DrawFn) -> tuple[Load, np.ndarray, list[tuple[int, int]]]:
    ranges = [draw(RANGES) for _ in AXES]
    indices: list[Expr] = []
    sizes: list[int] = []
    for _ in range(draw(st.integers(1, 3))):
        factors = [draw(st.integers(-3, 3)) for _ in AXES]
        lowest, highest = (
            sum(pick(c * low, c * (high - 1)) for c, (low, high) in zip(factors, ranges, strict=True))
            for pick in (min, max)
        )
        terms = [v * const(c) for v, c in zip(AXES, factors, strict=True)]
        indices.append(sum(terms, const(draw(st.integers(0, 2)) - lowest)))
        sizes.append(highest - lowest + 3)
    array = np.random.default_rng(draw(st.integers(0, 999))).random(sizes, np.float32)
    if draw(st.booleans()):
        array = np.asfortranarray(array)
    return Load(Buffer("w", tuple(map(const, sizes)), float32), tuple(indices)), array, ranges


def gathered(load: Load, array: np.ndarray, ranges: list[tuple[int, int]]) -> np.ndarray:
    grids = np.meshgrid(*(np.arange(*x) for x in ranges), indexing="ij")
    env = Environment(dict(zip(AXES, grids, strict=True)), {"w": array})
    return np.broadcast_to(evaluate_expr(load, env), grids[0].shape)


@given(affine_loads())
def test_a_view_has_the_elements_that_indices_pick(case: tuple[Load, np.ndarray, list[tuple[int, int]]]) -> None:
    load, array, ranges = case
    view = strided_view(load, array, AXES, ranges)
    assert view is not None
    assert np.shares_memory(view, array)
    assert not view.flags.writeable
    np.testing.assert_array_equal(view, gathered(load, array, ranges))


@given(affine_loads(), st.data())
def test_an_index_beyond_the_array_has_no_view(
    case: tuple[Load, np.ndarray, list[tuple[int, int]]], data: st.DataObject
) -> None:
    load, array, ranges = case
    dim = data.draw(st.integers(0, array.ndim - 1))
    shift = data.draw(st.sampled_from((-array.shape[dim], array.shape[dim])))
    indices = tuple(x + shift if k == dim else x for k, x in enumerate(load.indices))
    assert strided_view(Load(load.buffer, indices), array, AXES, ranges) is None


def test_irregular_loads_have_no_view() -> None:
    buffer, array = Buffer("w", (const(8),), float32), np.arange(8, dtype=np.float32)
    i, *_ = AXES
    for index in (i // 2, i * i, Var("another"), Load(Buffer("at", (const(8),), float32), (i,))):
        assert strided_view(Load(buffer, (index,)), array, AXES, [(0, 2)] * 3) is None, index
    assert strided_view(Load(buffer, (i,)), array, AXES, [(0, 2), (1, 1), (0, 2)]) is None, "no point"
