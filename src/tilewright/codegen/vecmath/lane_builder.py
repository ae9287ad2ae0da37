"""Lane-wise floating-point arithmetic: the operations that the vector math is written in.

`LaneBuilder` wraps an `llvmlite.ir.IRBuilder` and a scalar or vector type, so that the same code emits `float`,
`double`, `<16 x float>` or `<3 x double>`. It uses no fast-math flags: the error-free steps of the algorithms (rounding
by adding and subtracting a large constant, exact splittings) rely on that.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

from llvmlite import ir

from tilewright.codegen.llvm_types import constant, declare, element_type, type_suffix, vector_lanes, with_lanes


@dataclass(frozen=True, slots=True)
class LaneBuilder:
    """Emits arithmetic on values of type `kind` (float or double, scalar or vector) at the builder's position.

    Args:
        builder: where the instructions go.
        kind: the type of all values, except the ones that a method documents otherwise.
        features: LLVM target features known to be present ("avx512f", "avx512vl"); may be empty.
    """

    builder: ir.IRBuilder
    kind: ir.Type
    features: frozenset[str] = frozenset()

    @property
    def bits(self) -> int:
        """Width of an element: 32 or 64."""
        return 32 if isinstance(element_type(self.kind), ir.FloatType) else 64

    @property
    def int_kind(self) -> ir.Type:
        """The integer type with the same lanes and width."""
        return with_lanes(ir.IntType(self.bits), vector_lanes(self.kind))

    def const(self, value: float) -> ir.Value:
        """`value` rounded to the element type, in all lanes."""
        return constant(self.kind, value)

    def iconst(self, value: int) -> ir.Value:
        """An integer of the element's width in all lanes; taken modulo 2**bits."""
        return constant(self.int_kind, value)

    def intrinsic(self, name: str, *args: ir.Value, flags: Sequence[str] = ()) -> ir.Value:
        """Call `llvm.<name>` overloaded on `kind`, all arguments and the result of that type, with fast-math flags."""
        function = declare(
            self.builder.module, f"llvm.{name}.{type_suffix(self.kind)}", self.kind, [a.type for a in args]
        )
        return self.builder.call(function, list(args), fastmath=flags)

    def fma(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        """`a * b + c`, fused where the target fuses (never a library call)."""
        return self.intrinsic("fmuladd", a, b, c)

    def horner(self, x: ir.Value, coefficients: Sequence[float]) -> ir.Value:
        """The polynomial with `coefficients` from the constant term upwards."""
        return reduce(
            lambda acc, c: self.fma(acc, x, self.const(c)),
            reversed(coefficients[:-1]),
            self.const(coefficients[-1]),
        )

    def estrin(self, x: ir.Value, coefficients: Sequence[float]) -> ir.Value:
        """The polynomial with `coefficients` from the constant term upwards, in pairs (Estrin's scheme).

        For long polynomials in long functions: a dependency chain of logarithmic length, for logarithmically more
        multiplications. The constant term is added last, so that it rounds as in Horner's scheme.
        """
        terms, power = [self.const(c) for c in coefficients[1:]], x
        while len(terms) > 1:
            square = self.mul(power, power) if len(terms) > 2 else power
            paired = [self.fma(b, power, a) for a, b in zip(terms[::2], terms[1::2], strict=False)]
            if len(terms) % 2:  # three in the last group
                paired[-1] = self.fma(terms[-1], square, paired[-1])
            terms, power = paired, square
        return self.fma(terms[0], x, self.const(coefficients[0]))

    def add(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """`a + b`."""
        return self.builder.fadd(a, b)

    def sub(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """`a - b`."""
        return self.builder.fsub(a, b)

    def mul(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """`a * b`."""
        return self.builder.fmul(a, b)

    def div(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """`a / b`, correctly rounded."""
        return self.builder.fdiv(a, b)

    def cmp(self, op: str, a: ir.Value, b: ir.Value) -> ir.Value:
        """Ordered comparison (false on NaN), except `!=`, which is true on NaN; i1 lanes."""
        return self.builder.fcmp_unordered(op, a, b) if op == "!=" else self.builder.fcmp_ordered(op, a, b)

    def select(self, condition: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
        """`a` where `condition`, else `b`."""
        return self.builder.select(condition, a, b)

    def is_nan(self, x: ir.Value) -> ir.Value:
        """i1 lanes: x is NaN."""
        return self.builder.fcmp_unordered("uno", x, x)

    def at_most(self, x: ir.Value, bound: float) -> ir.Value:
        """The smaller of x and a constant; NaN stays NaN (one instruction on x86: the operands' order matters)."""
        limit = self.const(bound)
        return self.select(self.cmp(">", x, limit), limit, x)

    def at_least(self, x: ir.Value, bound: float) -> ir.Value:
        """The larger of x and a constant; NaN stays NaN."""
        limit = self.const(bound)
        return self.select(self.cmp("<", x, limit), limit, x)

    def to_bits(self, x: ir.Value) -> ir.Value:
        """The bit patterns of x as integers."""
        return self.builder.bitcast(x, self.int_kind)

    def from_bits(self, i: ir.Value) -> ir.Value:
        """The floating point values with these bit patterns."""
        return self.builder.bitcast(i, self.kind)

    def flip_sign(self, x: ir.Value, signs: ir.Value) -> ir.Value:
        """x with its sign flipped in the lanes where the integer `signs` has the top bit set."""
        mask = self.builder.and_(signs, self.iconst(1 << (self.bits - 1)))
        return self.from_bits(self.builder.xor(self.to_bits(x), mask))

    def round_magic(self, x: ir.Value, offset: int = 0) -> tuple[ir.Value, ir.Value]:
        """Rounds x to the nearest integer (ties to even) without a rounding instruction; |x| < 2**21.

        Returns:
            The rounded value, and the integer whose low bits are that value plus `offset`.
        """
        magic = self.const(1.5 * 2.0 ** (23 if self.bits == 32 else 52) + offset)
        shifted = self.add(x, magic)
        return self.sub(shifted, magic), self.to_bits(shifted)

    def per_lane(self, function: Callable[..., ir.Value], *args: ir.Value) -> ir.Value:
        """Applies a scalar `function` to every lane of `args`."""
        count = vector_lanes(self.kind)
        if not count:
            return function(*args)
        result: ir.Value = ir.Constant(self.kind, ir.Undefined)
        for lane in range(count):
            index = ir.Constant(ir.IntType(32), lane)
            value = function(*(self.builder.extract_element(a, index) for a in args))
            result = self.builder.insert_element(result, value, index)
        return result

    def per_subvector(self, size: int, function: Callable[..., ir.Value], *args: ir.Value) -> ir.Value:
        """Applies `function` to `size` lanes of `args` at a time; the lane count is `size` times a power of two."""
        count = vector_lanes(self.kind)
        if count in (0, size):
            return function(*args)
        parts: list[ir.Value] = []
        for start in range(0, count, size):
            mask = ir.Constant(ir.VectorType(ir.IntType(32), size), list(range(start, start + size)))
            parts.append(function(*(self.builder.shuffle_vector(a, a, mask) for a in args)))
        while len(parts) > 1:
            width = 2 * size * (count // size // len(parts))
            mask = ir.Constant(ir.VectorType(ir.IntType(32), width), list(range(width)))
            parts = [self.builder.shuffle_vector(a, b, mask) for a, b in zip(parts[::2], parts[1::2], strict=True)]
        return parts[0]


def widen(lanes: LaneBuilder, x: ir.Value) -> tuple[LaneBuilder, ir.Value]:
    """float32 lanes to float64 (exact): the `LaneBuilder` of the wider type and the value."""
    kind = with_lanes(ir.DoubleType(), vector_lanes(lanes.kind))
    return LaneBuilder(lanes.builder, kind, lanes.features), lanes.builder.fpext(x, kind)


INF = math.inf
NAN = math.nan
