"""Tile trees of fused chains: from a tiling, the loops over tiles and their sizes, to every loop of the kernel.

parallel batches, heads, tiles of rows
  copies of operands in the order of lanes
  loops over tiles of the other axes, as the tiling expression nests them
    a contraction: register tiles, accumulated in registers, then its element-wise reader or a copy to the stack
    reductions of rows and element-wise work, in vectors
  the result

Vectors run along one axis of all intermediates, so that none is transposed between two stages. Along *columns*, the
last axis of each, operands are read as they are stored. Along *rows*, an operand of the first contraction and the
result are transposed once per tile of rows; reductions of rows, as in a softmax, then need no shuffles, and the second
operands of contractions, read element by element, may be stored in any order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilewright.errors import ScheduleError
from tilewright.expr.algebra.bounds import interval
from tilewright.expr.nodes import Const, Expr
from tilewright.loops.ir import LoopKind
from tilewright.machine.calibration_store import machine_for
from tilewright.machine.model import Machine
from tilewright.optimize.chains.contraction_nests import (
    contraction_nest,
    copied_operand,
    copy_nest,
    epilogue_of,
    is_split,
    leaf_statement,
)
from tilewright.optimize.chains.expression import ChainTiling, Path, axes_of, loop_paths, statement_path
from tilewright.optimize.chains.stage_placement import (
    OnlineRole,
    PlacedNest,
    live_loops,
    online_roles,
    scope_items,
    stage_paths,
)
from tilewright.optimize.chains.stages import PLACE, ChainStages, StageKind
from tilewright.optimize.chains.tile_loops import StagedNest, TiledChain, result_dims
from tilewright.optimize.chains.vector_nests import stage_nest, store_nest
from tilewright.optimize.task import Task
from tilewright.schedule.tails import Tail
from tilewright.tile.tree import CacheRead, Inline, Loop, LoopPart, Node, Partition, Staging, TileTree, nest

REMAINDER_ROWS = 8
"""Rows of the register tiles that cover what whole tiles of rows leave over; single rows cover the rest."""


def chain_tree(task: Task, tiling: ChainTiling, machine: Machine | None = None) -> TileTree:
    """The tree of a fused chain, whose threads share batches, heads and tiles of rows.

    Args:
        task: the kernel; its axes are those of `statements_of`.
        tiling: its loops over tiles and the points of every tile. Batches and heads have tiles of one point.
        machine: the machine; by default the one that fits the task's target.

    Raises:
        ScheduleError: the kernel is no chain, or the tiling is not legal for it; says why. Whether buffers fit the
            stack is checked when the tree is lowered.
    """
    chain = ChainStages.of(task.func)
    tiles = _checked_tiles(tiling, chain)
    loops, along_rows = live_loops(tiling, chain), _runs_along_rows(chain)
    lanes, roles, rows = task.target.lanes(32), online_roles(loops, chain), tiles[chain.row]
    # lanes along rows: whole vectors, the last one masked, also where a tile has all rows
    heights = (whole_vectors(rows, lanes),) if along_rows else row_heights(chain.extents[chain.row], rows)
    trees: list[TileTree] = []
    for height in heights:
        tiled = TiledChain(
            chain,
            {**tiles, chain.row: height},
            loops,
            roles,
            lanes,
            along_rows,
            machine or machine_for(task.target),
        )
        trees.append(_tree(tiled))
    if len(trees) == 1:
        return trees[0]
    parts = tuple(LoopPart(height, tree.body) for height, tree in zip(heights, trees, strict=True))
    return TileTree((Partition(chain.row, parts),), trees[0].staging)


def row_heights(extent: Expr, tile: int) -> tuple[int, ...]:
    """Heights of the tiles of rows, falling: whole tiles, and what they leave over, without conditions on rows.

    Args:
        extent: the number of rows; of a symbolic one, no tile is higher than its largest value.
        tile: rows of a whole tile.
    """
    if not isinstance(extent, Const):
        largest = interval(extent)[1]
        heights = dict.fromkeys(h for h in (tile, REMAINDER_ROWS, 1) if h <= tile)
        return tuple(h for h in heights if largest is None or h <= max(1, largest))
    rows = int(extent.value)
    rest = rows % tile
    parts = (tile if rows >= tile else 0, rest // REMAINDER_ROWS * REMAINDER_ROWS, rest % REMAINDER_ROWS)
    return tuple(h for h in parts if h)


def whole_vectors(rows: int, lanes: int) -> int:
    """Rows of a tile that are the lanes of whole vectors, the last ones beyond the axis where it has fewer: 41 lanes
    would become vectors of 32, 8 and 1. A single row has no vectors. Attention of 41 x 53 x 712 x 18 takes 0.11 of the
    time with 48."""
    return rows if rows == 1 else -(-rows // lanes) * lanes


def _checked_tiles(tiling: ChainTiling, chain: ChainStages) -> dict[str, int]:
    """The points of the tiles by axis; an axis without a tile has one.

    Raises:
        ScheduleError: an axis is not one of the chain's; a symbolic axis of an intermediate has no tile; a tile is
            empty.
    """
    tiles = dict(tiling.tiles)
    for axis in (*tiles, *axes_of(tiling.expression)):
        if axis not in chain.extents:
            shown = ", ".join(map(repr, chain.extents))
            raise ScheduleError(f"the chain has no axis {axis!r}; there are {shown}", where=PLACE)
    for axis, points in tiles.items():
        if points < 1:
            raise ScheduleError(f"expected a tile of at least one point of {axis!r}, got {points}", where=PLACE)
    kept = {a for s in chain.stages[:-1] for a in s.spatial if a not in chain.outer}
    for axis in sorted({chain.row, *kept}):
        points = chain.points(axis)
        if axis not in tiles and points is None:
            what = f"axis {axis!r} of an intermediate is symbolic"
            raise ScheduleError(what, where=PLACE, hint="choose the points of a tile")
        tiles.setdefault(axis, points or 1)
    sizes = {axis: chain.points(axis) for axis in tiles}
    return {a: t if a == chain.row else min(t, sizes[a] or t) for a, t in tiles.items()}


def _runs_along_rows(chain: ChainStages) -> bool:
    """Whether vectors run along rows: where rows are reduced, or an operand is not contiguous along columns."""
    if any(s.kind is StageKind.ROW_REDUCTION for s in chain.stages):
        return True
    columns = [o.axes[-1] in s.spatial for s in chain.contractions for o in s.operands if chain.row not in o.axes]
    return not all(columns) or result_dims(chain.last)[-1] == chain.row


def _tree(tiled: TiledChain) -> TileTree:
    """The tree for one height of the tiles of rows."""
    placed, staging = _placed_nests(tiled)
    body = nest([Loop(a, 1, ()) for a in tiled.chain.outer], *_scope(tiled, placed, 0))
    # what is inlined into another such statement comes first
    online = [s.name for s in tiled.chain.stages if tiled.roles.get(s.name) is OnlineRole.INLINED]
    inline = [Inline(name) for name in (*tiled.chain.without_rows, *reversed(online))]
    # copies of operands come last: the statements that read them are those that other staging adds
    copies = [x for x in staging if isinstance(x, CacheRead)]
    others = [x for x in staging if not isinstance(x, CacheRead)]
    return TileTree(_with_threads(body, _shared_loops(tiled)), (*inline, *others, *copies))


def _placed_nests(tiled: TiledChain) -> tuple[list[PlacedNest], list[Staging]]:
    """The loops of all statements with their places, and the staging that they need."""
    chain, paths = tiled.chain, stage_paths(tiled.loops, tiled.chain, tiled.roles)
    placed: list[PlacedNest] = []
    staging: list[Staging] = []
    computed = {name for name, role in tiled.roles.items() if role is OnlineRole.INLINED}

    def place(order: float, path: Path, statement: str, staged: StagedNest) -> None:
        placed.append(PlacedNest(order, path, statement, staged.nodes))
        staging.extend(staged.staging)

    orders = _execution_order(tiled)
    for k, stage in enumerate(chain.stages):
        path = paths[stage.name]
        if stage.name in computed:
            continue
        if stage.kind is not StageKind.CONTRACTION:
            is_last = stage is chain.last
            nodes = store_nest(tiled, stage, stage.name, path) if is_last else stage_nest(tiled, stage, path)
            place(orders[stage.name], path, stage.name, StagedNest(nodes))
            continue
        operand = copied_operand(tiled, stage)
        if operand is not None:
            around = statement_path(operand.axes, loop_paths(tiled.loops))
            copy = copy_nest(tiled, stage, operand, around, leaf_statement(tiled, stage, path))
            place(k - 0.5, around, f"{stage.name}.{operand.buffer}.rows", copy)
        epilogue = epilogue_of(tiled, stage, path, paths)
        computed |= set() if epilogue is None else {epilogue.name}
        place(k, path, stage.name, contraction_nest(tiled, stage, path, epilogue))
        final = stage if stage is chain.last else epilogue if epilogue is chain.last else None
        if final is not None and (tiled.along_rows or is_split(tiled, stage, path)):
            statement = f"{stage.name}.store" if final is stage else final.name
            outside = next((n for n, x in enumerate(path) if x in stage.reduced), len(path))
            nodes = store_nest(tiled, final, statement, path[:outside])
            place(k + 0.5, path[:outside], statement, StagedNest(nodes))
    return placed, staging


def _execution_order(tiled: TiledChain) -> Mapping[str, float]:
    """The places of stages in the order of execution, by name: their positions, but with online sums element-wise
    stages come as late as their readers allow. A factor of rows, such as the inverse of a softmax's sum, is read after
    the loop that the sum is complete after, and other statements of that loop may follow it in the kernel."""
    stages = tiled.chain.stages
    orders = {s.name: float(k) for k, s in enumerate(stages)}
    movable = {s.name for s in stages if s.kind is StageKind.ELEMENTWISE and s.name not in tiled.roles}
    for stage in reversed(stages[:-1] if tiled.roles else ()):
        if stage.name in movable:
            # behind what precedes a reader, in front of the copies of its operands; several in their order
            places = [orders[r.name] - (1 / 64 if r.name in movable and r is not stages[-1] else 0.75)
                      for r in tiled.chain.readers(stage.name)]  # fmt: skip
            orders[stage.name] = max(orders[stage.name], min(places, default=0.0))
    return orders


def _scope(tiled: TiledChain, placed: Sequence[PlacedNest], depth: int) -> tuple[Node, ...]:
    """The nodes of a scope: the loops of statements, and loops over tiles with what is inside of them."""
    result: list[Node] = []
    for axis, nests in scope_items(placed, depth):
        if axis is None:
            result += nests[0].nodes
        else:
            is_online = any(x.statement in tiled.roles and len(x.path) == depth + 1 for x in nests)
            # the verifier does not tell register tiles of both parts apart in a symbolic range, or in K-blocks
            is_innermost = not any(axis in path[:-1] for path in loop_paths(tiled.loops).values())
            is_peeled = is_online and is_innermost and tiled.chain.points(axis) is not None
            tail = Tail.REMAINDER if is_peeled else Tail.GUARD
            result.append(Loop(axis, tiled.tiles[axis], _scope(tiled, nests, depth + 1), tail=tail))
    return tuple(result)


def _shared_loops(tiled: TiledChain) -> int:
    """How many of the outermost loops of a tree are over axes of the result, so that threads may share them."""
    count, loops = len(tiled.chain.outer), tiled.loops
    while len(loops) == 1 and loops[0].axis in tiled.chain.last.spatial:
        count, loops = count + 1, loops[0].body
    return count


def _with_threads(body: tuple[Node, ...], count: int) -> tuple[Node, ...]:
    """The nodes with so many of the outermost loops made parallel, as far as nothing is beside them."""
    if not count or len(body) != 1 or not isinstance(body[0], Loop):
        return body
    return (replace(body[0], kind=LoopKind.PARALLEL, body=_with_threads(body[0].body, count - 1)),)
