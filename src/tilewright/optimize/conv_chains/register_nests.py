"""What runs within a tile of a chain of convolutions: register tiles of convolutions, padding, the result."""

from dataclasses import dataclass, replace
from math import prod

from tilewright.expr.nodes import MemoryScope
from tilewright.loops.ir import LoopKind
from tilewright.machine.model import Machine
from tilewright.optimize.conv_chains.register_tile import ConvolutionTile, contraction_tile, is_whole
from tilewright.optimize.conv_chains.stages import ConvolutionChain, ConvolutionStage, ImageAxes
from tilewright.optimize.conv_chains.tiling import BYTES, ConvolutionTiling, LaneAxis, computed_rows, groups_of
from tilewright.tile.prefetches import MAX_PREFETCH_PASSES, MIN_PREFETCH_ROWS, prefetch_distance
from tilewright.tile.tree import (
    CacheRead,
    CacheWrite,
    Compute,
    Loop,
    LoopPart,
    Node,
    Pack,
    Partition,
    Prefetch,
    Staging,
    nest,
)

UNROLLED, VECTORIZED = LoopKind.UNROLLED, LoopKind.VECTORIZED
STACK, REGISTER = MemoryScope.STACK, MemoryScope.REGISTER

DEPTHWISE_POINTS = 8
"""Points along a row that a depthwise convolution computes at a time: neighbours share what they read, and so many
accumulators hide the latency of a multiply-add."""

MAX_UNROLLED = 256
"""Multiply-adds of vectors that are unrolled."""

TRANSPOSED = 16
"""Rows and columns that are transposed in registers at a time where results are stored."""

COPIED_VECTORS = 4
"""Vectors that padding copies at a time."""


@dataclass(frozen=True, slots=True)
class TiledConvolutions:
    """A chain with its tiles.

    Attributes:
        chain: the chain.
        tiling: its tiles.
        vector: elements of a hardware vector.
        machine: the machine, by whose model register tiles are chosen.
    """

    chain: ConvolutionChain
    tiling: ConvolutionTiling
    vector: int
    machine: Machine

    @property
    def along_channels(self) -> bool:
        """Whether vectors run along channels."""
        return self.tiling.lanes is LaneAxis.CHANNELS

    def block_of(self, stage: ConvolutionStage) -> int:
        """The channels of a convolution that are computed at a time."""
        group = next(g for g in groups_of(self.chain) if stage in g)
        channels = self.chain.points(stage.axes.channels)
        shares = any(x.is_depthwise for x in group)
        return min(channels, self.tiling.channels) if shares and self.tiling.channels else channels

    def row_loop(self, axes: ImageAxes) -> list[Loop]:
        """The loop over single rows of a tensor; none where a tile of the result has only one."""
        is_single = axes.rows == self.chain.stages[-1].axes.rows and self.tiling.rows == 1
        return [] if is_single else [Loop(axes.rows, 1, ())]

    def lane_of(self, axes: ImageAxes) -> str | None:
        """The axis that is made innermost in the buffer of an intermediate; None where it is already."""
        return axes.channels if self.along_channels else None

    def vectors_over(self, axis: str, width: int, points: int) -> list[Loop]:
        """A loop over vectors of a width; none where a single one has all points, without a mask."""
        return [Loop(axis, width, ())] if points != width else []


def padding_nest(tiled: TiledConvolutions, name: str, axes: ImageAxes) -> tuple[Node, ...]:
    """The loops that copy a row of an intermediate, or of an input, with its border."""
    stage = next(s for s in tiled.chain.stages if s.padding is not None and s.padding[0] == name)
    channels, columns = tiled.block_of(stage), tiled.chain.points(axes.columns)
    lane, points = (axes.channels, channels) if tiled.along_channels else (axes.columns, columns)
    others = [axes.columns] if tiled.along_channels else [axes.channels] if channels > 1 else []
    width = _width(points, COPIED_VECTORS * tiled.vector, tiled.vector)
    loops = [*(Loop(a, 1, ()) for a in others), *tiled.vectors_over(lane, width, points), Loop(lane, 1, (), VECTORIZED)]
    return nest(loops, Compute(name, STACK, tiled.lane_of(axes)))


