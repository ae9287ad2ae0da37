"""Quotients and remainders by sums of terms, and of places in overlapping tiles: simplified ones keep their values."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.expr.algebra import polynomial as poly
from tilewright.expr.algebra.bounds import Bounds
from tilewright.expr.algebra.division import floordiv, mod
from tilewright.expr.algebra.factoring import split_common_factor, tile_and_offset
from tilewright.expr.evaluate import Environment, evaluate_expr
from tilewright.expr.nodes import Binary, Expr, Symbol, Var, as_expr, const
from tilewright.expr.operations import minimum

ROW, COLUMN, M = Var("i"), Var("j"), Symbol("M", 1, 4)
ROWS = 6


def known(columns: Expr) -> Bounds:
    """i runs over rows, j over columns."""
    return Bounds().with_loop(ROW, const(ROWS)).with_loop(COLUMN, columns)


def value(e: Expr, i: int, j: int, m: int) -> int:
    """An expression at one point."""
    return int(evaluate_expr(e, Environment({ROW: i, COLUMN: j, M: m}, {})))


small = st.integers(-3, 4)


@given(st.tuples(small, st.integers(1, 3)), st.integers(1, 4), st.tuples(*[small] * 5), st.integers(1, 4))
def test_split_by_a_divisor_of_several_terms(row, blocks, factors, columns):
    width = M * row[1] + max(row[0], 1 - row[1])
    a, b, c, d, e = factors
    p = width * (ROW * a + b) + COLUMN * c + M * d + e
    bounds = known(M + columns)
    quotient, remainder = floordiv(p, width * blocks, bounds), mod(p, width * blocks, bounds)
    for m in range(1, 5):
        for i, j in product(range(ROWS), range(m + columns)):
            number, by = value(p, i, j, m), value(width * blocks, i, j, m)
            assert (value(quotient, i, j, m), value(remainder, i, j, m)) == divmod(number, by)


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 5), st.integers(1, 8), small, small)
def test_positions_in_overlapping_tiles(tile, stride, last, size, step, start):
    """Also where they are no tiles: with other steps, or too few of them."""
    t = minimum(const(last), Binary("floordiv", COLUMN, const(stride)))
    p = COLUMN + t * step + start
    bounds = known(const(size))
    quotient, remainder = floordiv(p, const(tile), bounds), mod(p, const(tile), bounds)
    for j in range(size):
        assert (value(quotient, 0, j, 1), value(remainder, 0, j, 1)) == divmod(value(p, 0, j, 1), tile)


@pytest.mark.parametrize(
    ("p", "d", "columns", "quotient", "remainder"),
    [
        ((M + 3) * ROW + COLUMN, (M + 3) * 4, M + 2, "i // 4", "i % 4 * M + i % 4 * 3 + j"),
        ((M + 3) * ROW * 2, (M + 3) * 4, M + 2, "i // 2", "i % 2 * M * 2 + i % 2 * 6"),
        (COLUMN + minimum(const(1), COLUMN // 2), as_expr(3), as_expr(5), "min(j // 2, 1)", "j - min(j // 2, 1) * 2"),
    ],
)
def test_factorization(p, d, columns, quotient, remainder):
    bounds = known(columns)
    assert str(floordiv(p, d, bounds)) == quotient
    assert str(mod(p, d, bounds)) == remainder


def test_no_factorization_without_a_bounded_remainder():
    divisor = poly.polynomial((M + 3) * 4)
    assert split_common_factor(poly.polynomial((M + 3) * ROW + COLUMN), divisor, known(M + 3)) is not None
    assert split_common_factor(poly.polynomial((M + 3) * ROW + COLUMN), divisor, known(M + 4)) is None
    place = poly.polynomial(COLUMN + minimum(const(1), COLUMN // 2))
    assert tile_and_offset(place, poly.polynomial(const(3)), known(const(5))) is not None
    assert tile_and_offset(place, poly.polynomial(const(3)), known(const(6))) is None
