"""Masks of which a part is known at compile time, over several registers: no lane outside of them is touched."""

import numpy as np
import pytest
from tests.codegen.native import TARGETS, check

from tilewright.loops.parser import parse
from tilewright.schedule.trace import Schedule

PADDED = """
func padded(A: {0}[n, {1}], Y: {0}[n, 2, {2}]; n: 1..64):
    for i in serial(n):
        for side in serial(2):
            for j in serial({2}):
                block Y(v: n = i, w: 2 = side, x: {2} = j):
                    Y[v, w, x] = select(w < 1 and x < {1}, A[v, x], {0}(0.0))
"""


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize(("own", "padded", "lanes"), [(4, 5, 8), (8, 9, 16), (8, 16, 16), (3, 29, 32)])
def test_a_condition_on_all_lanes_beside_one_on_each(
    target: str, dtype: str, own: int, padded: int, lanes: int
) -> None:
    s = Schedule(parse(PADDED.format(dtype, own, padded)))
    s.split("j", lanes, names=("o", "l"))
    s.vectorize("l")
    for loop in ("i", "side", "o"):
        s.parallel(loop)
    rng = np.random.default_rng(0)
    arrays = {"A": rng.standard_normal((2, own)).astype(dtype), "Y": np.full((2, 2, padded), 9).astype(dtype)}
    check(s.func, arrays, {"n": 2}, target)
