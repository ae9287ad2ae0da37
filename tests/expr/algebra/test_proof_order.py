"""What the prover proves depends on the goal and the bounds alone, not on what was asked before."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.expr.strategies import LOOPS, I, J, M, N, indices

from tilewright.expr.algebra.bounds import Bounds
from tilewright.expr.algebra.prover import can_prove_non_negative, is_trivially_non_negative
from tilewright.expr.nodes import Binary, Expr, Select, const
from tilewright.expr.operations import minimum
from tilewright.kernel_caches import forget_derived

DIVISORS = (N - M, N * 3 - M * 2, N * M - I, (N - M) // const(2), N * 2 - M // (N - M), M - J % (N * 3 - M * 2))
"""Divisors that no interval shows to be positive; some of them divide by others."""

Question = tuple[Callable[[Expr, Bounds], bool], Expr]


def answers(questions: Sequence[Question], facts: Sequence[Expr]) -> list[bool]:
    """The answers to questions that are asked in this order, with nothing known before."""
    forget_derived(0)
    # that of a constant outlives the caches of derived values
    bounds = replace(LOOPS, proof_cache={})
    for fact in facts:
        bounds = bounds.assuming(fact)
    return [ask(goal, bounds) for ask, goal in questions]


def quotients() -> st.SearchStrategy[Expr]:
    """Quotients and remainders of divisors that take a proof, with a term beside."""
    operation = st.sampled_from(("floordiv", "mod"))
    divided = st.builds(lambda op, a, d: Binary(op, a, d), operation, indices(3), st.sampled_from(DIVISORS))
    return st.builds(lambda q, d, c: q + d * c, divided, st.sampled_from(DIVISORS), st.integers(-2, 2))


def cases() -> st.SearchStrategy[Expr]:
    """Differences that are split into cases, which elimination alone does."""
    a, b = indices(2), indices(2)
    return st.builds(lambda a, b, c: a + b - minimum(a, b) * 2 + c, a, b, st.integers(0, 1))


@settings(max_examples=50)
@given(st.data())
def test_the_order_of_questions_changes_no_answer(data: st.DataObject) -> None:
    goal = st.one_of(quotients(), st.sampled_from(DIVISORS), cases())
    goals = data.draw(st.lists(goal, min_size=2, max_size=4))
    facts = [e >= 1 for e in data.draw(st.lists(st.one_of(quotients(), st.sampled_from(DIVISORS)), max_size=3))]
    provers = (is_trivially_non_negative, can_prove_non_negative)
    questions = data.draw(st.permutations([(ask, goal) for goal in goals for ask in provers]))
    assert answers(questions, facts) == [answers([q], facts)[0] for q in questions]


def test_what_elimination_proves_is_not_trivial_afterwards() -> None:
    for goal in (I + J - minimum(I, J) * 2, Select(I < J, J - I, I - J) + 0):
        assert answers([(can_prove_non_negative, goal), (is_trivially_non_negative, goal)], ()) == [True, False]
