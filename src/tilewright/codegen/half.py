"""Conversions between float and the 16-bit storage of float16 and bfloat16, rounding to nearest even.

They use integer arithmetic where the target has no instruction: LLVM would otherwise call functions of the C compiler's
runtime library, which a process that links object code at run time need not have.
"""

from llvmlite import ir

from tilewright.codegen.llvm_types import DOUBLE, FLOAT, I16, I32, I64, constant, constant_like, lane_count, with_lanes
from tilewright.expr.dtype import DType

_HALF = ir.HalfType()


def _as_int32(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    return b.bitcast(x, with_lanes(I32, lane_count(x)))


def _as_float(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    return b.bitcast(x, with_lanes(FLOAT, lane_count(x)))


def extend(b: ir.IRBuilder, dtype: DType, stored: ir.Value, native: bool) -> ir.Value:
    """The float of stored bits (i16, scalar or vector); `native` where the target converts float16."""
    lanes = lane_count(stored)
    if dtype.name == "bfloat16":
        wide = b.zext(stored, with_lanes(I32, lanes))
        return _as_float(b, b.shl(wide, constant_like(wide, 16)))
    if native:
        return b.fpext(b.bitcast(stored, with_lanes(_HALF, lanes)), with_lanes(FLOAT, lanes))
    wide = b.zext(stored, with_lanes(I32, lanes))
    shifted = b.shl(b.and_(wide, constant_like(wide, 0x7FFF)), constant_like(wide, 13))
    # the exponents' biases differ by 112; multiplying also normalises subnormals
    scaled = b.fmul(_as_float(b, shifted), constant_like(_as_float(b, shifted), 2.0**112))
    special = b.fcmp_ordered(">=", scaled, constant_like(scaled, 65536.0))
    exponent = b.or_(_as_int32(b, scaled), constant_like(wide, 255 << 23))
    magnitude = b.select(special, exponent, _as_int32(b, scaled))
    sign = b.shl(b.and_(wide, constant_like(wide, 0x8000)), constant_like(wide, 16))
    return _as_float(b, b.or_(magnitude, sign))


def truncate(b: ir.IRBuilder, dtype: DType, x: ir.Value, native: bool) -> ir.Value:
    """The stored bits (i16) of a float, rounded to nearest even."""
    lanes = lane_count(x)
    if dtype.name == "bfloat16":
        return _to_bfloat16(b, x)
    if native:
        return b.bitcast(b.fptrunc(x, with_lanes(_HALF, lanes)), with_lanes(I16, lanes))
    return _to_float16(b, x)


def _to_bfloat16(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    bits = _as_int32(b, x)
    odd = b.and_(b.lshr(bits, constant_like(bits, 16)), constant_like(bits, 1))
    rounded = b.lshr(b.add(bits, b.add(odd, constant_like(bits, 0x7FFF))), constant_like(bits, 16))
    quiet = b.or_(b.lshr(bits, constant_like(bits, 16)), constant_like(bits, 0x40))
    return b.trunc(b.select(b.fcmp_unordered("uno", x, x), quiet, rounded), with_lanes(I16, lane_count(x)))


def _to_float16(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    bits = _as_int32(b, x)
    sign = b.and_(bits, constant_like(bits, 1 << 31))
    size = b.xor(bits, sign)
    # 65520 and above round to infinity by the carry into the exponent; beyond 2**16 there is no such carry
    huge = b.icmp_unsigned(">=", size, constant_like(size, (127 + 16) << 23))
    nan = b.icmp_unsigned(">", size, constant_like(size, 255 << 23))
    special = b.select(nan, constant_like(size, 0x7E00), constant_like(size, 0x7C00))
    # adding 2**-1 aligns the mantissa of a subnormal so that the float addition rounds it
    magic = ((127 - 15) + (23 - 10) + 1) << 23
    aligned = b.fadd(_as_float(b, size), _as_float(b, constant_like(size, magic)))
    subnormal = b.sub(_as_int32(b, aligned), constant_like(size, magic))
    odd = b.and_(b.lshr(size, constant_like(size, 13)), constant_like(size, 1))
    rebased = b.add(size, b.add(odd, constant_like(size, ((15 - 127) << 23) + 0xFFF)))
    normal = b.lshr(rebased, constant_like(size, 13))
    small = b.icmp_unsigned("<", size, constant_like(size, 113 << 23))
    result = b.select(huge, special, b.select(small, subnormal, normal))
    return b.trunc(b.or_(result, b.lshr(sign, constant_like(sign, 16))), with_lanes(I16, lane_count(x)))


def round_trip(b: ir.IRBuilder, dtype: DType, x: ir.Value, native: bool) -> ir.Value:
    """The float rounded to the nearest value of a 16-bit type."""
    return extend(b, dtype, truncate(b, dtype, x, native), native)


def round_to_odd(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """The float of a double, rounded to odd: rounding that again to 16 bits is the same as rounding once."""
    lanes = lane_count(x)
    nearest = b.fptrunc(x, with_lanes(FLOAT, lanes))
    widened = b.fpext(nearest, with_lanes(DOUBLE, lanes))
    bits = _as_int32(b, nearest)
    is_even = b.icmp_unsigned("==", b.and_(bits, constant_like(bits, 1)), constant_like(bits, 0))
    kind = with_lanes(I64, lanes)
    size_back, size = (b.and_(b.bitcast(v, kind), constant(kind, (1 << 63) - 1)) for v in (widened, x))
    above = b.icmp_unsigned(">", size_back, size)
    inexact = b.and_(b.fcmp_ordered("!=", widened, x), is_even)
    step = b.select(above, constant_like(bits, -1), constant_like(bits, 1))
    return _as_float(b, b.select(inexact, b.add(bits, step), bits))
