"""Initialisers: sums are initialised completely, once, and never clobbered; rejected programs are run to be wrong."""

import numpy as np
import pytest
from tests.verify.partial_sums import (
    HEAD,
    INNER,
    ZERO,
    begun_at,
    columns,
    each,
    eight,
    part,
    results,
    rows,
    some_rows,
    wrong_by,
    zeros,
)

from tilewright.errors import VerifyError
from tilewright.loops.block_context import BlockContext
from tilewright.loops.interpreter import interpret
from tilewright.loops.ir import Block, walk
from tilewright.loops.parser import parse
from tilewright.verify.store_aliasing import stores_are_disjoint
from tilewright.verify.verifier import verify

OVERWRITTEN = {
    "all of it": eight(some_rows(1, 8, "i1", init=begun_at(1)), zeros("late", "8")),
    "one row": eight(some_rows(1, 8, "i1", init=begun_at(1)), zeros("late", "1")),
    "in the loop over rows": eight(
        "    for s in serial(8):\n", some_rows(1, 1, "s + i1", INNER, begun_at(1, "    ")),
        zeros("late", "1", " + s", INNER)
    ),
    "that had first values before": eight(
        zeros("first", "8"), some_rows(1, 8, "i1"), zeros("late", "4", " + 4")
    ),
}  # fmt: skip


@pytest.mark.parametrize("text", OVERWRITTEN.values(), ids=OVERWRITTEN)
def test_overwritten_sums_are_rejected(text: str) -> None:
    assert wrong_by(text)
    with pytest.raises(VerifyError, match="block 'C1': block 'late' overwrites the sums in 'U'"):
        verify(parse(text))


USED = """
    for j in serial({0}):
        block use(u: 4 = j):
            B[u] = T[u]
    for l in serial(4):
        block late(w: 4 = l):
            T[w] = 0.0
    for m in serial(4):
        block B(x: 4 = m):
            B[x] = {1}T[x]
"""


def held(use: str, store: str = "") -> str:
    """Sums in a buffer of the function's own, of which some are used before all are overwritten."""
    sums = "    alloc T: float32[4]\n    for i in serial(4):\n" + ZERO + part("one", 8, 0)
    return HEAD + sums + USED.format(use, store)


def test_sums_overwritten_before_they_are_read_are_rejected() -> None:
    message = "block 'late' overwrites the sums in 'T', which are not proved to be all read before"
    nobody = rows(ZERO, part("one", 8, 0), each("late", "T[v] = 0.0"))
    for text in (nobody, held("3")):
        actual, right = results(text)
        assert not np.array_equal(actual, right)
        with pytest.raises(VerifyError, match=message):
            verify(parse(text))


def test_a_buffer_may_be_reused_after_its_sums_are_read() -> None:
    text = held("4", "B[x] + ")
    verify(parse(text))
    np.testing.assert_array_equal(*results(text))


BEGUN_AGAIN = {
    "by one block": zeros("late", "8"),
    "by two blocks": zeros("late", "3") + zeros("later", "5", " + 3"),
}


@pytest.mark.parametrize("again", BEGUN_AGAIN.values(), ids=BEGUN_AGAIN)
def test_sums_may_be_reinitialised_and_recomputed(again: str) -> None:
    text = eight(zeros("first", "8"), some_rows(1, 8, "i1"), again, some_rows(2, 8, "i2"))
    verify(parse(text))
    assert not wrong_by(text)


TOO_FEW = {
    "one row": zeros("late", "1"),
    "all rows but one": zeros("late", "3") + zeros("later", "4", " + 4"),
    "by a loop of no iterations": "    for q in serial(4 - 4):\n" + zeros("late", "8", "", INNER),
    "by an init that never comes": columns(3, "2", " + 2", begun_at(3)) + columns(4, "2"),
}


@pytest.mark.parametrize("again", TOO_FEW.values(), ids=TOO_FEW)
def test_partial_reinitialisation_is_rejected(again: str) -> None:
    last = "" if "C3" in again else columns(2, "4")
    text = eight(zeros("first", "8"), columns(1, "4"), again, last)
    assert wrong_by(text)
    with pytest.raises(VerifyError, match=r"'C[23]': accumulates the same points into 'U' as block 'C1'"):
        verify(parse(text))


