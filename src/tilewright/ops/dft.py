"""DFT: discrete Fourier transforms as products with a matrix of cosines and sines."""

import math

from tilewright.errors import ShapeError
from tilewright.expr.dtype import float64
from tilewright.expr.nodes import Const, Expr, const
from tilewright.expr.operations import cast, select, unary
from tilewright.ops.axes import replace_axis
from tilewright.ops.contraction import accumulator_dtype, epilogue, sum_over
from tilewright.ops.definition import Definition, OpValue, operator

_MAX_LENGTH = 4096
"""The longest transform: the matrix has the square of so many elements."""


@operator("DFT")
def dft(d: Definition) -> OpValue:
    """The spectrum of real or complex signals along an axis, whose last dimension are real and imaginary parts.

    Raises:
        ShapeError: the last dimension is neither 1 nor 2, or the axis is the last one.
        UnsupportedError: the length is no literal, or very large.
    """
    x, inverse, onesided = d.input(0), d.attr_int("inverse", 0), d.attr_int("onesided", 0)
    axis = d.attr_int("axis", 1) if d.opset < 20 else -2 if d.optional(2) is None else d.known_ints(2)[0]
    axis = d.axis(axis, x.rank)
    parts, length = x.shape[-1], x.shape[axis]
    if not isinstance(parts, Const) or not isinstance(length, Const):
        raise d.unsupported("the length of the signals is symbolic")
    if axis == x.rank - 1 or parts.value not in (1, 2):
        what = f"expected an axis before the last dimension, of size 1 or 2, got axis {axis} and size {parts}"
        raise ShapeError(what, where=f"node {d.label}")
    given, is_real_result = int(length.value), bool(inverse and onesided)
    size = 2 * (given - 1) if is_real_result else given
    if d.optional(1) is not None:
        size = d.known_ints(1)[0]
    if not 0 < size <= _MAX_LENGTH:
        raise d.unsupported(f"a transform of length {size}")
    used = min(given, size // 2 + 1 if is_real_result else size)
    results = size // 2 + 1 if onesided and not inverse else size
    wide = accumulator_dtype(x.dtype)
    has_imaginary = parts.value == 2

    def angle(j: Expr) -> Expr:
        return cast(float64, j) * (2 * math.pi / size)

    def cosine(j: Expr) -> Expr:
        return cast(wide, unary("cos", angle(j)))

    def sine(j: Expr) -> Expr:
        return cast(wide, unary("sin", angle(j)))

    cosines, sines = d.compute((size,), cosine), d.compute((size,), sine)
    sign = 1.0 if inverse else -1.0

    def term(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> Expr:
        (k,) = r
        at = (i[axis] * k) % size
        place = replace_axis(i[:-1], axis, k)
        c, s = cosines[at], sines[at] * sign
        real = cast(wide, x[(*place, const(0))])
        imaginary = cast(wide, x[(*place, const(1))]) if has_imaginary else const(0.0, wide)
        if is_real_result:
            # all frequencies but the first and, for an even length, the last one stand for two
            single = k.equals(0) if size % 2 else select(k.equals(0), k.equals(0), k.equals(size // 2))
            return (real * c - imaginary * s) * select(single, const(1.0, wide), const(2.0, wide))
        return select(i[-1].equals(0), real * c - imaginary * s, imaginary * c + real * s)

    shape = (*replace_axis(x.shape[:-1], axis, const(results)), const(1 if is_real_result else 2))
    total = sum_over(d, shape, [const(used)], term)
    return epilogue(d, total, x.dtype, scale=1.0 / size if inverse else 1.0)
