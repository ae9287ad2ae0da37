"""Contractions in a tile of a chain: register tiles, what takes their results, operands copied for lanes along rows."""

from collections.abc import Mapping
from dataclasses import replace

from tilewright.errors import ScheduleError
from tilewright.expr.nodes import MemoryScope
from tilewright.optimize.chains.choose_register_tiles import MAX_TILE_ROWS, RegisterTile, TileAxis, best_register_tile
from tilewright.optimize.chains.expression import Path
from tilewright.optimize.chains.stages import PLACE, ChainStage, Operand, StageKind
from tilewright.optimize.chains.tile_loops import UNROLLED, VECTORIZED, StagedNest, TiledChain
from tilewright.tile.tree import CacheRead, CacheWrite, Compute, Loop, LoopPart, Node, Partition, RFactor, Staging, nest

MIN_ONLINE_ROWS = 4
"""Rows of a register tile of an online sum that are worth a tile that divides them all."""

MAX_UNROLLED = 256
"""Multiply-adds of vectors that are unrolled for one condition."""

STACK, REGISTER = MemoryScope.STACK, MemoryScope.REGISTER


def is_split(tiled: TiledChain, stage: ChainStage, path: Path) -> bool:
    """Whether the sums of a contraction are added up over tiles of the reduction, and not online."""
    is_online = stage.name in tiled.roles or tiled.is_after_online_sum(stage)
    return not is_online and any(a in stage.reduced for a in path)


def leaf_statement(tiled: TiledChain, stage: ChainStage, path: Path) -> str:
    """The statement of a contraction that reads the operands."""
    return f"{stage.name}.partial" if is_split(tiled, stage, path) else stage.name


def copied_operand(tiled: TiledChain, stage: ChainStage) -> Operand | None:
    """The operand that has to be copied for lanes along rows: one of the kernel's that is stored otherwise."""
    if not tiled.along_rows:
        return None
    operand = next(o for o in stage.operands if tiled.chain.row in o.axes)
    is_internal = any(operand.buffer == s.node.body.buffer.name for s in tiled.chain.stages)
    return None if is_internal or operand.axes[-1] == tiled.chain.row else operand


def copy_nest(tiled: TiledChain, stage: ChainStage, operand: Operand, path: Path, leaf: str) -> StagedNest:
    """The copy of an operand with rows as its lanes, transposed in registers.

    Args:
        tiled: the chain.
        stage: the contraction that reads it.
        operand: the operand.
        path: the loops around the copy.
        leaf: the statement that reads it.

    Raises:
        ScheduleError: another axis than rows and the summed one indexes a part of it.
    """
    row = operand.axes.index(tiled.chain.row)
    inner = [d for d, a in enumerate(operand.axes) if a in stage.reduced]
    if len(inner) != 1 or any(a is None for a in operand.axes):
        what = f"{stage.name!r} reads {operand.buffer!r} other than element by element along its own axes"
        raise ScheduleError(what, where=PLACE)
    name = f"{stage.name}.{operand.buffer}.rows"
    order = (*(d for d in range(len(operand.axes)) if d != row), row)
    lane, column = (tiled.points(operand.axes[d] or "", path) for d in (row, inner[0]))
    loops = tiled.transposing_loops(lane, column, (f"{name}.{row}", f"{name}.{inner[0]}"), tiled.vector)
    return StagedNest(nest(loops, Compute(name, STACK)), (CacheRead(leaf, name, operand.buffer, order),))


def epilogue_of(tiled: TiledChain, stage: ChainStage, path: Path, paths: Mapping[str, Path]) -> ChainStage | None:
    """The only reader of a contraction, element-wise, that is computed in its register tiles from what is there."""
    stages, readers = tiled.chain.stages, tiled.chain.readers(stage.name)
    if is_split(tiled, stage, path) or len(readers) != 1 or readers[0].kind is not StageKind.ELEMENTWISE:
        return None
    reader, position = readers[0], stages.index(stage)
    is_ready = all(stages.index(tiled.chain.stage(n)) <= position for n in reader.reads)
    is_alike = set(reader.spatial) == set(stage.spatial) and paths.get(reader.name) == path
    is_online = stage.name in tiled.roles or reader.name in tiled.roles or tiled.is_after_online_sum(stage)
    return reader if is_ready and is_alike and not is_online else None


