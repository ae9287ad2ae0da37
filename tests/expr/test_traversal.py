"""Replacement of variables without simplification: values as by substitution, and the operations as they were."""

from hypothesis import given
from hypothesis import strategies as st
from tests.expr.strategies import VARIABLES, I, J, K, M, N, indices, points, selects, value

from tilewright.expr.nodes import Binary, Expr, Var, const
from tilewright.expr.traversal import post_order, replace_variables

SAMPLE = list(points({I: (-3, 4), J: (-2, 3), K: (-1, 2), N: (1, 4), M: (0, 3)}))[::13]


@given(st.one_of(indices(8), selects()), indices(4), st.sampled_from(VARIABLES))
def test_replacement_is_composition(e: Expr, replacement: Expr, var: Var) -> None:
    if var in (N, M):  # divisors must stay positive
        replacement = const(3)
    result = replace_variables(e, {var: replacement})
    for env in SAMPLE:
        assert value(result, env) == value(e, {**env, var: int(value(replacement, env))})


@given(st.one_of(indices(8), selects()))
def test_replacement_by_other_names_keeps_every_operation(e: Expr) -> None:
    others: dict[Var, Expr] = {v: v.renamed(f"{v.name}_0") for v in VARIABLES}
    result = replace_variables(e, others)
    assert [type(n) for n in post_order(result)] == [type(n) for n in post_order(e)]
    back: dict[Var, Expr] = {w: v for v, w in others.items() if isinstance(w, Var)}
    assert replace_variables(result, back) is e


def test_nothing_is_simplified() -> None:
    e = Binary("floordiv", Binary("mul", I, const(4)), const(4))
    assert replace_variables(e, {I: J}) is Binary("floordiv", Binary("mul", J, const(4)), const(4))
    assert replace_variables(e, {K: J}) is e
