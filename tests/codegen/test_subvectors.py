"""Contiguous subvectors, as of a register tile as wide as two panels: one access per subvector, no gather."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.codegen.native import TARGETS, check

from tilewright.codegen import emit_llvm
from tilewright.codegen.subvectors import MIN_SUBVECTOR_LANES, subvector_length
from tilewright.loops.parser import parse
from tilewright.machine import Target

PANELS = """
func panels(P: float32[4, PER, 16], Y: float32[PER, 64], Z: float32[4, PER, 16]SIZES):
    for r in serial(PER):
        for o in serial(2):
            for l in vectorized(32):
                block read(a: PER = r, b: 64 = o * 32 + l) where o * 32 + l < COLUMNS:
                    Y[a, b] = P[b // 16, a, b % 16] * 2.0
            for k in vectorized(32):
                block write(c: PER = r, d: 64 = o * 32 + k) where o * 32 + k < COLUMNS:
                    Z[d // 16, c, d % 16] = Y[c, d] + 1.0
"""
"""Two adjacent panels of as many rows as there are; the last columns are a remainder."""


def panels(rows: int | None, columns: int) -> str:
    """The text for a constant number of rows, or for a symbolic one."""
    sizes = "; N: 1..100" if rows is None else ""
    text = PANELS.replace("SIZES", sizes).replace("COLUMNS", str(columns))
    return text.replace("PER", "N" if rows is None else str(rows))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("columns", [64, 50, 48, 35])
def test_vector_across_two_panels_is_correct(target: str, symbolic: bool, columns: int) -> None:
    rng = np.random.default_rng(columns)
    shapes = {"P": (4, 7, 16), "Y": (7, 64), "Z": (4, 7, 16)}
    arrays = {n: rng.standard_normal(shape).astype(np.float32) for n, shape in shapes.items()}
    check(parse(panels(None if symbolic else 7, columns)), arrays, {"N": 7} if symbolic else {}, target)


@pytest.mark.parametrize("rows", [7, None])
@pytest.mark.parametrize("columns", [64, 50])
def test_panels_are_neither_gathered_nor_scattered(rows: int | None, columns: int) -> None:
    for target in ("x86-64-v3", "x86-64-v4"):
        text = emit_llvm([parse(panels(rows, columns))], [], Target.parse(target))
        assert "masked.gather" not in text
        assert "masked.scatter" not in text
        assert "<16 x float>" in text


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(-3, 3)), min_size=1, max_size=6), st.integers(1, 9))
def test_subvector_length(starts: list[tuple[int, int]], length: int) -> None:
    places = [(base, at * 100 + i) for base, at in starts for i in range(length)]
    width = subvector_length(places)
    assert len(places) % width == 0
    for start in range(0, len(places), width):
        part = places[start : start + width]
        if width < len(places):
            assert part == [(part[0][0], part[0][1] + i) for i in range(width)]
    lone = all(a != b for a, b in pairwise(starts))
    if lone and length >= MIN_SUBVECTOR_LANES:
        assert width == length
    if length < MIN_SUBVECTOR_LANES:
        assert width == len(places)
