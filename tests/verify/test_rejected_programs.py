"""Programs that a careless proof would accept: each has another result in another order, or is out of bounds."""

import numpy as np
import pytest
from tests.codegen.native import check

from tilewright.errors import VerifyError
from tilewright.loops.parser import parse
from tilewright.verify.verifier import verify

TRIANGLE = """
func f(A: float32[8, 8], U: float32[8]):
    for i in serial(8):
        for j in serial(8):
            block B(v: 8 = i, reduce w: 8 = j) where j <= i:
                init U[v] = 0.0
                U[v] = U[v] + A[v, w]
"""

CORNER = """
func f(A: float32[8, 8], U: float32[8, 8]):
    for i in serial(8):
        for j in serial(8):
            block B(v: 8 = i, w: 8 = j) where i + j < 8:
                U[v, w] = A[v, w]
"""

SHORT = """
func f(A: float32[4], U: float32[4]):
    for l2 in serial(4):
        for l1 in serial(3):
            block B(v: 4 = min(l2 * 3, 1) + l1) where min(l2 * 3, 1) + l1 < 2:
                U[v] = A[v]
"""

FRAME = """
func f(A: float32[8], U: float32[2, 8]):
    alloc T: float32[8, 2] in stack
    for t in serial(2):
        for i in parallel(8):
            block W0(a: 8 = i):
                T[a, 0] = A[a]
            block R(b: 2 = t, c: 8 = i):
                U[b, c] = select(b >= 1, T[c, 1], 0.0) + T[c, 0]
            block W(d: 8 = i):
                T[d, 1] = A[d] * 2.0
"""

EARLIER_EXTENT = """
func f(A: float32[n], U: float32[n]; n: 5..40):
    alloc T: float32[4] in stack
    alloc S: float32[1] in stack
    for i in parallel(n):
        block Z(z: n = i):
            S[0] = A[z]
        for a in serial(4):
            for b in serial(a + 1):
                block W(wa: 4 = a, w: n = i) where b >= 3:
                    T[wa] = A[w]
                block R(ra: 4 = a, r: n = i) where b >= 3:
                    S[0] = T[ra - 1] * 1.0
        block X(x: n = i):
            U[x] = S[0]
        block Y(y: n = i):
            T[2] = A[y]
"""

TWO_OPERATORS = """
func f(A: float32[8], U: float32[1]):
    block Z(vz: 1 = 0):
        U[vz] = 0.0
    for l in vectorized(4):
        block C1(v: 1 = 0, reduce k: 8 = l):
            U[v] = U[v] + A[k]
        block C2(v2: 1 = 0, reduce k2: 8 = l + 4):
            U[v2] = U[v2] * A[k2]
"""

WRAPPING = """
func f(I: int64[4], A: float32[8], U: float32[4]):
    for i in serial(4):
        block B(v: 4 = i):
            U[v] = select({0}, A[I[v]], 0.0)
"""

UNSIGNED = """
func f(I: uint64[4], A: float32[8], U: float32[4]):
    for i in serial(4):
        block B(v: 4 = i):
            U[v] = select(cast(int64, I[v]) < 8, A[cast(int64, I[v])], 0.0)
"""

BEFORE_THE_START = """
func f(A: float32[8, K], U: float32[8]; K: 0..1):
    alloc T: float32[8] in stack
    for i in serial(11):
        for k in serial(K):
            block C(v: 8 = i - 3, reduce r: K = k) where i >= 3 + k:
                init T[v] = 0.0
                T[v] = T[v] + A[v, r]
    for j in serial(8):
        block Y(w: 8 = j):
            U[w] = T[w]
"""

NO_DIVISOR = """
func f(A: float32[n], U: float32[64, 4]; n: 1..16, m: 0..4):
    for i in parallel(n):
        block B(v: n = i):
            U[v // m, v % m] = A[v]
"""

REFUSED = {
    "a triangle of a sum": (TRIANGLE, "predicate"),
    "a corner is left out": (CORNER, "predicate"),
    "a row ends early": (SHORT, "covers 0..1, expected 0..3|repeats values|predicate|reach"),
    "the frame of a thread ends with its loop": (FRAME, "reads T\\[c, 1\\] of private buffer 'T'"),
    "a loop was shorter in an earlier iteration": (EARLIER_EXTENT, "reads T\\[ra - 1\\] of private buffer 'T'"),
    "lanes are combined in two ways": (TWO_OPERATORS, "lanes of 'l' are combined in different ways into 'U'"),
    "a product of data wraps": (WRAPPING.format("(I[v] >= 0) and (I[v] * 8 < 64)"), "is not proved < 8"),
    "a sum of data wraps": (WRAPPING.format("(I[v] >= 0) and (I[v] + 1 <= 8)"), "is not proved < 8"),
    "unsigned data turns negative": (UNSIGNED, "is not proved >= 0"),
    "nothing tells iterations apart modulo 0": (NO_DIVISOR, "may write the same element|not proved"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_rejected_program_is_wrong(name: str) -> None:
    text, message = REFUSED[name]
    with pytest.raises(VerifyError, match=message):
        verify(parse(text))


def test_clamped_data_is_a_valid_index() -> None:
    verify(parse(WRAPPING.format("(I[v] >= 0) and (I[v] < 8)")))


def test_the_init_of_an_empty_reduction_stays_in_bounds() -> None:
    func = parse(BEFORE_THE_START)
    verify(func)
    check(func, {"A": np.zeros((8, 0), np.float32), "U": np.ones(8, np.float32)}, {"K": 0})


def test_a_fused_loop_may_be_empty() -> None:
    text = """
func f(A: float32[n * m], U: float32[n, m]; n: 1..16, m: 0..4):
    for i in parallel(n * m):
        block B(v: n = i // m, w: m = i % m):
            U[v, w] = A[v * m + w]
"""
    verify(parse(text))
