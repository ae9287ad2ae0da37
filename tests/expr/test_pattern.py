"""Patterns of computations."""

import pytest

from tilewright.expr.computation import Axis, Computation, Reducer
from tilewright.expr.dtype import float32
from tilewright.expr.nodes import Buffer, Expr, Symbol, Var, as_expr
from tilewright.expr.operations import maximum, select
from tilewright.expr.pattern import MAX_WINDOW_POINTS, Pattern, is_sum_of_products, pattern_of, reads_elementwise

N = Symbol("N", 1, 64)
a, b, i = (Var(n) for n in "abi")
x = Buffer("x", (as_expr(N), as_expr(8)), float32)
w = Buffer("w", (as_expr(8), as_expr(8)), float32)
y = Buffer("y", (as_expr(N), as_expr(8)), float32)


def computation(body: Expr, points: Expr | int | None = None, reducer: Reducer | None = Reducer.SUM) -> Computation:
    reduce_axes = () if points is None else (Axis(i, as_expr(points)),)
    return Computation(y, (Axis(a, N), Axis(b, as_expr(8))), reduce_axes, body, None if points is None else reducer)


@pytest.mark.parametrize(
    ("c", "pattern"),
    [
        (computation(x[a, i] * w[i, b], 8), Pattern.CONTRACTION),
        (computation(x[a, i] * w[i, b], 8, Reducer.MAX), Pattern.CONTRACTION),
        (computation(x[a, b + i] * w[i, b], MAX_WINDOW_POINTS), Pattern.WINDOW),
        (computation(x[a, b + i] * w[i, b], MAX_WINDOW_POINTS + 1), Pattern.CONTRACTION),
        (computation(x[a, b + i] * w[i, b], N), Pattern.CONTRACTION),
        (computation(x[a, i] * x[a, i], 8), Pattern.REDUCTION),
        (computation(x[a, b + i], 8, Reducer.MAX), Pattern.REDUCTION),
        (computation(w[b, a]), Pattern.DATA_MOVEMENT),
        (computation(select(b < 4, x[a, b], 0.0)), Pattern.DATA_MOVEMENT),
        (computation(select(b < 4, x[a, b], w[b, b])), Pattern.ELEMENTWISE),
        (computation(maximum(x[a, b], 0.0)), Pattern.ELEMENTWISE),
    ],
    ids=str,
)
def test_pattern(c: Computation, pattern: Pattern) -> None:
    assert pattern_of(c) is pattern


def test_sums_of_products_exclude_other_reducers() -> None:
    assert is_sum_of_products(computation(x[a, i] * w[i, b], 8))
    assert not is_sum_of_products(computation(x[a, i] * w[i, b], 8, Reducer.MAX))
    assert not is_sum_of_products(computation(x[a, b] * w[b, b]))


def test_elementwise_reads_are_at_the_output_indices() -> None:
    assert reads_elementwise(computation(x[a, b] * w[b, b]), x)
    assert not reads_elementwise(computation(x[a, b] * x[a, 0]), x)
    assert not reads_elementwise(computation(x[a, b] * w[b, b]), w)
