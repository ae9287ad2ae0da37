"""compute_at: producers whose readers pad."""

import pytest
from tests.schedule.functions import check_same

from tilewright.loops.parser import parse
from tilewright.loops.printer import show
from tilewright.schedule.compute_at import compute_at


@pytest.mark.parametrize("before", [0, 1, 2])
def test_reads_with_padding_on_both_sides_need_the_whole_producer_and_no_guards(before: int) -> None:
    func = parse(
        f"""
func f(X: float32[6, 8], Y: float32[6, 11]):
    alloc T: float32[6, 8]
    for i in serial(6):
        for j in serial(8):
            block T(v_i: 6 = i, v_j: 8 = j):
                T[v_i, v_j] = X[v_i, v_j] * 2.0
    for i_1 in serial(6):
        for j_1 in serial(11):
            block Y(v_i_1: 6 = i_1, v_j_1: 11 = j_1):
                Y[v_i_1, v_j_1] = select({before} <= v_j_1 and v_j_1 < {before + 8}, T[v_i_1, v_j_1 - {before}], 0.0)
"""
    )
    result = compute_at(func, "T", "i_1")
    check_same(func, result)
    assert "alloc T: float32[8]" in show(result)
    assert "where" not in show(result)
