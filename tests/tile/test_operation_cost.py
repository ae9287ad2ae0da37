"""Costs of scalar operations, in both of the figures that estimates use."""

from typing import get_args

import pytest
from tests.optimize.programs import buffer

from tilewright.expr.nodes import Binary, BinaryOp, Expr, Unary, UnaryOp, Var
from tilewright.tile.operation_cost import DIVISION, FREE, FUNCTION, POWER, SIMPLE, OperationCost, operation_cost

X = buffer("x", ())[()]


@pytest.mark.parametrize(
    ("value", "work"),
    [(Var("n"), FREE), (X, SIMPLE),
     (Binary("mul", X, X), SIMPLE), (Binary("div", X, X), DIVISION), (Unary("rsqrt", X), DIVISION),
     (Unary("sigmoid", X), FUNCTION), (Unary("abs", X), SIMPLE), (Binary("pow", X, X), POWER)],
)  # fmt: skip
def test_operation_costs(value: Expr, work: OperationCost) -> None:
    assert operation_cost(value) == work


def test_latency_is_at_least_throughput() -> None:
    unary = [operation_cost(Unary(op, X)) for op in get_args(UnaryOp)]
    binary = [operation_cost(Binary(op, X, X)) for group in get_args(BinaryOp) for op in get_args(group) or (group,)]
    assert all(w.latency >= w.throughput >= 1 for w in (*unary, *binary))
