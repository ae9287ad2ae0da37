"""The meaning of every expression operation on LLVM values: types, wrapping, rounding and the cases that must not trap.

`Arith` works on values whose types are known (scalars or vectors, see `types`); it knows nothing of expressions,
loops or memory. Semantics are those of `expr/nodes.py`.
"""

from collections.abc import Callable

from llvmlite import ir

from tilewright.codegen import half, vecmath
from tilewright.codegen.division import divided, remainder, truncated
from tilewright.codegen.types import (
    I64,
    constant,
    count,
    declared,
    intrinsic,
    is_half,
    like,
    matched,
    memory_type,
    picked,
    register_type,
    shaped,
    suffix,
)
from tilewright.errors import InternalError
from tilewright.expr.dtype import DType, float64
from tilewright.machine import Target

_COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_CONTRACT = ("contract",)
_IDENTITIES_OF_INTEGERS = frozenset(("floor", "ceil", "round", "trunc"))


class Arith:
    """Emits operations at a builder's position.

    Args:
        builder: where the instructions go.
        target: what the code runs on.
    """

    def __init__(self, builder: ir.IRBuilder, target: Target) -> None:
        self.builder, self.target = builder, target
        self.features = frozenset(f[1:] for f in target.features if f.startswith("+"))
        self.native_half = target.arch == "aarch64" or target.has("f16c")
        self.native_extrema = target.arch == "aarch64"

    # memory representation

    def from_memory(self, dtype: DType, stored: ir.Value) -> ir.Value:
        """The register value of what a load gave."""
        if dtype.kind == "b":
            return self.builder.icmp_unsigned("!=", stored, like(stored, 0))
        return half.widened(self.builder, dtype, stored, self.native_half) if is_half(dtype) else stored

    def to_memory(self, dtype: DType, value: ir.Value) -> ir.Value:
        """What a store of the register value writes."""
        if dtype.kind == "b":
            return self.builder.zext(value, shaped(memory_type(dtype), count(value)))
        return half.narrowed(self.builder, dtype, value, self.native_half) if is_half(dtype) else value

    def _rounded(self, dtype: DType, value: ir.Value) -> ir.Value:
        return half.rounded(self.builder, dtype, value, self.native_half) if is_half(dtype) else value

    # operations

    def select(self, cond: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
        """`a` where `cond`; a scalar condition chooses whole vectors."""
        if count(cond):
            cond, a, b = matched(self.builder, cond, a, b)
        else:
            a, b = matched(self.builder, a, b)
        return self.builder.select(cond, a, b)

    def unary(self, op: str, dtype: DType, a: ir.Value) -> ir.Value:
        """`op` of a value of type `dtype`."""
        if op == "not":
            return self.builder.xor(a, like(a, 1 if dtype.kind == "b" else -1))
        if dtype.is_float:
            result = vecmath.emit(self.builder, op, [a], self.features)
            return result if op in ("isnan", "isinf") else self._rounded(dtype, result)
        return self._integer_unary(op, dtype, a)

    def _integer_unary(self, op: str, dtype: DType, a: ir.Value) -> ir.Value:
        b = self.builder
        if op in _IDENTITIES_OF_INTEGERS or dtype.kind == "b":
            return a
        if op in ("isnan", "isinf"):
            return constant(shaped(ir.IntType(1), count(a)), 0)
        zero = like(a, 0)
        if op == "neg":
            return b.sub(zero, a)
        negative = b.icmp_signed("<", a, zero) if dtype.kind == "i" else constant(shaped(ir.IntType(1), count(a)), 0)
        if op == "abs":
            return b.select(negative, b.sub(zero, a), a)
        if op == "sign":
            return b.select(negative, like(a, -1), b.zext(b.icmp_unsigned("!=", a, zero), a.type))
        wide = vecmath.emit(b, op, [self.cast(dtype, float64, a)], self.features)
        return self.cast(float64, dtype, wide)

    def binary(self, op: str, dtype: DType, x: ir.Value, y: ir.Value) -> ir.Value:
        """`op` of two values whose operands have type `dtype`."""
        x, y = matched(self.builder, x, y)
        if op in _COMPARE:
            return self.compare(op, dtype, x, y)
        if dtype.kind == "b":
            return self._logic(op, x, y)
        if dtype.is_float:
            return self._rounded(dtype, self._float(op, x, y))
        return self._integer(op, dtype, x, y)

    def compare(self, op: str, dtype: DType, x: ir.Value, y: ir.Value) -> ir.Value:
        """The comparison; false on NaN, except "ne"."""
        b, sign = self.builder, _COMPARE[op]
        if dtype.is_float:
            return b.fcmp_unordered(sign, x, y) if op == "ne" else b.fcmp_ordered(sign, x, y)
        return b.icmp_signed(sign, x, y) if dtype.kind == "i" else b.icmp_unsigned(sign, x, y)

    def _logic(self, op: str, x: ir.Value, y: ir.Value) -> ir.Value:
        b = self.builder
        match op:
            case "and" | "mul" | "min":
                return b.and_(x, y)
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
            return simple[op](x, y, flags=_CONTRACT)
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
        """Remainder with the sign of the divisor, as Python's and NumPy's."""
        b = self.builder
        r = b.frem(x, y)
        zero = like(r, 0.0)
        apart = b.xor(b.fcmp_ordered("<", y, zero), b.fcmp_ordered("<", r, zero))
        moved = b.select(apart, b.fadd(r, y), r)
        signed_zero = intrinsic(b, f"copysign.{suffix(r.type)}", r.type, [zero, y])
        return b.select(b.fcmp_ordered("==", r, zero), signed_zero, moved)

    def _float_floordiv(self, x: ir.Value, y: ir.Value) -> ir.Value:
        """Quotient rounded down, exact where the plain quotient would round up to the next integer."""
        b = self.builder
        kind = x.type
        r = b.frem(x, y)
        zero = like(r, 0.0)
        apart = b.xor(b.fcmp_ordered("<", y, zero), b.fcmp_ordered("<", r, zero))
        correct = b.and_(apart, b.fcmp_unordered("!=", r, zero))
        quotient = b.fdiv(b.fsub(x, r), y)
        quotient = b.select(correct, b.fsub(quotient, like(r, 1.0)), quotient)
        # the quotient is an integer up to rounding
        near = intrinsic(b, f"rint.{suffix(kind)}", kind, [quotient])
        plain = b.fdiv(x, y)
        sign_of = b.select(b.fcmp_ordered("==", near, zero), plain, near)
        signed = intrinsic(b, f"copysign.{suffix(kind)}", kind, [near, sign_of])
        return b.select(b.fcmp_ordered("==", y, zero), plain, signed)

    def _integer(self, op: str, dtype: DType, x: ir.Value, y: ir.Value) -> ir.Value:
        b, signed = self.builder, dtype.kind == "i"
        simple: dict[str, Callable[..., ir.Value]] = {
            "add": b.add, "sub": b.sub, "mul": b.mul, "and": b.and_, "or": b.or_, "xor": b.xor,
        }  # fmt: skip
        if op in simple:
            return simple[op](x, y)
        match op:
            case "min" | "max":
                name = f"{'s' if signed else 'u'}{op}.{suffix(x.type)}"
                return intrinsic(b, name, x.type, [x, y])
            case "div":
                return truncated(b, x, y, signed)
            case "fmod":
                return truncated(b, x, y, signed, rest=True)
            case "floordiv":
                return divided(b, x, y, signed)
            case "mod":
                return remainder(b, x, y, signed)
            case "shl" | "shr":
                return self._shift(op, x, y, signed)
            case "pow":
                return self._integer_power(dtype, x, y)
            case _:
                raise InternalError(f"operation {op!r} on integers")

    def _shift(self, op: str, x: ir.Value, y: ir.Value, signed: bool) -> ir.Value:
        """Shifts by the width or more move all bits out."""
        b = self.builder
        bits = x.type.element.width if count(x) else x.type.width
        inside = b.icmp_unsigned("<", y, like(y, bits))
        amount = b.select(inside, y, like(y, bits - 1))
        if op == "shr" and signed:
            return b.ashr(x, amount)
        moved = b.shl(x, amount) if op == "shl" else b.lshr(x, amount)
        return b.select(inside, moved, like(x, 0))

    def _integer_power(self, dtype: DType, x: ir.Value, y: ir.Value) -> ir.Value:
        """Lane by lane through a helper function; a negative exponent gives the truncated reciprocal."""
        b = self.builder
        helper = integer_power(b.module)
        lanes = count(x)
        wide = [b.sext(v, shaped(I64, lanes)) if dtype.kind == "i" and dtype.bits < 64 else (
            b.zext(v, shaped(I64, lanes)) if dtype.bits < 64 else v) for v in (x, y)]  # fmt: skip
        if not lanes:
            result: ir.Value = b.call(helper, wide)
        else:
            result = constant(ir.VectorType(I64, lanes), 0)
            for i in range(lanes):
                at = ir.Constant(ir.IntType(32), i)
                result = b.insert_element(result, b.call(helper, [b.extract_element(v, at) for v in wide]), at)
        return b.trunc(result, x.type) if dtype.bits < 64 else result

    # conversions

    def cast(self, source: DType, dtype: DType, a: ir.Value) -> ir.Value:
        """Conversion between types; float to integer truncates, saturates and maps NaN to 0."""
        if source == dtype:
            return a
        b, lanes = self.builder, count(a)
        kind = shaped(register_type(dtype), lanes)
        if dtype.kind == "b":
            return b.fcmp_unordered("!=", a, like(a, 0.0)) if source.is_float else b.icmp_unsigned("!=", a, like(a, 0))
        if dtype.is_float and source.is_float:
            return self._float_to_float(dtype, a, kind)
        if dtype.is_float:
            value = b.sitofp(a, kind) if source.kind == "i" else b.uitofp(a, kind)
            return self._rounded(dtype, value)
        if source.is_float:
            name = f"fpto{'s' if dtype.kind == 'i' else 'u'}i.sat.{suffix(kind)}.{suffix(a.type)}"
            return intrinsic(b, name, kind, [a])
        bits = 1 if source.kind == "b" else source.bits
        if bits == dtype.bits:
            return a
        if bits > dtype.bits:
            return b.trunc(a, kind)
        return b.sext(a, kind) if source.kind == "i" else b.zext(a, kind)

    def _float_to_float(self, dtype: DType, a: ir.Value, kind: ir.Type) -> ir.Value:
        b = self.builder
        wide = str(a.type).find("double") >= 0
        if dtype.bits == 64:
            return a if wide else b.fpext(a, kind)
        if not wide:
            return self._rounded(dtype, a)
        return self._rounded(dtype, half.float_of_double(b, a)) if is_half(dtype) else b.fptrunc(a, kind)

    # lanes

    def reduce(self, op: str, dtype: DType, vector: ir.Value) -> ir.Value:
        """All lanes combined with `op` in a tree."""
        return self.tree(lambda x, y: self.binary(op, dtype, x, y), vector)

    def tree(self, combined: Callable[[ir.Value, ir.Value], ir.Value], vector: ir.Value) -> ir.Value:
        """All lanes combined in a tree by a function of two vectors, or two scalars."""
        b = self.builder
        lanes = count(vector)
        left: list[ir.Value] = []
        while lanes > 1:
            middle = lanes // 2
            if lanes % 2:
                left.append(b.extract_element(vector, ir.Constant(ir.IntType(32), lanes - 1)))
            low = picked(b, vector, vector, range(middle))
            high = picked(b, vector, vector, range(middle, 2 * middle))
            vector = combined(low, high)
            lanes = middle
        result: ir.Value = b.extract_element(vector, ir.Constant(ir.IntType(32), 0))
        for value in left:
            result = combined(result, value)
        return result


def integer_power(module: ir.Module) -> ir.Function:
    """The helper `int64 power(int64 base, int64 exponent)`, wrapping; defined in the module at its first use."""
    found = module.globals.get("tilewright_integer_power")
    if found is not None:
        return found
    f = declared(module, "tilewright_integer_power", I64, [I64, I64])
    f.linkage = "internal"
    entry, loop, done = (f.append_basic_block(n) for n in ("entry", "loop", "done"))
    base, exponent = f.args
    b = ir.IRBuilder(entry)
    # for a negative exponent only the bases 1 and -1 have a result other than 0
    negative = b.icmp_signed("<", exponent, I64(0))
    unit = b.or_(b.icmp_signed("==", base, I64(1)), b.icmp_signed("==", base, I64(-1)))
    start = b.select(b.and_(negative, b.not_(unit)), I64(0), I64(1))
    b.branch(loop)
    b.position_at_end(loop)
    n, square, result = b.phi(I64), b.phi(I64), b.phi(I64)
    odd = b.icmp_signed("!=", b.and_(n, I64(1)), I64(0))
    product = b.select(odd, b.mul(result, square), result)
    rest = b.lshr(n, I64(1))
    again = b.mul(square, square)
    for phi, first, later in ((n, exponent, rest), (square, base, again), (result, start, product)):
        phi.add_incoming(first, entry)
        phi.add_incoming(later, loop)
    b.cbranch(b.icmp_signed("!=", rest, I64(0)), loop, done)
    b.position_at_end(done)
    b.ret(product)
    return f
