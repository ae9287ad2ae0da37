"""Schedules of contractions: register tiles of rows by lanes, accumulated in registers over the whole reduction.

The *lane operand* is read as vectors, and packed where its layout is free or its lanes are not contiguous; the elements
of the *row operand* are broadcast. Every pair of lane and row axis is scored by lane utilization and access strides.
"""

from dataclasses import dataclass

from tilewright.expr.algebra.bounds import interval
from tilewright.expr.algebra.prover import can_prove_non_negative
from tilewright.expr.nodes import Const, Expr, Load, MemoryScope, Var
from tilewright.expr.traversal import free_vars
from tilewright.loops.ir import Block, IterKind
from tilewright.machine import Target
from tilewright.optimize.interface import Task
from tilewright.optimize.parallelize import parallelize
from tilewright.optimize.reduction_blocking import KBlockLimits, choose_k_block, reduction_extent
from tilewright.optimize.strides import contraction_operands, is_literal, load_stride, store_stride
from tilewright.schedule.rewrite_tree import find_block, spatial_vars
from tilewright.schedule.schedule import Schedule
from tilewright.tile.k_blocks import peel_last_k_block
from tilewright.tile.schedule_helpers import (
    BlockLoops,
    apply_and_get_blocks,
    axis_loops,
    buffer_of,
    loop_extent,
    make_lanes_contiguous,
)

SYMBOLIC_TILE_ROWS = (8,)
"""Tile heights for a symbolic number of rows, tried in turn; single rows cover the remainder."""

MASKED_LOAD_FACTOR = 0.8
"""Remaining share of the speed when every step loads the lane operand under a mask."""

K_BLOCK_LIMITS = KBlockLimits(max_unblocked=31, root_multiple=2, min_size=16, max_size=128, slack=2)
"""A K-block costs its tile about one more step. Blocks of twice the root have hardly more error than blocks of the
root."""

UNBOUNDED = 1 << 40
"""Stands for the size of an unbounded dimension in comparisons."""


@dataclass(frozen=True, slots=True)
class ContractionPlan:
    """A choice of axes and tile for one contraction.

    Attributes:
        lane_axis, row_axis: positions among the output's axes; the row axis is None where there is none.
        vectors: hardware vectors per tile row.
        tile_rows: tile heights, largest first; each leaves its remainder to the next.
        lane_operand: the operand that is read along lanes.
        pack_dim: the operand's dimension to pack; None where it is read in place.
        transposed: whether the output is not contiguous along lanes.
        score: higher is better.
    """

    lane_axis: int
    row_axis: int | None
    vectors: int
    tile_rows: tuple[int, ...]
    lane_operand: Load
    pack_dim: int | None
    transposed: bool
    score: float


def schedule_contraction(s: Schedule, block: str, final: str, task: Task) -> bool:
    """Schedules a contraction; returns False and changes nothing where no axis suits lanes."""
    node = find_block(s.func, block)[0]
    plan = best_plan(node, find_block(s.func, final)[0], task)
    if plan is None:
        return False
    lanes = plan.vectors * task.target.lanes(node.body.buffer.dtype.bits)
    lane_major = _is_lane_loop_outer(node, plan)
    k_block = choose_k_block(node, K_BLOCK_LIMITS)
    partial = None if k_block is None else next(iter(apply_and_get_blocks(s, "rfactor", block, *k_block)))
    if plan.pack_dim is not None:
        s.pack(partial or block, plan.lane_operand.buffer.name, plan.pack_dim, lanes)
    parts = _split_remainders(s, block, final, plan)
    partials = [partial]
    for producer, _, _ in parts[1:]:
        partials.append(None if partial is None else s.clone_producer(partial, producer))
    for (producer, consumer, rows), partial_block in zip(parts, partials, strict=True):
        _schedule_loop_part(s, producer, partial_block, consumer, plan, rows, lanes, lane_major)
        if k_block is not None and partial_block is not None:
            peel_last_k_block(s, producer, partial_block, k_block[0], reduction_extent(node, k_block[0]), k_block[1])
    return True


