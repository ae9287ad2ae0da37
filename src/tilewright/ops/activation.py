"""Activation functions."""

from math import pi, sqrt

from tilewright.errors import ShapeError
from tilewright.expr.nodes import Expr, const
from tilewright.expr.operations import cast, maximum, minimum, select, unary
from tilewright.ops.checks import expect_dtype
from tilewright.ops.contraction import accumulator_dtype
from tilewright.ops.definition import Definition, OpValue, operator
from tilewright.ops.elementwise import elementwise, float_function
from tilewright.ops.legacy_broadcast import align_slope


@operator("Relu")
def relu(d: Definition) -> OpValue:
    """max(x, 0)"""
    x = d.input(0)
    return d.compute(x.shape, lambda *i: maximum(x[i], const(0, x.dtype)))


@operator("LeakyRelu")
def leaky_relu(d: Definition) -> OpValue:
    """x where x >= 0, else alpha * x"""
    alpha = d.attr_float("alpha", 0.01)
    return float_function(d, lambda x: select(x < 0, x * alpha, x))


@operator("PRelu")
def prelu(d: Definition) -> OpValue:
    """x where x >= 0, else slope * x; the slope broadcasts to x, before opset 7 also as one value per channel."""
    x, slope = d.input(0), d.input(1)
    expect_dtype(d, slope, x.dtype, "input 1 (slope)")
    return elementwise(d, lambda a, s: select(a < 0, a * s, a), x, align_slope(d, x, slope))


@operator("ThresholdedRelu")
def thresholded_relu(d: Definition) -> OpValue:
    """x where x > alpha, else 0"""
    alpha = d.attr_float("alpha", 1.0)
    return float_function(d, lambda x: select(x > alpha, x, 0))


@operator("Shrink")
def shrink(d: Definition) -> OpValue:
    """x + bias below -lambd, x - bias above lambd, 0 between"""
    limit, bias = d.attr_float("lambd", 0.5), d.attr_float("bias", 0.0)
    x = d.input(0)
    wide = accumulator_dtype(x.dtype)

    def body(*i: Expr) -> Expr:
        value = cast(wide, x[i])
        if not wide.is_float:
            bound, shift = int(limit), int(bias)
            return select(value < -bound, value + shift, select(value > bound, value - shift, 0))
        return cast(x.dtype, select(value < -limit, value + bias, select(value > limit, value - bias, 0)))

    if x.dtype.is_int and not (limit.is_integer() and bias.is_integer()):
        raise d.unsupported(f"fractional lambd {limit} or bias {bias} with type {x.dtype}")
    return d.compute(x.shape, body)


@operator("Elu")
def elu(d: Definition) -> OpValue:
    """x where x > 0, else alpha * (exp(x) - 1)"""
    alpha = d.attr_float("alpha", 1.0)
    return float_function(d, lambda x: select(x > 0, x, unary("expm1", x) * alpha))


@operator("Selu")
def selu(d: Definition) -> OpValue:
    """gamma * elu(x, alpha)"""
    alpha = d.attr_float("alpha", 1.67326319217681884765625)
    gamma = d.attr_float("gamma", 1.05070102214813232421875)
    return float_function(d, lambda x: select(x > 0, x, unary("expm1", x) * alpha) * gamma)


@operator("Celu")
def celu(d: Definition) -> OpValue:
    """max(0, x) + min(0, alpha * (exp(x / alpha) - 1))"""
    alpha = d.attr_float("alpha", 1.0)
    return float_function(d, lambda x: select(x > 0, x, unary("expm1", x / alpha) * alpha))


@operator("Sigmoid")
def sigmoid(d: Definition) -> OpValue:
    """1 / (1 + exp(-x))"""
    return float_function(d, lambda x: unary("sigmoid", x))


@operator("Tanh")
def tanh(d: Definition) -> OpValue:
    """The hyperbolic tangent."""
    return float_function(d, lambda x: unary("tanh", x))


@operator("Softplus")
def softplus(d: Definition) -> OpValue:
    """log(1 + exp(x))"""
    return float_function(d, lambda x: unary("softplus", x))


@operator("Softsign")
def softsign(d: Definition) -> OpValue:
    """x / (1 + |x|)"""
    return float_function(d, lambda x: x / (unary("abs", x) + 1))


@operator("HardSigmoid")
def hard_sigmoid(d: Definition) -> OpValue:
    """max(0, min(1, alpha * x + beta))"""
    alpha, beta = d.attr_float("alpha", 0.2), d.attr_float("beta", 0.5)
    return float_function(d, lambda x: _hard_sigmoid(x, alpha, beta))


@operator("HardSwish")
def hard_swish(d: Definition) -> OpValue:
    """x * max(0, min(1, x / 6 + 1 / 2))"""
    return float_function(d, lambda x: x * _hard_sigmoid(x, 1 / 6, 0.5))


def _hard_sigmoid(x: Expr, alpha: float, beta: float) -> Expr:
    return maximum(minimum(x * alpha + beta, const(1, x.dtype)), const(0, x.dtype))


@operator("Mish")
def mish(d: Definition) -> OpValue:
    """x * tanh(softplus(x))"""
    return float_function(d, lambda x: x * unary("tanh", unary("softplus", x)))


@operator("Swish")
def swish(d: Definition) -> OpValue:
    """x * sigmoid(alpha * x)"""
    alpha = d.attr_float("alpha", 1.0)
    return float_function(d, lambda x: x * unary("sigmoid", x * alpha))


@operator("Gelu")
def gelu(d: Definition) -> OpValue:
    """x * Phi(x) by the error function or, for approximate="tanh", by the hyperbolic tangent.

    Raises:
        ShapeError: another approximation.
    """
    approximate = d.attr_str("approximate", "none")
    if approximate not in ("none", "tanh"):
        raise ShapeError(f"approximate: expected none or tanh, got {approximate}", where=f"node {d.label}")
    return float_function(d, gelu_erf if approximate == "none" else gelu_tanh)


def gelu_erf(x: Expr) -> Expr:
    """x / 2 * (1 + erf(x / sqrt(2)))"""
    return x * 0.5 * (unary("erf", x * sqrt(0.5)) + 1)


def gelu_tanh(x: Expr) -> Expr:
    """x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))"""
    return x * 0.5 * (unary("tanh", (x + x * x * x * 0.044715) * sqrt(2 / pi)) + 1)
