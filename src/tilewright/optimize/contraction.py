"""Trees of contractions: register tiles of rows by lanes, accumulated in registers over the whole reduction.

The *lane operand* is read as vectors, and packed where its layout is free or its lanes are not contiguous; the elements
of the *row operand* are broadcast. Every pair of lane and row axis is scored by lane utilization and access strides.
"""

from dataclasses import dataclass, replace

from tilewright.expr.algebra.bounds import interval
from tilewright.expr.algebra.prover import can_prove_non_negative
from tilewright.expr.nodes import Const, Expr, Load, Var, const
from tilewright.expr.operations import ceildiv
from tilewright.expr.traversal import free_vars
from tilewright.loops.ir import Block, IterKind
from tilewright.machine import Target
from tilewright.optimize.parallelize import count_parallel_loops
from tilewright.optimize.reduction_blocking import KBlockLimits, choose_k_block
from tilewright.optimize.strides import contraction_operands, is_literal, load_stride, store_stride
from tilewright.optimize.task import Task
from tilewright.schedule.rewrite_tree import spatial_vars
from tilewright.tile.reduction_tree import TiledPart, TiledReduction, reduction_tree
from tilewright.tile.tree import Pack, TileTree

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


def contraction_tree(node: Block, epilogue: Block | None, task: Task) -> TileTree | None:
    """The tree of a contraction: parallel tiles, the reduction per tile in registers, then the epilogue; None where no
    axis suits lanes."""
    plan = best_plan(node, epilogue or node, task)
    if plan is None:
        return None
    k_block, order = choose_k_block(node, K_BLOCK_LIMITS), _loop_order(node, plan)
    lanes = plan.vectors * task.target.lanes(node.body.buffer.dtype.bits)
    reduce = [k for k, i in enumerate(node.iters) if i.kind is IterKind.REDUCE]
    tiles = _row_tiles(None if plan.row_axis is None else node.iters[plan.row_axis].extent, plan.tile_rows)
    tiling = TiledReduction(
        node,
        None if epilogue is None else epilogue.name,
        plan.lane_axis,
        order,
        tuple(_tiled_part(node, plan, order, rows, extent, lanes, task) for rows, extent in tiles),
        None if k_block is None else (reduce[k_block[0]], k_block[1]),
        (plan.row_axis,) if plan.transposed and plan.row_axis is not None else (),
        plan.row_axis if len(tiles) > 1 else None,
    )
    if plan.pack_dim is not None:
        operand = plan.lane_operand.buffer.name
        pack = Pack(tiling.summed, f"{operand}.pack", operand, plan.pack_dim, lanes)
        tiling = replace(tiling, packs=(pack,))
    return reduction_tree(tiling)


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


def _loop_order(node: Block, plan: ContractionPlan) -> tuple[int, ...]:
    """The spatial axes, the outermost loop first: those over tiles innermost."""
    tiles = (plan.lane_axis, plan.row_axis) if _is_lane_loop_outer(node, plan) else (plan.row_axis, plan.lane_axis)
    others = (k for k in range(len(spatial_vars(node))) if k not in tiles)
    return (*others, *(k for k in tiles if k is not None))


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


def _row_tiles(extent: Expr | None, tile_rows: tuple[int, ...]) -> list[tuple[int, Expr]]:
    """(tile rows, rows covered) of the main loop and the remainders of the row axis; without one a single row."""
    tiles: list[tuple[int, Expr]] = []
    rest = const(1) if extent is None else extent
    for rows in tile_rows if extent is not None else ():
        if is_literal(rest % rows, 0):
            return [*tiles, (rows, rest)]
        covered = rest // rows * rows
        if is_literal(covered, 0) or (
            tiles and not (can_prove_non_negative(covered) and can_prove_non_negative(rest - covered))
        ):
            # Fewer rows than a tile, or the prover cannot bound a remainder of a remainder: single rows cover them.
            continue
        tiles.append((rows, covered))
        rest = rest - covered
    return [*tiles, (1, rest)]


def _tiled_part(
    node: Block, plan: ContractionPlan, order: tuple[int, ...], rows: int, row_extent: Expr, lanes: int, task: Task
) -> TiledPart:
    """The main loop or a remainder: register tiles of `rows` by `lanes`, which are the tiles of all levels."""
    sizes = tuple({plan.lane_axis: lanes, plan.row_axis: rows}.get(k, 1) for k in range(len(node.iters)))
    extents = (row_extent if k == plan.row_axis else node.iters[k].extent for k in order)
    iterations = [ceildiv(n, const(sizes[k])) for k, n in zip(order, extents, strict=True)]
    return TiledPart((sizes, sizes, sizes), count_parallel_loops(task, iterations))
