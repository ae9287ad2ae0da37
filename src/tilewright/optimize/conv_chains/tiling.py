"""Tiles of a chain of convolutions, and which are considered."""

from dataclasses import dataclass
from enum import StrEnum

from tilewright.errors import ScheduleError
from tilewright.machine.model import Machine
from tilewright.optimize.conv_chains.stages import PLACE, ConvolutionChain, ConvolutionStage
from tilewright.tile.tree import TileTree

TILE_COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32)
"""Numbers of tiles of rows that are considered."""

CHANNEL_BLOCKS = (16, 32, 48, 64, 96)
"""Channels of a depthwise convolution and its producer that are considered at a time, besides all."""


BYTES = 4
"""Of an element: chains are float32."""

CACHE_SHARE = 0.5
"""Share of a core's private cache that the intermediates of a tile may take. On one core of a Sapphire Rapids
an inverted residual of 96 x 112 x 112 takes 512 us with tiles of 0.8 MB, 609 us with 1.6 MB, 807 us with 2.8 MB, of
2 MiB; the model of trees does not tell them apart."""


class LaneAxis(StrEnum):
    """Along which axis vectors run."""

    CHANNELS = "channels"
    """Intermediates are stored with channels innermost; the result is transposed where it is stored."""

    COLUMNS = "columns"
    """Intermediates are stored as the inputs are, with columns innermost."""


@dataclass(frozen=True, slots=True)
class ConvolutionTiling:
    """Tiles of a chain of convolutions.

    Attributes:
        rows: rows of the result that a tile has, over all columns; halos are computed again.
        channels: channels of a depthwise convolution and of its producer that are computed at a time; 0 for all.
        lanes: along which axis vectors run.
    """

    rows: int
    channels: int
    lanes: LaneAxis


@dataclass(frozen=True, slots=True)
class RankedTiling:
    """A tiling with its tree.

    Attributes:
        tiling: the tiling.
        tree: the kernel's loops.
        nanoseconds: by the model of trees.
    """

    tiling: ConvolutionTiling
    tree: TileTree
    nanoseconds: float


def groups_of(chain: ConvolutionChain) -> tuple[tuple[ConvolutionStage, ...], ...]:
    """The convolutions of a chain in groups that share their channels: a depthwise one is in that of its producer."""
    groups: list[tuple[ConvolutionStage, ...]] = []
    for stage in chain.stages:
        if stage.is_depthwise and groups:
            groups[-1] = (*groups[-1], stage)
        else:
            groups.append((stage,))
    return tuple(groups)


def computed_rows(chain: ConvolutionChain, rows: int) -> dict[str, int]:
    """Rows of every convolution's results that a tile needs, those of halos included, by the convolution's name.

    Args:
        chain: the chain.
        rows: rows of the chain's result in a tile.
    """
    result: dict[str, int] = {}
    for stage in reversed(chain.stages):
        result[stage.name] = min(rows, chain.points(stage.axes.rows))
        rows = _read_rows(stage, result[stage.name])
    return result


def _read_rows(stage: ConvolutionStage, rows: int) -> int:
    """Rows, those of padding included, that a convolution reads for so many rows of its results."""
    return stage.stride * (rows - 1) + stage.reach


def tile_bytes(chain: ConvolutionChain, tiling: ConvolutionTiling) -> int:
    """Bytes of the intermediates of a tile, halos included. Of what is padded row by row one row is kept."""
    computed, total = computed_rows(chain, tiling.rows), 0
    following: ConvolutionStage | None = None
    for group in reversed(groups_of(chain)):
        is_blocked, kept = len(group) > 1 and tiling.channels > 0, group[len(group) - 1]
        for stage in reversed(group):
            channels = chain.points(stage.axes.channels)
            # the last one of blocks of channels is kept for all of them
            own = min(tiling.channels, channels) if is_blocked and stage is not kept else channels
            rows = computed[stage.name]
            by_rows = following is not None and following.padding is not None and not (
                is_blocked and stage is kept)  # fmt: skip
            total += (1 if by_rows else rows) * chain.points(stage.axes.columns) * own
            if stage.padding is not None:
                axes = stage.padding[1]
                depth = min(tiling.channels, channels) if is_blocked else chain.points(axes.channels)
                total += min(_read_rows(stage, rows), chain.points(axes.rows)) * chain.points(axes.columns) * depth
            following = stage
    return total * BYTES


def tilings_of(chain: ConvolutionChain, vector: int, machine: Machine) -> tuple[ConvolutionTiling, ...]:
    """The tilings of a chain that are considered: those whose intermediates fit the private cache, or the smallest one.

    Vectors run along channels, where windows need neither shifted nor strided vectors, and rows may be of any length.
    Where the chain begins with a depthwise convolution, whose input has its channels outermost, they run along columns.

    Args:
        chain: the chain.
        vector: elements of a hardware vector.
        machine: the machine.

    Raises:
        ScheduleError: vectors run along columns, and there are fewer of these than a vector has elements.
    """
    rows = chain.points(chain.stages[-1].axes.rows)
    heights = sorted({-(-rows // count) for count in TILE_COUNTS})
    if chain.stages[0].is_depthwise:
        columns = chain.points(chain.stages[-1].axes.columns)
        if columns < vector:
            what = f"its rows of {columns} elements are shorter than a vector of {vector}"
            raise ScheduleError(f"{what}, and the channels of what it reads are not contiguous", where=PLACE)
        every = [ConvolutionTiling(h, 1, LaneAxis.COLUMNS) for h in heights]
    else:
        counts = [chain.points(g[0].axes.channels) for g in groups_of(chain) if len(g) > 1]
        blocks = [b for b in CHANNEL_BLOCKS if counts and b < min(counts) and all(n % b == 0 for n in counts)]
        every = [ConvolutionTiling(h, b, LaneAxis.CHANNELS) for h in heights for b in (*blocks, 0)]
    private = machine.levels[min(1, len(machine.levels) - 1)]
    fitting = [x for x in every if tile_bytes(chain, x) <= CACHE_SHARE * private.share]
    return tuple(fitting or [min(every, key=lambda x: tile_bytes(chain, x))])
