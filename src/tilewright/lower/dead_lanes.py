"""Dead lanes: register buffers whose masked-off lanes are never read, so stores need no blend.

A masked store to a private buffer loads the vector, blends, and stores it whole. In an accumulation that keeps the old
vector live together with the new one from tile to tile, and a tile that just fits the registers is spilled. Where
nothing reads the masked-off lanes, the blend is superfluous.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from tilewright.expr.algebra.bounds import Bounds
from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.nodes import Buffer, Const, Expr, MemoryScope, Var, const
from tilewright.expr.traversal import free_vars, loads
from tilewright.loops.ir import Block, For, Func, LoopKind
from tilewright.loops.ir import walk as walk_statements
from tilewright.lower.resolve_block import ResolvedBlock, resolve_block

_LANE, _ZERO, _ONE = Var("lane"), const(0), const(1)


@dataclass(frozen=True, slots=True)
class _BufferUse:
    """A block that accesses a register buffer, with its enclosing loops, the vectorized one of them, and its
    indices."""

    block: ResolvedBlock
    loops: tuple[For, ...]
    lane: For | None
    buffer: Buffer
    indices: tuple[tuple[Expr, ...], ...]

    @property
    def mask(self) -> frozenset[Expr]:
        """The lane-varying conditions, over a lane variable that all uses share."""
        if self.lane is None:
            return frozenset()
        var = self.lane.var
        return frozenset(substitute(c, {var: _LANE}) for c in self.block.conditions if var in free_vars(c))


def dead_lane_buffers(func: Func) -> frozenset[str]:
    """Names of the register buffers whose elements outside of the masks are never read.

    Legality: all blocks that use the buffer have one mask, which reads no memory and is constant within an iteration of
    their common loops; in all of them the lane is the buffer's last index; and the first block writes every element
    under that mask, so that nothing of earlier iterations remains. The same holds per live range of a buffer that is
    rewritten.
    """
    uses: dict[str, list[_BufferUse]] = {}
    for use in _register_buffer_uses(func):
        uses.setdefault(use.buffer.name, []).append(use)
    return frozenset(
        name
        for name, uses_of_buffer in uses.items()
        if has_dead_lanes(uses_of_buffer) or _is_dead_in_live_ranges(uses_of_buffer)
    )


def _is_dead_in_live_ranges(uses: list[_BufferUse]) -> bool:
    """Legality for a buffer of several live ranges, as where the last K-block of a reduction is peeled: each range is
    legal, and a loop around uses of two ranges is around all uses of both."""
    ranges: list[list[_BufferUse]] = []
    for use in uses:
        if _begins_live_range(use) or not ranges:
            ranges.append([])
        ranges[-1].append(use)
    if len(ranges) < 2 or not all(has_dead_lanes(live_range) for live_range in ranges):
        return False
    loops_of_range = [{x.var for use in live_range for x in use.loops} for live_range in ranges]
    common = {v for v, count in Counter(v for live_range in loops_of_range for v in live_range).items() if count > 1}
    return all(
        common & loops <= {x.var for x in use.loops}
        for loops, live_range in zip(loops_of_range, ranges, strict=True)
        for use in live_range
    )


def _begins_live_range(use: _BufferUse) -> bool:
    """Whether a block stores a value that does not depend on the buffer."""
    r = use.block
    return r.target.buffer.name == use.buffer.name and r.op is None and r.init is None and not r.reads_target


def has_dead_lanes(uses: list[_BufferUse]) -> bool:
    """The legality of `dead_lane_buffers` for one buffer, whose uses are in the order of execution."""
    first = uses[0]
    common = {x.var for x in first.loops}.intersection(*({x.var for x in use.loops} for use in uses))
    inner = {x.var for use in uses for x in use.loops} - common
    return (
        bool(first.mask)
        and not any(loads(c) for c in first.mask)
        and all(use.mask == first.mask and _is_lane_last_index(use) for use in uses)
        and not any(free_vars(c) & inner for c in first.mask)
        and _writes_whole_buffer(first, common)
    )


def _register_buffer_uses(func: Func) -> Iterator[_BufferUse]:
    for s, loops in walk_statements(func.body):
        if not isinstance(s, Block):
            continue
        block = resolve_block(s, Bounds.from_loops((x.var, x.extent) for x in loops))
        lane = next((x for x in reversed(loops) if x.kind is LoopKind.VECTORIZED), None)
        accesses_by_buffer: dict[str, tuple[Buffer, list[tuple[Expr, ...]]]] = {}
        stores = [x for x in (block.target, block.init) if x is not None]
        expressions = (*block.conditions, *(e for x in stores for e in (x.value, *x.indices)))
        accesses = [(x.buffer, x.indices) for x in stores]
        accesses += [(n.buffer, n.indices) for e in expressions for n in loads(e)]
        for buffer, indices in accesses:
            if buffer.scope is MemoryScope.REGISTER:
                accesses_by_buffer.setdefault(buffer.name, (buffer, []))[1].append(indices)
        for buffer, indices in accesses_by_buffer.values():
            yield _BufferUse(block, tuple(loops), lane, buffer, tuple(indices))


def _is_lane_last_index(use: _BufferUse) -> bool:
    """Whether the lane is the last index, within the buffer in all lanes, and no other index is lane-varying."""
    lane, extent = use.lane, use.buffer.shape[-1] if use.buffer.shape else None
    if lane is None or not isinstance(extent, Const) or not isinstance(lane.extent, Const):
        return False
    return lane.extent.value <= extent.value and all(
        innermost is lane.var and not any(lane.var in free_vars(i) for i in outer) for *outer, innermost in use.indices
    )


def _writes_whole_buffer(use: _BufferUse, common: set[Var]) -> bool:
    """Whether a block stores every element under its mask, by one loop per dimension, and reads none."""
    r = use.block
    if not _begins_live_range(use):
        return False
    extents = {x.var: x.extent for x in use.loops if x.var not in common}
    if not all(isinstance(n, Const) and n.value > 0 for n in extents.values()):
        return False
    loop_indices = [i for i in r.target.indices if isinstance(i, Var)]
    covers_buffer = all(
        extents.get(i) is n if isinstance(i, Var) else i is _ZERO and n is _ONE
        for i, n in zip(r.target.indices, use.buffer.shape, strict=True)
    )
    return covers_buffer and len(set(loop_indices)) == len(loop_indices) and len(r.conditions) == len(use.mask)
