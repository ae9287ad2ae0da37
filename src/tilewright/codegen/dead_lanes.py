"""Register buffers in which lanes without work may hold anything.

A store under a mask to memory of the function's own reads the vector, selects, and writes it whole. In an accumulation
that keeps the old vector alive beside the new one, from one tile to the next, and a tile that just fits into the
registers no longer does. Where nobody looks at the lanes that the mask leaves out, no selection is needed.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from tilewright.codegen.resolve_block import ResolvedBlock, resolve_block
from tilewright.expr.algebra.bounds import Bounds
from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.nodes import Buffer, Const, Expr, MemoryScope, Var, const
from tilewright.expr.traversal import free_vars, loads
from tilewright.loops.ir import Block, For, Func, LoopKind
from tilewright.loops.ir import walk as walk_statements

_LANE, _ZERO, _ONE = Var("lane"), const(0), const(1)


@dataclass(frozen=True, slots=True)
class _BufferUse:
    """A block that reads or writes a buffer: the loops around it, the vectorized one among them, and its indices."""

    block: ResolvedBlock
    loops: tuple[For, ...]
    lane: For | None
    buffer: Buffer
    indices: tuple[tuple[Expr, ...], ...]

    @property
    def mask(self) -> frozenset[Expr]:
        """The conditions that differ between lanes, over a lane variable that all blocks share."""
        if self.lane is None:
            return frozenset()
        var = self.lane.var
        return frozenset(substitute(c, {var: _LANE}) for c in self.block.conditions if var in free_vars(c))


def dead_lane_buffers(func: Func) -> frozenset[str]:
    """Names of the register buffers whose elements outside of the masks are never read.

    Legality: all blocks that use the buffer have one mask, which reads no memory and is fixed while the loops around
    all of them stand still; a lane is the position in the buffer's last dimension in all of them; and the first of them
    writes every element under that mask, so that nothing is left over from other iterations of those loops. The same
    holds for each live range of a buffer that is written anew.
    """
    uses: dict[str, list[_BufferUse]] = {}
    for use in _register_buffer_uses(func):
        uses.setdefault(use.buffer.name, []).append(use)
    return frozenset(name for name, own in uses.items() if has_dead_lanes(own) or _is_dead_in_live_ranges(own))


def _is_dead_in_live_ranges(uses: list[_BufferUse]) -> bool:
    """Legality of `dead_lane_buffers` for a buffer of several live ranges, as where a reduction's last block is
    peeled: it holds for each of them, and a loop around uses of two ranges is around all uses of both."""
    ranges: list[list[_BufferUse]] = []
    for use in uses:
        if _begins_live_range(use) or not ranges:
            ranges.append([])
        ranges[-1].append(use)
    if len(ranges) < 2 or not all(has_dead_lanes(own) for own in ranges):
        return False
    around = [{x.var for use in own for x in use.loops} for own in ranges]
    shared = {v for v, count in Counter(v for own in around for v in own).items() if count > 1}
    return all(
        shared & mine <= {x.var for x in use.loops} for mine, own in zip(around, ranges, strict=True) for use in own
    )


def _begins_live_range(use: _BufferUse) -> bool:
    """Whether a block stores what does not depend on the buffer."""
    r = use.block
    return r.target.buffer.name == use.buffer.name and r.op is None and r.init is None and not r.reads_target


def has_dead_lanes(uses: list[_BufferUse]) -> bool:
    """The legality of `dead_lane_buffers` for one buffer, whose uses are in the order of execution."""
    first = uses[0]
    common = {x.var for x in first.loops}.intersection(*({x.var for x in use.loops} for use in uses))
    own = {x.var for use in uses for x in use.loops} - common
    return (
        bool(first.mask)
        and not any(loads(c) for c in first.mask)
        and all(use.mask == first.mask and _is_lane_last_index(use) for use in uses)
        and not any(free_vars(c) & own for c in first.mask)
        and _writes_whole_buffer(first, common)
    )


def _register_buffer_uses(func: Func) -> Iterator[_BufferUse]:
    for s, loops in walk_statements(func.body):
        if not isinstance(s, Block):
            continue
        block = resolve_block(s, Bounds.from_loops((x.var, x.extent) for x in loops))
        lane = next((x for x in reversed(loops) if x.kind is LoopKind.VECTORIZED), None)
        found: dict[str, tuple[Buffer, list[tuple[Expr, ...]]]] = {}
        stores = [x for x in (block.target, block.init) if x is not None]
        read = (*block.conditions, *(e for x in stores for e in (x.value, *x.indices)))
        accesses = [(x.buffer, x.indices) for x in stores]
        accesses += [(n.buffer, n.indices) for e in read for n in loads(e)]
        for buffer, indices in accesses:
            if buffer.scope is MemoryScope.REGISTER:
                found.setdefault(buffer.name, (buffer, []))[1].append(indices)
        for buffer, indices in found.values():
            yield _BufferUse(block, tuple(loops), lane, buffer, tuple(indices))


def _is_lane_last_index(use: _BufferUse) -> bool:
    """Whether the last index is the lane, all lanes lie inside the buffer, and no other index differs between lanes."""
    lane, room = use.lane, use.buffer.shape[-1] if use.buffer.shape else None
    if lane is None or not isinstance(room, Const) or not isinstance(lane.extent, Const):
        return False
    return lane.extent.value <= room.value and all(
        last is lane.var and not any(lane.var in free_vars(i) for i in rest) for *rest, last in use.indices
    )


def _writes_whole_buffer(use: _BufferUse, common: set[Var]) -> bool:
    """Whether a block stores to every element under its mask, by a loop of its own per dimension, and reads none."""
    r = use.block
    if not _begins_live_range(use):
        return False
    extents = {x.var: x.extent for x in use.loops if x.var not in common}
    if not all(isinstance(n, Const) and n.value > 0 for n in extents.values()):
        return False
    driven = [i for i in r.target.indices if isinstance(i, Var)]
    whole = all(
        extents.get(i) is n if isinstance(i, Var) else i is _ZERO and n is _ONE
        for i, n in zip(r.target.indices, use.buffer.shape, strict=True)
    )
    return whole and len(set(driven)) == len(driven) and len(r.conditions) == len(use.mask)