def contraction_nest(tiled: TiledChain, stage: ChainStage, path: Path, epilogue: ChainStage | None) -> StagedNest:
    """Register tiles of a contraction: accumulated in registers; then its element-wise reader, a copy, or the addition
    to the sums of earlier tiles of the reduction. Online sums are accumulated where they are rescaled, and sums of
    these on the stack, too."""
    *others, column = tiled.columns(stage) or [None]
    row, steps = tiled.chain.row, stage.reduced[0]
    lane, rows = (row, column) if tiled.along_rows else (column or row, row if column else None)
    tile = _chosen_tile(tiled, stage, path, lane, rows)
    is_result = not tiled.along_rows and tiled.chain.last in (stage, epilogue) and not is_split(tiled, stage, path)
    around = tiled.single_point_loops(tiled.chain.last, path) if is_result else []
    around += tiled.point_loops([a for a in others if a is not None], path)
    around += tiled.loop_over(lane, tile.lanes, path)
    over_rows = [] if rows is None else tiled.loop_over(rows, tile.rows, path)
    unrolls = tile.steps > 1 and not (is_split(tiled, stage, path) and _has_partial_tile(tiled, steps))
    over_steps = [Loop(steps, tile.steps, ()), Loop(steps, 1, (), UNROLLED)] if unrolls else [Loop(steps, 1, ())]
    lanes = [] if tiled.has_one_point(lane, path) else [Loop(lane, 1, (), VECTORIZED)]

    def points(height: int) -> list[Loop]:
        return [*([Loop(rows, 1, (), UNROLLED)] if rows is not None and height > 1 else []), *lanes]

    if stage.name in tiled.roles or tiled.is_after_online_sum(stage):
        total = Compute(stage.name, STACK, lane, stage.name in tiled.roles)
        copies = (CacheWrite(stage.name, f"{stage.name}.store"),) if stage is tiled.chain.last else ()
        around = [*tiled.single_point_loops(stage, path), *around]
        extent = tiled.chain.points(steps)
        if extent is None or (stage.name in tiled.roles and extent % tiled.tiles[steps]):
            unrolled = _checked_steps(tiled, stage, path, tile)
            over_steps = [*tiled.loop_over(steps, unrolled, path), Loop(steps, 1, (), UNROLLED)]
        return StagedNest(nest([*around, *over_rows, *over_steps, *points(tile.rows)], total), copies)
    taken, staging = _taken(tiled, stage, path, epilogue, lane)
    leaf = Compute(leaf_statement(tiled, stage, path), REGISTER, lane)

    def register_tile(height: int) -> tuple[Node, ...]:
        return (*nest([*over_steps, *points(height)], leaf), *nest(points(height), taken))

    rest = _remaining_rows(tiled, stage, path, rows, tile.rows)
    if rows is None or not rest:
        return StagedNest(nest([*around, *over_rows], *register_tile(tile.rows)), staging)
    parts = tuple(LoopPart(h, nest([Loop(rows, h, ())], *register_tile(h))) for h in (tile.rows, rest))
    return StagedNest(nest(around, Partition(rows, parts)), staging)


def _checked_steps(tiled: TiledChain, stage: ChainStage, path: Path, tile: RegisterTile) -> int:
    """Steps of an online sum that are unrolled where the last tile is partial, so that one condition guards them and
    accumulators are in registers meanwhile: a condition per step keeps them on the stack. Heads of 512 x 512 x 64 of
    symbolic sizes take 0.6 of the time on one core of a Sapphire Rapids."""
    points = tiled.points(stage.reduced[0], path).points or 1
    multiply_adds = tile.rows * -(-tile.lanes // tiled.vector)
    return next(u for u in range(min(points, max(1, MAX_UNROLLED // multiply_adds)), 0, -1) if points % u == 0)


def _has_partial_tile(tiled: TiledChain, axis: str) -> bool:
    """Whether the last tile of a reduction may be partial. The terms of a split sum are selected there, step by step:
    one branch before a step decides for all of its register tile, selects inside of unrolled steps for every product.
    """
    extent = tiled.chain.points(axis)
    return extent is None or extent % tiled.tiles[axis] > 0


def _remaining_rows(tiled: TiledChain, stage: ChainStage, path: Path, rows: str | None, height: int) -> int:
    """Rows beyond the last whole register tile that get loops of their own; 0 where conditions guard them: a partition
    is none of the loops of an online nest, nor of sums over tiles."""
    points = None if rows is None else tiled.points(rows, path).points
    return 0 if points is None or not _has_parts(tiled, stage, path) else points % height


def _has_parts(tiled: TiledChain, stage: ChainStage, path: Path) -> bool:
    """Whether the rows of register tiles may be partitioned."""
    return not tiled.roles and not is_split(tiled, stage, path)


def _chosen_tile(tiled: TiledChain, stage: ChainStage, path: Path, lane: str, rows: str | None) -> RegisterTile:
    """The register tile of a contraction.

    Raises:
        ScheduleError: both operands depend on the lane axis.
    """
    broadcast = next((o for o in stage.operands if lane not in o.axes), None)
    if broadcast is None:
        raise ScheduleError(f"both operands of {stage.name!r} depend on {lane!r}", where=PLACE)
    height, steps = TileAxis(1, True) if rows is None else tiled.points(rows, path), stage.reduced[0]
    if rows == tiled.chain.row and _has_parts(tiled, stage, path):
        # what register tiles leave over of a tile of rows has loops of its own
        height = replace(height, is_tile=False)
    if tiled.roles and height.points is not None:
        divisors = [h for h in range(MIN_ONLINE_ROWS, MAX_TILE_ROWS + 1) if height.points % h == 0]
        height = replace(height, is_tile=height.is_tile or bool(divisors) or height.points < MIN_ONLINE_ROWS)
    return best_register_tile(
        height,
        tiled.points(lane, path),
        tiled.points(steps, path),
        tiled.vector,
        broadcast.axes[-1] == steps,
        tiled.machine,
    )


def _taken(
    tiled: TiledChain, stage: ChainStage, path: Path, epilogue: ChainStage | None, lane: str
) -> tuple[Compute, tuple[Staging, ...]]:
    """The statement that takes the results of a register tile, and the staging that it needs."""
    is_last = stage is tiled.chain.last
    store = (CacheWrite(stage.name, f"{stage.name}.store"),) if is_last else ()
    if is_split(tiled, stage, path):
        axis = stage.reduced[0]
        partial = RFactor(stage.name, f"{stage.name}.partial", axis, tiled.tiles[axis])
        return Compute(stage.name, STACK, lane), (*store, partial)
    if epilogue is not None and not (tiled.along_rows and epilogue is tiled.chain.last):
        is_result = epilogue is tiled.chain.last
        return Compute(epilogue.name, None if is_result else STACK, None if is_result else lane), store
    if is_last and not tiled.along_rows:
        return Compute(f"{stage.name}.store"), store
    tile = CacheWrite(stage.name, f"{stage.name}.tile")
    return Compute(f"{stage.name}.tile", STACK, lane), (*store, tile)
