"""Matrix products of 8-bit integers whose results are floats, or quantized again."""

from collections.abc import Callable, Sequence

from tilewright.errors import ShapeError
from tilewright.expr.dtype import float32, int32
from tilewright.expr.nodes import Expr
from tilewright.expr.operations import cast
from tilewright.ops.checks import expect_broadcastable, expect_dtype, expect_rank, expect_shape
from tilewright.ops.contraction import batched_matmul
from tilewright.ops.contrib import CONTRIB
from tilewright.ops.contrib.parameters import column_reader, single_element
from tilewright.ops.definition import Definition, OpValue, broadcast_element, operator
from tilewright.ops.matmul import subtract_zero_point
from tilewright.ops.quantize import quantize_dynamically, requantize
from tilewright.ops.transpose import permute


def _column_bias(d: Definition, bias: OpValue | None, total: OpValue) -> Callable[[Sequence[Expr]], Expr] | None:
    """The addend of a column; None without a bias."""
    if bias is None:
        return None
    expect_dtype(d, bias, float32, "bias")
    expect_shape(d, bias, total.shape[-1:], "bias")
    return lambda i: bias[i[-1]]


def scaled_product(d: Definition, total: OpValue, scale_a: Expr, scale_b: OpValue, bias: OpValue | None) -> OpValue:
    """total * scale_a * scale_b[column] + bias[column] in float32.

    Args:
        d: the operator.
        total: the product in int32.
        scale_a: of the left operand.
        scale_b: of the right operand: one value, or one per column.
        bias: one value per column.

    Raises:
        ShapeError: scale or bias have another length or type.
    """
    read_scale = column_reader(d, scale_b, total.shape[-1], "b_scale")
    addend = _column_bias(d, bias, total)

    def body(*i: Expr) -> Expr:
        value = cast(float32, total[i]) * (scale_a * read_scale(i))
        return value if addend is None else value + addend(i)

    return d.compute(total.shape, body)


@operator("MatMulIntegerToFloat", domain=CONTRIB)
def matmul_integer_to_float(d: Definition) -> OpValue:
    """(A - a_zero_point) @ (B - b_zero_point) * a_scale * b_scale + bias: inputs A, B, a_scale, b_scale, a_zero_point,
    b_zero_point, bias; scale and zero point of B may have one value per column."""
    a, b = d.input(0), d.input(1)
    expect_dtype(d, d.input(2), float32, "a_scale")
    expect_dtype(d, d.input(3), float32, "b_scale")
    left = subtract_zero_point(d, a, d.optional(4), a.rank - 2, "a_zero_point")
    right = subtract_zero_point(d, b, d.optional(5), b.rank - 1, "b_zero_point")
    total = batched_matmul(d, left, right, int32)
    return scaled_product(d, total, single_element(d, d.input(2), "a_scale"), d.input(3), d.optional(6))


@operator("DynamicQuantizeMatMul", domain=CONTRIB)
def dynamic_quantize_matmul(d: Definition) -> OpValue:
    """A @ (B - b_zero_point) * b_scale + bias, with A quantized to uint8 by its own range: inputs A, B, b_scale,
    b_zero_point, bias."""
    a, b = d.input(0), d.input(1)
    expect_dtype(d, a, float32, "A")
    quantized, scale, zero = quantize_dynamically(d, a)
    left = subtract_zero_point(d, quantized, zero, a.rank - 2, "a_zero_point")
    right = subtract_zero_point(d, b, d.optional(3), b.rank - 1, "b_zero_point")
    total = batched_matmul(d, left, right, int32)
    return scaled_product(d, total, scale[()], d.input(2), d.optional(4))


@operator("QGemm", domain=CONTRIB)
def qgemm(d: Definition) -> OpValue:
    """Gemm of quantized tensors: inputs A, its scale and zero point, those of B, C in int32 of scale a_scale * b_scale,
    scale and zero point of the result, without which it is float32.

    Raises:
        ShapeError: operands do not match, or one of the result's scale and zero point is missing.
    """
    a, b, addend = d.input(0), d.input(3), d.optional(6)
    for x, what in ((a, "A"), (b, "B")):
        expect_rank(d, x, 2, what)
    scale_y, zero_y = d.optional(7), d.optional(8)
    if (scale_y is None) != (zero_y is None):
        raise ShapeError("expected y_scale and y_zero_point together, got one", where=f"node {d.label}")
    a = permute(d, a, (1, 0)) if d.attr_int("transA", 0) else a
    b = permute(d, b, (1, 0)) if d.attr_int("transB", 0) else b
    left = subtract_zero_point(d, a, d.optional(2), 0, "a_zero_point")
    right = subtract_zero_point(d, b, d.optional(5), 1, "b_zero_point")
    total = batched_matmul(d, left, right, int32)
    if addend is not None:
        expect_dtype(d, addend, int32, "C")
        expect_broadcastable(d, addend, total.shape, "C")
    alpha = d.attr_float("alpha", 1.0)
    scale_a = single_element(d, d.input(1), "a_scale")
    read_scale = column_reader(d, d.input(4), total.shape[1], "b_scale")

    def sum_at(i: tuple[Expr, ...]) -> Expr:
        return total[i] if addend is None else total[i] + broadcast_element(addend, i)

    def factor(i: tuple[Expr, ...]) -> Expr:
        return scale_a * alpha * read_scale(i)

    if scale_y is None or zero_y is None:
        return d.compute(total.shape, lambda *i: cast(float32, sum_at(i)) * factor(i))
    step = single_element(d, scale_y, "y_scale")
    return requantize(d, total.shape, sum_at, lambda i: factor(i) / step, zero_y)
