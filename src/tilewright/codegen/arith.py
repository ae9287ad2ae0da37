"""Operations of expressions on LLVM values: wrapping, rounding, and the cases that must not trap.

`Arith` works on typed scalars and vectors (`llvm_types`); it does not depend on expressions, loops or memory. The
semantics are those of `expr/nodes.py`.
"""

from collections.abc import Callable

from llvmlite import ir

from tilewright.codegen import half, vecmath
from tilewright.codegen.division import floor_division, floor_remainder, truncating_division
from tilewright.codegen.llvm_types import (
    I64,
    broadcast,
    call_intrinsic,
    constant,
    constant_like,
    declare,
    is_half,
    lane_count,
    logical_and,
    memory_type,
    register_type,
    shuffle,
    type_suffix,
    with_lanes,
)
from tilewright.errors import InternalError
from tilewright.expr.dtype import DType, float64
from tilewright.machine import Target

_PREDICATES = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_INTEGER_IDENTITIES = frozenset(("floor", "ceil", "round", "trunc"))


class Arith:
    """Emits operations at a builder's position.

    Args:
        builder: where the instructions go.
        target: what the code runs on.
        with_fma: whether a product and a sum may be rounded once.
    """

    def __init__(self, builder: ir.IRBuilder, target: Target, with_fma: bool = True) -> None:
        self.builder, self.target = builder, target
        self._flags = ("contract",) if with_fma else ()
        self.features = frozenset(f[1:] for f in target.features if f.startswith("+"))
        self.has_native_half = target.arch == "aarch64" or target.has("f16c")
        self.has_native_extrema = target.arch == "aarch64"

    # conversion between memory and registers

    def from_memory(self, dtype: DType, stored: ir.Value) -> ir.Value:
        """The register value of a loaded value."""
        if dtype.kind == "b":
            return self.builder.icmp_unsigned("!=", stored, constant_like(stored, 0))
        return half.extend(self.builder, dtype, stored, self.has_native_half) if is_half(dtype) else stored

    def to_memory(self, dtype: DType, value: ir.Value) -> ir.Value:
        """The value that a store of the register value writes."""
        if dtype.kind == "b":
            return self.builder.zext(value, with_lanes(memory_type(dtype), lane_count(value)))
        return half.truncate(self.builder, dtype, value, self.has_native_half) if is_half(dtype) else value

    def _round_to_half(self, dtype: DType, value: ir.Value) -> ir.Value:
        return half.round_trip(self.builder, dtype, value, self.has_native_half) if is_half(dtype) else value

    # operations

    def select(self, cond: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
        """`a` where `cond` holds, else `b`; a scalar condition selects whole vectors."""
        if lane_count(cond):
            cond, a, b = broadcast(self.builder, cond, a, b)
        else:
            a, b = broadcast(self.builder, a, b)
        return self.builder.select(cond, a, b)

    def unary(self, op: str, dtype: DType, a: ir.Value) -> ir.Value:
        """`op` of a value of type `dtype`."""
        if op == "not":
            return self.builder.xor(a, constant_like(a, 1 if dtype.kind == "b" else -1))
        if dtype.is_float:
            result = vecmath.emit(self.builder, op, [a], self.features)
            return result if op in ("isnan", "isinf") else self._round_to_half(dtype, result)
        return self._integer_unary(op, dtype, a)

    def _integer_unary(self, op: str, dtype: DType, a: ir.Value) -> ir.Value:
        b = self.builder
        if op in _INTEGER_IDENTITIES or dtype.kind == "b":
            return a
        if op in ("isnan", "isinf"):
            return constant(with_lanes(ir.IntType(1), lane_count(a)), 0)
        zero = constant_like(a, 0)
        if op == "neg":
            return b.sub(zero, a)
        negative = (
            b.icmp_signed("<", a, zero) if dtype.kind == "i" else constant(with_lanes(ir.IntType(1), lane_count(a)), 0)
        )
        if op == "abs":
            return b.select(negative, b.sub(zero, a), a)
        if op == "sign":
            return b.select(negative, constant_like(a, -1), b.zext(b.icmp_unsigned("!=", a, zero), a.type))
        result = vecmath.emit(b, op, [self.cast(dtype, float64, a)], self.features)
        return self.cast(float64, dtype, result)

    def binary(self, op: str, dtype: DType, x: ir.Value, y: ir.Value) -> ir.Value:
        """`op` of two values of type `dtype`."""
        x, y = broadcast(self.builder, x, y)
        if op in _PREDICATES:
            return self.compare(op, dtype, x, y)
        if dtype.kind == "b":
            return self._logic(op, x, y)
        if dtype.is_float:
            return self._round_to_half(dtype, self._float(op, x, y))
        return self._integer(op, dtype, x, y)

    def compare(self, op: str, dtype: DType, x: ir.Value, y: ir.Value) -> ir.Value:
        """The comparison of two values; false on NaN, except "ne"."""
        b, sign = self.builder, _PREDICATES[op]
        if dtype.is_float:
            return b.fcmp_unordered(sign, x, y) if op == "ne" else b.fcmp_ordered(sign, x, y)
        return b.icmp_signed(sign, x, y) if dtype.kind == "i" else b.icmp_unsigned(sign, x, y)

    def _logic(self, op: str, x: ir.Value, y: ir.Value) -> ir.Value:
        b = self.builder
        match op:
            case "and" | "mul" | "min":
                return logical_and(b, x, y)
            case "or" | "add" | "max":
                return b.or_(x, y)
            case "xor" | "sub":
                return b.xor(x, y)
            case _:
                raise InternalError(f"operation {op!r} on bool values")

    def _float(self, op: str, x: ir.Value, y: ir.Value) -> ir.Value:
        b = self.builder
        simple: dict[str, Callable[..., ir.Value]] = {"add": b.fadd, "sub": b.fsub, "mul": b.fmul}
        if op in simple:
            return simple[op](x, y, flags=self._flags)
        match op:
            case "div":
                return b.fdiv(x, y)
            case "min" | "max" | "pow" | "fmod":
                return vecmath.emit(b, op, [x, y], self.features)
            case "mod":
                return self._float_mod(x, y)
            case "floordiv":
                return self._float_floordiv(x, y)
            case _:
                raise InternalError(f"operation {op!r} on floating point values")

    def _float_mod(self, x: ir.Value, y: ir.Value) -> ir.Value:
        """Remainder with the sign of the divisor, as in Python and NumPy."""
        b = self.builder
        r = b.frem(x, y)
        zero = constant_like(r, 0.0)
        signs_differ = b.xor(b.fcmp_ordered("<", y, zero), b.fcmp_ordered("<", r, zero))
        adjusted = b.select(signs_differ, b.fadd(r, y), r)
        signed_zero = call_intrinsic(b, f"copysign.{type_suffix(r.type)}", r.type, [zero, y])
        return b.select(b.fcmp_ordered("==", r, zero), signed_zero, adjusted)

    def _float_floordiv(self, x: ir.Value, y: ir.Value) -> ir.Value:
        """Quotient rounded down; exact where the plain quotient would round up to the next integer."""
        b = self.builder
        kind = x.type
        r = b.frem(x, y)
        zero = constant_like(r, 0.0)
        signs_differ = b.xor(b.fcmp_ordered("<", y, zero), b.fcmp_ordered("<", r, zero))
        adjust = b.and_(signs_differ, b.fcmp_unordered("!=", r, zero))
        quotient = b.fdiv(b.fsub(x, r), y)
        quotient = b.select(adjust, b.fsub(quotient, constant_like(r, 1.0)), quotient)
        # an integer up to rounding
        rounded = call_intrinsic(b, f"rint.{type_suffix(kind)}", kind, [quotient])
        plain_quotient = b.fdiv(x, y)
        sign = b.select(b.fcmp_ordered("==", rounded, zero), plain_quotient, rounded)
        signed = call_intrinsic(b, f"copysign.{type_suffix(kind)}", kind, [rounded, sign])
        return b.select(b.fcmp_ordered("==", y, zero), plain_quotient, signed)

    def _integer(self, op: str, dtype: DType, x: ir.Value, y: ir.Value) -> ir.Value:
        b, signed = self.builder, dtype.kind == "i"
        simple: dict[str, Callable[..., ir.Value]] = {
            "add": b.add, "sub": b.sub, "mul": b.mul, "and": b.and_, "or": b.or_, "xor": b.xor,
        }  # fmt: skip
        if op in simple:
            return simple[op](x, y)
        match op:
            case "min" | "max":
                name = f"{'s' if signed else 'u'}{op}.{type_suffix(x.type)}"
                return call_intrinsic(b, name, x.type, [x, y])
            case "div":
                return truncating_division(b, x, y, signed)
            case "fmod":
                return truncating_division(b, x, y, signed, want_remainder=True)
            case "floordiv":
                return floor_division(b, x, y, signed)
            case "mod":
                return floor_remainder(b, x, y, signed)
            case "shl" | "shr":
                return self._shift(op, x, y, signed)
            case "pow":
                return self._integer_power(dtype, x, y)
            case _:
                raise InternalError(f"operation {op!r} on integers")

    def _shift(self, op: str, x: ir.Value, y: ir.Value, signed: bool) -> ir.Value:
        """Shift by an amount of at least the width shifts all bits out."""
        b = self.builder
        bits = x.type.element.width if lane_count(x) else x.type.width
        in_range = b.icmp_unsigned("<", y, constant_like(y, bits))
        amount = b.select(in_range, y, constant_like(y, bits - 1))
        if op == "shr" and signed:
            return b.ashr(x, amount)
        shifted = b.shl(x, amount) if op == "shl" else b.lshr(x, amount)
        return b.select(in_range, shifted, constant_like(x, 0))

    def _integer_power(self, dtype: DType, x: ir.Value, y: ir.Value) -> ir.Value:
        """Per lane by a helper function; a negative exponent gives the truncated reciprocal."""
        b = self.builder
        helper = integer_power_function(b.module)
        lanes = lane_count(x)
        wide_operands = [x, y]
        if dtype.bits < 64:
            extend = b.sext if dtype.kind == "i" else b.zext
            wide_operands = [extend(v, with_lanes(I64, lanes)) for v in (x, y)]
        if not lanes:
            result: ir.Value = b.call(helper, wide_operands)
        else:
            result = constant(ir.VectorType(I64, lanes), 0)
            for i in range(lanes):
                at = ir.Constant(ir.IntType(32), i)
                result = b.insert_element(result, b.call(helper, [b.extract_element(v, at) for v in wide_operands]), at)
        return b.trunc(result, x.type) if dtype.bits < 64 else result

    # conversions

    def cast(self, source: DType, dtype: DType, a: ir.Value) -> ir.Value:
        """Conversion between types; float to integer truncates, saturates and maps NaN to 0."""
        if source == dtype:
            return a
        b, lanes = self.builder, lane_count(a)
        kind = with_lanes(register_type(dtype), lanes)
        if dtype.kind == "b":
            return (
                b.fcmp_unordered("!=", a, constant_like(a, 0.0))
                if source.is_float
                else b.icmp_unsigned("!=", a, constant_like(a, 0))
            )
        if dtype.is_float and source.is_float:
            return self._float_to_float(dtype, a, kind)
        if dtype.is_float:
            value = b.sitofp(a, kind) if source.kind == "i" else b.uitofp(a, kind)
            return self._round_to_half(dtype, value)
        if source.is_float:
            name = f"fpto{'s' if dtype.kind == 'i' else 'u'}i.sat.{type_suffix(kind)}.{type_suffix(a.type)}"
            return call_intrinsic(b, name, kind, [a])
        bits = 1 if source.kind == "b" else source.bits
        if bits == dtype.bits:
            return a
        if bits > dtype.bits:
            return b.trunc(a, kind)
        return b.sext(a, kind) if source.kind == "i" else b.zext(a, kind)

    def _float_to_float(self, dtype: DType, a: ir.Value, kind: ir.Type) -> ir.Value:
        b = self.builder
        is_double = str(a.type).find("double") >= 0
        if dtype.bits == 64:
            return a if is_double else b.fpext(a, kind)
        if not is_double:
            return self._round_to_half(dtype, a)
        return self._round_to_half(dtype, half.round_to_odd(b, a)) if is_half(dtype) else b.fptrunc(a, kind)

    # lanes

    def reduce_lanes(self, op: str, dtype: DType, vector: ir.Value) -> ir.Value:
        """Horizontal reduction: all lanes combined with `op` in a tree."""
        return self.tree_reduce(lambda x, y: self.binary(op, dtype, x, y), vector)

    def tree_reduce(self, combine: Callable[[ir.Value, ir.Value], ir.Value], vector: ir.Value) -> ir.Value:
        """All lanes combined in a tree by a function of two vectors or two scalars."""
        b = self.builder
        lanes = lane_count(vector)
        odd_lanes: list[ir.Value] = []
        while lanes > 1:
            middle = lanes // 2
            if lanes % 2:
                odd_lanes.append(b.extract_element(vector, ir.Constant(ir.IntType(32), lanes - 1)))
            low = shuffle(b, vector, vector, range(middle))
            high = shuffle(b, vector, vector, range(middle, 2 * middle))
            vector = combine(low, high)
            lanes = middle
        result: ir.Value = b.extract_element(vector, ir.Constant(ir.IntType(32), 0))
        for value in odd_lanes:
            result = combine(result, value)
        return result


def integer_power_function(module: ir.Module) -> ir.Function:
    """The helper `int64 power(int64 base, int64 exponent)`, wrapping; defined at its first use in the module."""
    function = module.globals.get("tilewright_integer_power")
    if function is not None:
        return function
    power = declare(module, "tilewright_integer_power", I64, [I64, I64])
    power.linkage = "internal"
    entry, loop, done = (power.append_basic_block(n) for n in ("entry", "loop", "done"))
    base, exponent = power.args
    b = ir.IRBuilder(entry)
    # with a negative exponent only the bases 1 and -1 give a result other than 0
    negative = b.icmp_signed("<", exponent, I64(0))
    unit = b.or_(b.icmp_signed("==", base, I64(1)), b.icmp_signed("==", base, I64(-1)))
    start = b.select(b.and_(negative, b.not_(unit)), I64(0), I64(1))
    b.branch(loop)
    b.position_at_end(loop)
    n, square, result = b.phi(I64), b.phi(I64), b.phi(I64)
    odd = b.icmp_signed("!=", b.and_(n, I64(1)), I64(0))
    product = b.select(odd, b.mul(result, square), result)
    halved = b.lshr(n, I64(1))
    squared = b.mul(square, square)
    for phi, initial, next_value in ((n, exponent, halved), (square, base, squared), (result, start, product)):
        phi.add_incoming(initial, entry)
        phi.add_incoming(next_value, loop)
    b.cbranch(b.icmp_signed("!=", halved, I64(0)), loop, done)
    b.position_at_end(done)
    b.ret(product)
    return power
