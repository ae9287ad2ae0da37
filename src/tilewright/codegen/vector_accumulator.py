"""Vector accumulators of horizontal reductions, held in registers across whole loops.

A maximum or minimum is NaN where any value is, which takes three instructions per vector on x86. A whole row needs that
only once: the values are combined by the plain instruction, which drops NaN, and one comparison per two vectors
accumulates whether all values were ordered (not NaN).
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
    """A vector on the stack, which LLVM promotes to registers."""

    builder: ir.IRBuilder
    pointer: ir.Value
    kind: ir.VectorType

    def load(self) -> ir.Value:
        """The vector."""
        return self.builder.load(self.pointer, align=BUFFER_ALIGNMENT, typ=self.kind)

    def store(self, value: ir.Value) -> None:
        """Replaces the vector."""
        self.builder.store(value, self.pointer, align=BUFFER_ALIGNMENT)


@dataclass(frozen=True, slots=True)
class VectorAccumulator:
    """The partial results of a reduction, one per lane.

    Attributes:
        arith: emits where the accumulator is used.
        op: the combining operation.
        dtype: of the values.
        partial: the partial results.
        ordered: per lane, whether all values so far were ordered; None where `partial` itself propagates NaN.
    """

    arith: Arith
    op: str
    dtype: DType
    partial: VectorSlot
    ordered: VectorSlot | None

    def accumulate(self, operand: ir.Value) -> None:
        """Combines the partial results with a vector of as many lanes."""
        self.partial.store(self._combine(self.partial.load(), operand))
        if self.ordered is not None:
            ordered = self.ordered.load()
            self.ordered.store(
                self.arith.builder.and_(ordered, _emit_ordered(self.arith.builder, operand, ordered.type))
            )

    def reduce_lanes(self) -> ir.Value:
        """The horizontal reduction: all lanes combined, NaN where a value was."""
        result = self.arith.tree_reduce(self._combine, self.partial.load())
        if self.ordered is None:
            return result
        b, kind = self.arith.builder, self.ordered.kind
        bits = b.bitcast(self.ordered.load(), ir.IntType(kind.count * kind.element.width))
        return b.select(b.icmp_unsigned("==", bits, constant_like(bits, -1)), result, constant_like(result, nan))

    def _combine(self, x: ir.Value, y: ir.Value) -> ir.Value:
        if self.ordered is None:
            return self.arith.binary(self.op, self.dtype, x, y)
        b = self.arith.builder
        # either operand where one is NaN; a single instruction for this order of the operands
        return b.select(b.fcmp_ordered(_COMPARISONS[self.op], x, y), x, y)


def _emit_ordered(b: ir.IRBuilder, values: ir.Value, kind: ir.VectorType) -> ir.Value:
    """Whether values are ordered, in the lanes of `kind`: one comparison of two vectors covers both."""
    lanes = kind.count
    parts = [shuffle(b, values, values, range(k, k + lanes)) for k in range(0, lane_count(values), lanes)]
    pairs = zip(parts[::2], parts[1::2], strict=True)
    ordered: ir.Value = reduce(b.and_, [b.fcmp_ordered("ord", x, y) for x, y in pairs])
    return ordered if kind.element == I1 else b.sext(ordered, kind)


def make_accumulator(
    arith: Arith, op: str, dtype: DType, identity: ir.Value, lanes: int, stack_alloc: Callable[[ir.Type], ir.Value]
) -> VectorAccumulator:
    """An accumulator that holds the identity in all lanes.

    Args:
        arith: emits where the reduction starts; its builder is used later, too.
        op: the combining operation.
        dtype: of the values.
        identity: of `op`, a scalar.
        lanes: of the vectors to be combined.
        stack_alloc: allocates on the function's stack.
    """
    b, kind = arith.builder, ir.VectorType(identity.type, lanes)
    slot = VectorSlot(b, stack_alloc(kind), kind)
    slot.store(splat(b, identity, lanes))
    if op not in _COMPARISONS or not dtype.is_float or arith.has_native_extrema or lanes % 2:
        return VectorAccumulator(arith, op, dtype, slot, None)
    # with mask registers comparisons give bits, without them elements of all ones or zeros
    flag = I1 if "avx512f" in arith.features else I64 if dtype.bits == 64 else I32
    width = arith.target.lanes(max(32, dtype.bits))
    flags = ir.VectorType(flag, width if lanes % (2 * width) == 0 else lanes // 2)
    ordered = VectorSlot(b, stack_alloc(flags), flags)
    ordered.store(constant(flags, 1 if flag == I1 else -1))
    return VectorAccumulator(arith, op, dtype, slot, ordered)