def best_plan(node: Block, final: Block, task: Task) -> ContractionPlan | None:
    """The plan of the highest score, or None. An empty axis has no tile, and nothing to gain from one."""
    pair = contraction_operands(node)
    if pair is None or any(is_literal(i.extent, 0) for i in (*node.iters, *final.iters)):
        return None
    plans = [
        plan
        for lane_operand, row_operand in (pair, pair[::-1])
        for k, var in enumerate(spatial_vars(node))
        if (plan := _plan_for_lane(node, final, lane_operand, row_operand, k, var, task)) is not None
    ]
    return max(plans, key=lambda p: p.score, default=None)


def _uses(x: Load, var: Var) -> bool:
    return any(var in free_vars(i) for i in x.indices)


def _plan_for_lane(
    node: Block, final: Block, lane_operand: Load, row_operand: Load, k: int, var: Var, task: Task
) -> ContractionPlan | None:
    if not _uses(lane_operand, var) or _uses(row_operand, var):
        return None
    width = task.target.lanes(node.body.buffer.dtype.bits)
    extent = node.iters[k].extent
    score = _lane_utilization(extent, width)
    pack_dim = None
    if lane_operand.buffer.name in task.constants or not is_literal(load_stride(lane_operand, var), 1):
        pack_dim = _packable_dim(lane_operand, var)
        if pack_dim is None and not is_literal(load_stride(lane_operand, var), 1):
            return None
        if lane_operand.buffer.name not in task.constants:
            score *= 0.6
    final_var = spatial_vars(final)[k]
    transposed = not is_literal(store_stride(final, final_var), 1)
    score *= _reduction_share(node) if transposed else 1.0
    if pack_dim is None and not is_literal(extent % width, 0):
        score *= MASKED_LOAD_FACTOR
    row = _best_row_axis(node, lane_operand, row_operand, transposed)
    if row is None and pack_dim is not None and lane_operand.buffer.name not in task.constants:
        # Every packed element would be used only once: the copy does not pay.
        return None
    vectors, rows = _tile_shape(extent, None if row is None else node.iters[row].extent, width, task.target)
    score *= min(rows[0], 6) / 6 if row is not None else 0.15
    return ContractionPlan(k, row, vectors, rows, lane_operand, pack_dim, transposed, score)


def _reduction_share(node: Block) -> float:
    """The share of a tile's time spent in its reduction when its results must be transposed."""
    steps = 1.0
    for i in node.iters:
        if i.kind is IterKind.REDUCE:
            steps *= int(i.extent.value) if isinstance(i.extent, Const) else 128
    return steps / (steps + 45)


