"""Register tiles of the convolutions of a chain, whose operands are in the caches next to the core."""

from dataclasses import dataclass
from itertools import product
from math import ceil

from tilewright.machine.model import Machine

MAX_POINTS = 14
"""Points of the unrolled axis of a register tile: the code of more is no faster."""

MAX_VECTORS = 7
"""Vectors of a register tile along the lane axis."""


@dataclass(frozen=True, slots=True)
class ConvolutionTile:
    """A register tile.

    Attributes:
        points: of the unrolled axis, whose elements are broadcast.
        lanes: points of the lane axis.
    """

    points: int
    lanes: int


def is_whole(lanes: int, vector: int) -> bool:
    """Whether so many lanes need no mask: beyond whole vectors they are a power of two. LLVM computes sums of other
    vectors element by element: a depthwise convolution of 256 x 28 x 28 with the next one took 22 times as long."""
    rest = lanes % vector
    return rest & (rest - 1) == 0


def contraction_tile(
    points: int, lanes: int, terms: int, divide: bool, vector: int, machine: Machine
) -> ConvolutionTile:
    """The register tile of the fewest cycles of a convolution that sums channels up.

    Cycles are those of multiply-adds, loads, or the latency of a chain of additions, whichever are most, and those of
    entering a tile. Tiles of constructed programs (`chains/choose_register_tiles.py`) count sums of up to 24 terms as
    fully unrolled, which they are not here: with the tiles of 2 x 48 that follow an inverted residual of 24 x 56 x 56
    takes 546 us on one core of a Sapphire Rapids, with 8 x 48 it takes 385 us.

    Args:
        points: of the unrolled axis; the last tile may have fewer.
        lanes: points of the lane axis.
        terms: of every sum.
        divide: whether tiles should divide the lanes; otherwise the last vector may be masked.
        vector: elements of a hardware vector.
        machine: the machine.
    """
    every = [v * vector for v in range(1, MAX_VECTORS + 1) if (v - 1) * vector < lanes]
    widths = [w for w in every if not divide or lanes % w == 0] or ([lanes] if is_whole(lanes, vector) else every)
    options = [
        ConvolutionTile(p, w)
        for p, w in product(range(1, min(points, MAX_POINTS) + 1), widths)
        if p == 1 or (p + 1) * ceil(w / vector) + 1 <= machine.vector_registers
    ]

    def cycles(tile: ConvolutionTile) -> float:
        heights = [(tile.points, points // tile.points), (points % tile.points, 1)]
        return ceil(lanes / tile.lanes) * sum(n * _tile_cycles(h, tile.lanes, terms, vector, machine)
                                              for h, n in heights if h)  # fmt: skip

    return min(options, key=lambda x: (cycles(x), -x.lanes))


def _tile_cycles(points: int, lanes: int, terms: int, vector: int, machine: Machine) -> float:
    vectors = ceil(lanes / vector)
    loads = points * machine.cost.broadcast_load_factor + vectors
    step = max(points * vectors / machine.fma_pipes, loads / machine.load_ports, machine.fma_cycles)
    return machine.cost.tile_cycles + terms * (step + machine.cost.step_cycles)
