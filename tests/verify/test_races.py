"""Races between tiles whose elements identify the iteration only under conditions."""

import numpy as np
import pytest

from tilewright.errors import VerifyError
from tilewright.loops.interpreter import interpret
from tilewright.loops.parser import parse
from tilewright.verify.verifier import verify


def parts(step: str, condition: str) -> str:
    """Eight parts, `step` elements apart, that are walked at once, in tiles of 7."""
    return f"""
func f(A: float32[N * 8], B: float32[N * 8]; N: 8..99):
    for io in parallel((N + 6) // 7):
        for ii in serial(7):
            for o in vectorized(8):
                block B(v: N * 8 = {step} * o + ii + io * 7) where {condition}:
                    B[v] = A[v]
"""


def test_tiles_that_a_condition_keeps_disjoint_do_not_race() -> None:
    func = parse(parts("N", "io * 7 + ii < N"))
    verify(func)
    arrays = {"A": np.arange(80, dtype=np.float32), "B": np.zeros(80, np.float32)}
    interpret(func, arrays, {"N": 10}, seed=1)
    np.testing.assert_array_equal(arrays["A"], arrays["B"])


@pytest.mark.parametrize(
    ("step", "condition"),
    [("(N - 1)", "io * 7 + ii < N"), ("N", "N * o + ii + io * 7 < N * 8"), ("1", "io * 7 + ii < N")],
)
def test_overlapping_tiles_race(step: str, condition: str) -> None:
    message = "iterations of parallel loop 'io' may write the same element"
    with pytest.raises(VerifyError, match=message):
        verify(parse(parts(step, condition)))
