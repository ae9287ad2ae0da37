"""What a reduction along a row accumulates in: vectors that live in registers over whole loops.

An extremum must be NaN where any value is, which on x86 takes three instructions per vector. A whole row needs that
answer only once: it is combined with the plain instruction, which drops NaN, and whether all values were numbers is
kept beside it, by one comparison for two vectors.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from math import nan

from llvmlite import ir

from tilewright.codegen.arith import Arith
from tilewright.codegen.types import I1, I32, I64, constant, count, like, picked, splat
from tilewright.expr.dtype import DType

_SIGNS = {"max": ">", "min": "<"}
_ALIGN = 64


@dataclass(frozen=True, slots=True)
class Slot:
    """A vector in memory of a function's frame, which LLVM turns into registers."""

    builder: ir.IRBuilder
    place: ir.Value
    kind: ir.VectorType

    def value(self) -> ir.Value:
        """What it holds."""
        return self.builder.load(self.place, align=_ALIGN, typ=self.kind)

    def hold(self, value: ir.Value) -> None:
        """Replaces what it holds."""
        self.builder.store(value, self.place, align=_ALIGN)


@dataclass(frozen=True, slots=True)
class Accumulator:
    """The lanes of a reduction.

    Attributes:
        arith: emits at the place where the accumulator is used.
        op: what combines.
        dtype: of the values.
        slot: what was combined so far.
        numbers: lanes that tell whether all values so far were numbers; None where `slot` itself does.
    """

    arith: Arith
    op: str
    dtype: DType
    slot: Slot
    numbers: Slot | None

    def take(self, operand: ir.Value) -> None:
        """Combines with a vector of as many lanes."""
        self.slot.hold(self._combined(self.slot.value(), operand))
        if self.numbers is not None:
            known = self.numbers.value()
            self.numbers.hold(self.arith.builder.and_(known, _are_numbers(self.arith.builder, operand, known.type)))

    def total(self) -> ir.Value:
        """All lanes combined."""
        found = self.arith.tree(self._combined, self.slot.value())
        if self.numbers is None:
            return found
        b, kind = self.arith.builder, self.numbers.kind
        bits = b.bitcast(self.numbers.value(), ir.IntType(kind.count * kind.element.width))
        return b.select(b.icmp_unsigned("==", bits, like(bits, -1)), found, like(found, nan))

    def _combined(self, x: ir.Value, y: ir.Value) -> ir.Value:
        if self.numbers is None:
            return self.arith.binary(self.op, self.dtype, x, y)
        b = self.arith.builder
        # either operand where one is NaN; one instruction with the operands in this order
        return b.select(b.fcmp_ordered(_SIGNS[self.op], x, y), x, y)


def _are_numbers(b: ir.IRBuilder, values: ir.Value, kind: ir.VectorType) -> ir.Value:
    """Whether values are numbers, in as few lanes as `kind` has: a comparison of two vectors tells about both."""
    lanes = kind.count
    parts = [picked(b, values, values, range(k, k + lanes)) for k in range(0, count(values), lanes)]
    pairs = zip(parts[::2], parts[1::2], strict=True)
    found: ir.Value = reduce(b.and_, [b.fcmp_ordered("ord", x, y) for x, y in pairs])
    return found if kind.element == I1 else b.sext(found, kind)


def accumulator(
    arith: Arith, op: str, dtype: DType, identity: ir.Value, lanes: int, room: Callable[[ir.Type], ir.Value]
) -> Accumulator:
    """An accumulator that holds the identity.

    Args:
        arith: emits where the reduction starts; the same builder is used later.
        op: what combines.
        dtype: of the values.
        identity: of `op`, a scalar.
        lanes: of the vectors that will be combined.
        room: gives memory of the function's frame.
    """
    b, kind = arith.builder, ir.VectorType(identity.type, lanes)
    slot = Slot(b, room(kind), kind)
    slot.hold(splat(b, identity, lanes))
    if op not in _SIGNS or not dtype.is_float or arith.native_extrema or lanes % 2:
        return Accumulator(arith, op, dtype, slot, None)
    # a mask register holds bits; where there is none, comparisons give whole elements
    flag = I1 if "avx512f" in arith.features else I64 if dtype.bits == 64 else I32
    width = arith.target.lanes(max(32, dtype.bits))
    flags = ir.VectorType(flag, width if lanes % (2 * width) == 0 else lanes // 2)
    numbers = Slot(b, room(flags), flags)
    numbers.hold(constant(flags, 1 if flag == I1 else -1))
    return Accumulator(arith, op, dtype, slot, numbers)
