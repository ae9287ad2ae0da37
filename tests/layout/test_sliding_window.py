"""Sliding windows over overlapped tiles: Eq. 1 of ALT, Section 4.1.2, against every point."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.layout.strategies import M, N, numbers, values

from tilewright.expr.algebra.bounds import Bounds
from tilewright.expr.nodes import Binary, Expr, Var, as_expr
from tilewright.expr.operations import minimum
from tilewright.expr.traversal import post_order
from tilewright.layout.primitives import Unfold

I, R = Var("i"), Var("r")  # noqa: E741 - the paper's names


def eq1(v: int, m: int, b: int, s: int, i: int, r: int) -> tuple[int, int]:
    """Tile and offset as the paper writes them."""
    t = i // ((b - m) // v + 1)
    return t, v * i + r - s * t


def tiles_of(size: int, b: int, s: int) -> int:
    return -(-(size - b) // s) + 1


@st.composite
def windows(draw):
    """V, M, B, S and D with at least one window inside the data and one tile."""
    v, m = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    b = draw(st.integers(1, 14))
    fitting = v * ((b - m) // v + 1)
    s = draw(st.integers(1, b) | st.just(fitting).filter(lambda s: 1 <= s <= b))
    size = draw(st.integers(max(m, b - s + 1), 30))
    return v, m, b, s, size


@given(windows())
def test_eq1_holds_under_its_precondition(window):
    v, m, b, s, size = window
    if m > b or s != v * ((b - m) // v + 1):
        return
    for i in range((size - m) // v + 1):
        for r in range(m):
            t, offset = eq1(v, m, b, s, i, r)
            assert 0 <= t < tiles_of(size, b, s)
            assert 0 <= offset < b
            assert s * t + offset == v * i + r


def test_eq1_leaves_its_tile_for_other_strides():
    # three windows of 2 fit a tile of 4, but the next tile begins 2 later: window 3 would be at offset 1..2 of tile 1
    # by Eq. 1 with S = 3, and with S = 2 window 3*t drifts behind the tile
    assert eq1(1, 2, 4, 3, 3, 0) == (1, 0)
    assert max(eq1(1, 2, 4, 2, i, 1)[1] for i in range(12)) >= 4
    assert min(eq1(1, 2, 4, 4, i, 0)[1] for i in range(12)) < 0


@given(windows())
def test_accesses_of_windows_find_their_elements(window):
    v, m, b, s, size = window
    count = (size - m) // v + 1
    bounds = Bounds().with_loop(I, as_expr(count)).with_loop(R, as_expr(m))
    unfold, shape = Unfold(0, b, s), (as_expr(size),)
    place = unfold.forward((I * v + R,), shape, bounds, frozenset((R,)))
    t, offset = values(place, (I, R), (count, m), {})
    i, r = np.ogrid[:count, :m]
    assert np.all((t >= 0) & (t < tiles_of(size, b, s)) & (offset >= 0) & (offset < b))
    np.testing.assert_array_equal(s * t + offset, v * i + r)
    if m <= b and s == v * ((b - m) // v + 1):
        np.testing.assert_array_equal(t, np.broadcast_to(eq1(v, m, b, s, i, r)[0], t.shape))


def place(x: Expr, b: Expr | int, s: Expr | int, size: Expr | int, bounds: Bounds) -> tuple[Expr, ...]:
    return Unfold(0, b, s).forward((x,), (as_expr(size),), bounds, frozenset((R,)))


def test_form_of_eq1():
    bounds = Bounds().with_loop(I, as_expr(8)).with_loop(R, as_expr(3))
    assert place(I + R, 6, 4, 10, bounds) == (I // 4, I + R - I // 4 * 4)
    strided = Bounds().with_loop(I, as_expr(8)).with_loop(R, as_expr(3))
    assert place(I * 2 + R, 9, 8, 17, strided) == (I // 4, I * 2 + R - I // 4 * 8)


def test_blocked_windows_have_plain_places():
    o, j = Var("o"), Var("j")
    bounds = Bounds().with_loop(o, N).with_loop(j, as_expr(4)).with_loop(R, as_expr(3))
    assert place((o * 4 + j) * 2 + R, 9, 8, N * 8 + 1, bounds) == (o, j * 2 + R)


def test_symbolic_tiles():
    """ALT, Fig. 2: two tiles of H/2 + KH - 1 rows."""
    o, j = Var("o"), Var("j")
    bounds = Bounds().with_loop(o, as_expr(2)).with_loop(j, M).with_loop(R, as_expr(3))
    assert place(o * M + j + R, M + 2, M, M * 2 + 2, bounds) == (o, R + j)


def test_general_form_without_the_precondition():
    bounds = Bounds().with_loop(I, as_expr(8)).with_loop(R, as_expr(3))
    x = I + R
    t = minimum(x // 3, 2)
    assert place(x, 5, 3, 10, bounds) == (I // 3, I + R - I // 3 * 3)
    assert place(x, 4, 3, 10, bounds) == (t, x - t * 3)


def test_a_window_that_may_begin_before_the_data_has_the_general_form():
    bounds = Bounds().with_loop(I, as_expr(8)).with_loop(R, as_expr(3))
    t, _ = place(I + R - 1, 6, 4, 10, bounds)
    assert any(isinstance(e, Binary) and e.op == "min" for e in post_order(t))


def test_numbers_of_symbolic_tiles():
    shape = Unfold(0, M + 2, M).shape((M * 2 + 2,))
    assert numbers(shape, {M: 5}) == (2, 7)
    assert shape[0] is as_expr(2)
