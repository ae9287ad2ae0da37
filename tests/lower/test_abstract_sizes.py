"""Shape abstraction: equal values, and relations kept where one size is a function of another."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.driver.models import array

from tilewright.expr.computation import Axis, Computation, Reducer
from tilewright.expr.dtype import float32
from tilewright.expr.evaluate import Environment, evaluate, evaluate_expr
from tilewright.expr.nodes import Buffer, Expr, Symbol, Var
from tilewright.lower.abstract_sizes import abstract_sizes

H, W, B = Symbol("h", 1, 4096), Symbol("w", 1, 4096), Symbol("batch", 1, 64)
ROW, COLUMN = Var("i0"), Var("i1")


def scaled(rows: Expr, columns: Expr) -> Computation:
    source = Buffer("a0", (rows, columns), float32)
    return Computation(
        Buffer("out", (rows, columns), float32), (Axis(ROW, rows), Axis(COLUMN, columns)), (), source[ROW, COLUMN] * 2.0
    )


def own(stage: Computation):
    return abstract_sizes([stage], [*stage.inputs, stage.output], [H, W, B])


def test_quotients_become_symbols():
    rows, columns = (H + 15) // 16, (W + 3) // 8 * B
    abstracted = own(scaled(rows, columns))
    assert [(v.name, str(e)) for v, e in abstracted.sizes.items()] == [("n0", "(w + 3) // 8"), ("n1", "(h + 15) // 16")]
    n0, n1 = abstracted.sizes
    assert (n1.lo, n1.hi) == (1, 256)
    assert (n0.lo, n0.hi) == (0, 512)
    assert abstracted.params[0].shape == (n1, n0 * B)
    assert not abstracted.correlated


def test_dependent_quotient_stays_a_function_of_the_other():
    half, quarter = (H + 3) // 4, (H + 7) // 8
    abstracted = own(scaled(half, quarter))
    (n0,) = abstracted.sizes
    assert abstracted.params[0].shape == (n0, (n0 + 1) // 2)
    assert not abstracted.correlated


def test_quotients_of_a_bare_size_stay():
    abstracted = own(scaled(H, (H + 1) // 2))
    assert abstracted.sizes == {}
    assert abstracted.params[0].shape == (H, (H + 1) // 2)


def test_correlated_sizes_are_reported():
    assert own(scaled((H + 3) // 4, (H + 5) // 6)).correlated


def test_polynomial_sizes_are_not_abstracted():
    abstracted = own(scaled(H * W * 4 + 2, B))
    assert abstracted.sizes == {}


@given(
    st.sampled_from([4, 8]), st.integers(0, 9), st.sampled_from([8, 16, 24]), st.integers(0, 40), st.integers(1, 70),
    st.integers(1, 70),
)  # fmt: skip
def test_abstract_sizes_have_the_same_values(d1, a, d2, b, h, w):
    rows, columns = (H + a) // d1 * B + 1, (H + b) // d2 + (W + b) // d1
    stage = scaled(rows, columns)
    abstracted = own(stage)
    given_sizes = {H: np.int64(h), W: np.int64(w), B: np.int64(3)}
    outside = Environment(given_sizes, {})
    inside = Environment(given_sizes | {v: evaluate_expr(e, outside) for v, e in abstracted.sizes.items()}, {})
    for old, new in zip(stage.output.shape, abstracted.params[-1].shape, strict=True):
        assert evaluate_expr(old, outside) == evaluate_expr(new, inside)


def test_bodies_and_reductions_are_rewritten():
    rows = (H + 7) // 8
    source = Buffer("a0", (rows,), float32)
    r = Var("r0")
    body = source[r] * 1.5
    stage = Computation(Buffer("out", (), float32), (), (Axis(r, rows),), body, Reducer.SUM)
    abstracted = own(stage)
    (n0,) = abstracted.sizes
    data = array(3, 5)
    actual = evaluate(abstracted.stages[0], {"a0": data}, {n0: 5})
    np.testing.assert_allclose(actual, data.sum() * 1.5, rtol=1e-6)
