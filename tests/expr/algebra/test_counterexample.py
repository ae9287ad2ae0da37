"""Tests of goals that are refuted by an example."""

from itertools import product

import numpy as np
import pytest

from tilewright.expr.algebra.bounds import NO_BOUNDS, Bounds
from tilewright.expr.algebra.counterexample import has_counterexample
from tilewright.expr.algebra.elimination import is_implied
from tilewright.expr.algebra.polynomial import polynomial
from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.nodes import Expr, Symbol, Var, const
from tilewright.expr.operations import minimum
from tilewright.expr.traversal import free_vars

ROW, COL, SIZE = Var("i"), Var("j"), Symbol("N", 1, 64)
INSIDE = Bounds.from_loops(((ROW, const(8)), (COL, ROW + 1)))


@pytest.mark.parametrize(
    ("goal", "exists"),
    [
        (ROW - 1, True),
        (6 - ROW, True),
        (ROW - COL, False),
        (7 - ROW, False),
        (COL - ROW, False),  # not at the first and last values
        (SIZE - ROW - 1, True),
        (minimum(ROW, const(3)) - 1, True),
        (ROW // 3 - 1, True),
        (ROW % 3, False),
    ],
)
def test_counterexample_at_an_end_of_a_range(goal: Expr, exists: bool) -> None:
    assert has_counterexample(polynomial(goal), INSIDE) == exists


def test_points_that_violate_a_fact_are_skipped() -> None:
    assert has_counterexample(polynomial(ROW - 2), INSIDE)
    assert not has_counterexample(polynomial(ROW - 2), INSIDE.assuming(ROW >= 2))


def test_points_of_empty_ranges_are_skipped() -> None:
    inside = Bounds.from_loops(((ROW, const(4)), (COL, ROW)))
    assert not has_counterexample(polynomial(ROW - 1), inside), "where i is 0 there is no j"
    assert is_implied(polynomial(ROW - 1), inside.assuming(COL <= ROW - 1))


def test_division_by_zero_is_no_counterexample() -> None:
    size = Symbol("size", 0, 4)
    assert has_counterexample(polynomial(size - 1), NO_BOUNDS)
    assert not has_counterexample(polynomial(size - 1 + SIZE // size), NO_BOUNDS)


def test_unbounded_symbols_are_tried_large_and_one() -> None:
    size = Var("size")
    assert has_counterexample(polynomial(size - 2), NO_BOUNDS)
    assert has_counterexample(polynomial(500 - size), NO_BOUNDS)


def random_expr(rng: np.random.Generator, depth: int = 3) -> Expr:
    if not depth or rng.random() < 0.2:
        return (ROW, COL, SIZE, const(int(rng.integers(-4, 9))))[int(rng.integers(4))]
    a, b = random_expr(rng, depth - 1), random_expr(rng, depth - 1)
    match int(rng.integers(6)):
        case 0:
            return a + b
        case 1:
            return a - b
        case 2:
            return a * b
        case 3:
            return a // int(rng.integers(1, 5))
        case 4:
            return a % int(rng.integers(1, 5))
        case _:
            return minimum(a, b)


def test_every_counterexample_is_a_point_where_the_goal_is_false() -> None:
    """By running through all values: what is refuted is negative somewhere, where all that is known holds."""
    small = Symbol("N", 1, 5)
    count = 0
    for seed in range(400):
        rng = np.random.default_rng(seed)
        renamed: dict[Var, Expr] = {SIZE: small}
        goal, fact = (substitute(random_expr(rng), renamed) for _ in range(2))
        bounds = Bounds.from_loops(((ROW, small), (COL, const(3) + ROW % 2))).assuming(fact >= 0)
        if not has_counterexample(polynomial(goal), bounds):
            continue
        count += 1
        fails = False
        for n, i, j in product(range(1, 6), range(5), range(4)):
            at: dict[Var, Expr] = {small: const(n), ROW: const(i), COL: const(j)}
            values = [substitute(e, at) for e in (goal, *bounds.facts, const(n) - 1 - i, const(2) + i % 2 - j)]
            assert not any(free_vars(v) for v in values)
            negative, *violated = (polynomial(v).get((), 0) < 0 for v in values)
            fails |= negative and not any(violated)
        assert fails, f"{goal} under {bounds.facts}"
    assert count > 80
