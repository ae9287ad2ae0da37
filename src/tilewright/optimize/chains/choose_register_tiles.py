"""Register tiles of the contractions of a chain, by the cost model of constructed programs.

Within a tile of a chain a contraction is a product of small matrices whose operands are in the caches next to the core:
what is left to choose are the rows and vectors of its register tile and the steps of the reduction that are unrolled.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from tilewright.cost.footprint import Numbers
from tilewright.cost.rowwise import row_block_cycles
from tilewright.machine.model import Machine
from tilewright.tile.operand import Operand
from tilewright.tile.problem import Problem, ProblemAxis
from tilewright.tile.program import Sizes, Sketch
from tilewright.tile.rowwise import RowBlocking

MAX_TILE_ROWS = 16
"""Rows of a register tile."""

MAX_VECTORS = 5
"""Vectors of a row of a register tile. On a Sapphire Rapids core 4 x 96 (six vectors, 31 registers with the operands)
takes 1.2 times 8 x 48 per product, where the model expects as much."""

UNROLLED_STEPS = (1, 2, 4)
"""Steps of the reduction that are unrolled."""

PANEL_BANDWIDTH = 0.4
"""Share of the bandwidth of L2 at which register tiles read panels of vectors from there. On a Sapphire Rapids core a
sum of 256 steps takes 13.6 cycles per step in tiles of 4 x 64, 13.1 in tiles of 6 x 64, whose products take 8.8 and
12.5 cycles where the panel is in L1."""

SYMBOLIC_POINTS = 256
"""Stands for the points of a symbolic axis."""


@dataclass(frozen=True, slots=True)
class RegisterTile:
    """The register tile of a contraction.

    Attributes:
        rows: elements of the broadcast operand.
        lanes: points of the lane axis, in vectors.
        steps: points of the reduction per iteration.
    """

    rows: int
    lanes: int
    steps: int


@dataclass(frozen=True, slots=True)
class TileAxis:
    """Points of an axis that a contraction's loops cover.

    Attributes:
        points: how many; None where they are symbolic.
        is_tile: whether they are those of a tile, which steps have to divide.
    """

    points: int | None
    is_tile: bool

    def divides(self, size: int) -> bool:
        """Whether steps of this size are possible."""
        if self.points is None:
            return True
        return size == 1 or (size <= self.points and (not self.is_tile or self.points % size == 0))


@cache
def best_register_tile(
    rows: TileAxis, lanes: TileAxis, steps: TileAxis, vector: int, is_row_major: bool, machine: Machine
) -> RegisterTile:
    """The register tile of the fewest cycles.

    Args:
        rows: the axis whose elements are broadcast.
        lanes: the axis of vectors.
        steps: the axis that is summed along.
        vector: elements of a hardware vector.
        is_row_major: whether the broadcast operand is contiguous along the steps.
        machine: the machine.
    """
    tiles = _candidates(rows, lanes, steps, vector, machine.vector_registers)
    heights, widths, depth = (SYMBOLIC_POINTS if x.points is None else x.points for x in (rows, lanes, steps))
    problem = _problem(heights, widths, depth, is_row_major)
    sizes = np.ones((len(tiles), 3, 3), np.int64)
    for k, t in enumerate(tiles):
        sizes[k, 0] = (t.rows, t.lanes, t.steps)
        sizes[k, 1:] = (t.rows, t.lanes, problem.axes[2].extent)
    cycles = row_block_cycles(problem, Sketch(1, vector, (1, 0), None), sizes, RowBlocking(1, 1, 1, True, {}), machine)
    return tiles[int(np.argmin(np.maximum(cycles, _panel_cycles(problem, sizes, machine))))]


def _panel_cycles(problem: Problem, sizes: Sizes, machine: Machine) -> Numbers:
    """Cycles in which the panels of vectors come from L2 for every register tile, where they exceed L1: the lower the
    tile, the more often."""
    rows, lanes, steps = (a.extent for a in problem.axes)
    l1, l2 = machine.levels[0], machine.levels[min(1, len(machine.levels) - 1)]
    panel_bytes = sizes[:, 0, 1] * (steps * 4.0)
    panels = np.ceil(rows / sizes[:, 0, 0]) * np.ceil(lanes / sizes[:, 0, 1])
    cycles = panels * panel_bytes / (PANEL_BANDWIDTH * l2.core_gbs) * machine.ghz
    return np.where(panel_bytes > l1.bytes * machine.cost.usable_cache_fraction, cycles, 0.0)


def _candidates(
    rows: TileAxis, lanes: TileAxis, steps: TileAxis, vector: int, registers: int
) -> Sequence[RegisterTile]:
    """Tiles whose accumulators, vectors and a broadcast element fit the registers; narrow lanes fill a single one."""
    needed = MAX_VECTORS if lanes.points is None else -(-lanes.points // vector)
    widths = [v * vector for v in range(1, min(needed, MAX_VECTORS) + 1)
              if not lanes.is_tile or lanes.points is None or lanes.points % (v * vector) == 0]  # fmt: skip
    # a tile that vectors do not divide is one vector of as many lanes, which LLVM cuts
    widths = widths or [lanes.points or vector]
    unrolled = [u for u in UNROLLED_STEPS if u == 1 or (steps.points is not None and steps.points % u == 0)]
    return [
        RegisterTile(r, w, u)
        for w in widths
        for r in range(1, MAX_TILE_ROWS + 1)
        if rows.divides(r) and (r == 1 or (r + 1) * -(-w // vector) + 1 <= registers)
        for u in unrolled
    ]


def _problem(rows: int, lanes: int, steps: int, is_row_major: bool) -> Problem:
    """A product of matrices in the caches."""
    axes = (
        ProblemAxis("rows", rows, True, False), ProblemAxis("lanes", lanes, True, False),
        ProblemAxis("steps", steps, True, True),
    )  # fmt: skip
    shape, index = ((rows, steps), ((1, 0, 0), (0, 0, 1))) if is_row_major else ((steps, rows), ((0, 0, 1), (1, 0, 0)))
    broadcast = Operand("broadcast", 4, False, shape, index, False)
    vectors = Operand("vectors", 4, False, (steps, lanes), ((0, 0, 1), (0, 1, 0)), False)
    result = Operand("result", 4, False, (rows, lanes), ((1, 0, 0), (0, 1, 0)), True)
    return Problem("product", "product", axes, (broadcast, vectors), (result,), 1, 32)
