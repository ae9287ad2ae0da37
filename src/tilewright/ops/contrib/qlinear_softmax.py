"""Softmax of a quantized tensor."""

from tilewright.expr.dtype import float32
from tilewright.expr.nodes import Expr
from tilewright.expr.operations import unary
from tilewright.ops.contrib import CONTRIB
from tilewright.ops.contrib.parameters import quantization_of
from tilewright.ops.definition import Definition, OpValue, operator
from tilewright.ops.reduce import broadcast_reduced
from tilewright.ops.softmax import softmax_parts

_FIRST_SINGLE_AXIS_OPSET = 13
"""The operator set since which Softmax normalizes along one axis rather than over all from it on."""


@operator("QLinearSoftmax", domain=CONTRIB)
def qlinear_softmax(d: Definition) -> OpValue:
    """Softmax of a quantized tensor, quantized again: inputs X, its scale and zero point, those of the result. The
    attribute `opset` tells which version of Softmax counts.

    The result's scale is 1 / n for a whole number n of steps from 0 to 1, rounded down as ONNX Runtime does.
    """
    x, is_single = d.input(0), d.attr_int("opset", 0) >= _FIRST_SINGLE_AXIS_OPSET
    source, result = quantization_of(d, 1, 2, x.dtype, "X"), quantization_of(d, 3, 4, x.dtype, "Y")
    axis = d.axis(d.attr_int("axis", -1), x.rank)
    axes = (axis,) if is_single else tuple(range(axis, x.rank))
    values = d.compute(x.shape, lambda *i: source.dequantize(x[i]), float32)
    powers, inverse = softmax_parts(d, values, axes)

    def body(*i: Expr) -> Expr:
        return result.round(powers[i] * broadcast_reduced(inverse, i, axes) * unary("floor", 1.0 / result.scale))

    return d.compute(x.shape, body)
