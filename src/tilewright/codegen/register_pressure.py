"""Register pressure of unrolled reductions: where loads of a step must not move before the previous step.

LLVM clusters loads of neighbouring addresses (`ScheduleDAGSDNodes::ClusterNeighboringLoads`) regardless of free
registers. In an unrolled reduction it so loads the operands of a step while those of the previous step are live. Where
the accumulators leave no registers for both, they are spilled: a tile of 9 x 48 for 32 vector registers then has 28
stack accesses for 54 multiply-adds. A compiler barrier, which is no instruction, keeps the loads of a step after it.
"""

from collections.abc import Iterable
from math import prod

from tilewright.expr.algebra.polynomial import constant_value, polynomial
from tilewright.expr.nodes import Buffer, Expr, MemoryScope, Var
from tilewright.expr.traversal import free_vars, loads
from tilewright.loops.ir import For, Func, blocks
from tilewright.lower.nested_blocks import NestedBlock
from tilewright.machine import Target


def has_register_pressure(loop: For, nested_blocks: Iterable[NestedBlock], target: Target) -> bool:
    """Whether a loop's accumulators leave too few registers for the operands of two iterations.

    Args:
        loop: an unrolled loop.
        nested_blocks: the blocks in it, with the extents of the loops that are expanded inside.
        target: whose registers are counted.
    """
    return any(_block_has_register_pressure(loop, inner, target) for inner in nested_blocks)


def memory_resident_tiles(func: Func, target: Target) -> frozenset[str]:
    """Names of the stack buffers that must stay in memory: large ones next to a large register buffer.

    A K-blocked reduction adds the partial sums of a block, in registers, to such a buffer. LLVM would promote both, and
    spill the sums of the innermost loop rather than the values that are live across it.
    """
    large = [b for b in func.allocs if _is_large(b, target)]
    if not any(b.scope is MemoryScope.REGISTER for b in large):
        return frozenset()
    return frozenset(b.name for b in large if b.scope is MemoryScope.STACK)


def is_register_accumulation(loop: For, memory_resident: frozenset[str], target: Target) -> bool:
    """Whether a loop accumulates into a large register buffer and accesses none of the buffers that stay in memory."""
    if not memory_resident:
        return False
    stores = [x for b in blocks(loop.body) for x in (b.body, b.init) if x is not None]
    touched = {s.buffer.name for s in stores} | {x.buffer.name for s in stores for x in loads(s.value)}
    is_large_accumulation = any(s.buffer.scope is MemoryScope.REGISTER and _is_large(s.buffer, target) for s in stores)
    return is_large_accumulation and not touched & memory_resident


def _is_large(buffer: Buffer, target: Target) -> bool:
    """Whether a buffer takes more than half of all vector registers."""
    size = constant_value(polynomial(buffer.size))
    return size is not None and 2 * size * buffer.dtype.bits > target.vector_registers * target.vector_bits


def _block_has_register_pressure(loop: For, nested: NestedBlock, target: Target) -> bool:
    """`has_register_pressure` for one block."""
    r = nested.block
    if r.op is None or r.target.buffer.scope is not MemoryScope.REGISTER:
        return False
    tile = {v: n for v, n in nested.expanded.items() if _uses_variable(r.target.indices, v)}
    lanes = [v for v in tile if v in nested.lanes]
    if not lanes or _uses_variable(r.target.indices, loop.var):
        return False

    def vectors(indices: Iterable[Expr], bits: int) -> int:
        """Registers of the elements at `indices` in one step, with lanes along the lane variables."""
        extents = {v: n for v, n in tile.items() if _uses_variable(indices, v)}
        lane_elements = prod(extents.pop(v) for v in lanes if v in extents)
        return prod(extents.values()) * -(-lane_elements * bits // target.vector_bits)

    vector_loads = [x for x in loads(r.target.value) if any(_uses_variable(x.indices, v) for v in lanes)]
    operands = {(x.buffer.name, x.indices): vectors(x.indices, x.buffer.dtype.bits) for x in vector_loads}
    broadcast = 1  # the other factor of a product, uniform over the lanes
    accumulators = vectors(r.target.indices, r.target.buffer.dtype.bits)
    return accumulators + 2 * sum(operands.values()) + broadcast > target.vector_registers


def _uses_variable(indices: Iterable[Expr], var: Var) -> bool:
    return any(var in free_vars(i) for i in indices)
