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
from dataclasses import dataclass, field, replace

from tilewright.errors import ScheduleError
from tilewright.expr.nodes import MemoryScope
from tilewright.expr.traversal import loads
from tilewright.loops.ir import LoopKind
from tilewright.machine.calibration_store import machine_for
from tilewright.machine.model import Machine
from tilewright.optimize.chains.expression import ChainTiling, TiledLoop, TilingExpression
from tilewright.optimize.chains.placement import (
    OnlineRole,
    Path,
    Placed,
    live_loops,
    online_roles,
    rightmost_path,
    scope_items,
    stage_paths,
)
from tilewright.optimize.chains.register_tiles import MAX_ROWS, RegisterTile, TileAxis, best_register_tile
from tilewright.optimize.chains.stages import PLACE, ChainStage, ChainStages, Operand, StageKind
from tilewright.optimize.strides import is_literal, load_stride
from tilewright.optimize.task import Task
from tilewright.tile.tree import (
    CacheRead,
    CacheWrite,
    Compute,
    Inline,
    Loop,
    LoopPart,
    Node,
    Partition,
    RFactor,
    Staging,
    TileTree,
    nest,
)

ROW_VECTORS = 4
"""Vectors of rows that element-wise work and reductions of rows compute at a time."""

TRANSPOSED_ROWS = 8
"""Rows of a block that is transposed in registers, of a vector's columns; see `tile/reduction_tree.py`."""

REMAINDER_ROWS = 8
"""Rows of the register tiles that cover what whole tiles of rows leave over; single rows cover the rest."""

MIN_ONLINE_ROWS = 4
"""Rows of a register tile of an online sum that are worth a tile that divides them all."""

UNROLLED, VECTORIZED = LoopKind.UNROLLED, LoopKind.VECTORIZED
STACK, REGISTER = MemoryScope.STACK, MemoryScope.REGISTER


def chain_tree(task: Task, tiling: ChainTiling, machine: Machine | None = None, parallel: bool = True) -> TileTree:
    """The tree of a fused chain.

    Args:
        task: the kernel; its axes are those of `statements_of`.
        tiling: its loops over tiles and the points of every tile. Batches and heads have tiles of one point.
        machine: the machine; by default the one that fits the task's target.
        parallel: whether threads share batches, heads and tiles of rows.

    Raises:
        ScheduleError: the kernel is no chain, the tiling is not legal for it, or a buffer has no literal size; says
            why. Whether buffers fit the stack is checked when the tree is lowered.
    """
    chain = ChainStages.of(task.func)
    tiles, along_rows = dict(tiling.tiles), _runs_along_rows(chain)
    loops = live_loops(tiling, chain)
    trees: list[TileTree] = []
    heights = (tiles[chain.row],) if along_rows else row_heights(chain.points(chain.row), tiles[chain.row])
    for height in heights:
        builder = _TreeBuilder(
            chain, {**tiles, chain.row: height}, loops, task.target.lanes(32), machine or machine_for(task.target),
            parallel, along_rows, online_roles(loops, chain),
        )  # fmt: skip
        trees.append(builder.tree())
    if len(trees) == 1:
        return trees[0]
    parts = tuple(LoopPart(height, tree.body) for height, tree in zip(heights, trees, strict=True))
    return TileTree((Partition(chain.row, parts),), trees[0].staging)


