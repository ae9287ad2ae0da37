"""Quantization: conversion to and from 8- and 16-bit integers with scale and zero point, and operators on them.

Integer products are accumulated in int32 and requantized in one element-wise stage at the end.
"""

from collections.abc import Callable, Sequence

from tilewright.errors import pluralize
from tilewright.expr.computation import Reducer
from tilewright.expr.dtype import DTYPES, DType, float32, int32, uint8
from tilewright.expr.nodes import Expr, const
from tilewright.expr.operations import cast, maximum, minimum, select, unary
from tilewright.expr.traversal import is_one
from tilewright.ops.checks import expect_dtype, expect_rank, expect_size
from tilewright.ops.contraction import accumulator_dtype, batched_matmul
from tilewright.ops.conv import check_bias, convolve, integer_operands
from tilewright.ops.definition import Definition, OpValue, is_known_zero, operator
from tilewright.ops.matmul import subtract_zero_point

_ONNX_INTEGERS = {2: "uint8", 3: "int8", 4: "uint16", 5: "int16"}
_ONNX_FLOATS = {1: "float32", 10: "float16", 16: "bfloat16", 11: "float64"}


def saturate(value: Expr, dtype: DType) -> Expr:
    """An integral float clamped to the range of an integer type and converted to it; NaN gives the lowest value."""
    low, high = (const(bound, value.dtype) for bound in dtype.integer_range)
    # a comparison rather than a maximum, which is NaN where the value is
    return cast(dtype, minimum(select(value > low, value, low), high))


