"""Branches are verified by the proof that their arms are copies of one statement; every other branch is rejected."""

import numpy as np
import pytest
from tests.codegen.native import check

from tilewright.errors import VerifyError
from tilewright.loops.ir import blocks
from tilewright.loops.parser import parse
from tilewright.loops.printer import show
from tilewright.verify.merge_copies import merge_copies
from tilewright.verify.verifier import verify

COPIES = """
func f(X: float32[N], Y: float32[N]; N: 1..100):
    for o in parallel((N + 7) // 8):
        if TEST:
            for i in vectorized(8):
                block Y(v: N = o * 8 + i)FIRST:
                    Y[v] = VALUE
        else:
            for j in vectorized(8):
                block Z(w: N = o * 8 + j)SECOND:
                    Y[w] = OTHER
"""


def copies(test: str = "o * 8 + 7 < N", first: str = "", second: str = " where o * 8 + j < N",
           value: str = "X[v]", other: str = "X[w]") -> str:  # fmt: skip
    """A function with a branch."""
    text = COPIES.replace("TEST", test).replace("FIRST", first).replace("SECOND", second)
    return text.replace("VALUE", value).replace("OTHER", other)


def test_a_copy_without_an_implied_condition_is_merged() -> None:
    func = parse(copies())
    verify(func)
    assert (
        show(merge_copies(func))
        == """\
func f(X: float32[N], Y: float32[N]; N: 1..100):
    for o in parallel((N + 7) // 8):
        for i in vectorized(8):
            block Y(v: N = o * 8 + i) where i + o * 8 < N:
                Y[v] = X[v]
"""
    )


def test_values_that_differ_become_a_select() -> None:
    func = parse(copies("o < 1", " where o * 8 + i < N", value="X[v] + 1.0", other="X[w] + 2.0"))
    verify(func)
    assert "Y[v] = X[v] + select(o < 1, 1.0, 2.0)" in show(merge_copies(func))


CONDITIONAL = """
func f(X: float32[16], Y: float32[16]):
    for o in parallel(3):
        if TEST:
            for i in vectorized(8):
                block Y(v: 16 = o * 8 + i - 8):
                    Y[v] = X[v]
"""


def test_a_branch_without_a_second_arm_is_a_predicate() -> None:
    func = parse(CONDITIONAL.replace("TEST", "1 <= o"))
    verify(func)
    (block,) = blocks(merge_copies(func).body)
    assert str(block.predicate) == "1 <= o"
    with pytest.raises(VerifyError, match="is not proved >= 0"):
        verify(parse(CONDITIONAL.replace("TEST", "0 <= o")))
    with pytest.raises(VerifyError, match="so its iterations can't be counted"):
        verify(parse(CONDITIONAL.replace("TEST", "2 <= o")))
    with pytest.raises(VerifyError, match=r"a branch: o \* 9223372036854775807 may reach"):
        verify(parse(CONDITIONAL.replace("TEST", "1 <= o * 9223372036854775807")))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (copies("o * 8 + 6 < N"), "the arms of a branch are not proved to be copies of one statement"),
        (copies("o * 8 < N"), "not proved to be copies"),
        (copies().replace("Y[v] =", "Y[N - 1 - v] ="), "not proved to be copies"),
        (copies().replace("o * 8 + i", "o * 8 + 7 - i"), "not proved to be copies"),
        (copies().replace("for j in vectorized", "for j in unrolled"), "not proved to be copies"),
        (copies(second=""), "binding o * 8 + i of 'v' is not proved < N"),
        (copies(other="X[w + 1]"), "X"),
        (copies().replace("if o * 8 + 7 < N", "if X[o] < 1.0"), "buffer 'X' is not declared"),
        (copies().replace("if o * 8 + 7 < N", "if o + 7"), "the condition must be bool"),
    ],
)  # fmt: skip
def test_other_branches_are_rejected(text: str, what: str) -> None:
    with pytest.raises(VerifyError) as raised:
        verify(parse(text))
    assert what in str(raised.value)


LAST = """
func f(X: float32[30], Y: float32[30]):
    for o in serial(3):
        for i in vectorized(8):
            block Y(v: 30 = o * 8 + i):
                Y[v] = X[v]
    for p in serial(1):
        for j in vectorized(8):
            block Z(w: 30 = p * 8 + j + 24) where p * 8 + j < 6:
                Y[w] = X[w]
"""


def test_a_peeled_last_iteration_is_merged() -> None:
    func = parse(LAST)
    verify(func)
    assert show(merge_copies(func)).count("for") == 2
    assert "for o in serial(4):" in show(merge_copies(func))


@pytest.mark.parametrize("change", [("p * 8 + j < 6", "p * 8 + j < 5"), ("+ 24", "+ 22")])
def test_a_wrong_last_iteration_is_rejected(change: tuple[str, str]) -> None:
    with pytest.raises(VerifyError):
        verify(parse(LAST.replace(*change)))


def test_a_copy_that_prefetches_other_elements_is_rejected() -> None:
    text = copies().replace(
        "in vectorized(8):\n                block Y", "in serial(8) prefetching X[i]:\n                block Y"
    )
    text = text.replace(
        "in vectorized(8):\n                block Z", "in serial(8) prefetching X[j + OFFSET]:\n                block Z"
    )
    verify(parse(text.replace(" + OFFSET", "")))
    with pytest.raises(VerifyError, match="not proved to be copies"):
        verify(parse(text.replace("OFFSET", "8")))


LANES = """
func f(X: float32[N], Y: float32[N]; N: 1..100):
    for o in parallel((N + 7) // 8):
        for i in vectorized(LANES):
            if TEST:
                block Y(v: N = o * 8 + i):
                    Y[v] = X[v]
            else:
                block Z(w: N = o * 8 + i) where o * 8 + i < N:
                    Y[w] = X[w]
"""


def arrays(size: int) -> dict[str, np.ndarray]:
    return {"X": np.arange(size, dtype=np.float32), "Y": np.zeros(size, np.float32)}


def test_a_condition_that_differs_between_lanes_is_refused() -> None:
    text = LANES.replace("LANES", "8")
    with pytest.raises(VerifyError) as refusal:
        verify(parse(text.replace("TEST", "o * 8 + i < N")))
    message = str(refusal.value)
    assert "the lanes of loop 'i' take one arm together, but the condition depends on it" in message
    assert "make the condition a predicate of blocks" in message
    check(parse(text.replace("TEST", "o * 8 + 7 < N")), arrays(29), {"N": 29})


def test_a_loop_of_one_lane_may_decide_a_branch() -> None:
    text = LANES.replace("LANES", "1").replace("(N + 7) // 8", "N").replace("o * 8", "o")
    func = parse(text.replace("TEST", "o + i < N"))
    verify(func)
    check(func, arrays(5), {"N": 5})
