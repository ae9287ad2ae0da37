"""int64 data wraps: nothing is simplified or proved as if it did not; what cannot wrap is simplified as ever."""

import numpy as np
import pytest
from hypothesis import given, settings
from tests.expr.wrapping import STEPS, Step, followed, leaves, values

from tilewright.expr.algebra.bounds import NO_BOUNDS, Bounds, interval
from tilewright.expr.algebra.polynomial import polynomial
from tilewright.expr.algebra.prover import can_prove, can_prove_le, can_prove_lt, can_prove_non_negative
from tilewright.expr.algebra.simplify import simplify
from tilewright.expr.dtype import dtype_of, int64
from tilewright.expr.evaluate import Environment, evaluate_expr
from tilewright.expr.nodes import Buffer, Const, Expr, Load, Symbol, Var, const
from tilewright.expr.operations import binary, cast, maximum, minimum, select

POSITION, SMALL, N = Var("p"), Var("i"), Symbol("n", 1, 100)


def element(name: str, dtype: str) -> Expr:
    """An element of which nothing is known but its type."""
    return Load(Buffer(name, (const(1),), dtype_of(dtype)), (POSITION,))


I, J, K = element("I", "int64"), element("J", "int64"), element("K", "int8")  # noqa: E741


def test_rules_of_unbounded_integers_do_not_apply_to_data() -> None:
    for e in (I * 3 % 3, I * 2 // 2, I * J // J, (I + 4) // 4 - I // 4, maximum(I, I + 1), J // J, I - I % 0):
        assert not isinstance(e, Const), e
        assert e is not I, e
    for c in (I + 1 > I, I - 1 < I, maximum(I, 0) + 3 >= 3, minimum(I, 9) - 7 <= 2):
        assert not isinstance(c, Const), c


def test_sums_and_products_of_data_are_regrouped() -> None:
    assert I + 3 - I is const(3)
    assert (I + J) * 2 - J * 2 is I * 2
    assert I * 2**62 * 4 is const(0)
    assert I + 2**63 is I - 2**63
    assert (I + 1).equals(I + 1) is const(True, (I < J).dtype)


def test_expressions_of_data_that_do_not_wrap_are_simplified() -> None:
    wide, few = cast(int64, K), minimum(maximum(I, 0), 100)
    assert wide * 3 // 3 is wide
    assert wide * 3 % 3 is const(0)
    assert (wide + 1 > wide) is (const(0) < const(1))
    assert few * 8 // 8 is few
    assert (I // 4) * 4 + I % 4 is I
    assert I // 4 // 2 is I // 8


@pytest.mark.parametrize(
    ("e", "low", "high"),
    [
        (I, -(2**63), 2**63 - 1),
        (maximum(I, 0) + 3, -(2**63), 2**63 - 1),
        (maximum(I, 0) * 2, -(2**63), 2**63 - 1),
        (minimum(I, 9) - 7, -(2**63), 2**63 - 1),
        (minimum(maximum(I, 0), 9) * 2 - 7, -7, 11),
        (I % 10, 0, 9),
        (I % J, -(2**63), 2**63 - 1),
        (I // 2, -(2**62), 2**62 - 1),
        (cast(int64, K) + 128, 0, 255),
        (cast(int64, K % 10), 0, 9),
        (cast(int64, cast(dtype_of("uint8"), K)), 0, 255),
        (cast(int64, element("U", "uint32")), 0, 2**32 - 1),
        (cast(int64, element("U", "uint64")), -(2**63), 2**63 - 1),
        (cast(int64, element("X", "float32")), -(2**63), 2**63 - 1),
        (select(I < 0, I + N, maximum(I, 0)), -(2**63) + 1, 2**63 - 1),
    ],
)
def test_intervals_of_loads(e: Expr, low: int, high: int) -> None:
    assert interval(e) == (low, high)


def test_facts_about_loads() -> None:
    inside = NO_BOUNDS.assuming((I >= 0) & (I < N))
    assert can_prove_non_negative(I, inside)
    assert can_prove_lt(I, N, inside)
    assert can_prove_non_negative(N - 1 - I, inside)
    assert can_prove(I + 1 > I, inside)
    assert simplify((I * 3) % 3, inside) is const(0)
    shifted = NO_BOUNDS.assuming(I - 1 >= 0)  # holds for the lowest int64 too
    assert not can_prove_non_negative(I - 1, NO_BOUNDS.assuming(I < 10))
    assert not can_prove_non_negative(I, shifted)
    late = NO_BOUNDS.assuming((I >= 0) & (I < 10) & (I + 1 < 10))
    assert can_prove_le(I, const(8), late)


def test_facts_about_loads_of_narrower_types() -> None:
    narrow, wide = element("I", "int32"), cast(int64, element("I", "int32"))
    inside = NO_BOUNDS.assuming((narrow >= 0) & (narrow < 10))
    assert can_prove_non_negative(wide, inside)
    assert can_prove_lt(wide, const(10), inside)
    large = element("I", "uint64")
    assert not can_prove_lt(cast(int64, large), const(10), NO_BOUNDS.assuming(large < 10))


def test_negative_index_from_data() -> None:
    from_front = select(I < 0, I + N, I)
    inside = NO_BOUNDS.assuming((I >= -N) & (I < N))
    assert can_prove_non_negative(from_front, inside)
    assert can_prove_lt(from_front, N, inside)
    clamped = maximum(minimum(from_front, N - 1), 0)
    assert can_prove_non_negative(clamped)
    assert can_prove_lt(clamped, N)


def test_literals_wrap_to_int64() -> None:
    assert all(-(2**63) <= c < 2**63 for c in polynomial(I * 2**62 * 3 + 2**62 + 2**62).values())
    assert repr(I * 2**63) == "I[p] * (-9223372036854775808)"


VALUES = values()


def worth(e: Expr) -> np.ndarray:
    """The value of an expression over I, J, K and a small number at all of `VALUES`."""
    at = Environment({POSITION: np.arange(len(VALUES["i"])), SMALL: VALUES["i"]}, VALUES)
    return np.broadcast_to(evaluate_expr(e, at), VALUES["i"].shape)


@settings(max_examples=40, deadline=None)
@given(STEPS, STEPS)
def test_simplified_expressions_match_numpy(steps: list[Step], others: list[Step]) -> None:
    pair = followed(steps, leaves(I, J, K, SMALL))[-1]
    limit = followed(others[:3], leaves(I, J, K, SMALL))[-1]
    with np.errstate(all="ignore"):
        expected, most = pair.value(VALUES), limit.value(VALUES)
    assert np.array_equal(worth(pair.e), expected), pair.e
    loop = Bounds().with_loop(SMALL, const(3))
    assert np.array_equal(worth(simplify(pair.e, loop)), expected), pair.e
    for condition, holds in ((pair.e <= limit.e, expected <= most), (binary("ge", limit.e, const(3)), most >= 3)):
        bounds = loop.assuming(condition)
        assert np.array_equal(worth(simplify(pair.e, bounds))[holds], expected[holds]), (pair.e, condition)
        small = simplify((pair.e >= 0) & (pair.e < limit.e), bounds)
        assert np.array_equal(worth(small)[holds], ((expected >= 0) & (expected < most))[holds]), (pair.e, condition)
