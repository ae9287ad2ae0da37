"""Element-wise operators on quantized tensors: dequantized, computed in float32, and quantized again."""

from tilewright.errors import ShapeError, pluralize
from tilewright.expr.dtype import boolean
from tilewright.expr.nodes import Expr
from tilewright.expr.operations import select, unary
from tilewright.ops.checks import expect_dtype
from tilewright.ops.concat import concatenate
from tilewright.ops.contrib import CONTRIB
from tilewright.ops.contrib.parameters import Quantization, quantization_of
from tilewright.ops.definition import Definition, OpValue, operator
from tilewright.ops.elementwise import elementwise


@operator("QLinearAdd", domain=CONTRIB)
def qlinear_add(d: Definition) -> OpValue:
    """A + B of quantized tensors, broadcast: inputs A, its scale and zero point, those of B, scale and zero point of
    the result."""
    a, b = d.input(0), d.input(3)
    expect_dtype(d, b, a.dtype, "B")
    left, right, result = (quantization_of(d, k, k + 1, a.dtype, w) for k, w in ((1, "A"), (4, "B"), (6, "C")))

    def body(x: Expr, y: Expr) -> Expr:
        # scales of the result's step first, as they are constants in most models
        return result.round(
            left.centred(x) * (left.scale / result.scale) + right.centred(y) * (right.scale / result.scale)
        )

    return elementwise(d, body, a, b)


@operator("QLinearMul", domain=CONTRIB)
def qlinear_mul(d: Definition) -> OpValue:
    """A * B of quantized tensors, broadcast; inputs as of QLinearAdd."""
    a, b = d.input(0), d.input(3)
    expect_dtype(d, b, a.dtype, "B")
    left, right, result = (quantization_of(d, k, k + 1, a.dtype, w) for k, w in ((1, "A"), (4, "B"), (6, "C")))
    factor = left.scale * right.scale / result.scale
    return elementwise(d, lambda x, y: result.round(left.centred(x) * right.centred(y) * factor), a, b)


@operator("QLinearSigmoid", "QLinearLeakyRelu", domain=CONTRIB)
def qlinear_function(d: Definition) -> OpValue:
    """A function of a quantized tensor: inputs X, its scale and zero point, scale and zero point of the result."""
    x = d.input(0)
    source, result = quantization_of(d, 1, 2, x.dtype, "X"), quantization_of(d, 3, 4, x.dtype, "Y")
    alpha = d.attr_float("alpha", 0.01) if d.op_type == "QLinearLeakyRelu" else 0.0

    def body(*i: Expr) -> Expr:
        value = source.dequantize(x[i])
        if d.op_type == "QLinearSigmoid":
            return result.quantize(unary("sigmoid", value))
        return result.quantize(select(value < 0, value * alpha, value))

    return d.compute(x.shape, body)


@operator("QLinearWhere", domain=CONTRIB)
def qlinear_where(d: Definition) -> OpValue:
    """X where the condition holds, else Y, of quantized tensors: inputs condition, X, its scale and zero point, those
    of Y, scale and zero point of the result."""
    condition, x, y = d.input(0), d.input(1), d.input(4)
    expect_dtype(d, condition, boolean, "condition")
    expect_dtype(d, y, x.dtype, "Y")
    left, right, result = (quantization_of(d, k, k + 1, x.dtype, w) for k, w in ((2, "x"), (5, "y"), (7, "z")))

    def body(c: Expr, a: Expr, b: Expr) -> Expr:
        return select(c, result.quantize(left.dequantize(a)), result.quantize(right.dequantize(b)))

    return elementwise(d, body, condition, x, y)


@operator("QLinearConcat", domain=CONTRIB)
def qlinear_concat(d: Definition) -> OpValue:
    """Quantized tensors one after the other along `axis`: inputs scale and zero point of the result, then every tensor
    with its scale and zero point. A tensor quantized like the result is copied."""
    if len(d.operands) < 5 or len(d.operands) % 3 != 2:
        what = f"expected a scale, a zero point, and three inputs per tensor, got {pluralize(len(d.operands), 'input')}"
        raise ShapeError(what, where=f"node {d.label}")
    dtype = d.input(1).dtype
    result = quantization_of(d, 0, 1, dtype, "Y")
    parts: list[OpValue] = []
    for k in range(2, len(d.operands), 3):
        x = d.input(k)
        source = quantization_of(d, k + 1, k + 2, x.dtype, f"input {k}")
        is_same = x.dtype == dtype and source.scale is result.scale and source.zero is result.zero

        def converted(*i: Expr, x: OpValue = x, source: Quantization = source) -> Expr:
            return result.quantize(source.dequantize(x[i]))

        parts.append(x if is_same else d.compute(x.shape, converted))
    return concatenate(d, parts, d.axis(d.attr_int("axis", 0), parts[0].rank))
