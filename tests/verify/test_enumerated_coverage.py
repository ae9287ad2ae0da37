"""Enumerated coverage: what it proves where iteration maps do not, and what stays undecided."""

import numpy as np
import pytest

from tilewright.errors import VerifyError
from tilewright.loops.block_context import BlockContext
from tilewright.loops.ir import Block, walk
from tilewright.loops.parser import parse
from tilewright.verify.enumerated_coverage import MAX_ITERATIONS, UndecidedError, count_distinct, is_covered, pack_rows
from tilewright.verify.enumerated_reduction import is_counted_once
from tilewright.verify.verifier import verify


def nests(text: str) -> list[BlockContext]:
    """The blocks of a program."""
    return [BlockContext.of(s, loops) for s, loops in walk(parse(text).body) if isinstance(s, Block)]


def copy(binding: str, size: int = 12, predicate: str = "", symbols: str = "") -> str:
    """Copies the elements that `binding`, over a loop f of `size` iterations, gives."""
    return f"""
func f(A: float32[12], B: float32[12], I: int64[12]{symbols}):
    for f in serial({size}):
        block B(v: 12 = {binding}){predicate}:
            B[v] = A[v]
"""


@pytest.mark.parametrize("binding", ["(f * 5 + 3) % 12", "11 - f", "f // 2 + f % 2 * 6", "max(f, 11 - f) * 0 + f"])
def test_enumeration_proves_that_every_element_is_covered(binding: str) -> None:
    verify(parse(copy(binding)))


@pytest.mark.parametrize("binding", ["(f * 5 + 3) % 11", "f // 2", "(f * 3) % 12"])
def test_enumeration_finds_missing_elements(binding: str) -> None:
    with pytest.raises(VerifyError, match="block 'B'"):
        verify(parse(copy(binding)))


@pytest.mark.parametrize(
    "text",
    [
        copy("f + 3"),  # leaves the domain
        copy("min(max(I[f], 0), 11)"),  # data decides
        copy("(f * 5) % 12", 12 * MAX_ITERATIONS),  # too many
        copy("(f * 5) % 12", 12, " where f < m", "; m: 12.."),  # the size has no end
        copy("(f * 5) % 12", 12, " where f < m", f"; m: 12..{2 * MAX_ITERATIONS}"),  # too many sizes
    ],
)
def test_undecided_coverage_is_not_proved(text: str) -> None:
    assert not is_covered(nests(text))


def total(binding: str, element: str = "v", term: str = "A[v, r]", size: int = 6, reduced: str = "6") -> str:
    """Sums of rows of A in a private buffer, over a loop f of `size` iterations."""
    return f"""
func f(A: float32[12, 6], B: float32[12], I: int64[12]; K: 0..6):
    alloc T: float32[12]
    for z in serial(12):
        block zero(u: 12 = z):
            T[u] = 0.0
    for i in serial(12):
        for f in serial({size}):
            block T(v: 12 = i, reduce r: {reduced} = {binding}):
                T[{element}] = T[{element}] + {term}
    for b in serial(12):
        block B(x: 12 = b):
            B[x] = T[x]
"""


def is_counted(text: str, whole: bool = False) -> bool:
    """Whether it is proved that the second block adds what it should."""
    contexts = nests(text)
    return is_counted_once(contexts[1:2], contexts, whole)


@pytest.mark.parametrize("binding", ["f", "5 - f", "(f * 5 + 1) % 6"])
@pytest.mark.parametrize("whole", [True, False])
def test_enumeration_proves_that_every_term_is_counted_once(binding: str, whole: bool) -> None:
    assert is_counted(total(binding), whole)
    verify(parse(total(binding)))


@pytest.mark.parametrize(
    "text",
    [
        total("f % 3"),  # terms twice, others not
        total("f // 2", size=12),  # every term twice
        total("f", "v // 2"),  # one element collects for two
        total("f", "min(max(I[v], 0), 11)"),  # data decides
        total("f", term="T[11 - v]"),  # it uses other sums
        total("f", size=MAX_ITERATIONS),  # too many
    ],
)
def test_wrong_reductions_are_not_proved(text: str) -> None:
    assert not is_counted(text)


def test_empty_reductions_are_not_proved() -> None:
    text = total("f", reduced="K").replace("serial(6)", "serial(K)")
    assert is_counted(text)
    assert not is_counted(text, whole=True)


@pytest.mark.parametrize(("terms", "proved"), [(1000, True), (20_000, False)])
def test_enumeration_stops_at_the_value_limit(terms: int, proved: bool) -> None:
    """Iterations that are few enough to run through, but too many numbers about them at once."""
    assert 12 * terms < MAX_ITERATIONS
    text = total(f"(f * 7 + 1) % {terms}", size=terms, reduced=str(terms)).replace("[12, 6]", f"[12, {terms}]")
    assert is_counted(text.replace("v: 12 = i", "v: 12 = i * 5 % 12")) == proved


def test_packed_rows_keep_their_order() -> None:
    rows = np.array([[2, -1], [0, 5], [2, 3], [0, -4]])
    order = np.argsort(pack_rows(rows))
    assert rows[order].tolist() == [[0, -4], [0, 5], [2, -1], [2, 3]]
    with pytest.raises(UndecidedError):
        pack_rows(np.array([[0, 0], [1 << 32, 1 << 31]]))


@pytest.mark.parametrize("scale", [1, 1 << 40])
def test_count_distinct(scale: int) -> None:
    assert count_distinct(np.array([3, 1, 3, 0, 1]) * scale) == 3


@pytest.mark.parametrize("condition", ["a + b < N", "a + b * 2 < 7"])
def test_a_predicate_that_cuts_off_a_corner_is_rejected(condition: str) -> None:
    text = f"""
func f(OUT: float32[N, N]; N: 5..4000):
    for a in serial(N):
        for b in serial(N):
            block OUT(v: N = a, w: N = b) where {condition}:
                OUT[v, w] = 1.0
"""
    with pytest.raises(VerifyError, match="clips no binding, so its iterations can't be counted"):
        verify(parse(text))
