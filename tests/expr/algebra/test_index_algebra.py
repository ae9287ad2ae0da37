"""The index algebra against brute force: whatever is simplified keeps its value, whatever is proved holds."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.expr.strategies import (
    LOOPS,
    VARIABLES,
    I,
    J,
    K,
    M,
    N,
    conditions,
    indices,
    points,
    points_of_loops,
    selects,
    value,
)  # fmt: skip

from tilewright.expr.algebra import polynomial as poly
from tilewright.expr.algebra.bounds import Bounds, interval
from tilewright.expr.algebra.prover import can_prove, can_prove_non_negative
from tilewright.expr.algebra.simplify import simplify, substitute
from tilewright.expr.evaluate import Environment, evaluate_expr
from tilewright.expr.nodes import FALSE, TRUE, Binary, BinaryOp, Expr, Select, Symbol, Var, const
from tilewright.expr.operations import ceildiv, conjunction, maximum, minimum

WIDE = {I: (-3, 4), J: (-2, 3), K: (-1, 2), N: (1, 4), M: (0, 3)}
SAMPLE = [p for k, p in enumerate(points(WIDE)) if k % 7 == 0]
INSIDE = list(points_of_loops())[::3]


def rebuilt(e: Expr) -> Expr:
    """`e` through the simplifying operators, with nothing known about loop variables."""
    return substitute(e, {Var("unused"): const(0)})


@given(indices(10))
def test_operators_preserve_the_value_for_all_integers(e: Expr) -> None:
    simpler = rebuilt(e)
    for env in SAMPLE:
        assert value(simpler, env) == value(e, env), (e, simpler, env)


@given(st.one_of(indices(10), selects()))
def test_simplify_preserves_the_value_within_bounds(e: Expr) -> None:
    simpler = simplify(e, LOOPS)
    for env in INSIDE:
        assert value(simpler, env) == value(e, env), (e, simpler, env)


@given(conditions())
def test_simplify_preserves_conditions(c: Expr) -> None:
    wide, narrow = rebuilt(c), simplify(c, LOOPS)
    for env in SAMPLE:
        assert value(wide, env) == value(c, env), (c, wide, env)
    for env in INSIDE:
        assert value(narrow, env) == value(c, env), (c, narrow, env)


@given(indices(8))
def test_simplified_expressions_are_a_fixed_point_of_printing_and_parsing(e: Expr) -> None:
    once = rebuilt(e)
    assert rebuilt(once) is once or all(value(rebuilt(once), p) == value(once, p) for p in SAMPLE)


@given(indices(6), indices(6), indices(6))
def test_sums_and_products_have_a_canonical_form(a: Expr, b: Expr, c: Expr) -> None:
    a, b, c = rebuilt(a), rebuilt(b), rebuilt(c)
    assert a + b is b + a
    assert a * b is b * a
    assert a - a is const(0)
    forms = (poly.polynomial(a * (b + c)), poly.polynomial(a * b + a * c))
    assert all(value(poly.expression(forms[0]), p) == value(poly.expression(forms[1]), p) for p in SAMPLE[::5])


@given(indices(8))
def test_intervals_contain_every_value(e: Expr) -> None:
    for bounds, envs in ((Bounds(), SAMPLE), (LOOPS, INSIDE)):
        low, high = interval(rebuilt(e), bounds)
        for env in envs:
            v = value(e, env)
            assert low is None or low <= v, (e, low, env)
            assert high is None or v <= high, (e, high, env)


@given(conditions())
def test_proved_conditions_hold_at_every_point(c: Expr) -> None:
    if can_prove(c, LOOPS):
        assert all(value(c, env) for env in INSIDE)


@given(indices(6), st.integers(-2, 30))
def test_expressions_proved_non_negative_are_non_negative(e: Expr, offset: int) -> None:
    shifted = rebuilt(e) + offset
    if can_prove_non_negative(shifted, LOOPS):
        assert min(value(shifted, env) for env in INSIDE) >= 0


@given(conditions(3), indices(5), st.integers(0, 12))
def test_proofs_under_facts_hold_where_the_facts_hold(fact: Expr, e: Expr, offset: int) -> None:
    bounds = LOOPS.assuming(fact)
    goal = rebuilt(e) + offset >= 0
    if can_prove(goal, bounds):
        assert all(value(goal, env) for env in INSIDE if value(fact, env))
    simpler = simplify(e, bounds)
    assert all(value(simpler, env) == value(e, env) for env in INSIDE if value(fact, env))


@given(indices(6), indices(4), st.sampled_from(VARIABLES))
def test_substitution_is_composition(e: Expr, replacement: Expr, var: Var) -> None:
    if var in (N, M):  # divisors must stay positive
        replacement = const(3)
    result = substitute(e, {var: replacement})
    for env in SAMPLE[::3]:
        assert value(result, env) == value(e, {**env, var: int(value(replacement, env))})


@given(indices(8), indices(4))
def test_division_of_polynomials(a: Expr, d: Expr) -> None:
    p, q = poly.polynomial(rebuilt(a)), poly.polynomial(rebuilt(d))
    if not q:
        return
    quotient, rest = poly.divide(p, q)
    assert poly.add(poly.multiply(quotient, q), rest) == p


X, Y = Var("x"), Var("y")
FORMS: list[tuple[Expr, str]] = [
    (X * 16 + Y - Y, "x * 16"),
    ((X * 16 + 3) // 16, "x"),
    ((X * 16 + 3) % 16, "3"),
    ((X * N + Y * N) // N, "x + y"),
    (X // 4 // 8, "x // 32"),
    (X // 8 * 8 + X % 8, "x"),
    (X - X // 8 * 8, "x % 8"),
    (X % 8 - X % 8 // 4 * 4, "x % 4"),
    (X % 32 % 8, "x % 8"),
    (X - X % 8, "x // 8 * 8"),
    (X * 4 + 3 - (X + 1) % 8, "(x + 1) // 8 * 8 + x * 3 + 2"),
    (X // N // M, "x // (M * N)"),
    (X // 2 % 3 * 2 + X % 2, "x % 6"),
    (X % 2 + X % 4 // 2 * 2, "x % 4"),
    ((X * 3 + Y) // 2 * 2 + (X + Y) % 2, "x * 3 + y"),
    ((X * 6 + 4) % 4, "x % 2 * 2"),
    ((X * 6 + 3) // 4, "(x * 3 + 1) // 2"),
    (ceildiv(N * 16, 16), "N"),
    (-X + X * 3, "x * 2"),
    (2 - X, "x * (-1) + 2"),
    (X * -3 - 2, "x * (-3) - 2"),
    (minimum(N, N + 1), "N"),
    (maximum(X, X - 2), "x"),
    (minimum(X, Y), "min(x, y)"),
    (conjunction(X < X + 1, Y < 3), "y < 3"),
]


@pytest.mark.parametrize(("e", "text"), FORMS, ids=[t for _, t in FORMS])
def test_simplified_forms(e: Expr, text: str) -> None:
    assert str(e) == text


WITHIN = Bounds().with_loop(X, N).with_loop(Y, const(4))
FORMS_WITHIN: list[tuple[Expr, str]] = [
    ((X * 4 + Y) // 8, "x // 2"),
    ((X * 4 + Y) % 8, "x % 2 * 4 + y"),
    ((Y * N + X) // (N * 2), "y // 2"),
    ((Y * N + X) % (N * 2), "y % 2 * N + x"),
    ((Y * N + X) // (N * 2) * (N * 2) + (Y * N + X) % (N * 2), "N * y + x"),
]


@pytest.mark.parametrize(("e", "text"), FORMS_WITHIN, ids=[t for _, t in FORMS_WITHIN])
def test_simplified_forms_within_bounds(e: Expr, text: str) -> None:
    assert str(simplify(e, WITHIN)) == text


@given(
    st.lists(st.integers(1, 5).map(const) | st.sampled_from((N, N * 2)), min_size=1, max_size=4),
    st.lists(st.integers(1, 4), min_size=1, max_size=3),
    st.lists(st.sampled_from(("floordiv", "mod")), min_size=1, max_size=3),
)
def test_mixed_radix_digits_recombine(sizes: list[Expr], divisors: list[int], ops: list[BinaryOp]) -> None:
    """Quotients and remainders of sums of scaled loop variables, which split and fused dimensions are made of."""
    bounds = Bounds()
    raw: Expr = const(0)
    variables = [Var(f"d{k}") for k in range(len(sizes))]
    for v, n in zip(variables, sizes, strict=True):
        bounds = bounds.with_loop(v, n)
        raw = Binary("add", Binary("mul", raw, n), v)
    for op, d in zip(ops, divisors, strict=False):
        raw = Binary(op, raw, Binary("mul", const(d), sizes[-1]))
    simple = simplify(raw, bounds)
    for n in (1, 2, 3):
        ranges = {v: (0, value(e, {N: n}) - 1) for v, e in zip(variables, sizes, strict=True)}
        for env in points({**ranges, N: (n, n)}):
            assert value(simple, env) == value(raw, env)


PROOFS = [
    (I * 16 + J < N * 16, Bounds().with_loop(I, N).with_loop(J, const(16))),
    (I * M + J < N * M, Bounds().with_loop(I, N).with_loop(J, M)),
    (K // M < N, Bounds().with_loop(K, N * M)),
    (K % M < M, Bounds().with_loop(K, N * M)),
    (K // M // N < 7, Bounds().with_loop(K, N * M * 7)),
    (ceildiv(N, 16) > I, Bounds().with_loop(I, N).with_loop(J, const(16)).assuming(I * 16 + J < N)),
    (I * 8 + J < N, Bounds().with_loop(I, N // 8).with_loop(J, const(8))),
    (N // 8 * 8 + J < N, Bounds().with_loop(J, N % 8)),
    (
        (M + 1) // 16 * 16 + I * 2 + J < M + 6,
        Bounds().with_loop(I, (M + 1) // 2 - (M + 1) // 16 * 8).with_loop(J, const(7)),
    ),
    (minimum(I, M) <= M, Bounds()),
    (minimum(maximum(I, const(0)), N - 1) < N, Bounds()),
    (minimum(maximum(I, const(0)), N - 1) >= 0, Bounds()),
    (I - 1 >= 0, Bounds().with_loop(I, N).assuming(conjunction(I < 3, I >= 1))),
    (Binary("or", I < 0, I < N), Bounds().with_loop(I, N)),
]


@pytest.mark.parametrize(("goal", "bounds"), PROOFS, ids=[str(g) for g, _ in PROOFS])
def test_inequalities_of_schedules_are_proved(goal: Expr, bounds: Bounds) -> None:
    assert can_prove(goal, bounds)


def test_false_inequalities_are_not_proved() -> None:
    bounds = Bounds().with_loop(I, N)
    for goal in (I < N - 1, I >= 1, I * 2 < N, N >= 2, I < M):
        assert not can_prove(goal, bounds)


@pytest.mark.parametrize(
    ("factor", "tiles"), [(195, (10, 4)), (7, (4, 2)), (15, (10, 4, 3)), (45, (6, 2)), (9, (6, 2))]
)
def test_full_tiles_and_remainder_add_up_to_the_extent(factor: int, tiles: tuple[int, ...]) -> None:
    """A quotient and a remainder are digits of one number, also where reduced coefficients decide the remainder."""
    parts, left = const(0), N * factor
    for tile in tiles:
        parts, left = parts + left // tile * tile, left % tile
    assert parts + left is N * factor


def test_quotient_folds_with_its_remainder() -> None:
    e = N % 2 * 5
    assert (str(e // 4), str(e % 4)) == ("N % 2", "N % 2")
    for n in range(1, 9):
        assert evaluate_expr(e // 4, Environment({N: n}, {})) == n % 2 * 5 // 4


def test_remainder_by_a_divisor_of_unknown_sign_is_unbounded() -> None:
    """int64 data are expressions too: -7 % -3 is -1."""
    assert interval(X % Y) == (None, None)
    assert interval(X // Y, Bounds().with_loop(X, const(9))) == (None, None)
    assert not can_prove(X % Y >= 0)


def test_select_arms_are_simplified_under_the_condition() -> None:
    e = Select(X < 4, maximum(X, const(4)), maximum(X, const(4)) + 1)
    assert str(simplify(e, Bounds())) == "select(x < 4, 4, x + 1)"
    assert str(simplify(Select(X < 4, Y, maximum(X, const(5))), Bounds())) == "select(x < 4, y, max(5, x))"


def test_conditions_fold() -> None:
    assert conjunction() is TRUE
    assert conjunction(X < Y, FALSE) is FALSE
    assert conjunction(TRUE, X < Y) is (X < Y)
    assert X.equals(X) is TRUE
    assert (X + 1).equals(X) is FALSE


@st.composite
def _nested_digits(draw: st.DrawFn) -> Expr:
    """A sum of digits of digits of one symbol, as tails of tails of loops have them."""
    total: Expr = SIZE * draw(st.integers(-2, 2)) + draw(st.integers(-4, 4))
    for _ in range(draw(st.integers(1, 3))):
        digit: Expr = SIZE + draw(st.integers(0, 3))
        for _ in range(draw(st.integers(1, 3))):
            d = draw(st.sampled_from([2, 3, 4, 8]))
            digit = digit // d if draw(st.booleans()) else digit % d
        total = total + digit * draw(st.sampled_from([-8, -4, -2, -1, 1, 2, 4, 8]))
    return total


SIZE = Symbol("size", 1, 70)


@settings(max_examples=300)
@given(_nested_digits())
def test_proofs_about_nested_digits_hold(e: Expr) -> None:
    values = [int(evaluate_expr(e, Environment({SIZE: n}, {}))) for n in range(1, 71)]
    for shift in (0, -min(values), -min(values) - 1):
        if can_prove_non_negative(e + shift, Bounds()):
            assert min(values) + shift >= 0, f"{e + shift} is -1 somewhere"


def test_quotient_with_different_operands_cancels() -> None:
    q = (SIZE + 1) // 2 % 4
    assert not can_prove_non_negative(q // 2 * 2 + (SIZE + 1) // 8 * 8 - SIZE, Bounds())
    assert can_prove_non_negative(q + (SIZE + 1) // 8 * 4 - (SIZE + 1) // 2, Bounds())