def _lane_utilization(extent: Expr, width: int) -> float:
    """The share of lanes that do useful work."""
    if not isinstance(extent, Const):
        high = interval(extent)[1]
        return 0.9 if high is None or high >= width else high / width
    n = int(extent.value)
    return n / (-(-n // width) * width)


def _packable_dim(x: Load, var: Var) -> int | None:
    """The only dimension that `var` indexes, if it does so without an offset or factor."""
    used = [k for k, i in enumerate(x.indices) if var in free_vars(i)]
    return used[0] if len(used) == 1 and x.indices[used[0]] is var else None


def _best_row_axis(node: Block, lane_operand: Load, row_operand: Load, transposed: bool) -> int | None:
    """The best row axis among those that only the row operand uses; the innermost of equals."""
    best: tuple[float, int] | None = None
    for k, var in enumerate(spatial_vars(node)):
        if not _uses(row_operand, var) or _uses(lane_operand, var):
            continue
        extent = node.iters[k].extent
        high = int(extent.value) if isinstance(extent, Const) else 64
        is_contiguous = transposed and is_literal(store_stride(node, var), 1)
        score = min(high, 14) + (4 if is_contiguous else 0) + k * 0.01
        if best is None or score > best[0]:
            best = (score, k)
    return None if best is None else best[1]


def _tile_shape(lane: Expr, row: Expr | None, width: int, target: Target) -> tuple[int, tuple[int, ...]]:
    """Vectors per row and the tile heights, within the register file."""
    registers = target.vector_registers
    max_vectors = UNBOUNDED if not isinstance(lane, Const) else max(1, -(-int(lane.value) // width))
    if row is None:
        return min(max_vectors, 4), (1,)
    if isinstance(row, Const) and row.value <= 3:
        return min(max_vectors, 4 if registers >= 32 else 2), (int(row.value),)
    vectors = min(max_vectors, 2)
    if isinstance(lane, Const) and max_vectors % 3 == 0 and _padding_waste(int(lane.value), 2 * width) > 0.2:
        vectors = 3
    limit = (registers - vectors - 1) // vectors
    if not isinstance(row, Const):
        return vectors, tuple(r for r in SYMBOLIC_TILE_ROWS if r <= limit) or (limit,)
    return vectors, (_best_tile_rows(int(row.value), min(limit, int(row.value), 16), vectors),)


def _padding_waste(n: int, tile: int) -> float:
    return 1 - n / (-(-n // tile) * tile)


def _best_tile_rows(total: int, limit: int, vectors: int) -> int:
    """The tile height that covers `total` rows in the fewest cycles (two FMAs a cycle, four cycles of latency)."""

    def cycles(rows: int) -> float:
        return total // rows * max(rows * vectors / 2, 4.0) + total % rows * 4.0

    return min(range(limit, 0, -1), key=cycles)


def _is_lane_loop_outer(node: Block, plan: ContractionPlan) -> bool:
    """Whether the loop over lane tiles encloses that over row tiles: the smaller operand is streamed repeatedly."""
    pair = contraction_operands(node)
    if pair is None:
        return True
    sizes: list[int] = []
    for x in (plan.lane_operand, next(p for p in pair if p is not plan.lane_operand)):
        total = 1
        for n in x.buffer.shape:
            high = int(n.value) if isinstance(n, Const) else 128
            total *= high
        sizes.append(total)
    return sizes[0] >= sizes[1]


def _split_remainders(s: Schedule, block: str, final: str, plan: ContractionPlan) -> list[tuple[str, str, int]]:
    """(producer, consumer, tile rows) of the main loop and the remainders of the row axis."""
    parts: list[tuple[str, str, int]] = []
    if plan.row_axis is None:
        return [(block, final, 1)]
    for rows in plan.tile_rows:
        axes = axis_loops(s, final)
        loop = axes[plan.row_axis]
        extent = loop_extent(s, loop)
        if is_literal(extent % rows, 0):
            return [*parts, (block, final, rows)]
        covered = extent // rows * rows
        if is_literal(covered, 0) or (
            parts and not (can_prove_non_negative(covered) and can_prove_non_negative(extent - covered))
        ):
            # Fewer rows than a tile, or the prover cannot bound a remainder of a remainder: single rows cover them.
            continue
        if s.loops(final)[0] != loop:
            s.do("reorder", (loop, *(x for x in s.loops(final) if x != loop)))
        (remainder,) = apply_and_get_blocks(s, "peel", loop, covered)
        clone = s.clone_producer(block, remainder)
        parts.append((block, final, rows))
        block, final = clone, remainder
    return [*parts, (block, final, 1)]


def _schedule_loop_part(
    s: Schedule,
    producer: str,
    partial: str | None,
    consumer: str,
    plan: ContractionPlan,
    tile_rows: int,
    lanes: int,
    lane_major: bool,
) -> None:
    """Schedules the main loop or a remainder: parallel tiles, the reduction per tile in registers, then the epilogue.

    `partial` is the block that computes the K-blocks' partial sums; None without K-blocking.
    """
    axes = axis_loops(s, consumer)
    lane = axes[plan.lane_axis]
    row = None if plan.row_axis is None else axes[plan.row_axis]
    lane_outer, lane_inner = s.split(lane, lanes)
    row_outer, row_inner = (row, None) if row is None or tile_rows == 1 else s.split(row, tile_rows)
    outer = [x for k, x in enumerate(axes) if k not in (plan.lane_axis, plan.row_axis)]
    tiles = [x for x in ((lane_outer, row_outer) if lane_major else (row_outer, lane_outer)) if x is not None]
    inner = [x for x in ((lane_inner, row_inner) if plan.transposed else (row_inner, lane_inner)) if x is not None]
    s.do("reorder", (*outer, *tiles, *inner))
    if partial is not None:
        _schedule_k_blocked_tile(s, producer, partial, tiles[-1], plan)
        _vectorize_epilogue(s, lane_inner, row_inner, plan)
    elif plan.transposed and row_inner is not None:
        (copy,) = apply_and_get_blocks(s, "cache_write", producer)
        _schedule_transposed_tile(s, producer, copy, tiles[-1], plan)
        s.do("vectorize", row_inner)
    else:
        s.do("compute_at", producer, tiles[-1])
        _schedule_register_tile(s, producer, plan)
        _vectorize_epilogue(s, lane_inner, row_inner, plan)
    parallelize(s, [*outer, *tiles])


def _vectorize_epilogue(s: Schedule, lane: str, row: str | None, plan: ContractionPlan) -> None:
    """Vectorizes the epilogue along the axis in which the output is contiguous."""
    if plan.transposed and row is not None:
        s.do("vectorize", row)
        return
    s.do("vectorize", lane)
    if row is not None:
        s.do("unroll", row)


def _schedule_k_blocked_tile(s: Schedule, producer: str, partial: str, at: str, plan: ContractionPlan) -> None:
    """Keeps the tile's totals on the stack; each K-block adds its partial sums from registers to them."""
    s.do("compute_at", producer, at)
    s.do("set_scope", buffer_of(s, producer), MemoryScope.STACK)
    make_lanes_contiguous(s, producer, plan.lane_axis)
    loops = BlockLoops.of(s, producer)
    s.do("reorder", (*loops.reduce, *loops.spatial))
    init = s.decompose_reduction(producer, loops.reduce[0])
    _vectorize_lane_axis(s, producer, plan)
    _vectorize_lane_axis(s, init, plan)
    s.do("compute_at", partial, loops.reduce[0])
    _schedule_register_tile(s, partial, plan)


def _schedule_transposed_tile(s: Schedule, producer: str, copy: str, at: str, plan: ContractionPlan) -> None:
    """Accumulates in registers and copies to a stack tile, which the epilogue reads transposed."""
    s.do("compute_at", copy, at)
    s.do("set_scope", buffer_of(s, copy), MemoryScope.STACK)
    make_lanes_contiguous(s, copy, plan.lane_axis)
    s.do("compute_at", producer, at)
    _schedule_register_tile(s, producer, plan)
    _vectorize_lane_axis(s, copy, plan)


def _schedule_register_tile(s: Schedule, producer: str, plan: ContractionPlan) -> None:
    """The producer's register tile: reduction loops outside, rows unrolled, lanes vectorized."""
    s.do("set_scope", buffer_of(s, producer), MemoryScope.REGISTER)
    make_lanes_contiguous(s, producer, plan.lane_axis)
    loops = BlockLoops.of(s, producer)
    s.do("reorder", (*loops.reduce, *loops.spatial))
    init = s.decompose_reduction(producer, loops.reduce[0])
    _vectorize_lane_axis(s, producer, plan)
    _vectorize_lane_axis(s, init, plan)


def _vectorize_lane_axis(s: Schedule, block: str, plan: ContractionPlan) -> None:
    """Moves the block's lane loop innermost and vectorizes it; its other spatial loops are unrolled."""
    node = find_block(s.func, block)[0]
    loops = BlockLoops.of(s, block).spatial
    lane = next((x for x in loops if Var(x) in free_vars(node.iters[plan.lane_axis].binding)), loops[-1])
    ordered = (*(x for x in loops if x != lane), lane)
    if ordered != loops:
        s.do("reorder", ordered)
    for x in ordered[:-1]:
        s.do("unroll", x)
    s.do("vectorize", lane)