EMPTY_PART = """
func f(A: float32[8, n], U: float32[8]; n: {0}..16):
    for i in serial(8):
        for k in serial(n // 4 * 4):
            block one(v: 8 = i, reduce r: n = k):
                init U[v] = 0.0
                U[v] = U[v] + A[v, r]
        for l in serial(n % 4):
            block two(w: 8 = i, reduce s: n = l + n // 4 * 4):
                U[w] = U[w] + A[w, s]
"""


def test_an_init_counts_only_in_a_nonempty_part() -> None:
    verify(parse(EMPTY_PART.format(4)))
    u, a = np.ones(8, np.float32), np.ones((8, 3), np.float32)
    interpret(parse(EMPTY_PART.format(1)), {"A": a, "U": u}, {"n": 3})
    assert not np.array_equal(u, a.sum(1))
    with pytest.raises(
        VerifyError, match="'two': accumulates into elements of 'U' that no block is proved to initialise"
    ):
        verify(parse(EMPTY_PART.format(1)))


def test_initialisers_may_cover_padded_elements() -> None:
    """More elements get first values than are collected in."""
    text = rows("", part("one", 8, 0)).replace("T: float32[4]", "T: float32[7]")
    padded = "    for z in serial({0}):\n        block zero(u: 7 = z):\n            T[u] = 0.0\n"
    verify(parse(text.replace("    for i", padded.format(7) + "    for i", 1)))
    with pytest.raises(
        VerifyError, match="'one': accumulates into elements of 'T' that no block is proved to initialise"
    ):
        verify(parse(text.replace("    for i", padded.format(3) + "    for i", 1)))


SOME_BEGUN = """
func f(A: float32[8, 4], U: float32[8]):
    for o in serial(2):
        for z in serial({0}):
            block zero(u: 8 = o * 4 + z):
                U[u] = 0.0
        for i in serial(3):
            for k in serial(4):
                block one(v: 8 = o * 4 + i, reduce r: 4 = k):
                    U[v] = U[v] + A[v, r]
        for l in serial(4):
            block two(w: 8 = o * 4 + 3, reduce s: 4 = l):
                init U[w] = 0.0
                U[w] = U[w] + A[w, s]
"""


def test_initialisers_must_cover_the_accumulated_elements() -> None:
    """Those that a part gives itself nobody else needs to give."""
    text = SOME_BEGUN.format(3)
    verify(parse(text))
    assert not wrong_by(text)
    with pytest.raises(VerifyError, match=r"'zero': binding o \* 4 \+ z leaves gaps"):
        verify(parse(SOME_BEGUN.format(2)))


LIMITED = """
func f(A: float32[18, 4], U: float32[18]):
    for o in serial(4):
        for k in serial(4):
            for i in serial(3):
                block one(v: 18 = i + o * {0}, reduce r: 4 = k):
                    init U[v] = 0.0
                    U[v] = U[v] + A[v, r]
        for j in serial(2):
            for l in serial(4):
                block two(w: 18 = j + o * 5 + 3, reduce s: 4 = l) where j + o * 5 + 3 < {1}:
                    init U[w] = 0.0
                    U[w] = U[w] + A[w, s]
"""


def test_limits_implied_in_one_part_are_proved() -> None:
    verify(parse(LIMITED.format(5, 18)))
    for step, limit in ((4, 18), (5, 14)):
        with pytest.raises(VerifyError, match=r"leaves gaps|covers"):
            verify(parse(LIMITED.format(step, limit)))


DIGITS = """
func f(A: float32[n, 2], U: float32[n, 2]; n: 1..20):
    for o in serial(n * 2 - 1):
        block one(v: n = o // 2, w: {0} = o % {0}):
            U[v, w] = A[v, w]
        block two(v2: n = (o + 1) // 2, w2: {0} = (o + 1) % {0}):
            U[v2, w2] = A[v2, w2]
"""


@pytest.mark.parametrize(("modulus", "apart"), [(2, True), (1, False)])
def test_stores_to_splits_of_different_indices_are_disjoint(modulus: int, apart: bool) -> None:
    func = parse(DIGITS.format(modulus))
    one, two = (BlockContext.of(s, loops) for s, loops in walk(func.body) if isinstance(s, Block))
    assert stores_are_disjoint(one, two, 1) == apart
