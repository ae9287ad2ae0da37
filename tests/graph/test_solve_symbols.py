"""Solutions of constraints on symbols."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.errors import ModelError
from tilewright.expr import dtype
from tilewright.expr.evaluate import Environment, evaluate_expr
from tilewright.expr.nodes import Const, Symbol, const
from tilewright.expr.operations import maximum, minimum
from tilewright.graph.ir import Graph, TensorType, Value
from tilewright.graph.program import Constraint
from tilewright.graph.solve_symbols import MAX_SIZE, solve_symbols, substitute_symbols

N, M, H = Symbol("n", 1, 1000), Symbol("m", 0, 64), Symbol("h", 1, 10**6)
GRAPH = Graph(
    "g", (Value("x", TensorType(dtype.float32, (N, M, H))),), (), {}, (), (N, M, H), symbol_names={"h": "height"}
)


def refined(*conditions):
    return solve_symbols(GRAPH, [Constraint(c, f"node {k}") for k, c in enumerate(conditions)]).inputs


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (N.equals(M), {N: Symbol("n", 1, 64), M: Symbol("n", 1, 64)}),
        (N.equals(7), {N: const(7)}),
        (minimum(512, N).equals(N), {N: Symbol("n", 1, 512)}),
        (N.equals(maximum(3, N)), {N: Symbol("n", 3, 1000)}),
        ((H + 31) // 32 >= 2, {H: Symbol("h", 33, 10**6)}),
        (((H + 15) // 48).equals(1), {H: Symbol("h", 33, 80)}),
        (((H + 15) // 48 * N).equals(N), {H: Symbol("h", 33, 80)}),
        (((H + 15) // 48 * N * 120) <= N * 360, {H: Symbol("h", 1, 176)}),
        (N < 5, {N: Symbol("n", 1, 4)}),
        (const(0) <= 10 - N * 2, {N: Symbol("n", 1, 5)}),
        ((N % 4).equals(0), {}),
        (((H + 15) // 16).equals((H + 31) // 32 * 2), {}),
        ((N + M).equals(H), {}),
        (N.equals(Symbol("other", 1, 5)), {}),
    ],
)
def test_refinement(condition, expected):
    assert refined(condition) == expected


def test_several_conditions():
    assert refined(N.equals(M), M < 9, H >= N, H.equals(N)) == {v: Symbol("n", 1, 8) for v in (N, M, H)}


def test_symbols_are_replaced_in_inputs():
    graph = substitute_symbols(GRAPH, refined(N.equals(M), H.equals(3)))
    assert str(graph.inputs[0].type) == "float32[n, n, 3]"
    assert [(s.name, s.lo, s.hi) for s in graph.symbols] == [("n", 1, 64)]


def test_unsatisfiable_conditions():
    with pytest.raises(ModelError) as error:
        refined((H // 2 * 3).equals(4), M.equals(70), N.equals(3), N.equals(4))
    assert [str(p) for p in error.value.problems] == [
        "[shape] model: node 0: dimension 'height' has no such size in its range 1..1000000",
        "[shape] model: node 1: holds for no sizes in the declared ranges",
        "[shape] model: node 3: holds for no sizes in the declared ranges",
    ]


OPS = st.sampled_from(["le", "eq", "lt"])


@given(st.integers(1, 7), st.integers(0, 40), st.integers(1, 50), st.integers(-3, 30), OPS)
def test_solutions_keep_all_satisfying_sizes(factor, offset, divisor, bound, op):
    symbol = Symbol("s", 1, 60)
    graph = Graph("g", (Value("x", TensorType(dtype.float32, (symbol,))),), (), {}, (), (symbol,))
    size = (symbol * factor + offset) // divisor
    condition = {"le": size <= bound, "eq": size.equals(bound), "lt": bound - size < 0}[op]
    holds = {n for n in range(1, 61) if evaluate_expr(condition, Environment({symbol: n}, {}))}
    if isinstance(condition, Const):
        return
    try:
        new = solve_symbols(graph, [Constraint(condition, "c")]).inputs.get(symbol, symbol)
    except ModelError:
        assert not holds
        return
    left = {new.value} if isinstance(new, Const) else set(range(new.lo, new.hi + 1))
    assert left == holds


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ((1, MAX_SIZE), (0, 9), ("b", 0, 9)),
        ((0, 9), (1, MAX_SIZE), ("a", 0, 9)),
        ((1, MAX_SIZE), (1, 10**8), ("b", 1, 10**8)),
        ((1, MAX_SIZE), (0, MAX_SIZE), ("a", 0, MAX_SIZE)),
        ((2, MAX_SIZE), (1, 9), ("a", 2, 9)),
    ],
)
def test_declared_range_takes_precedence_over_a_default_one(first, second, expected):
    a, b = Symbol("a", *first), Symbol("b", *second)
    graph = Graph("g", (Value("x", TensorType(dtype.float32, (a, b))),), (), {}, (), (a, b))
    mapping = solve_symbols(graph, [Constraint(a.equals(b), "sum")]).inputs
    assert {mapping.get(v, v) for v in (a, b)} == {Symbol(*expected)}
