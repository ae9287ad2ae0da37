"""Schedules of single stages within a row: element-wise work, reductions to one value, windows.

A `StageTile` says what a stage computes at once; the rule chooses one by strides and extents.
"""

from dataclasses import dataclass
from math import prod

from tilewright.cost.instructions import MIN_FULL_VECTORS
from tilewright.expr.nodes import Const, Expr, MemoryScope, Var
from tilewright.expr.traversal import free_vars, loads
from tilewright.loops.ir import Block, IterKind, blocks
from tilewright.optimize.interface import Task
from tilewright.optimize.reduction_blocking import KBlockLimits
from tilewright.optimize.strides import is_literal, load_stride, store_stride
from tilewright.schedule.rewrite_tree import find_block, find_loop
from tilewright.schedule.schedule import Schedule
from tilewright.tile.schedule_helpers import BlockLoops, buffer_of, loop_extent, split_for_lanes

K_BLOCK_LIMITS = KBlockLimits(max_unblocked=64, root_multiple=1, min_size=1, max_size=1 << 40, slack=4)
"""K-blocks of sums along a row; the additions wait for loads, so more blocks cost little."""

REDUCTION_VECTORS = 4
"""Vectors per step of a sum along a row: this many independent dependency chains hide the latency of an addition."""

MAX_UNROLLED_TAPS = 64
"""Points of a window up to which it is fully unrolled."""

MAX_TILE_ROWS = 8
"""Rows of a register tile of windows."""


@dataclass(frozen=True, slots=True)
class StageTile:
    """The register tile of one stage.

    Attributes:
        lane: position, among the block's variables, of the axis that vectors run along.
        vectors: vectors along it.
        rows: results of windows along the last other axis.
        unrolled: whether windows are fully unrolled.
    """

    lane: int
    vectors: int = 1
    rows: int = 1
    unrolled: bool = True


def schedule_elementwise_stage(
    s: Schedule, block: str, loops: dict[int, str], task: Task, tile: StageTile | None = None
) -> None:
    """Vectorizes one axis of a row, moved innermost; by default the one along which most accesses are contiguous."""
    node = find_block(s.func, block)[0]
    if tile is None or tile.lane not in loops:  # axes with a single point have no loop left
        tile = StageTile(max(loops, key=lambda k: (_contiguity_score(node, k), k)))
    other_loops = [x for k, x in loops.items() if k != tile.lane]
    width = tile.vectors * task.target.lanes(32)
    outer, inner = split_for_lanes(s, loops[tile.lane], width)
    order = [*other_loops, *(x for x in (outer, inner) if x is not None)]
    if len(order) > 1:
        s.do("reorder", tuple(order))
    full = _full_vectors(node.iters[tile.lane].extent, width)
    if outer is not None and full:
        # otherwise the last vector's mask would slow down all of them
        s.do("vectorize", s.loops(_peel_first(s, outer, full))[-1])
    s.do("vectorize", inner)


def _full_vectors(extent: Expr, lanes: int) -> int:
    """Vectors that need no mask where a masked one follows; 0 where a mask costs nothing or all need one."""
    n = int(extent.value) if isinstance(extent, Const) else 0
    return n // lanes if n % lanes and n // lanes >= MIN_FULL_VECTORS else 0


def _peel_first(s: Schedule, loop: str, first: int) -> str:
    """Peels a loop's first iterations; returns the block of the remaining ones."""
    remainder = s.peel(loop, first)
    return blocks(find_loop(s.func, remainder)[0])[0].name


def _contiguity_score(node: Block, axis: int) -> float:
    """How many accesses are contiguous along an axis; the store counts double."""
    var = node.iters[axis].var
    return 2.0 * is_literal(store_stride(node, var), 1) + sum(
        is_literal(load_stride(x, var), 1) for x in loads(node.body.value)
    )


def vectorize_reduction(s: Schedule, block: str, task: Task, vectors: int = REDUCTION_VECTORS) -> None:
    """Vectorizes the reduction loop along which loads are contiguous, several vectors per step."""
    loops = BlockLoops.of(s, block)
    s.do("decompose_reduction", block, loops.reduce[0])
    node = find_block(s.func, block)[0]
    reductions = [i for i in node.iters if i.kind is IterKind.REDUCE]
    for name, i in zip(loops.reduce, reductions, strict=True):
        if _is_contiguous_along(node, i.var) and not _is_below(loop_extent(s, name), 4):
            outer, inner = split_for_lanes(s, name, vectors * task.target.lanes(32))
            other_loops = [x for x in loops.reduce if x != name]
            if other_loops:
                s.do("reorder", (*other_loops, *(x for x in (outer, inner) if x is not None)))
            s.do("vectorize", inner)
            return


def vectorizable_reduction_axis(node: Block) -> int | None:
    """Position of the reduction variable that `vectorize_reduction` vectorizes; None where there is none."""
    return next((k for k, i in enumerate(node.iters)
                 if i.kind is IterKind.REDUCE and _is_contiguous_along(node, i.var) and not _is_below(i.extent, 4)),
                 None)  # fmt: skip


