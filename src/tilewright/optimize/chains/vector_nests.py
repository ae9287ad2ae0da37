"""Element-wise work, reductions of rows and the result in a tile of a chain: loops of vectors."""

from tilewright.expr.nodes import MemoryScope
from tilewright.expr.traversal import loads
from tilewright.optimize.chains.choose_register_tiles import TileAxis
from tilewright.optimize.chains.expression import Path
from tilewright.optimize.chains.stages import ChainStage, StageKind
from tilewright.optimize.chains.tile_loops import TRANSPOSED_ROWS, TiledChain, result_dims
from tilewright.optimize.strides import is_literal, load_stride
from tilewright.tile.tree import Compute, Loop, Node, nest

ROW_VECTORS = 4
"""Vectors that element-wise work and reductions of rows compute at a time: as many dependency chains hide the latency
of an addition."""

STACK = MemoryScope.STACK


def stage_nest(tiled: TiledChain, stage: ChainStage, path: Path) -> tuple[Node, ...]:
    """Element-wise work, and reductions of rows, whose results are on the stack."""
    columns, row = tiled.columns(stage), tiled.chain.row
    is_online = stage.name in tiled.roles
    if not tiled.along_rows:
        lane = columns[-1] if columns else row
        lanes = tiled.lane_loops(lane, tiled.lane_width(lane, path, ROW_VECTORS), path)
        others = tiled.point_loops([a for a in (row, *columns) if a != lane], path)
        return nest([*others, *lanes], Compute(stage.name, STACK, lane))
    computed = Compute(stage.name, STACK, row, is_online)
    if _reads_columns(tiled, stage):
        lane, column = (tiled.points(a, path) for a in (row, columns[-1]))
        loops = tiled.transposing_loops(lane, column, (row, columns[-1]), tiled.vector)
        return nest([*tiled.point_loops(columns[:-1], path), *loops], computed)
    lane_loops = tiled.lane_loops(row, tiled.lane_width(row, path, ROW_VECTORS), path)
    tiles, lanes = lane_loops[:-1], lane_loops[-1:]
    # a reduction has its loops even over a single point
    reduced = [Loop(a, 1, ()) for a in stage.reduced if tiled.points(a, path) != TileAxis(1, True)]
    inner = [*tiled.point_loops(columns, path), *reduced]
    # accumulators of a reduction stay in registers
    loops = [*tiles, *inner] if stage.kind is StageKind.ROW_REDUCTION else [*inner, *tiles]
    return nest([*loops, *lanes], computed)


def _reads_columns(tiled: TiledChain, stage: ChainStage) -> bool:
    """Whether an element-wise stage reads an operand of the kernel that is contiguous along columns, not rows."""
    internal = {s.node.body.buffer.name for s in tiled.chain.stages}
    row = stage.variable(tiled.chain.row)
    operands = [x for x in loads(stage.node.body.value) if x.buffer.name not in internal]
    strides = [load_stride(x, row) for x in operands]
    is_strided = any(not (is_literal(s, 0) or is_literal(s, 1)) for s in strides)
    return bool(tiled.columns(stage)) and stage.kind is StageKind.ELEMENTWISE and is_strided


def store_nest(tiled: TiledChain, final: ChainStage, statement: str, path: Path) -> tuple[Node, ...]:
    """The loops that store the result of the kernel, transposed where vectors run along rows and it does not.

    Args:
        tiled: the chain.
        final: the last stage.
        statement: the statement that stores its results.
        path: the loops around it.
    """
    columns, row = tiled.columns(final), tiled.chain.row
    contiguous = next((a for a in reversed(result_dims(final)) if a in (row, *columns)), row)
    # what follows an online sum is moved to it, without loops over single points
    single = [] if tiled.roles else tiled.single_point_loops(final, path)
    if not tiled.along_rows or contiguous == row:
        lane = row if tiled.along_rows else contiguous
        lanes = tiled.lane_loops(lane, tiled.lane_width(lane, path, ROW_VECTORS), path)
        others = tiled.point_loops([a for a in (row, *columns) if a != lane], path)
        return nest([*single, *others, *lanes], Compute(statement))
    others = tiled.point_loops([a for a in columns if a != contiguous], path)
    lane, column = (tiled.points(a, path) for a in (contiguous, row))
    loops = tiled.transposing_loops(lane, column, (contiguous, row), TRANSPOSED_ROWS)
    return nest([*single, *others, *loops], Compute(statement))