def row_heights(rows: int | None, tile: int) -> tuple[int, ...]:
    """Heights of the tiles of rows, falling: whole tiles, and what they leave over, without conditions on rows.

    Args:
        rows: the number of rows; None where it is symbolic.
        tile: rows of a whole tile.
    """
    if rows is None:
        return tuple(h for h in (tile, REMAINDER_ROWS, 1) if h == tile or h < tile)
    rest = rows % tile
    parts = (tile if rows >= tile else 0, rest // REMAINDER_ROWS * REMAINDER_ROWS, rest % REMAINDER_ROWS)
    return tuple(h for h in parts if h)


def _runs_along_rows(chain: ChainStages) -> bool:
    """Whether vectors run along rows: where rows are reduced, or an operand is not contiguous along columns."""
    if any(s.kind is StageKind.ROW_REDUCTION for s in chain.stages):
        return True
    columns = [o.axes[-1] in s.spatial for s in chain.contractions for o in s.operands if chain.row not in o.axes]
    return not all(columns) or _dims(chain.last)[-1] == chain.row


@dataclass(slots=True)
class _TreeBuilder:
    """A tree that is being built.

    Attributes:
        chain: the computations.
        tiles: points of the tiles by axis.
        loops: the loops over tiles with several iterations.
        vector: elements of a hardware vector.
        machine: the machine.
        parallel: whether threads share the outermost loops.
        along_rows: whether vectors run along rows.
        roles: of the stages that read running results.
        staging: statements besides the kernel's blocks.
        copies: the same for those that read an operand, which come last.
    """

    chain: ChainStages
    tiles: dict[str, int]
    loops: TilingExpression
    vector: int
    machine: Machine
    parallel: bool
    along_rows: bool
    roles: Mapping[str, OnlineRole]
    staging: list[Staging] = field(default_factory=list[Staging])
    copies: list[Staging] = field(default_factory=list[Staging])
    nodes: dict[str, tuple[Node, ...]] = field(default_factory=dict[str, tuple[Node, ...]])

    def tree(self) -> TileTree:
        """The tree."""
        placed = self._place_statements()
        outer = [Loop(a, 1, ()) for a in self.chain.outer]
        body = nest(outer, *self._scope(placed, 0))
        online = (s.name for s in self.chain.stages if self.roles.get(s.name) is OnlineRole.INLINED)
        # from the last, so that what is inlined has its readers
        inlined = [Inline(name) for name in (*self.chain.inlined, *reversed(list(online)))]
        return TileTree(self._with_threads(body), (*inlined, *self.staging, *self.copies))

    def _place_statements(self) -> list[Placed]:
        """Every stage with its loops; the loops of statements are kept in `nodes`."""
        chain, paths = self.chain, stage_paths(self.loops, self.chain, self.roles)
        placed: list[Placed] = []
        epilogues: set[str] = set()

        def add(order: float, path: Path, name: str, nodes: tuple[Node, ...]) -> None:
            self.nodes[name] = nodes
            placed.append(Placed(order, path, name))

        for k, stage in enumerate(chain.stages):
            if stage.name in epilogues or self.roles.get(stage.name) is OnlineRole.INLINED:
                continue
            path = paths[stage.name]
            if stage.kind is not StageKind.CONTRACTION:
                add(k, path, stage.name, self._stage_nest(stage, path))
                continue
            copy = self._copied_operand(stage)
            if copy is not None:
                copy_path = rightmost_path(self.loops, {a for a in copy.axes if a is not None})
                add(k - 0.5, copy_path, f"{stage.name}.operand", self._copy_nest(stage, copy, copy_path))
            is_split = any(loop.axis in stage.reduced for loop in path)
            epilogue = None if is_split else self._epilogue(stage, path, paths)
            epilogues |= set() if epilogue is None else {epilogue.name}
            add(k, path, stage.name, self._contraction_nest(stage, path, epilogue, is_split))
            final = stage if stage is chain.last else epilogue if epilogue is chain.last else None
            if final is not None and (is_split or self.along_rows):
                statement = f"{stage.name}.store" if final is stage else final.name
                outside = next((n for n, x in enumerate(path) if x.axis in stage.reduced), len(path))
                add(k + 0.5, path[:outside], statement, self._store_nest(final, statement, path[:outside]))
        return placed

    def _scope(self, placed: Sequence[Placed], depth: int) -> tuple[Node, ...]:
        """The nodes of a scope: statements, and loops over tiles with what is inside of them."""
        result: list[Node] = []
        for loop, statements in scope_items(placed, depth):
            if loop is None:
                result += self.nodes[statements[0].statement]
            else:
                result.append(Loop(loop.axis, self.tiles[loop.axis], self._scope(statements, depth + 1)))
        return tuple(result)

    def _with_threads(self, body: tuple[Node, ...]) -> tuple[Node, ...]:
        """The nodes with the outermost loops over axes of the result made parallel."""
        if not self.parallel or len(body) != 1 or not isinstance(body[0], Loop):
            return body
        loop, shared = body[0], {*self.chain.outer, *(x.axis for x in _walk(self.loops))}
        if loop.axis not in self.chain.last.spatial or loop.axis not in shared or loop.kind is not LoopKind.SERIAL:
            return body
        return (replace(loop, kind=LoopKind.PARALLEL, body=self._with_threads(loop.body)),)

    # Points and widths of axes

    def _points(self, axis: str, path: Path) -> TileAxis:
        """The points of an axis that the loops of a statement cover."""
        if axis in self.chain.outer:
            return TileAxis(1, True)
        points = self.chain.points(axis)
        if any(loop.axis == axis for loop in path):
            return TileAxis(self.tiles[axis], True)
        return TileAxis(points, False)

    def _columns(self, stage: ChainStage) -> list[str]:
        """The axes of a stage's results besides rows, batches and heads."""
        return [a for a in stage.spatial if a != self.chain.row and a not in self.chain.outer]

    def _loop(self, axis: str, step: int, path: Path) -> list[Loop]:
        """A loop over an axis in steps, where there are several."""
        points = self._points(axis, path).points
        return [] if points is not None and points <= step else [Loop(axis, step, ())]

    def _lanes(self, axis: str, path: Path, vectors: int) -> int:
        """The largest width of vectors up to this number of them that suits an axis."""
        tile = self._points(axis, path)
        if tile.points is None:
            return vectors * self.vector
        widths = [v * self.vector for v in range(vectors, 0, -1) if v == 1 or (v - 1) * self.vector < tile.points]
        if tile.is_tile:
            widths = [w for w in widths if tile.points % w == 0] or [tile.points]
        return widths[0]

    def _lane_loops(self, axis: str, width: int, path: Path) -> list[Loop]:
        """Loops over vectors of a width, then over their lanes."""
        points = self._points(axis, path).points
        if points == 1:
            return []
        # one point more than a whole vector's needs a loop whose iteration is masked
        tiles = [] if points == width else [Loop(axis, width, ())]
        return [*tiles, Loop(axis, 1, (), VECTORIZED)]

    # Contractions

    def _copied_operand(self, stage: ChainStage) -> Operand | None:
        """The operand that has to be copied for lanes along rows: one of the kernel's that is stored otherwise."""
        if not self.along_rows:
            return None
        operand = next(o for o in stage.operands if self.chain.row in o.axes)
        is_internal = any(operand.buffer == s.node.body.buffer.name for s in self.chain.stages)
        return None if is_internal or operand.axes[-1] == self.chain.row else operand

    def _copy_nest(self, stage: ChainStage, operand: Operand, path: Path) -> tuple[Node, ...]:
        """The copy of an operand with rows as its lanes, transposed in registers."""
        dims = [d for d, a in enumerate(operand.axes) if a in (self.chain.row, *stage.reduced)]
        row, steps = operand.axes.index(self.chain.row), [d for d in dims if operand.axes[d] in stage.reduced]
        if len(steps) != 1:
            what = f"{stage.name!r} reads {operand.buffer!r} at {operand.load}, expected its own axes"
            raise ScheduleError(what, where=PLACE)
        name = f"{stage.name}.{operand.buffer}.rows"
        order = (*(d for d in range(len(operand.axes)) if d != row), row)
        self.copies.append(CacheRead(self._leaf(stage, path), name, operand.buffer, order))
        axes = (self.chain.row, operand.axes[steps[0]] or "")
        loops = self._transposing_loops(
            (f"{name}.{row}", f"{name}.{steps[0]}"), [self._points(a, path) for a in axes], rows_are_lanes=True
        )
        return nest(loops, Compute(name, STACK))

    def _leaf(self, stage: ChainStage, path: Path) -> str:
        """The statement of a contraction that reads the operands."""
        is_split = any(loop.axis in stage.reduced for loop in rightmost_path(self.loops, stage.axes))
        return f"{stage.name}.partial" if is_split else stage.name

    def _epilogue(self, stage: ChainStage, path: Path, paths: Mapping[str, Path]) -> ChainStage | None:
        """The only reader of a contraction, element-wise, that is computed at its place from what is there."""
        readers = self.chain.readers(stage.name)
        if len(readers) != 1 or readers[0].kind is not StageKind.ELEMENTWISE:
            return None
        reader, position = readers[0], self.chain.stages.index(stage)
        others = [self.chain.stages.index(self.chain.stage(n)) for n in reader.reads if n != stage.name]
        same = set(reader.spatial) == set(stage.spatial) and all(k < position for k in others)
        return reader if same and paths[reader.name] == path else None

    def _register_tile(self, stage: ChainStage, path: Path, lane: str, rows: str | None) -> RegisterTile:
        broadcast = next((o for o in stage.operands if lane not in o.axes), None)
        if broadcast is None:
            raise ScheduleError(f"both operands of {stage.name!r} depend on {lane!r}", where=PLACE)
        steps = stage.reduced[0]
        height = TileAxis(1, True) if rows is None else self._points(rows, path)
        if self.roles and height.points is not None:
            # an online nest has no parts, so that whole tiles have to cover the rows
            divisors = [h for h in range(MIN_ONLINE_ROWS, MAX_ROWS + 1) if height.points % h == 0]
            height = replace(height, is_tile=height.is_tile or bool(divisors) or height.points < MIN_ONLINE_ROWS)
        return best_register_tile(
            height,
            self._points(lane, path),
            self._points(steps, path),
            self.vector,
            broadcast.axes[-1] == steps,
            self.machine,
        )

    def _contraction_nest(
        self, stage: ChainStage, path: Path, epilogue: ChainStage | None, is_split: bool
    ) -> tuple[Node, ...]:
        """Register tiles of a contraction: accumulated in registers; then its element-wise reader, a copy, or the
        addition to the sums of earlier tiles of the reduction."""
        *others, column = self._columns(stage) or [None]
        row = self.chain.row
        lane, rows = (row, column) if self.along_rows else (column or row, row if column else None)
        tile = self._register_tile(stage, path, lane, rows)
        steps = stage.reduced[0]
        around = [Loop(a, 1, ()) for a in others if a is not None]
        around += self._loop(lane, tile.lanes, path)
        over_steps = [Loop(steps, tile.steps, ()), Loop(steps, 1, (), UNROLLED)]
        over_steps = over_steps if tile.steps > 1 else [Loop(steps, 1, ())]
        lanes = [] if self._points(lane, path).points == 1 else [Loop(lane, 1, (), VECTORIZED)]
        if stage.name in self.roles:
            if stage is self.chain.last:
                self.staging.append(CacheWrite(stage.name, f"{stage.name}.store"))
            points = [Loop(rows, 1, (), UNROLLED)] if rows is not None and tile.rows > 1 else []
            over_rows = [] if rows is None else self._loop(rows, tile.rows, path)
            return nest(
                [*around, *over_rows, *over_steps, *points, *lanes], Compute(stage.name, STACK, lane, online=True)
            )
        leaf = Compute(self._leaf(stage, path), REGISTER, lane)
        stored = self._stored(stage, epilogue, lane, is_split, steps)

        def register_tile(height: int) -> tuple[Node, ...]:
            points = [*([Loop(rows, 1, (), UNROLLED)] if rows is not None and height > 1 else []), *lanes]
            return (*nest([*over_steps, *points], leaf), *nest(points, stored))

        if rows is None:
            return nest(around, *register_tile(1))
        total = self._points(rows, path).points
        rest = 0 if total is None or is_split or self.roles else total % tile.rows
        if not rest:
            return nest([*around, *self._loop(rows, tile.rows, path)], *register_tile(tile.rows))
        parts = tuple(LoopPart(h, nest([Loop(rows, h, ())], *register_tile(h))) for h in (tile.rows, rest))
        return nest(around, Partition(rows, parts))

    def _stored(self, stage: ChainStage, epilogue: ChainStage | None, lane: str, is_split: bool, steps: str) -> Compute:
        """The statement that takes a register tile's results; adds its staging."""
        is_last = stage is self.chain.last
        if is_last:
            self.staging.append(CacheWrite(stage.name, f"{stage.name}.store"))
        if is_split:
            self.staging.append(RFactor(stage.name, f"{stage.name}.partial", steps, self.tiles[steps]))
            return Compute(stage.name, STACK, lane)
        if epilogue is not None and not (self.along_rows and epilogue is self.chain.last):
            return Compute(epilogue.name) if epilogue is self.chain.last else Compute(epilogue.name, STACK, lane)
        if is_last and not self.along_rows:
            return Compute(f"{stage.name}.store")
        self.staging.append(CacheWrite(stage.name, f"{stage.name}.tile"))
        return Compute(f"{stage.name}.tile", STACK, lane)

    # Other stages

    def _stage_nest(self, stage: ChainStage, path: Path) -> tuple[Node, ...]:
        """Element-wise work, and reductions of rows."""
        if stage is self.chain.last:
            return self._store_nest(stage, stage.name, path)
        columns, row = self._columns(stage), self.chain.row
        if not self.along_rows:
            lane = columns[-1] if columns else row
            loops = [Loop(a, 1, ()) for a in (row, *columns) if a != lane and self._points(a, path).points != 1]
            width = self._lanes(lane, path, ROW_VECTORS)
            return nest([*loops, *self._lane_loops(lane, width, path)], Compute(stage.name, STACK, lane))
        if self._reads_columns(stage):
            others, axes = columns[:-1], (row, columns[-1])
            loops = self._transposing_loops(axes, [self._points(a, path) for a in axes], rows_are_lanes=True)
            return nest(
                [*(Loop(a, 1, ()) for a in others), *loops], Compute(stage.name, STACK, row, stage.name in self.roles)
            )
        width = self._lanes(row, path, ROW_VECTORS)
        *tiles, lanes = self._lane_loops(row, width, path) or [None]
        inner = [Loop(a, 1, ()) for a in (*columns, *stage.reduced) if self._points(a, path).points != 1]
        is_reduction = stage.kind is StageKind.ROW_REDUCTION
        loops = [*tiles, *inner] if is_reduction else [*inner, *tiles]
        loops += [] if lanes is None else [lanes]
        return nest(loops, Compute(stage.name, STACK, row, stage.name in self.roles))

    def _reads_columns(self, stage: ChainStage) -> bool:
        """Whether an element-wise stage reads an operand of the kernel that is contiguous along columns, not rows."""
        internal = {s.node.body.buffer.name for s in self.chain.stages}
        columns, row = self._columns(stage), stage.variable(self.chain.row)
        operands = [x for x in loads(stage.node.body.value) if x.buffer.name not in internal]
        strides = [load_stride(x, row) for x in operands]
        is_strided = any(not (is_literal(s, 0) or is_literal(s, 1)) for s in strides)
        return bool(columns) and stage.kind is StageKind.ELEMENTWISE and is_strided

    def _store_nest(self, final: ChainStage, statement: str, path: Path) -> tuple[Node, ...]:
        """The loops that store the result of the kernel, transposed where vectors run along rows and it does not."""
        columns, row = self._columns(final), self.chain.row
        contiguous = next((a for a in reversed(_dims(final)) if a in (row, *columns)), row)
        if not self.along_rows or contiguous == row or not columns:
            lane = contiguous if not self.along_rows else row
            lanes = self._lane_loops(lane, self._lanes(lane, path, ROW_VECTORS), path)
            others = [Loop(a, 1, ()) for a in (row, *columns) if a != lane and self._points(a, path).points != 1]
            return nest([*self._single_points(final, path), *others, *lanes], Compute(statement))
        others = [Loop(a, 1, ()) for a in columns if a != contiguous and self._points(a, path).points != 1]
        axes = (contiguous, row)
        loops = self._transposing_loops(axes, [self._points(a, path) for a in axes], rows_are_lanes=False)
        return nest([*self._single_points(final, path), *others, *loops], Compute(statement))

    def _single_points(self, final: ChainStage, path: Path) -> list[Loop]:
        """Loops over axes of one point, which the last statement of a tree has, too."""
        single = TileAxis(1, False)
        return [Loop(a, 1, ()) for a in (self.chain.row, *self._columns(final)) if self._points(a, path) == single]

    def _transposing_loops(self, axes: tuple[str, str], points: Sequence[TileAxis], rows_are_lanes: bool) -> list[Loop]:
        """Loops over blocks that code generation transposes in registers: lanes along the first axis, and an unrolled
        loop over columns along the second, which is the contiguous one of what is read."""
        lane, column = axes
        widths = (self.vector, self.vector if rows_are_lanes else TRANSPOSED_ROWS)
        loops: list[Loop] = []
        inner: list[Loop] = []
        for axis, tile, width, kind in zip(
            (column, lane), (points[1], points[0]), reversed(widths), (UNROLLED, VECTORIZED), strict=True
        ):
            if tile.points == 1:
                continue
            if tile.is_tile and tile.points is not None and tile.points % width:
                width = next(w for w in range(min(width, tile.points), 0, -1) if tile.points % w == 0)
            if tile.points != width:
                loops.append(Loop(axis, width, ()))
            if width > 1:
                inner.append(Loop(axis, 1, (), kind))
        return [*loops, *inner]


def _walk(loops: TilingExpression) -> list[TiledLoop]:
    return [x for loop in loops for x in (loop, *_walk(loop.body))]


def _dims(stage: ChainStage) -> tuple[str | None, ...]:
    """Per dimension of the buffer that a stage writes the axis that indexes it."""
    names = {i.var: a for a, i in zip(stage.axes, stage.node.iters, strict=True)}
    return tuple(names.get(i) for i in stage.node.body.indices)