def _is_contiguous_along(node: Block, var: Var) -> bool:
    """Whether a load is contiguous along a variable."""
    strides = [load_stride(x, var) for x in loads(node.body.value) if x.buffer != node.body.buffer]
    return any(is_literal(stride, 1) for stride in strides)


def schedule_window_stage(
    s: Schedule,
    block: str,
    reduction: str,
    row_loops: list[str],
    loops: dict[int, str],
    task: Task,
    tile: StageTile | None = None,
) -> None:
    """Computes windows in register tiles: vectors along one axis, tile rows along the last of the others."""
    tile = tile or _default_window_tile(s, block, reduction, loops, task)
    width = task.target.lanes(find_block(s.func, block)[0].body.buffer.dtype.bits)
    lane_outer, lane_inner = split_for_lanes(s, loops[tile.lane], tile.vectors * width)
    tile_loops = [x for x in (lane_outer, lane_inner) if x is not None and x != lane_inner]
    other_loops = [x for k, x in loops.items() if k != tile.lane]
    tile_rows: list[str] = []
    if other_loops and is_literal(loop_extent(s, other_loops[-1]), tile.rows):
        tile_rows = [other_loops.pop()]
    elif other_loops and tile.rows > 1:
        outer, inner = s.split(other_loops.pop(), tile.rows)
        other_loops, tile_rows = [*other_loops, outer], [inner]
    order = [*other_loops, *tile_loops, *tile_rows, lane_inner]
    if len(order) > 1:
        s.do("reorder", tuple(order))
    outer_loops = [*row_loops, *other_loops, *tile_loops]
    if outer_loops:
        s.do("compute_at", reduction, outer_loops[-1])
    _schedule_accumulation(s, reduction, tile.unrolled)
    for x in tile_rows:
        s.do("unroll", x)
    s.do("vectorize", lane_inner)


def _default_window_tile(s: Schedule, block: str, reduction: str, loops: dict[int, str], task: Task) -> StageTile:
    """The rule's tile: vectors along the contiguous axis, as many rows as fit, short windows unrolled."""
    node = find_block(s.func, block)[0]
    lane = max(loops, key=lambda k: (is_literal(store_stride(node, node.iters[k].var), 1), k))
    register_limit = task.target.vector_registers // 2
    width = task.target.lanes(node.body.buffer.dtype.bits)
    vectors = min(_vector_count(loop_extent(s, loops[lane]), width), register_limit, 4)
    other_loops = [x for k, x in loops.items() if k != lane]
    height = _best_tile_rows(loop_extent(s, other_loops[-1]), register_limit // vectors) if other_loops else 1
    taps = prod(literal_or_large(i.extent) for i in find_block(s.func, reduction)[0].iters if i.kind is IterKind.REDUCE)
    return StageTile(lane, vectors, height, taps <= MAX_UNROLLED_TAPS)


def _schedule_accumulation(s: Schedule, block: str, unrolled: bool) -> None:
    """Accumulators in registers: window loops outside, rows unrolled, lanes innermost."""
    s.do("set_scope", buffer_of(s, block), MemoryScope.REGISTER)
    loops = BlockLoops.of(s, block)
    s.do("reorder", (*loops.reduce, *loops.spatial))
    init = s.decompose_reduction(block, loops.reduce[0])
    *row_loops, lanes = loops.spatial
    if unrolled and row_loops and _is_strided_along(s, block, lanes):
        # vectors shuffled out of an input row stay in registers until the next row of results has used them
        s.do("reorder", (*row_loops, *loops.reduce, lanes))
    for x in loops.reduce if unrolled else ():
        s.do("unroll", x)
    for block_loops in (loops.spatial, BlockLoops.of(s, init).spatial):
        for x in block_loops[:-1]:
            s.do("unroll", x)
        s.do("vectorize", block_loops[-1])


def _is_strided_along(s: Schedule, block: str, lanes: str) -> bool:
    """Whether lanes read every second element or fewer, so that vectors are shuffled out of loaded ones."""
    node = find_block(s.func, block)[0]
    var = next(i.var for i in node.iters if Var(lanes) in free_vars(i.binding))
    strides = [load_stride(x, var) for x in loads(node.body.value) if x.buffer != node.body.buffer]
    return any(isinstance(stride, Const) and int(stride.value) > 1 for stride in strides)


def literal_or_large(e: Expr) -> int:
    """A literal size; for others one that is too large to be unrolled."""
    return int(e.value) if isinstance(e, Const) else MAX_UNROLLED_TAPS + 1


def _vector_count(extent: Expr, width: int) -> int:
    return -(-int(extent.value) // width) if isinstance(extent, Const) else 1


def _best_tile_rows(extent: Expr, limit: int) -> int:
    """The largest tile height that divides the extent; where only small ones do, as many rows as fit."""
    n = literal_or_large(extent)
    best = max(k for k in range(1, max(1, min(n, limit, MAX_TILE_ROWS)) + 1) if n % k == 0)
    return best if 2 * best >= min(n, limit, MAX_TILE_ROWS) else max(1, min(n, limit, MAX_TILE_ROWS) // 2)


def _is_below(extent: Expr, size: int) -> bool:
    return isinstance(extent, Const) and extent.value < size
