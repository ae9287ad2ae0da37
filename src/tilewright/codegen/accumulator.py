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
from tilewright.codegen.types import I1, I32, constant, count, element, like, picked, splat
from tilewright.expr.dtype import DType

_SIGNS = {"max": ">", "min": "<"}
_ALIGN = 64


@dataclass(frozen=True, slots=True)
class Accumulator:
    """Memory of a function's frame that LLVM turns into registers.

    Attributes:
        arith: emits at the place where the accumulator is used.
        op: what combines.
        dtype: of the values.
        slot: the vector.
        kind: its type.
        numbers: lanes that tell whether all values so far were numbers; None where `slot` itself does.
        flags: their type.
    """

    arith: Arith
    op: str
    dtype: DType
    slot: ir.Value
    kind: ir.VectorType
    numbers: ir.Value | None = None
    flags: ir.VectorType | None = None

    def take(self, operand: ir.Value) -> None:
        """Combines with a vector of as many lanes."""
        b = self.arith.builder
        old = b.load(self.slot, align=_ALIGN, typ=self.kind)
        b.store(self._combined(old, operand), self.slot, align=_ALIGN)
        if self.numbers is not None:
            known = b.load(self.numbers, align=_ALIGN, typ=self.flags)
            b.store(b.and_(known, self._are_numbers(operand)), self.numbers, align=_ALIGN)

    def total(self) -> ir.Value:
        """All lanes combined."""
        b = self.arith.builder
        vector = b.load(self.slot, align=_ALIGN, typ=self.kind)
        if self.numbers is None:
            return self.arith.reduce(self.op, self.dtype, vector)
        found = self.arith.tree(self._combined, vector)
        known = b.load(self.numbers, align=_ALIGN, typ=self.flags)
        bits = b.bitcast(known, ir.IntType(count(known) * element(known.type).width))
        return b.select(b.icmp_unsigned("==", bits, like(bits, -1)), found, like(found, nan))

    def _combined(self, x: ir.Value, y: ir.Value) -> ir.Value:
        if self.numbers is None:
            return self.arith.binary(self.op, self.dtype, x, y)
        b = self.arith.builder
        # either operand where one is NaN; one instruction with the operands in this order
        return b.select(b.fcmp_ordered(_SIGNS[self.op], x, y), x, y)

    def _are_numbers(self, operand: ir.Value) -> ir.Value:
        """Whether values are numbers, as few lanes as `flags` has: a comparison of two vectors tells about both."""
        b, lanes = self.arith.builder, self.flags.count
        parts = [picked(b, operand, operand, range(k, k + lanes)) for k in range(0, count(operand), lanes)]
        found = [b.fcmp_ordered("ord", x, y) for x, y in zip(parts[::2], parts[1::2], strict=True)]
        result = reduce(b.and_, found)
        return result if element(self.flags) == I1 else b.sext(result, self.flags)


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
    slot = room(kind)
    b.store(splat(b, identity, lanes), slot, align=_ALIGN)
    if op not in _SIGNS or not dtype.is_float or arith.native_extrema or lanes % 2:
        return Accumulator(arith, op, dtype, slot, kind)
    # a mask register holds bits; where there is none, comparisons give whole elements
    flag = I1 if "avx512f" in arith.features else ir.IntType(64) if dtype.bits == 64 else I32
    width = arith.target.lanes(max(32, dtype.bits))
    flags = ir.VectorType(flag, width if lanes % (2 * width) == 0 else lanes // 2)
    numbers = room(flags)
    b.store(constant(flags, 1 if flag == I1 else -1), numbers, align=_ALIGN)
    return Accumulator(arith, op, dtype, slot, kind, numbers, flags)
