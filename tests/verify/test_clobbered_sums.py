"""Sums that are initialised again: accepted where nothing reads the clobbered value, rejected elsewhere."""

import pytest
from tests.verify.partial_sums import INNER, ZEROS, eight, some_rows, wrong_by

from tilewright.errors import VerifyError
from tilewright.loops.parser import parse
from tilewright.verify.verifier import verify

FRESH = "init U[v2] = 0.0\n                "
AGAIN = {
    "tiles that the loop moves": eight(
        "    for s in serial(2):\n", ZEROS.format(INNER, 4, " + s * 4"), some_rows(1, 4, "s * 4 + i1", INNER)
    ),
    "everything in every iteration": eight(
        "    for s in serial(2):\n", ZEROS.format(INNER, 8, ""), some_rows(1, 8, "i1", INNER)
    ),
    "tiles that overlap": eight(
        "    for s in serial(2):\n", ZEROS.format(INNER, 5, " + s * 3"), some_rows(1, 5, "s * 3 + i1", INNER)
    ),
    "two givers, the last of everything": eight(
        ZEROS.format("    ", 8, "").replace("z", "y").replace("Z", "Y"), "    for s in serial(2):\n",
        ZEROS.format(INNER, 4, " + s * 4"), some_rows(1, 4, "s * 4 + i1", INNER),
    ),
    "rows that overlap, the second time from the beginning": eight(
        some_rows(1, 5, "i1", init=FRESH.replace("v2", "v1")), some_rows(2, 4, "i2 + 4", init=FRESH)
    ),
}  # fmt: skip

WIPED = {
    "rows that overlap": (
        eight(ZEROS.format("    ", 8, ""), some_rows(1, 5, "i1"), some_rows(2, 4, "i2 + 4")),
        "block 'C2': accumulates the same points into 'U' as block 'C1'",
    ),
    "rows that overlap in every iteration": (
        eight(ZEROS.format("    ", 8, ""), "    for s in serial(2):\n", some_rows(1, 3, "s * 4 + i1", INNER),
              some_rows(2, 2, "s * 4 + 2 + i2", INNER)),
        "block 'C1': binding s * 4 + i1 leaves gaps",
    ),
    "only one row begins again": (
        eight(ZEROS.format("    ", 8, ""), "    for t in serial(2):\n        block Y(w: 1 = 0):\n",
              "            U[w] = 0.0\n", some_rows(1, 8, "i1", INNER)),
        "iterations of loop 't' accumulate the same points into one element of 'U'",
    ),
    "all rows begin again, some are summed": (
        eight("    for s in serial(2):\n", ZEROS.format(INNER, 8, ""), some_rows(1, 4, "s * 4 + i1", INNER)),
        "block 'Z' may reinitialise what other iterations of their shared loops accumulated in 'U'",
    ),
    "begins again after the sum": (
        eight(ZEROS.format("    ", 8, "").replace("z", "y").replace("Z", "Y"), "    for s in serial(2):\n",
              some_rows(1, 4, "s * 4 + i1", INNER), ZEROS.format(INNER, 4, "")),
        "block 'Z' may reinitialise what other iterations of their shared loops accumulated in 'U'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("text", AGAIN.values(), ids=AGAIN)
def test_reinitialised_sums_are_accepted(text: str) -> None:
    verify(parse(text))
    assert not wrong_by(text)


@pytest.mark.parametrize(("text", "message"), WIPED.values(), ids=WIPED)
def test_clobbered_or_repeated_sums_are_rejected(text: str, message: str) -> None:
    assert wrong_by(text)
    with pytest.raises(VerifyError) as error:
        verify(parse(text))
    assert message in str(error.value)


def test_parts_with_different_operators_are_rejected() -> None:
    """A sum and a maximum that together reach the domain are not one reduction."""
    text = """
func f(A: float32[8], U: float32[1]):
    for l in serial(4):
        block C1(v: 1 = 0, reduce k: 8 = l):
            init U[v] = 0.0
            U[v] = U[v] + A[k]
    for l2 in serial(4):
        block C2(v2: 1 = 0, reduce k2: 8 = l2 + 4):
            U[v2] = {}
"""
    verify(parse(text.format("U[v2] + A[k2]")))
    with pytest.raises(VerifyError, match=r"block 'C1': binding l of 'k' covers 0..3, expected 0..7"):
        verify(parse(text.format("max(U[v2], A[k2])")))


def test_lanes_combined_with_different_operators_are_rejected() -> None:
    text = """
func f(A: float32[8], U: float32[1]):
    block Z(vz: 1 = 0):
        U[vz] = 0.0
    for l in vectorized(4):
        block C1(v: 1 = 0, reduce k: 8 = l):
            U[v] = U[v] + A[k]
        block C2(v2: 1 = 0, reduce k2: 8 = l + 4):
            U[v2] = U[v2] {} A[k2]
"""
    verify(parse(text.format("+")))
    with pytest.raises(VerifyError, match="lanes of 'l' are combined in different ways into 'U' by blocks 'C1', 'C2'"):
        verify(parse(text.format("*")))
