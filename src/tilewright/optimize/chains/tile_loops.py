"""Loops within a tile of a chain: the points of every axis, loops over register tiles, vectors, transposed blocks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.loops.ir import LoopKind
from tilewright.machine.model import Machine
from tilewright.optimize.chains.choose_register_tiles import TileAxis
from tilewright.optimize.chains.expression import Path, TilingExpression
from tilewright.optimize.chains.stage_placement import OnlineRole
from tilewright.optimize.chains.stages import ChainStage, ChainStages
from tilewright.tile.tree import Loop, Node, Staging

UNROLLED, VECTORIZED = LoopKind.UNROLLED, LoopKind.VECTORIZED

TRANSPOSED_ROWS = 8
"""Columns that are transposed in registers at a time where results are stored; see `tile/reduction_tree.py`."""


@dataclass(frozen=True, slots=True)
class StagedNest:
    """Loops around statements.

    Attributes:
        nodes: the loops.
        staging: the statements that they need besides the kernel's blocks.
    """

    nodes: tuple[Node, ...]
    staging: tuple[Staging, ...] = ()


@dataclass(frozen=True, slots=True)
class TiledChain:
    """A chain with its tiles.

    Attributes:
        chain: the computations.
        tiles: points of the tiles by axis.
        loops: the loops over tiles that have several iterations, and that over rows.
        roles: of the stages that read running results.
        vector: elements of a hardware vector.
        along_rows: whether vectors run along rows.
        machine: the machine.
    """

    chain: ChainStages
    tiles: Mapping[str, int]
    loops: TilingExpression
    roles: Mapping[str, OnlineRole]
    vector: int
    along_rows: bool
    machine: Machine

    def points(self, axis: str, path: Path) -> TileAxis:
        """The points of an axis that the loops of a statement cover, inside of loops over tiles."""
        if axis in self.chain.outer:
            return TileAxis(1, True)
        if axis in path:
            return TileAxis(self.tiles[axis], True)
        return TileAxis(self.chain.points(axis), False)

    def has_one_point(self, axis: str, path: Path) -> bool:
        """Whether an axis has a single point there, so that a statement has no loop over it."""
        return self.points(axis, path).points == 1

    def columns(self, stage: ChainStage) -> list[str]:
        """The axes of a stage's results besides rows, batches and heads."""
        return [a for a in stage.spatial if a != self.chain.row and a not in self.chain.outer]

    def loop_over(self, axis: str, step: int, path: Path) -> list[Loop]:
        """A loop over an axis in steps, where there are several, or where whole vectors exceed the only one: without it
        accumulators would have rows of part of a vector, which registers do not hold. A single point has no loop."""
        return [] if self.points(axis, path).points in (1, step) else [Loop(axis, step, ())]

    def point_loops(self, axes: Sequence[str], path: Path) -> list[Loop]:
        """Loops over single points of axes that have several."""
        return [Loop(a, 1, ()) for a in axes if not self.has_one_point(a, path)]

    def single_point_loops(self, final: ChainStage, path: Path) -> list[Loop]:
        """Loops over axes of one point of the result: the last statement of a tree has these, too."""
        axes = (self.chain.row, *self.columns(final))
        return [Loop(a, 1, ()) for a in axes if self.points(a, path) == TileAxis(1, False)]

    def is_after_online_sum(self, stage: ChainStage) -> bool:
        """Whether a stage reads what is complete only after a loop with online sums."""
        return stage.name not in self.roles and any(
            self.roles.get(name) is OnlineRole.SUM or self.is_after_online_sum(self.chain.stage(name))
            for name in stage.reads
        )

    def lane_width(self, axis: str, path: Path, vectors: int) -> int:
        """The largest width of vectors, up to this number of hardware vectors, that suits an axis."""
        tile = self.points(axis, path)
        if tile.points is None:
            return vectors * self.vector
        widths = [v * self.vector for v in range(vectors, 0, -1) if v == 1 or (v - 1) * self.vector < tile.points]
        if tile.is_tile:
            widths = [w for w in widths if tile.points % w == 0] or [tile.points]
        return widths[0]

    def lane_loops(self, axis: str, width: int, path: Path) -> list[Loop]:
        """Loops over vectors of a width, then over their lanes; a partial last vector is masked."""
        points = self.points(axis, path).points
        if points == 1:
            return []
        tiles = [] if points == width else [Loop(axis, width, ())]
        return [*tiles, Loop(axis, 1, (), VECTORIZED)]

    def transposing_loops(self, lane: TileAxis, column: TileAxis, names: tuple[str, str], columns: int) -> list[Loop]:
        """Loops over blocks that code generation transposes in registers: lanes, and an unrolled loop over the columns
        of what is read, which are contiguous there.

        Args:
            lane, column: the points of both axes.
            names: of the two.
            columns: how many are transposed at a time.
        """
        tiles: list[Loop] = []
        inner: list[Loop] = []
        limits = (columns, self.vector)
        for axis, tile, limit, kind in zip(
            reversed(names), (column, lane), limits, (UNROLLED, VECTORIZED), strict=True
        ):
            if tile.points == 1:
                continue
            width = limit
            if tile.is_tile and tile.points is not None and tile.points % width:
                width = next(w for w in range(min(width, tile.points), 0, -1) if tile.points % w == 0)
            tiles += [Loop(axis, width, ())] if tile.points != width else []
            inner += [Loop(axis, 1, (), kind)] if width > 1 else []
        return [*tiles, *inner]


def result_dims(stage: ChainStage) -> tuple[str | None, ...]:
    """Per dimension of the buffer that a stage writes the axis that indexes it."""
    names = {i.var: a for a, i in zip(stage.axes, stage.node.iters, strict=True)}
    return tuple(next((a for v, a in names.items() if v is i), None) for i in stage.node.body.indices)
