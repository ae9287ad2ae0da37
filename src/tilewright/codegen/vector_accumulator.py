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
from tilewright.codegen.llvm_types import I1, I32, I64, constant, constant_like, lane_count, shuffle, splat
from tilewright.expr.dtype import DType
from tilewright.machine.alignment import BUFFER_ALIGNMENT

_COMPARISONS = {"max": ">", "min": "<"}


@dataclass(frozen=True, slots=True)
class VectorSlot:
    """A vector in memory of a function's frame, which LLVM turns into registers."""

    builder: ir.IRBuilder
    pointer: ir.Value
    kind: ir.VectorType

    def load(self) -> ir.Value:
        """What it holds."""
        return self.builder.load(self.pointer, align=BUFFER_ALIGNMENT, typ=self.kind)

    def store(self, value: ir.Value) -> None:
        """Replaces what it holds."""
        self.builder.store(value, self.pointer, align=BUFFER_ALIGNMENT)


@dataclass(frozen=True, slots=True)
class VectorAccumulator:
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
    partial: VectorSlot
    ordered: VectorSlot | None

    def accumulate(self, operand: ir.Value) -> None:
        """Combines with a vector of as many lanes."""
        self.partial.store(self._combine(self.partial.load(), operand))
        if self.ordered is not None:
            known = self.ordered.load()
            self.ordered.store(self.arith.builder.and_(known, _emit_ordered(self.arith.builder, operand, known.type)))

    def reduce_lanes(self) -> ir.Value:
        """All lanes combined."""
        found = self.arith.tree_reduce(self._combine, self.partial.load())
        if self.ordered is None:
            return found
        b, kind = self.arith.builder, self.ordered.kind
        bits = b.bitcast(self.ordered.load(), ir.IntType(kind.count * kind.element.width))
        return b.select(b.icmp_unsigned("==", bits, constant_like(bits, -1)), found, constant_like(found, nan))

    def _combine(self, x: ir.Value, y: ir.Value) -> ir.Value:
        if self.ordered is None:
            return self.arith.binary(self.op, self.dtype, x, y)
        b = self.arith.builder
        # either operand where one is NaN; one instruction with the operands in this order
        return b.select(b.fcmp_ordered(_COMPARISONS[self.op], x, y), x, y)


def _emit_ordered(b: ir.IRBuilder, values: ir.Value, kind: ir.VectorType) -> ir.Value:
    """Whether values are numbers, in as few lanes as `kind` has: a comparison of two vectors tells about both."""
    lanes = kind.count
    parts = [shuffle(b, values, values, range(k, k + lanes)) for k in range(0, lane_count(values), lanes)]
    pairs = zip(parts[::2], parts[1::2], strict=True)
    found: ir.Value = reduce(b.and_, [b.fcmp_ordered("ord", x, y) for x, y in pairs])
    return found if kind.element == I1 else b.sext(found, kind)


def make_accumulator(
    arith: Arith, op: str, dtype: DType, identity: ir.Value, lanes: int, stack_alloc: Callable[[ir.Type], ir.Value]
) -> VectorAccumulator:
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
    slot = VectorSlot(b, stack_alloc(kind), kind)
    slot.store(splat(b, identity, lanes))
    if op not in _COMPARISONS or not dtype.is_float or arith.has_native_extrema or lanes % 2:
        return VectorAccumulator(arith, op, dtype, slot, None)
    # a mask register holds bits; where there is none, comparisons give whole elements
    flag = I1 if "avx512f" in arith.features else I64 if dtype.bits == 64 else I32
    width = arith.target.lanes(max(32, dtype.bits))
    flags = ir.VectorType(flag, width if lanes % (2 * width) == 0 else lanes // 2)
    numbers = VectorSlot(b, stack_alloc(flags), flags)
    numbers.store(constant(flags, 1 if flag == I1 else -1))
    return VectorAccumulator(arith, op, dtype, slot, numbers)
