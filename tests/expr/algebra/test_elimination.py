"""The elimination prover against brute force: what it says follows, follows."""

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.expr.strategies import LOOPS, I, J, K, M, N, conditions, indices, points_of_loops, selects, value

from tilewright.expr.algebra.bounds import Bounds
from tilewright.expr.algebra.elimination import is_implied
from tilewright.expr.algebra.polynomial import polynomial
from tilewright.expr.algebra.prover import can_prove_le, can_prove_lt
from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.nodes import Binary, Expr, Select, Symbol, Var, const
from tilewright.expr.operations import conjunction, maximum, minimum

INSIDE = list(points_of_loops())[::5]


def rebuilt(e: Expr) -> Expr:
    return substitute(e, {Var("unused"): const(0)})


@given(st.one_of(indices(7), selects(4)), st.integers(-2, 30))
def test_goals_implied_by_ranges_hold_at_every_point(e: Expr, offset: int) -> None:
    goal = rebuilt(e) + offset
    if is_implied(polynomial(goal), LOOPS):
        assert min(value(goal, env) for env in INSIDE) >= 0


@settings(max_examples=150)
@given(st.lists(conditions(4), min_size=1, max_size=3), indices(5), st.integers(0, 12))
def test_goals_implied_by_facts_hold_where_the_facts_hold(facts: list[Expr], e: Expr, offset: int) -> None:
    bounds, goal = LOOPS.assuming(conjunction(*map(rebuilt, facts))), rebuilt(e) + offset
    if is_implied(polynomial(goal), bounds):
        here = [env for env in INSIDE if all(value(f, env) for f in facts)]
        assert all(value(goal, env) >= 0 for env in here)


def test_case_splits_of_select_and_minimum() -> None:
    bounds = Bounds.from_loops(((I, const(9)), (J, const(9))))
    assert is_implied(polynomial(Select(I < J, J - I, I - J) + 0), bounds)
    assert is_implied(polynomial(I + J - minimum(I, J) * 2), bounds)
    assert not is_implied(polynomial(Select(I < J, I - J, J - I) + 0), bounds)


def test_contradictory_facts_imply_every_goal() -> None:
    bounds = Bounds.from_loops(((I, const(9)),)).assuming(conjunction(I < 3, I > 5))
    assert is_implied({(): -1}, bounds)


def test_elimination_of_a_large_system_terminates() -> None:
    """Limits end a proof that would take long; nothing is said then."""
    bounds = LOOPS
    for k in range(12):
        bounds = bounds.assuming(Binary("mod", I * (k + 2) + J * K, const(k + 3)) < N * M + Binary("floordiv", K, N))
    assert not is_implied(polynomial(N * M * K * I - J), bounds)


def test_cases_of_sizes_are_split_before_those_of_elements() -> None:
    """Every second row from the third one on, if there are any, mirrored at both ends."""
    n, row = Var("n"), Var("row")
    count = (n - minimum(2, n) + 1) // 2
    mirrored = Select(row - 1 < 0, 1 - row, row - 1)
    guard = maximum(minimum(mirrored, count - 1), 0) < count
    bounds = Bounds.from_loops(((row, count + 1),)).assuming(guard)
    assert can_prove_le(const(3), n, bounds)
    assert can_prove_lt(maximum(minimum(mirrored, (n + 1) // 2 - 2), 0) * 2 + 2, n, bounds)
    assert not can_prove_le(const(4), n, bounds)
    assert not can_prove_lt(maximum(minimum(mirrored, (n + 1) // 2 - 2), 0) * 2 + 3, n, bounds)


def test_first_atoms_are_split_before_the_smallest() -> None:
    """Small minima in facts about another dimension do not use up the splits."""
    n, m, row, column = Symbol("n", 1, 4096), Symbol("m", 1, 4096), Var("row"), Var("column")
    bounds = Bounds.from_loops(((row, const(8)), (column, const(8)))).assuming(row < minimum(8, n))
    bounds = bounds.assuming(column < minimum(8, m)).assuming(n > 1)
    assert can_prove_lt(Select(row - 1 < 0, 1 - row, row - 1), n, bounds)
    assert can_prove_lt(Select(row < n - 1, row, 2 * n - row - 2), n, bounds)


def test_minima_and_maxima_of_the_goal_are_split_before_those_of_the_facts() -> None:
    """Some row of all but the last, mirrored, of rows that there may be none of."""
    n, row = Symbol("n", 0, None), Var("row")
    size = minimum(maximum(n - 2, 0) + 1, n)
    bounds = Bounds({row: (const(-9), const(9))})
    inside = bounds.assuming(maximum(minimum(size - 1, row), 0) < size)
    index = maximum(minimum(maximum(n - 2, 0), row), 0)
    assert can_prove_lt(index, size, inside)
    assert not can_prove_lt(index, size, bounds)
    assert not can_prove_lt(index + 1, size, inside)
