"""Nonzero divisors: divisions by sizes that may be 0 are rejected, all others accepted."""

import re

import pytest
from tests.loops.valid_programs import VALID_PROGRAMS

from tilewright.errors import VerifyError
from tilewright.loops.parser import parse
from tilewright.verify.verifier import verify

GOOD = {
    "a loop over the divisor": """
func f(A: float32[n], C: float32[n]; n: 0..64):
    for i in serial(n):
        block C(v: n = i):
            C[v] = A[(v + 3) % n]
""",
    "a loop over a multiple of the divisor": """
func f(A: float32[n], I: int64[4 * n], C: float32[4 * n]; n: 0..64):
    for i in serial(4 * n):
        block C(v: 4 * n = i):
            C[v] = A[I[v] % n]
""",
    "a guarded access": """
func f(A: float32[n], C: float32[4]; n: 0..64):
    for i in serial(4):
        block C(v: 4 = i):
            C[v] = select(n > 0, A[v % n], 0.0)
""",
    "a guard that divides itself, after one of the divisor": """
func f(A: float32[n], C: float32[4]; n: 0..64):
    for i in serial(4):
        block C(v: 4 = i):
            C[v] = select(n > 0, select(v % n < 2, A[v % n], 0.0), 0.0)
""",
    "a guard on a multiple": """
func f(A: float32[n], C: float32[4]; n: 0..64):
    for i in serial(4):
        block C(v: 4 = i):
            C[v] = select(3 * n >= 2, A[v % n], 0.0)
""",
    "sizes fused and split again, with tails": VALID_PROGRAMS["fused and split again"].replace("1..", "0.."),
    "a product of sizes": """
func f(A: float32[N, H, W], B: float32[N * H * W]; N: 0..9, H: 0..9, W: 0..9):
    for i in serial(N * H * W):
        block B(v: N * H * W = i):
            B[v] = A[v // (H * W), v // W % H, v % W]
""",
    "a divisor from 1": """
func f(A: float32[n], C: float32[4]; n: 1..64):
    for i in serial(4):
        block C(v: 4 = i):
            C[v] = A[v % n]
""",
    "a divisor that is a loop variable and more": """
func f(A: float32[8], C: float32[8]):
    for i in serial(8):
        block C(v: 8 = i):
            C[v] = A[5 % (v + 1)]
""",
    "a value that is no index": """
func f(C: int64[4]; n: 0..64):
    for i in serial(4):
        block C(v: 4 = i):
            C[v] = v % n
""",
}


@pytest.mark.parametrize("text", GOOD.values(), ids=GOOD)
def test_proved_divisors_are_accepted(text: str) -> None:
    verify(parse(text))


READ = "the read of buffer 'A' divides by {}, which is not proved >= 1 there"
SELECT = "declare its symbols from 1, or guard it with select({} > 0, ..)"
BAD = {
    "a remainder": ("n: 0..64", "A[v % n]", READ.format("n"), SELECT.format("n")),
    "another size is guarded": ("n: 0..64, m: 0..9", "select(m > 0, A[v % n], 0.0)", READ.format("n"), ""),
    "guarded for nothing": ("n: 0..64", "select(n >= 0, A[v % n], 0.0)", READ.format("n"), ""),
    "in the other branch": ("n: 0..64", "select(n > 0, 0.0, A[v % n])", READ.format("n"), ""),
    "a guard that divides": ("n: 0..64", "select(n > v % n, A[v % n], 0.0)", READ.format("n"), ""),
    "guards that say together what division means": (
        "n: 0..64",
        "select(v // n * n + n > v, A[v % n], 0.0)",
        READ.format("n"),
        "",
    ),
}


@pytest.mark.parametrize(("symbols", "value", "message", "hint"), BAD.values(), ids=BAD)
def test_an_access_that_may_divide_by_zero_is_rejected(symbols: str, value: str, message: str, hint: str) -> None:
    func = parse(f"""
func f(A: float32[n], C: float32[4]; {symbols}):
    for i in serial(4):
        block C(v: 4 = i):
            C[v] = {value}
""")
    with pytest.raises(VerifyError, match=f"(?s)block 'C': {re.escape(message)}.*{re.escape(hint)}"):
        verify(func)


def test_a_loaded_index_that_may_divide_by_zero_is_rejected() -> None:
    func = parse("""
func f(A: float32[n], I: int64[4], C: float32[4]; n: 0..64):
    for i in serial(4):
        block C(v: 4 = i):
            C[v] = A[I[v] % n]
""")
    with pytest.raises(VerifyError, match=re.escape(f"block 'C': {READ.format('n')}")):
        verify(func)


def test_an_extent_that_may_divide_by_zero_is_rejected() -> None:
    """Where n is 0 no iteration would run, and nothing store the N elements."""
    text = """
func f(A: float32[N], B: float32[N]; N: 0..99, n: 0..9):
    for io in serial(N // n):
        for ii in serial(n):
            block B(v: N = ii + io * n):
                B[v] = A[v]
    for i in serial(N % n):
        block B_tail(v2: N = N // n * n + i):
            B[v2] = A[v2]
"""
    with pytest.raises(VerifyError, match=r"(?s)the extent of loop 'io' divides by n, .*'i' divides by n, .*from 1$"):
        verify(parse(text))
    verify(parse(text.replace("n: 0..9)", "n: 1..9)")))


def test_a_binding_or_predicate_that_may_divide_by_zero_is_rejected() -> None:
    func = parse("""
func f(A: float32[4], C: float32[4]; n: 0..64):
    for i in serial(4):
        block C(v: 4 = i) where i % n < 4:
            C[v] = A[v]
""")
    with pytest.raises(VerifyError, match="a binding, its domain or the predicate divides by n, which is not proved"):
        verify(func)