def _parameter_reader(d: Definition, x: OpValue, p: OpValue, what: str) -> Callable[[tuple[Expr, ...]], Expr]:
    """A function that loads a scale or zero point for an index of `x`: per tensor, per index of `axis`, or per block.

    Raises:
        ShapeError: its shape does not match.
    """
    if p.rank == 0:
        return lambda i: p[()]
    if p.rank == 1 and is_one(p.shape[0]):
        return lambda i: p[(const(0),)]
    axis = d.axis(d.attr_int("axis", 1), x.rank)
    if p.rank == 1:
        expect_size(d, p.shape[0], x.shape[axis], what)
        return lambda i: p[(i[axis],)]
    expect_rank(d, p, x.rank, what)
    block = d.attr_int("block_size", 0)
    if block < 1:
        raise d.unsupported(f"{what} of {pluralize(p.rank, 'dimension')} without block_size")
    for k, (have, want) in enumerate(zip(p.shape, x.shape, strict=True)):
        expect_size(d, have, (want + (block - 1)) // block if k == axis else want, f"dimension {k} of {what}")
    return lambda i: p[tuple(n // block if k == axis else n for k, n in enumerate(i))]


@operator("QuantizeLinear", ignores=("axis", "block_size", "saturate"))
def quantize_linear(d: Definition) -> OpValue:
    """Y = saturate(round(X / y_scale) + y_zero_point), halves to even

    The quotient has the type of `precision`, by default that of the scale. `axis` and `block_size` matter only for
    scales with dimensions, `saturate` only for 8-bit floats, which are not supported.
    """
    x, scale, zero = d.input(0), d.input(1), d.optional(2)
    output_dtype = d.attr_int("output_dtype", 0)
    if output_dtype and output_dtype not in _ONNX_INTEGERS:
        raise d.unsupported(f"output type {output_dtype} is not an 8- or 16-bit integer")
    dtype = zero.dtype if zero is not None else DTYPES[_ONNX_INTEGERS[output_dtype]] if output_dtype else uint8
    if dtype.name not in _ONNX_INTEGERS.values():
        raise d.unsupported(f"output type {dtype} is not an 8- or 16-bit integer")
    if output_dtype:
        expect_size(d, const(dtype.bits), const(DTYPES[_ONNX_INTEGERS[output_dtype]].bits), "bits of y_zero_point")
    precision = _quotient_dtype(d, scale.dtype)
    wide = accumulator_dtype(precision)
    read_scale = _parameter_reader(d, x, scale, "y_scale")
    read_zero = None if zero is None else _parameter_reader(d, x, zero, "y_zero_point")

    def body(*i: Expr) -> Expr:
        quotient = cast(wide, cast(precision, x[i])) / cast(wide, cast(precision, read_scale(i)))
        value = cast(wide, unary("round", cast(precision, quotient)))
        return saturate(value if read_zero is None else value + cast(wide, read_zero(i)), dtype)

    return d.compute(x.shape, body)


def _quotient_dtype(d: Definition, default: DType) -> DType:
    number = d.attr_int("precision", 0)
    if number and number not in _ONNX_FLOATS:
        raise d.unsupported(f"precision {number} is not a floating-point type")
    return DTYPES[_ONNX_FLOATS[number]] if number else default


@operator("DequantizeLinear", ignores=("axis", "block_size"))
def dequantize_linear(d: Definition) -> OpValue:
    """Y = (X - x_zero_point) * x_scale"""
    x, scale, zero = d.input(0), d.input(1), d.optional(2)
    if not x.dtype.is_int:
        raise d.unsupported(f"input type {x.dtype} is not an integer")
    output_dtype = d.attr_int("output_dtype", 0)
    if output_dtype and output_dtype not in _ONNX_FLOATS:
        raise d.unsupported(f"output type {output_dtype} is not a floating-point type")
    dtype = DTYPES[_ONNX_FLOATS[output_dtype]] if output_dtype else scale.dtype
    wide = accumulator_dtype(scale.dtype)
    read_scale = _parameter_reader(d, x, scale, "x_scale")
    if zero is not None:
        expect_dtype(d, zero, x.dtype, "x_zero_point")
    read_zero = None if zero is None or is_known_zero(zero) else _parameter_reader(d, x, zero, "x_zero_point")

    def body(*i: Expr) -> Expr:
        value = cast(int32, x[i])
        if read_zero is not None:
            value = value - cast(int32, read_zero(i))
        return cast(dtype, cast(wide, value) * cast(wide, read_scale(i)))

    return d.compute(x.shape, body)


@operator("DynamicQuantizeLinear")
def dynamic_quantize_linear(d: Definition) -> tuple[OpValue, ...]:
    """(Y, y_scale, y_zero_point): uint8, with the scale from the range of X extended to 0"""
    x = d.input(0)
    expect_dtype(d, x, float32, "X")
    return quantize_dynamically(d, x)


def quantize_dynamically(d: Definition, x: OpValue) -> tuple[OpValue, OpValue, OpValue]:
    """A float32 tensor as uint8, with the scale and the zero point of its range extended to 0."""
    nothing = const(0.0, float32)
    high = d.reduce((), x.shape, lambda i, r: x[r], Reducer.MAX)
    low = d.reduce((), x.shape, lambda i, r: x[r], Reducer.MIN)

    def step() -> Expr:
        span = maximum(high[()], nothing) - minimum(low[()], nothing)
        # The range of all zeros is empty; any positive scale represents them.
        return select(span.equals(0.0), const(1.0, float32), span / 255.0)

    scale = d.compute((), step)

    def zero_point() -> Expr:
        quotient = (nothing - minimum(low[()], nothing)) / scale[()]
        # NaN, of a scale of 0 (a range too small for one) or infinity, gives the largest, as in ONNX Runtime
        return saturate(unary("round", select(quotient < 255.0, quotient, 255.0)), uint8)

    zero = d.compute((), zero_point)
    y = d.compute(
        x.shape, lambda *i: saturate(unary("round", x[i] / scale[()]) + cast(float32, zero[()]), uint8), uint8
    )
    return y, scale, zero


def requantize(
    d: Definition,
    shape: Sequence[Expr],
    total: Callable[[tuple[Expr, ...]], Expr],
    factor: Callable[[tuple[Expr, ...]], Expr],
    zero: OpValue,
) -> OpValue:
    """saturate(round(total * factor) + zero) in the type of `zero`, which has one element."""

    def body(*i: Expr) -> Expr:
        shifted = unary("round", cast(float32, total(i)) * factor(i)) + cast(float32, _scalar(zero))
        return saturate(shifted, zero.dtype)

    return d.compute(shape, body)


def _scalar(p: OpValue) -> Expr:
    return p[tuple(const(0) for _ in p.shape)]


def _expect_scalar(d: Definition, p: OpValue, what: str) -> None:
    for n in p.shape:
        expect_size(d, n, const(1), what)


@operator("QLinearConv")
def qlinear_conv(d: Definition) -> OpValue:
    """Conv of quantized tensors: (sum + B) * x_scale*w_scale/y_scale, rounded, plus y_zero_point"""
    return requantized_convolution(d, channels_last=False)


def requantized_convolution(d: Definition, channels_last: bool) -> OpValue:
    """QLinearConv of [N, C, *sizes], or (`channels_last`) of [N, *sizes, C] with weights [O, C / group, *kernel].

    Raises:
        ShapeError: operands or attributes do not match.
    """
    scale_x, scale_w, scale_y, zero_y = d.input(1), d.input(4), d.input(6), d.input(7)
    _expect_scalar(d, scale_x, "x_scale")
    _expect_scalar(d, scale_y, "y_scale")
    _expect_scalar(d, zero_y, "y_zero_point")
    bias = d.optional(8)
    total = convolve(d, *integer_operands(d, (0, 2), (3, 5)), int32, channels_last=channels_last)
    channel = total.rank - 1 if channels_last else 1
    if bias is not None:
        check_bias(d, bias, total.shape[channel], int32)
    is_per_tensor = scale_w.rank == 0 or is_one(scale_w.shape[0])
    if not is_per_tensor:
        expect_size(d, scale_w.shape[0], total.shape[channel], "w_scale")

    def factor(i: tuple[Expr, ...]) -> Expr:
        weight = _scalar(scale_w) if is_per_tensor else scale_w[(i[channel],)]
        return _scalar(scale_x) * weight / _scalar(scale_y)

    def sum_at(i: tuple[Expr, ...]) -> Expr:
        return total[i] if bias is None else total[i] + bias[i[channel]]

    return requantize(d, total.shape, sum_at, factor, zero_y)


@operator("QLinearMatMul")
def qlinear_matmul(d: Definition) -> OpValue:
    """MatMul of quantized tensors: sum * a_scale*b_scale/y_scale, rounded, plus y_zero_point"""
    a, b = d.input(0), d.input(3)
    scale_a, scale_b, scale_y, zero_y = d.input(1), d.input(4), d.input(6), d.input(7)
    for p, what in ((scale_a, "a_scale"), (scale_y, "y_scale"), (zero_y, "y_zero_point")):
        if p.rank > 1 or (p.rank == 1 and not is_one(p.shape[0])):
            raise d.unsupported(f"{what} is not one value")
    if scale_b.rank > 1:
        raise d.unsupported("b_scale has more than one dimension")
    left = subtract_zero_point(d, a, d.input(2), a.rank - 2, "a_zero_point")
    right = subtract_zero_point(d, b, d.input(5), b.rank - 1, "b_zero_point")
    total = batched_matmul(d, left, right, int32)
    is_per_tensor = scale_b.rank == 0 or is_one(scale_b.shape[0])

    def factor(i: tuple[Expr, ...]) -> Expr:
        weight = _scalar(scale_b) if is_per_tensor else scale_b[(i[-1],)]
        return cast(float32, _scalar(scale_a)) * cast(float32, weight) / cast(float32, _scalar(scale_y))

    return requantize(d, total.shape, lambda i: total[i], factor, zero_y)
