"""How far simplification goes: the forms that schedules of blocked tensors make, and what must become of them."""

import pytest
from tests.expr.strategies import points, value

from tilewright.expr.algebra.bounds import Bounds
from tilewright.expr.algebra.prover import can_prove
from tilewright.expr.algebra.simplify import simplify
from tilewright.expr.nodes import Binary, BinaryOp, Expr, Select, Symbol, Unary, Var, as_expr, const
from tilewright.expr.operations import ceildiv

A, B, C, F, I, J, K = (Var(name) for name in "abcfijk")  # noqa: E741
M, N, S = Symbol("M", 1, 5), Symbol("N", 1, 12), Symbol("S", 1, 192)
Size = Expr | int


def op(name: BinaryOp, x: Size, y: Size) -> Expr:
    return Binary(name, as_expr(x), as_expr(y))


def div(x: Size, d: Size) -> Expr:
    return op("floordiv", x, d)


def mod(x: Size, d: Size) -> Expr:
    return op("mod", x, d)


def least(x: Size, y: Size) -> Expr:
    return op("min", x, y)


def most(x: Size, y: Size) -> Expr:
    return op("max", x, y)


def loops(**extents: Size) -> Bounds:
    return Bounds.from_loops((Var(name), as_expr(n)) for name, n in extents.items())


FORMS: list[tuple[Expr, Bounds, str]] = [
    # digits of what was split
    (div(A * 16 + B, 16), loops(a=10, b=16), "a"),
    (mod(A * 16 + B, 16), loops(a=10, b=16), "b"),
    (mod(A * 16 + B, 48), loops(a=3, b=16), "a * 16 + b"),
    (mod(A * 16 + B, 48), loops(a=9, b=16), "a % 3 * 16 + b"),
    (div(A * 16 + B, 48), loops(a=9, b=16), "a // 3"),
    (div(A * 4 + B, 8), loops(a=8, b=4), "a // 2"),
    (mod(A * 4 + B, 8), loops(a=8, b=4), "a % 2 * 4 + b"),
    (div(A * 16 + B + 16, 16), loops(a=3, b=16), "a + 1"),
    (div(A * 16 + B - 16, 16), loops(a=3, b=16), "a - 1"),
    (mod(A + B * 8 + 5, 8), loops(a=3, b=9), "a + 5"),
    # nested splits
    (div(A * 8 + B * 2 + C, 8), loops(a=4, b=4, c=2), "a"),
    (mod(A * 8 + B * 2 + C, 8), loops(a=4, b=4, c=2), "b * 2 + c"),
    (div(mod(A * 8 + B * 2 + C, 8), 2), loops(a=4, b=4, c=2), "b"),
    (div(A * 64 + B * 4 + C, 16), loops(a=4, b=16, c=4), "b // 4 + a * 4"),
    (mod(A * 64 + B * 4 + C, 16), loops(a=4, b=16, c=4), "b % 4 * 4 + c"),
    (mod(div(A * 16 + B, 4), 4), loops(a=7, b=16), "b // 4"),
    (div(mod(A * 16 + B, 64), 16), loops(a=7, b=16), "a % 4"),
    (div(I * 12 + J * 4 + K, 6), loops(i=4, j=2, k=2), "i * 2"),
    # fused loops
    (div(F, M) * M + mod(F, M), loops(f=N * M), "f"),
    (div(A * M + B, M), loops(a=N, b=M), "a"),
    (mod(A * M + B, M), loops(a=N, b=M), "b"),
    (div(mod(F, 32), 8) * 8 + mod(F, 8), loops(f=256), "f % 32"),
    (div(div(F, 4), 8), loops(f=256), "f // 32"),
    (mod(div(F, 4), 8) * 4 + mod(F, 4), loops(f=256), "f % 32"),
    (mod(mod(F, 32), 8), loops(f=256), "f % 8"),
    (div(F, N * M), loops(f=N * M), "0"),
    (mod(F, N * M), loops(f=N * M), "f"),
    (mod(div(F, M), N), loops(f=N * M), "f // M"),
    (div(A * N * M + B * M + C, M), loops(a=4, b=N, c=M), "N * a + b"),
    (mod(div(A * N * M + B * M + C, M), N), loops(a=4, b=N, c=M), "b"),
    # digits keep their source, so that they can be put together again
    (mod(A * 119 + B, 28), loops(a=4, b=119), "(a * 119 + b) % 28"),
    (div(A * 119 + B, 28) * 28 + mod(A * 119 + B, 28), loops(a=4, b=119), "a * 119 + b"),
    (div(A + 15, 16), loops(a=20).assuming(op("and", A >= 1, A < 17)), "1"),
    (div(A + 15, 16), loops(a=20).assuming(op("and", A >= 1, A < 18)), "(a + 15) // 16"),
    # sizes
    (ceildiv(N * 16, 16), loops(), "N"),
    (div(N * 16 + 15, 16), loops(), "N"),
    (mod(N * 16 + A, 16), loops(a=16), "a"),
    (div(N, 4) * 4 + mod(N, 4), loops(), "N"),
    # minima and maxima
    (least(A * 16 + B, N * 16 - 1), loops(a=N, b=16), "a * 16 + b"),
    (least(A, N - 1), loops(a=N), "a"),
    (most(A - 3, 0), loops(a=2), "0"),
    (least(most(A - 1, 0), N - 1), loops(a=N), "max(a - 1, 0)"),
    (least(ceildiv(N, 16) * 16, N), loops(), "N"),
    (most(div(N, 16) * 16, N), loops(), "N"),
    (least(A, least(A, B)), loops(a=10, b=20), "min(a, b)"),
    # negative steps
    (mod(A * -1 + 15, 16), loops(a=16), "a * (-1) + 15"),
    (div(A * -1 + 15, 16), loops(a=16), "0"),
    # conditions
    (A * 16 + B < 160, loops(a=10, b=16), "True"),
    (A * 16 + B < N, loops(a=div(N, 16), b=16), "True"),
    (op("eq", A * 16 + B, -1), loops(a=10, b=16), "False"),
    (op("and", A < 10, A < 5), loops(a=10), "a < 5"),
    (op("and", A < 5, A < 7), loops(a=10), "a < 5"),
    (op("and", A < 7, A < 5), loops(a=10), "a < 5"),
    (op("or", A < 10, A < 5), loops(a=10), "True"),
    (op("or", A < 5, A >= 5), loops(a=10), "True"),
    (Unary("not", op("lt", A, 5)), loops(a=10), "5 <= a"),
    (Select(A < 16, A, B), loops(a=16), "a"),
    (Select(A < 5, Select(A < 7, I, J), K), loops(a=10), "select(a < 5, i, k)"),
    (Select(A < 5, I, Select(A >= 5, J, K)), loops(a=10), "select(a < 5, i, j)"),
]  # fmt: skip


