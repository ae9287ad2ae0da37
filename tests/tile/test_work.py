"""What operations count as, in both of the figures that estimates use."""

from typing import get_args

import pytest
from tests.optimize.programs import buffer

from tilewright.expr.nodes import Binary, BinaryOp, Expr, Unary, UnaryOp, Var
from tilewright.tile.work import DIVISION, FREE, FUNCTION, POWER, SIMPLE, Work, work_of

X = buffer("x", ())[()]


@pytest.mark.parametrize(
    ("value", "work"),
    [(Var("n"), FREE), (X, SIMPLE),
     (Binary("mul", X, X), SIMPLE), (Binary("div", X, X), DIVISION), (Unary("rsqrt", X), DIVISION),
     (Unary("sigmoid", X), FUNCTION), (Unary("abs", X), SIMPLE), (Binary("pow", X, X), POWER)],
)  # fmt: skip
def test_work(value: Expr, work: Work) -> None:
    assert work_of(value) == work


def test_every_operation_counts_and_none_less_alone() -> None:
    unary = [work_of(Unary(op, X)) for op in get_args(UnaryOp)]
    binary = [work_of(Binary(op, X, X)) for group in get_args(BinaryOp) for op in get_args(group) or (group,)]
    assert all(w.alone >= w.among >= 1 for w in (*unary, *binary))
