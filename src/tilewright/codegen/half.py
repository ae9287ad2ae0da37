"""Conversions between float and the 16-bit storage of float16 and bfloat16, rounding to nearest even.

Integer arithmetic does it wherever the target has no instruction: LLVM would otherwise call functions of the C
compiler's own library, which a process that links object code at run time need not have.
"""

from llvmlite import ir

from tilewright.codegen.types import DOUBLE, FLOAT, I16, I32, I64, constant, count, like, shaped
from tilewright.expr.dtype import DType

_HALF = ir.HalfType()


def _bits(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    return b.bitcast(x, shaped(I32, count(x)))


def _float(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    return b.bitcast(x, shaped(FLOAT, count(x)))


def widened(b: ir.IRBuilder, dtype: DType, stored: ir.Value, native: bool) -> ir.Value:
    """The float of stored bits (i16, scalar or vector); `native` when the target converts float16 itself."""
    lanes = count(stored)
    if dtype.name == "bfloat16":
        wide = b.zext(stored, shaped(I32, lanes))
        return _float(b, b.shl(wide, like(wide, 16)))
    if native:
        return b.fpext(b.bitcast(stored, shaped(_HALF, lanes)), shaped(FLOAT, lanes))
    wide = b.zext(stored, shaped(I32, lanes))
    shifted = b.shl(b.and_(wide, like(wide, 0x7FFF)), like(wide, 13))
    # exponents differ in bias by 112; multiplying also makes subnormals normal
    scaled = b.fmul(_float(b, shifted), like(_float(b, shifted), 2.0**112))
    special = b.fcmp_ordered(">=", scaled, like(scaled, 65536.0))
    exponent = b.or_(_bits(b, scaled), like(wide, 255 << 23))
    magnitude = b.select(special, exponent, _bits(b, scaled))
    sign = b.shl(b.and_(wide, like(wide, 0x8000)), like(wide, 16))
    return _float(b, b.or_(magnitude, sign))


def narrowed(b: ir.IRBuilder, dtype: DType, x: ir.Value, native: bool) -> ir.Value:
    """The stored bits (i16) of a float, rounded to nearest even."""
    lanes = count(x)
    if dtype.name == "bfloat16":
        return _to_bfloat16(b, x)
    if native:
        return b.bitcast(b.fptrunc(x, shaped(_HALF, lanes)), shaped(I16, lanes))
    return _to_float16(b, x)


def _to_bfloat16(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    bits = _bits(b, x)
    odd = b.and_(b.lshr(bits, like(bits, 16)), like(bits, 1))
    rounded = b.lshr(b.add(bits, b.add(odd, like(bits, 0x7FFF))), like(bits, 16))
    quiet = b.or_(b.lshr(bits, like(bits, 16)), like(bits, 0x40))
    return b.trunc(b.select(b.fcmp_unordered("uno", x, x), quiet, rounded), shaped(I16, count(x)))


def _to_float16(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    bits = _bits(b, x)
    sign = b.and_(bits, like(bits, 1 << 31))
    size = b.xor(bits, sign)
    # 65520 and above round to infinity through the carry into the exponent; beyond 2**16 there is no such carry
    huge = b.icmp_unsigned(">=", size, like(size, (127 + 16) << 23))
    nan = b.icmp_unsigned(">", size, like(size, 255 << 23))
    special = b.select(nan, like(size, 0x7E00), like(size, 0x7C00))
    # adding 2**-1 aligns the mantissa of a subnormal so that the float addition rounds it
    magic = ((127 - 15) + (23 - 10) + 1) << 23
    aligned = b.fadd(_float(b, size), _float(b, like(size, magic)))
    subnormal = b.sub(_bits(b, aligned), like(size, magic))
    odd = b.and_(b.lshr(size, like(size, 13)), like(size, 1))
    rebased = b.add(size, b.add(odd, like(size, ((15 - 127) << 23) + 0xFFF)))
    normal = b.lshr(rebased, like(size, 13))
    small = b.icmp_unsigned("<", size, like(size, 113 << 23))
    result = b.select(huge, special, b.select(small, subnormal, normal))
    return b.trunc(b.or_(result, b.lshr(sign, like(sign, 16))), shaped(I16, count(x)))


def rounded(b: ir.IRBuilder, dtype: DType, x: ir.Value, native: bool) -> ir.Value:
    """The float rounded to the nearest value of a 16-bit type."""
    return widened(b, dtype, narrowed(b, dtype, x, native), native)


def float_of_double(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """The float of a double, rounded to odd: rounding that once more to 16 bits is rounding once."""
    lanes = count(x)
    near = b.fptrunc(x, shaped(FLOAT, lanes))
    back = b.fpext(near, shaped(DOUBLE, lanes))
    bits = _bits(b, near)
    even = b.icmp_unsigned("==", b.and_(bits, like(bits, 1)), like(bits, 0))
    kind = shaped(I64, lanes)
    size_back, size = (b.and_(b.bitcast(v, kind), constant(kind, (1 << 63) - 1)) for v in (back, x))
    above = b.icmp_unsigned(">", size_back, size)
    inexact = b.and_(b.fcmp_ordered("!=", back, x), even)
    step = b.select(above, like(bits, -1), like(bits, 1))
    return _float(b, b.select(inexact, b.add(bits, step), bits))
