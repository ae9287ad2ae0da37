"""Gemm: Y = alpha * A' B' + beta * C."""

from tilewright.errors import ShapeError
from tilewright.expr.nodes import Expr
from tilewright.expr.operations import cast
from tilewright.ops.checks import expect_broadcastable, expect_dtype, expect_rank, expect_size
from tilewright.ops.contraction import accumulator_dtype, epilogue, sum_over, widening_product
from tilewright.ops.definition import Definition, OpValue, broadcast_element, operator


@operator("Gemm", ignores=("broadcast",))
def gemm(d: Definition) -> OpValue:
    """Y[m, n] = alpha * sum over k of A'[m, k] * B'[k, n] + beta * C[m, n]; a transposed operand is read transposed"""
    if d.optional(2) is None and d.opset < 11:
        raise ShapeError("input 2 is missing", where=f"node {d.label}", hint="C is optional since opset 11")
    return scaled_product(d)


def scaled_product(d: Definition) -> OpValue:
    """alpha * A' B' + beta * C of inputs A, B and the optional C, with the attributes of Gemm."""
    a, b, c = d.input(0), d.input(1), d.optional(2)
    expect_rank(d, a, 2, "A")
    expect_rank(d, b, 2, "B")
    expect_dtype(d, b, a.dtype, "B")
    transpose_a, transpose_b = bool(d.attr_int("transA", 0)), bool(d.attr_int("transB", 0))
    alpha, beta = d.attr_float("alpha", 1.0), d.attr_float("beta", 1.0)
    if not a.dtype.is_float and not (alpha.is_integer() and beta.is_integer()):
        raise d.unsupported(f"alpha {alpha} or beta {beta} of an integer Gemm is not an integer")
    (rows, inner) = reversed(a.shape) if transpose_a else a.shape
    (depth, columns) = reversed(b.shape) if transpose_b else b.shape
    inner = expect_size(d, depth, inner, "rows of B")
    wide = accumulator_dtype(a.dtype)

    def body(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> Expr:
        (m, n), (k,) = i, r
        return widening_product(a[(k, m) if transpose_a else (m, k)], b[(n, k) if transpose_b else (k, n)], wide)

    total = sum_over(d, (rows, columns), (inner,), body)
    if c is None or beta == 0:
        return epilogue(d, total, a.dtype, scale=alpha)
    expect_dtype(d, c, a.dtype, "C")
    expect_broadcastable(d, c, total.shape, "C")

    def bias(index: tuple[Expr, ...]) -> Expr:
        value = cast(wide, broadcast_element(c, index))
        return value if beta == 1.0 else value * beta

    return epilogue(d, total, a.dtype, bias, alpha)