def _width(points: int, limit: int, vector: int) -> int:
    """The widest vectors within a limit that divide so many points; masked ones where there are none."""
    widths = [w for w in range(limit, 0, -vector) if points % w == 0]
    if widths or (points <= limit and is_whole(points, vector)):
        return widths[0] if widths else points
    return min(limit, -(-points // vector) * vector)


def convolution_nest(tiled: TiledConvolutions, stage: ConvolutionStage) -> tuple[tuple[Node, ...], tuple[Staging, ...]]:
    """The loops over register tiles of a convolution, each of which sums in registers, applies what is element-wise and
    stores; and the staging that they need."""
    axes, lane = stage.axes, tiled.lane_of(stage.axes)
    tile = _chosen_tile(tiled, stage)
    unrolled, points = _broadcast_axis(tiled, stage)
    across = axes.channels if tiled.along_channels else axes.columns
    covered = tiled.block_of(stage) if tiled.along_channels else tiled.chain.points(axes.columns)
    taken, staging = _taken(tiled, stage)
    *outer, inner = _reduction_loops(tiled, stage, tile)
    ahead = _weights_ahead(tiled, stage, tile)

    def register_tile(height: int) -> tuple[Node, ...]:
        steps = [*outer, replace(inner, prefetches=ahead if height >= MIN_PREFETCH_ROWS else ())]
        loops = [*([Loop(unrolled, 1, (), UNROLLED)] if height > 1 else []), Loop(across, 1, (), VECTORIZED)]
        results = (n for x in taken for n in nest(loops, x))
        return (*nest([*steps, *loops], Compute(stage.name, REGISTER, lane)), *results)

    around = [*tiled.row_loop(axes), *tiled.vectors_over(across, tile.lanes, covered)]
    height, rest = min(tile.points, points), points % min(tile.points, points)
    if points == 1:
        return nest(around, *register_tile(1)), staging
    if not rest:
        return nest([*around, Loop(unrolled, height, ())], *register_tile(height)), staging
    parts = tuple(LoopPart(h, nest([Loop(unrolled, h, ())], *register_tile(h))) for h in (height, rest))
    return nest(around, Partition(unrolled, parts)), staging


def _broadcast_axis(tiled: TiledConvolutions, stage: ConvolutionStage) -> tuple[str, int]:
    """The axis that register tiles are unrolled along, and its points there."""
    if tiled.along_channels:
        return stage.axes.columns, tiled.chain.points(stage.axes.columns)
    return stage.axes.channels, tiled.block_of(stage)


def _chosen_tile(tiled: TiledConvolutions, stage: ConvolutionStage) -> ConvolutionTile:
    chain, axes = tiled.chain, stage.axes
    columns, channels = chain.points(axes.columns), tiled.block_of(stage)
    if stage.is_depthwise:
        if not tiled.along_channels:
            return ConvolutionTile(1, _width(columns, DEPTHWISE_POINTS * tiled.vector, tiled.vector))
        return ConvolutionTile(_even_part(columns, DEPTHWISE_POINTS), _width(channels, tiled.vector, tiled.vector))
    terms = prod(chain.points(a) for a in stage.reduced)
    points, lanes = (columns, channels) if tiled.along_channels else (channels, columns)
    return contraction_tile(points, lanes, terms, tiled.along_channels, tiled.vector, tiled.machine)


def _even_part(points: int, limit: int) -> int:
    """The largest part within a limit that divides so many points; the limit where all that do are small."""
    part = next(p for p in range(min(limit, points), 0, -1) if points % p == 0)
    return part if part > limit // 2 or part == points else min(limit, points)


def _reduction_loops(tiled: TiledConvolutions, stage: ConvolutionStage, tile: ConvolutionTile) -> list[Loop]:
    """The loops over what is summed: taps of a depthwise convolution are unrolled, as register tiles share what they
    read."""
    if not stage.is_depthwise:
        return [Loop(a, 1, ()) for a in stage.reduced]
    unrolled, loops = tile.points * -(-tile.lanes // tiled.vector), list[Loop]()
    for a in reversed(stage.reduced):
        unrolled *= tiled.chain.points(a)
        loops.insert(0, Loop(a, 1, (), UNROLLED if unrolled <= MAX_UNROLLED else LoopKind.SERIAL))
    return loops


def weights_copy(tiled: TiledConvolutions, stage: ConvolutionStage) -> tuple[tuple[Node, ...], Staging]:
    """Loops that copy a convolution's weights with the result's channels innermost, and the staging: those of one tap
    in panels as wide as register tiles. Copies of constants are made when the model is compiled."""
    buffer, order = stage.weights
    name, (*others, channels) = f"{stage.name}.weights", order
    dims, staging = order, CacheRead(stage.name, name, buffer, order)
    if _has_panels(tiled, stage):
        dims = ("panel", *others, "point")
        staging = Pack(stage.name, name, buffer, channels, _chosen_tile(tiled, stage).lanes)
    return nest([Loop(f"{name}.{d}", 1, ()) for d in dims], Compute(name)), staging


def _has_panels(tiled: TiledConvolutions, stage: ConvolutionStage) -> bool:
    """Whether a convolution reads its weights from panels: with one tap, whose terms of a sum are contiguous there."""
    return tiled.along_channels and not stage.is_depthwise and len(stage.reduced) == 1


def _weights_ahead(tiled: TiledConvolutions, stage: ConvolutionStage, tile: ConvolutionTile) -> tuple[Prefetch, ...]:
    """Software prefetches of weights in panels: within a model the other kernels' weights have been read since the last
    call, so the first register tile finds a panel beyond L2. A chain does not say which weights are constants; hints
    for the others, which the call itself has packed, are not needed."""
    rows = computed_rows(tiled.chain, tiled.tiling.rows)[stage.name]
    passes = rows * -(-tiled.chain.points(stage.axes.columns) // tile.points)
    if not _has_panels(tiled, stage) or passes > MAX_PREFETCH_PASSES:
        return ()
    return (Prefetch(f"{stage.name}.weights", prefetch_distance(tile.lanes * BYTES)),)


def _taken(tiled: TiledConvolutions, stage: ConvolutionStage) -> tuple[list[Compute], tuple[Staging, ...]]:
    """The statements that take the results of a register tile in turn, and the staging that they need."""
    lane, is_last = tiled.lane_of(stage.axes), stage is tiled.chain.stages[-1]
    names = list(stage.elementwise)
    staging: list[Staging] = []
    if is_last and not names:
        names = [f"{stage.name}.store"]
        staging.append(CacheWrite(stage.name, f"{stage.name}.store"))
    if is_last and tiled.along_channels:
        names = names[:-1]
    if not names:
        names = [f"{stage.name}.tile"]
        staging.append(CacheWrite(stage.name, f"{stage.name}.tile"))
    *inner, stored = names
    is_result = is_last and not tiled.along_channels
    last = Compute(stored) if is_result else Compute(stored, STACK, lane)
    return [*(Compute(x, REGISTER, lane) for x in inner), last], tuple(staging)


def store_nest(tiled: TiledConvolutions) -> tuple[Node, ...]:
    """The loops that store the result, transposed in registers; none where register tiles have stored it."""
    if not tiled.along_channels:
        return ()
    stage = tiled.chain.stages[-1]
    axes = stage.axes
    final = stage.elementwise[-1] if stage.elementwise else f"{stage.name}.store"
    channels, columns = tiled.chain.points(axes.channels), tiled.chain.points(axes.columns)
    loops = [
        *tiled.row_loop(axes), *([Loop(axes.channels, TRANSPOSED, ())] if channels > TRANSPOSED else []),
        *([Loop(axes.columns, TRANSPOSED, ())] if columns > TRANSPOSED else []), Loop(axes.channels, 1, (), UNROLLED),
        Loop(axes.columns, 1, (), VECTORIZED),
    ]  # fmt: skip
    return nest(loops, Compute(final))
