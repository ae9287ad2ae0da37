"""Matrix products of floating-point and integer tensors with NumPy's broadcasting of batch dimensions."""

from tilewright.expr.dtype import int32
from tilewright.expr.nodes import Expr
from tilewright.expr.operations import cast
from tilewright.expr.traversal import is_one
from tilewright.ops.checks import expect_dtype, expect_size
from tilewright.ops.contraction import accumulator_dtype, batched_matmul, epilogue
from tilewright.ops.definition import Definition, OpValue, is_known_zero, operator


@operator("MatMul")
def matmul(d: Definition) -> OpValue:
    """Y[..., m, n] = sum over k of A[..., m, k] * B[..., k, n]"""
    a, b = d.input(0), d.input(1)
    expect_dtype(d, b, a.dtype, "B")
    return epilogue(d, batched_matmul(d, a, b, accumulator_dtype(a.dtype)), a.dtype)


@operator("MatMulInteger")
def matmul_integer(d: Definition) -> OpValue:
    """Y = (A - a_zero_point) @ (B - b_zero_point) in int32"""
    a = subtract_zero_point(d, d.input(0), d.optional(2), d.input(0).rank - 2, "a_zero_point")
    b = subtract_zero_point(d, d.input(1), d.optional(3), d.input(1).rank - 1, "b_zero_point")
    return batched_matmul(d, a, b, int32)


def subtract_zero_point(d: Definition, x: OpValue, zero: OpValue | None, axis: int, what: str) -> OpValue:
    """x - zero in int32 as a separate stage; `x` itself where the zero point is omitted or known to be 0.

    Args:
        d: the operator.
        x: 8-bit integers.
        zero: a scalar, one value per index of `axis`, or a tensor of the rank of `x` that broadcasts to it.
        axis: dimension of `x` that a vector of zero points applies to.
        what: name of the zero point, for errors.

    Raises:
        ShapeError: the zero point has another type than `x`, or its length is not the size of `axis`.
    """
    if zero is None or is_known_zero(zero):
        return x
    expect_dtype(d, zero, x.dtype, what)
    if zero.rank == 1 and not is_one(zero.shape[0]):
        expect_size(d, zero.shape[0], x.shape[axis], what)

    def body(*i: Expr) -> Expr:
        if zero.rank > 1:
            index = tuple(k * 0 if is_one(n) else k for k, n in zip(i, zero.shape, strict=True))
        else:
            index = tuple(i[axis] * 0 if is_one(n) else i[axis] for n in zero.shape)
        return cast(int32, x[i]) - cast(int32, zero[index])

    return d.compute(x.shape, body)
