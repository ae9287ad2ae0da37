"""rfactor: meaning, printed result, use with compute_at, and what it refuses."""

import pytest
from tests.schedule.functions import CHAIN, MATMUL, ROWS, SCALE, check_same

from tilewright.errors import ScheduleError
from tilewright.expr.nodes import const
from tilewright.loops.ir import blocks
from tilewright.loops.printer import show
from tilewright.schedule.compute_at import compute_at
from tilewright.schedule.loops import peel, split
from tilewright.schedule.reduction import decompose_reduction, rfactor
from tilewright.schedule.tree import find_block

BARE = decompose_reduction(ROWS, "T", "k")


def test_rfactor(golden) -> None:
    func = rfactor(ROWS, "T", 0, 3)
    golden(show(func))
    check_same(ROWS, func)


@pytest.mark.parametrize("factor", [1, 2, 3, 6])
def test_every_divisor_keeps_meaning(factor: int) -> None:
    check_same(ROWS, rfactor(ROWS, "T", 0, factor))


def test_a_parameter_may_be_the_result() -> None:
    check_same(MATMUL, rfactor(MATMUL, "C", 0, 5))


def test_partial_results_move_into_the_loop_over_chunks() -> None:
    func = rfactor(CHAIN, "T", 0, 1)
    chunks, partial = find_block(func, "T")[1][-1].var.name, blocks(func.body)[0].name
    func = decompose_reduction(func, "T", chunks)
    func = compute_at(func, partial, chunks)
    assert next(b for b in func.allocs if b.name == "T_partial").shape == ()
    check_same(CHAIN, func)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: rfactor(ROWS, "T", 0, 4), "4 is not known to divide 6"),
        (lambda: rfactor(ROWS, "T", 0, 0), "0 is not known to divide 6"),
        (lambda: rfactor(ROWS, "T", 1, 2), "there is no reduction axis 1; it has 1"),
        (lambda: rfactor(SCALE, "Y", 0, 2), "there is no reduction axis 0; it has 0"),
        (lambda: rfactor(BARE, "T", 0, 2), "its init was taken out, or it has a predicate"),
        (lambda: rfactor(split(ROWS, "k", 4), "T", 0, 2), "its init was taken out, or it has a predicate"),
        (lambda: rfactor(split(ROWS, "k", 3), "T", 0, 2), "its loops were changed; reduce in two levels first"),
        (lambda: rfactor(peel(ROWS, "k", const(2)), "T", 0, 2), "other blocks share its loops"),
    ],
)
def test_rfactor_refuses(make, message: str) -> None:
    with pytest.raises(ScheduleError) as error:
        make()
    assert str(error.value).endswith(f": {message}")
