"""Random expressions with values to compare against: integer index expressions and expressions of every type."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from hypothesis import strategies as st

from tilewright.expr.algebra.bounds import Bounds
from tilewright.expr.nodes import Binary, Const, Expr, Select, Symbol, Unary, Var, const

I, J, K = Var("i"), Var("j"), Var("k")  # noqa: E741 - the axes of matrices
N, M = Symbol("N", 1, 4), Symbol("M", 0, 3)
VARIABLES = (I, J, K, N, M)

Env = Mapping[Var, int]


def value(e: Expr, env: Env) -> int | bool:
    """The value of an integer expression, straight from the definition of its operations."""
    match e:
        case Const(v):
            return v  # type: ignore[return-value]
        case Var():
            return env[e]
        case Select(c, a, b):
            return value(a if value(c, env) else b, env)
        case Unary("not", a):
            return not value(a, env)
        case Binary(op, a, b):
            x, y = value(a, env), value(b, env)
            return {
                "add": lambda: x + y, "sub": lambda: x - y, "mul": lambda: x * y, "floordiv": lambda: x // y,
                "mod": lambda: x % y, "min": lambda: min(x, y), "max": lambda: max(x, y), "lt": lambda: x < y,
                "le": lambda: x <= y, "gt": lambda: x > y, "ge": lambda: x >= y, "eq": lambda: x == y,
                "ne": lambda: x != y, "and": lambda: x and y, "or": lambda: x or y,
            }[op]()  # fmt: skip
        case _:
            raise AssertionError(e)


def points(ranges: Mapping[Var, tuple[int, int]]) -> Iterator[dict[Var, int]]:
    """Every assignment of values in inclusive ranges."""
    for values in product(*(range(lo, hi + 1) for lo, hi in ranges.values())):
        yield dict(zip(ranges, values, strict=True))


LOOPS = Bounds().with_loop(I, N).with_loop(J, const(5)).with_loop(K, N * 2)


def points_of_loops() -> Iterator[dict[Var, int]]:
    """Every assignment that `LOOPS` allows: 0 <= i < N, 0 <= j < 5, 0 <= k < 2*N."""
    for n, m in product(range(1, 5), range(4)):
        for i, j, k in product(range(n), range(5), range(2 * n)):
            yield {I: i, J: j, K: k, N: n, M: m}


def _positive() -> st.SearchStrategy[Expr]:
    sizes = (N, Binary("mul", N, const(2)), Binary("floordiv", Binary("add", N, const(3)), const(2)))
    return st.one_of(st.integers(1, 12).map(const), st.sampled_from(sizes))


def _grow(inner: st.SearchStrategy[Expr], variables: Sequence[Var]) -> st.SearchStrategy[Expr]:
    raw = st.sampled_from(("add", "add", "sub", "sub", "min", "max"))
    scaled = st.builds(lambda a, c: Binary("mul", a, c), inner, st.integers(-6, 6).map(const))
    divided = st.builds(lambda op, a, d: Binary(op, a, d), st.sampled_from(("floordiv", "mod")), inner, _positive())
    return st.one_of(
        st.builds(lambda op, a, b: Binary(op, a, b), raw, inner, inner),
        scaled,
        divided,
        st.builds(lambda a, b: Binary("mul", a, b), inner, st.one_of(inner, st.sampled_from(variables))),
        st.builds(lambda a: Binary("mul", a, a), inner),
    )


def indices(size: int = 8, variables: Sequence[Var] = VARIABLES) -> st.SearchStrategy[Expr]:
    """Unsimplified int64 expressions over variables; divisors are positive."""
    leaves = st.one_of(st.sampled_from(variables), st.integers(-9, 20).map(const))
    return st.recursive(leaves, lambda inner: _grow(inner, variables), max_leaves=size)


def conditions(size: int = 5) -> st.SearchStrategy[Expr]:
    """Unsimplified comparisons and conjunctions."""
    comparison = st.builds(
        lambda op, a, b: Binary(op, a, b),
        st.sampled_from(("lt", "le", "gt", "ge", "eq", "ne")), indices(size), indices(size),
    )  # fmt: skip
    return st.recursive(
        comparison,
        lambda c: st.builds(lambda op, a, b: Binary(op, a, b), st.sampled_from(("and", "or")), c, c),
        max_leaves=2,
    )


def selects(size: int = 5) -> st.SearchStrategy[Expr]:
    """Integer expressions with a lazy select."""
    return st.builds(lambda c, a, b: Select(c, a, b), conditions(3), indices(size), indices(size))
