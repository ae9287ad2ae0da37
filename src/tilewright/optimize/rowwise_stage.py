"""Loops of single stages within a row: element-wise work, windows in register tiles.

A `StageTile` says what a stage computes at once; the rule chooses one by strides and extents.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tilewright.expr.nodes import Const, Expr, MemoryScope
from tilewright.expr.traversal import loads
from tilewright.loops.ir import Block, IterKind, LoopKind
from tilewright.machine import Target
from tilewright.optimize.lane_loops import BlockedSum, lane_loops
from tilewright.optimize.strides import is_literal, load_stride, store_stride
from tilewright.schedule.tails import Tail
from tilewright.tile.program import MIN_FULL_VECTORS
from tilewright.tile.tree import Compute, Loop, Node, nest

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


@dataclass(frozen=True, slots=True)
class RowAxes:
    """The axes of a stage's results within a block of rows, by position.

    Attributes:
        names: of all axes of the block that stores them.
        points: of those that have loops within a block of rows.
        is_enclosed: whether there are loops over rows around the stage.
        narrowed: those of which only a part is needed; a few points more may be computed.
    """

    names: tuple[str, ...]
    points: Mapping[int, Expr]
    is_enclosed: bool
    narrowed: frozenset[int]


def elementwise_stage(
    node: Block, axes: RowAxes, store: Compute, target: Target, tile: StageTile | None
) -> tuple[Node, ...]:
    """Vectorizes one axis of a row, moved innermost; by default the one along which most accesses are contiguous."""
    points = axes.points
    if not points:
        return (store,)
    if tile is None or tile.lane not in points:  # axes with a single point have no loop
        tile = StageTile(max(points, key=lambda k: (_contiguity_score(node, k), k)))
    width = tile.vectors * target.lanes(32)
    *over_vectors, lanes = lane_loops(axes.names[tile.lane], points[tile.lane], width, tile.lane not in axes.narrowed)
    if over_vectors and _has_full_vectors(points[tile.lane], width):
        # otherwise the last vector's mask would slow down all of them
        over_vectors = [Loop(over_vectors[0].axis, width, (), tail=Tail.REMAINDER)]
    others = [Loop(axes.names[k], 1, ()) for k in points if k != tile.lane]
    return nest([*others, *over_vectors, lanes], store)


def _has_full_vectors(extent: Expr, lanes: int) -> bool:
    """Whether many vectors need no mask where a masked one follows; a mask costs nothing where all need one."""
    n = int(extent.value) if isinstance(extent, Const) else 0
    return n % lanes > 0 and n // lanes >= MIN_FULL_VECTORS


def _contiguity_score(node: Block, axis: int) -> float:
    """How many accesses are contiguous along an axis; the store counts double."""
    var = node.iters[axis].var
    return 2.0 * is_literal(store_stride(node, var), 1) + sum(
        is_literal(load_stride(x, var), 1) for x in loads(node.body.value)
    )


def window_stage(
    total: BlockedSum, final: Block, axes: RowAxes, store: Compute, target: Target, tile: StageTile | None
) -> tuple[Node, ...]:
    """Computes windows in register tiles: vectors along one axis, tile rows along the last of the others.

    Args:
        total: the reduction over the window.
        final: the block that stores its results.
        axes: of the results.
        store: the statement that stores them.
        target: the target.
        tile: the register tile; None leaves the choice to the rule.
    """
    tile, points = tile or _default_window_tile(total.node, final, axes, target), axes.points
    width = tile.vectors * target.lanes(final.body.buffer.dtype.bits)
    *over_vectors, lanes = lane_loops(axes.names[tile.lane], points[tile.lane], width, tile.lane not in axes.narrowed)
    others = [k for k in points if k != tile.lane]
    over_tiles = [Loop(axes.names[k], 1, ()) for k in others]
    tile_rows: list[Loop] = []
    if others and (tile.rows > 1 or is_literal(points[others[-1]], 1)):
        row = over_tiles.pop()
        tile_rows = [Loop(row.axis, 1, (), LoopKind.UNROLLED)]
        over_tiles += [] if is_literal(points[others[-1]], tile.rows) else [Loop(row.axis, tile.rows, ())]
    if not (axes.is_enclosed or over_tiles or over_vectors):
        # accumulators belong to an iteration of a loop
        over_vectors = [Loop(axes.names[tile.lane], literal_or_large(points[tile.lane]), ())]
    accumulated = [others[-1]] if tile_rows and tile.rows > 1 else []
    body = _accumulation_nest(total, accumulated, tile)
    return nest([*over_tiles, *over_vectors], *body, *nest([*tile_rows, lanes], store))


def _default_window_tile(node: Block, final: Block, axes: RowAxes, target: Target) -> StageTile:
    """The rule's tile: vectors along the contiguous axis, as many rows as fit, short windows unrolled."""
    points = axes.points
    lane = max(points, key=lambda k: (is_literal(store_stride(final, final.iters[k].var), 1), k))
    register_limit = target.vector_registers // 2
    width = target.lanes(final.body.buffer.dtype.bits)
    vectors = min(_vector_count(points[lane], width), register_limit, 4)
    others = [k for k in points if k != lane]
    height = _best_tile_rows(points[others[-1]], register_limit // vectors) if others else 1
    taps = prod(literal_or_large(i.extent) for i in node.iters if i.kind is IterKind.REDUCE)
    return StageTile(lane, vectors, height, taps <= MAX_UNROLLED_TAPS)


def _accumulation_nest(total: BlockedSum, rows: Sequence[int], tile: StageTile) -> tuple[Node, ...]:
    """Accumulators in registers: window loops outside, rows unrolled, lanes innermost."""
    kind = LoopKind.UNROLLED if tile.unrolled else LoopKind.SERIAL
    window = [Loop(x.axis, x.step, (), kind) for x in total.loops()]
    tile_rows = [Loop(total.names[k], 1, (), LoopKind.UNROLLED) for k in rows]
    lanes = Loop(total.names[tile.lane], 1, (), LoopKind.VECTORIZED)
    # vectors shuffled out of an input row stay in registers until the next row of results has used them
    is_row_major = tile.unrolled and _is_strided_along(total.node, tile.lane)
    loops = [*tile_rows, *window] if is_row_major else [*window, *tile_rows]
    return nest([*loops, lanes], Compute(total.node.name, MemoryScope.REGISTER))


def _is_strided_along(node: Block, lane: int) -> bool:
    """Whether lanes read every second element or fewer, so that vectors are shuffled out of loaded ones."""
    var = node.iters[lane].var
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
