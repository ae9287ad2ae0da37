"""Scales and zero points of quantized operands."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright.expr.dtype import DType, float32, int32
from tilewright.expr.nodes import Expr, const
from tilewright.expr.operations import cast, unary
from tilewright.expr.traversal import is_one
from tilewright.ops.checks import expect_dtype, expect_size
from tilewright.ops.definition import Definition, OpValue, broadcast_element
from tilewright.ops.quantize import saturate


@dataclass(frozen=True, slots=True)
class Quantization:
    """A scale and a zero point of a whole tensor.

    Attributes:
        dtype: of the quantized elements.
        scale: the step between two of them.
        zero: the element that stands for 0, as int32.
    """

    dtype: DType
    scale: Expr
    zero: Expr

    def dequantize(self, value: Expr) -> Expr:
        """(value - zero) * scale in float32"""
        return self.centred(value) * self.scale

    def centred(self, value: Expr) -> Expr:
        """value - zero in float32"""
        return cast(float32, cast(int32, value) - self.zero)

    def quantize(self, value: Expr) -> Expr:
        """saturate(round(value / scale) + zero) of a float32, halves to even"""
        return self.round(value / self.scale)

    def round(self, steps: Expr) -> Expr:
        """saturate(round(steps) + zero) of a float32 number of steps, halves to even"""
        return saturate(unary("round", steps) + cast(float32, self.zero), self.dtype)


def quantization_of(d: Definition, scale: int, zero: int, dtype: DType, what: str) -> Quantization:
    """The quantization of a whole tensor by inputs `scale` and `zero`; without a zero point it is 0.

    Raises:
        ShapeError: one has more than one element, or the zero point has another type than the tensor.
    """
    factor, offset = d.input(scale), d.optional(zero)
    expect_dtype(d, factor, float32, f"{what}_scale")
    if offset is None:
        return Quantization(dtype, single_element(d, factor, f"{what}_scale"), const(0, int32))
    expect_dtype(d, offset, dtype, f"{what}_zero_point")
    return Quantization(
        dtype,
        single_element(d, factor, f"{what}_scale"),
        cast(int32, single_element(d, offset, f"{what}_zero_point")),
    )


def single_element(d: Definition, x: OpValue, what: str) -> Expr:
    """The only element of a tensor: its value where it is known, else a load.

    Raises:
        ShapeError: it has more than one.
    """
    for n in x.shape:
        expect_size(d, n, const(1), what)
    return broadcast_element(x, tuple(const(0) for _ in x.shape))


def column_reader(d: Definition, p: OpValue, columns: Expr, what: str) -> Callable[[Sequence[Expr]], Expr]:
    """A function that loads a scale or zero point for an index whose last entry is the column: of the whole tensor, or
    one value per column.

    Raises:
        ShapeError: it has another number of elements.
    """
    if p.rank == 0 or all(is_one(n) for n in p.shape):
        value = single_element(d, p, what)
        return lambda _: value
    expect_size(d, p.shape[-1], columns, what)
    for n in p.shape[:-1]:
        expect_size(d, n, const(1), what)
    return lambda i: p[(*(const(0) for _ in p.shape[:-1]), i[-1])]