@pytest.mark.parametrize(("e", "bounds", "text"), FORMS, ids=[f"{t} {k}" for k, (_, _, t) in enumerate(FORMS)])
def test_index_forms(e: Expr, bounds: Bounds, text: str) -> None:
    assert str(simplify(e, bounds)) == text


SIXTEENS = loops(a=div(S, 16), b=16).assuming(mod(S, 16).equals(0))
MULTIPLES: list[tuple[Expr, str]] = [
    (mod(S, 16), "0"),
    (mod(S, 8), "0"),
    (mod(S, 32), "S % 32"),
    (div(S, 16) * 16, "S"),
    (div(S, 8) * 8, "S"),
    (ceildiv(S, 16), "S // 16"),
    (ceildiv(S, 16) * 16, "S"),
    (ceildiv(S, 8) * 8 - S, "0"),
    (mod(S * 3 + A, 16), "a"),
    (mod(S + B, 16), "b"),
    (div(S + B, 16), "S // 16"),
    (div(S * 2 + B, 16), "S // 8"),
    (div(S + B + 5, 4), "(b + 1) // 4 + S // 4 + 1"),
    (A * 16 + B < S, "True"),
    (least(A * 16 + B, S - 1), "a * 16 + b"),
]


@pytest.mark.parametrize(("e", "text"), MULTIPLES, ids=[str(e) for e, _ in MULTIPLES])
def test_sizes_assumed_to_be_multiples(e: Expr, text: str) -> None:
    simpler = simplify(e, SIXTEENS)
    assert str(simpler) == text
    for env in points({N: (1, 12), B: (0, 15)}):
        size = env[N] * 16
        for a in range(size // 16):
            here = {**env, S: size, A: a}
            assert value(simpler, here) == value(e, here)


AREA = (ceildiv(Symbol("H", 3, 56), 2) - 1) * (Symbol("W", 3, 56) - 2)
PROOFS: list[tuple[Expr, Bounds]] = [
    # quotients against quotients, under the predicate of a tail
    (div(A + B * 2 + 1, 16) < div(N, 16) + 1, loops(b=ceildiv(N, 2), a=2).assuming(A + B * 2 < N)),
    (div(A + 1, 4) + B < div(N + 2, 4) + 1, loops(b=ceildiv(N, 4), a=4).assuming(A + B * 4 < N)),
    (div(A, 2) + B * 2 + C * 32 < ceildiv(N, 2), loops(c=ceildiv(N, 64), b=16, a=4).assuming(A + B * 4 + C * 64 < N)),
    (ceildiv(N, 2) * 2 > A, loops(a=N * 3).assuming(A < N)),
    # overlapping tiles of a padded axis
    (ceildiv(N, 8) * 8 > A * 3 + B * 6 + C - 1, loops(a=2, b=ceildiv(N, 6), c=3).assuming(A * 3 + B * 6 + C - 1 < N)),
    # products of symbols
    (I * M + J < N * M, loops(i=N, j=M)),
    (N * A + B < N * 6, loops(b=N, a=7).assuming(A < 6)),
    (div(F, M * N) < 7, loops(f=N * M * 7)),
    # remainders that are equal under different names
    (A + div(N * 5, 2) * 2 < N * 5, loops(a=mod(N, 2))),
    (A + div(N * 7 + 4, 3) * 3 < N * 7 + 4, loops(a=mod(N + 1, 3))),
    # a divisor that is positive as a product only
    (div(F, AREA) < 9, loops(f=AREA * 9)),
    (div(F, AREA) >= 0, loops(f=AREA * 9)),
    # tiles shifted inwards
    (least(A * 4, N - 4) + B < N, loops(a=ceildiv(N, 4), b=4)),
    # rows behind the last whole tile, of smaller tiles and single ones, in a copy in panels of the large tile
    (div(div(mod(N, 4), 2) * 2 + A, 4) + div(N, 4) < div(N + 3, 4), loops(a=mod(N, 2))),
    (div(div(mod(N, 12), 4) * 4 + A, 12) + div(N, 12) < div(N + 11, 12), loops(a=mod(N, 4))),
    (div(mod(N, 6), 3) * 3 + A < mod(N, 6), loops(a=mod(N, 3))),
]


@pytest.mark.parametrize(("goal", "bounds"), PROOFS, ids=[str(g) for g, _ in PROOFS])
def test_index_inequalities_are_proved(goal: Expr, bounds: Bounds) -> None:
    assert can_prove(goal, bounds)


def test_multiple_of_one_number_is_not_a_multiple_of_another() -> None:
    assert not can_prove(mod(S, 3).equals(0), SIXTEENS)
    assert str(simplify(div(S, 3) * 3, SIXTEENS)) == "S // 3 * 3"


def test_small_literals_are_cached() -> None:
    assert const(5) is const(5)
    assert const(-7) is as_expr(-7)


@pytest.mark.parametrize(
    ("condition", "bounds"),
    [
        (A + div(N * 5, 2) * 2 < N * 5, loops(a=mod(N, 3))),
        (A + div(N * 7 + 5, 3) * 3 < N * 7 + 4, loops(a=mod(N + 1, 3))),
        (A + div(N * 6, 2) * 2 < N * 6, loops(a=mod(N, 2) + 1)),
        (div(mod(N, 6), 4) * 4 + A < mod(N, 6), loops(a=mod(N, 4))),
    ],
)
def test_false_inequalities_are_not_proved(condition: Expr, bounds: Bounds) -> None:
    assert not can_prove(condition, bounds)
