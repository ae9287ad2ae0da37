"""Distances between the rows of two matrices."""

from tilewright.errors import ShapeError
from tilewright.expr.nodes import Expr
from tilewright.expr.operations import unary
from tilewright.ops.checks import expect_dtype, expect_rank, expect_size
from tilewright.ops.contraction import sum_over
from tilewright.ops.contrib import CONTRIB
from tilewright.ops.definition import Definition, OpValue, operator

_METRICS = ("sqeuclidean", "euclidean")


@operator("CDist", domain=CONTRIB)
def cdist(d: Definition) -> OpValue:
    """C[m, n] = |A[m] - B[n]|, squared for the metric sqeuclidean

    Raises:
        ShapeError: the metric is unknown, or the operands are no matrices of equal width.
    """
    a, b, metric = d.input(0), d.input(1), d.attr_str("metric", "sqeuclidean")
    if metric not in _METRICS:
        raise ShapeError(f"metric: expected {' or '.join(_METRICS)}, got {metric}", where=f"node {d.label}")
    expect_rank(d, a, 2, "A")
    expect_rank(d, b, 2, "B")
    expect_dtype(d, b, a.dtype, "B")
    width = expect_size(d, b.shape[1], a.shape[1], "columns of B")

    def squared(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> Expr:
        difference = a[i[0], r[0]] - b[i[1], r[0]]
        return difference * difference

    total = sum_over(d, (a.shape[0], b.shape[0]), (width,), squared)
    return total if metric == "sqeuclidean" else d.compute(total.shape, lambda *i: unary("sqrt", total[i]))
