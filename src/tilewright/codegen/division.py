"""Integer division that never traps: division by zero gives 0, INT_MIN / -1 wraps."""

from llvmlite import ir

from tilewright.codegen.llvm_types import I32, Splat, constant, constant_like, element_type, lane_count, with_lanes


def _constant_lanes(value: ir.Value) -> list[int] | None:
    """The lanes of a constant; None for other values."""
    if not isinstance(value, ir.Constant) or value.constant is None or value.constant is ir.Undefined:
        return None
    if isinstance(value, Splat):
        return [int(value.number)] * lane_count(value)
    lanes = value.constant if lane_count(value) else [value.constant]
    return [int(v.constant if isinstance(v, ir.Constant) else v) for v in lanes]


def _nontrapping_divisor(b: ir.IRBuilder, x: ir.Value, y: ir.Value, signed: bool) -> tuple[ir.Value, ir.Value | None]:
    """A divisor that cannot trap, and where the original one is zero (None: nowhere)."""
    lanes = _constant_lanes(y)
    if lanes is not None and 0 not in lanes and -1 not in lanes:
        return y, None
    zero = b.icmp_unsigned("==", y, constant_like(y, 0))
    traps: ir.Value = zero
    if signed:
        lowest = constant_like(x, -(1 << (element_type(x.type).width - 1)))
        overflow = b.and_(b.icmp_unsigned("==", x, lowest), b.icmp_unsigned("==", y, constant_like(y, -1)))
        traps = b.or_(zero, overflow)
    return b.select(traps, constant_like(y, 1), y), zero


def truncating_division(
    b: ir.IRBuilder, x: ir.Value, y: ir.Value, signed: bool, want_remainder: bool = False
) -> ir.Value:
    """Quotient rounded towards zero, or with `want_remainder` its remainder, as C's operators."""
    divisor, zero = _nontrapping_divisor(b, x, y, signed)
    if want_remainder:
        result = b.srem(x, divisor) if signed else b.urem(x, divisor)
    else:
        result = b.sdiv(x, divisor) if signed else b.udiv(x, divisor)
    return result if zero is None else b.select(zero, constant_like(x, 0), result)


def floor_division(b: ir.IRBuilder, x: ir.Value, y: ir.Value, signed: bool) -> ir.Value:
    """Quotient rounded towards minus infinity."""
    if not signed:
        return truncating_division(b, x, y, False)
    divisor, zero = _nontrapping_divisor(b, x, y, True)
    quotient, remainder = b.sdiv(x, divisor), b.srem(x, divisor)
    inexact = b.icmp_unsigned("!=", remainder, constant_like(remainder, 0))
    signs_differ = b.icmp_signed("<", b.xor(remainder, divisor), constant_like(remainder, 0))
    result = b.add(quotient, b.sext(b.and_(inexact, signs_differ), quotient.type))
    return result if zero is None else b.select(zero, constant_like(x, 0), result)


def floor_remainder(b: ir.IRBuilder, x: ir.Value, y: ir.Value, signed: bool) -> ir.Value:
    """Remainder with the sign of the divisor."""
    if not signed:
        return truncating_division(b, x, y, False, want_remainder=True)
    divisor, zero = _nontrapping_divisor(b, x, y, True)
    remainder = b.srem(x, divisor)
    inexact = b.icmp_unsigned("!=", remainder, constant_like(remainder, 0))
    signs_differ = b.icmp_signed("<", b.xor(remainder, divisor), constant_like(remainder, 0))
    result = b.add(remainder, b.select(b.and_(inexact, signs_differ), divisor, constant_like(remainder, 0)))
    return result if zero is None else b.select(zero, constant_like(x, 0), result)


def nonnegative_division(b: ir.IRBuilder, op: str, x: ir.Value, y: ir.Value, narrow: bool) -> ir.Value:
    """`floordiv` or `mod` of int64 values with x >= 0 and y > 0; `narrow` where both fit 31 bits."""
    wide = x.type
    if narrow:
        kind = with_lanes(I32, lane_count(x))
        x, y = _truncate(b, x, kind), _truncate(b, y, kind)
    result = b.udiv(x, y) if op == "floordiv" else b.urem(x, y)
    return b.zext(result, wide) if narrow else result


def _truncate(b: ir.IRBuilder, v: ir.Value, kind: ir.Type) -> ir.Value:
    lanes = _constant_lanes(v)
    if lanes is None:
        return b.trunc(v, kind)
    return constant(kind, lanes[0] if len(set(lanes)) == 1 else lanes)
