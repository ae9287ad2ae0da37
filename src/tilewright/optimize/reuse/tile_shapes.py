"""Shapes of tiles for features of programs: blocks by cache lines, micro-tiles by the instructions of a step.

A *grid* is the number of parallel tasks along each spatial axis; its product is B. For a B the grid is taken whose
blocks read the fewest cache lines. For a number of micro-tiles T the register tile is taken whose steps take the fewest
cycles, all of them together; tiles of L1 are those that the cost model likes best (ETO, Section 5.1, for processors).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np
import numpy.typing as npt

from tilewright.cost.analytical import mean_time, program_times
from tilewright.cost.footprint import Numbers, touched_elements
from tilewright.machine.alignment import CACHE_LINE_BYTES
from tilewright.machine.model import Machine
from tilewright.optimize.construct.search_space import SearchSpace
from tilewright.optimize.construct.state_costs import operand_bytes
from tilewright.optimize.construct.tile_lattice import divisors, k_block_sizes
from tilewright.optimize.reuse.program_features import input_bytes
from tilewright.optimize.reuse.reuse_ranges import ROUNDING, FeatureRange
from tilewright.tile.problem import Problem
from tilewright.tile.program import L1, L2, REGISTER, Mask, Sizes, Sketch, is_legal

MAX_GRIDS = 100_000
"""Grids that are compared; beyond, every axis is cut into fewer numbers of tasks."""

MAX_AXIS_COUNTS = 24
"""Numbers of tasks along one axis where all would make too many grids."""

MIN_ACCUMULATORS = 8
"""Vectors that keep two pipes of four cycles busy."""

STALL_PENALTY, SPILL_PENALTY = 1.0, 2.0
"""Cycles per step for each accumulator that is missing, and for each vector beyond the registers."""

MAX_L1_SIZES = 3
"""Sizes of tiles of L1 that are compared along an axis."""

MAX_BLOCK_COUNTS = 24
"""Numbers of parallel tasks that are compared, spread over their range."""

Grid = tuple[int, ...]
"""Numbers of parallel tasks per spatial axis."""

RegisterTile = tuple[int, ...]
"""Sizes of the register tile per axis."""

Array = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class TileShapes:
    """The tile shapes of a sketch.

    Attributes:
        space: the tile sizes of every axis.
        sketch: lanes, packing and the order of loops.
        machine: with the cores that the task has.
        problem: what is computed, with its shape samples.
    """

    space: SearchSpace
    sketch: Sketch
    machine: Machine
    problem: Problem

    @cached_property
    def register_options(self) -> tuple[tuple[int, ...], ...]:
        """Sizes of register tiles per axis."""
        return tuple(lattice.rules.register_sizes for lattice in self.space.lattices)

    def whole_tiles(self, axis: int, register: int) -> int:
        """Number of register tiles along an axis, without a remainder of rows."""
        extent = self.problem.axes[axis].extent
        return max(1, -(-extent // register) if axis == self.sketch.lane else extent // register)

    def grid_options(self, axis: int) -> tuple[int, ...]:
        """Numbers of tasks along an axis that some register tile allows."""
        counts = {self.whole_tiles(axis, r) for r in self.register_options[axis]}
        if not self.problem.axes[axis].is_static:
            return tuple(sorted(counts))
        return tuple(sorted({d for n in counts for d in divisors(n)}))

    def is_compatible(self, axis: int, register: int, tasks: int) -> bool:
        """Whether register tiles fill so many tasks along an axis."""
        tiles = self.whole_tiles(axis, register)
        return tiles % tasks == 0 if self.problem.axes[axis].is_static else tiles == tasks

    def grids(self, blocks: FeatureRange) -> dict[int, Grid]:
        """For every number of tasks in a range the grid whose blocks read the fewest cache lines; for none in the range
        that of the next larger number, or the largest one."""
        options = [self.grid_options(a) for a in self.problem.spatial]
        if np.prod([float(len(o)) for o in options]) > MAX_GRIDS:
            options = [_thinned(o, MAX_AXIS_COUNTS) for o in options]
        grids = np.stack([x.reshape(-1) for x in np.meshgrid(*map(np.array, options), indexing="ij")], axis=1)
        counts = grids.prod(axis=1)
        low, high = blocks.lowest - 1, blocks.highest + 1
        if not ((counts >= low) & (counts <= high)).any():
            above = counts[counts > high]
            low = high = above.min() if len(above) else counts.max()
        inside = (counts >= low) & (counts <= high)
        grids, counts = grids[inside], counts[inside]
        lines = self._block_lines(grids)
        best: dict[int, Grid] = {}
        for k in np.lexsort([lines, counts]):
            best.setdefault(int(counts[k]), tuple(int(n) for n in grids[k]))
        return {n: best[n] for n in _thinned(tuple(best), MAX_BLOCK_COUNTS)}

    def _block_lines(self, grids: Array) -> Numbers:
        """Bytes, in whole cache lines, that a block of each grid reads over the whole reduction."""
        box = [np.full(len(grids), float(a.extent)) for a in self.problem.axes]
        for position, axis in enumerate(self.problem.spatial):
            box[axis] = np.ceil(box[axis] / grids[:, position])
        return operand_bytes(self.problem.operands, self.sketch, box, CACHE_LINE_BYTES)

    def tiles(self, grid: Grid, reduction: Sequence[int], threads: FeatureRange) -> dict[int, RegisterTile]:
        """For every number of micro-tiles in a range, of register tiles that fill a grid, the one whose steps take the
        fewest cycles; for none in the range the number next to it.

        Args:
            grid: tasks per spatial axis.
            reduction: sizes of the register tile per reduction axis.
            threads: of T.
        """
        spatial = self.problem.spatial
        options = [
            [r for r in self.register_options[a] if self.is_compatible(a, r, n)]
            for a, n in zip(spatial, grid, strict=True)
        ]
        if not all(options):
            return {}
        columns = np.meshgrid(*(np.array(o) for o in options), *(np.array([r]) for r in reduction), indexing="ij")
        extents = [self.problem.axes[a].extent for a in spatial]
        counted = [np.array([-(-n // r) for r in o]) for n, o in zip(extents, options, strict=True)]
        tiles = np.stack([c.reshape(-1) for c in columns], axis=1)
        counts = np.prod(np.stack([c.reshape(-1) for c in np.meshgrid(*counted, indexing="ij")]), axis=0)
        low, high = threads.lowest * (1 - ROUNDING), threads.highest * (1 + ROUNDING)
        if not ((counts >= low) & (counts <= high)).any():
            distance = np.maximum(np.log(low / counts), np.log(counts / high))
            low = high = counts[int(np.argmin(distance))]
        inside = (counts >= low) & (counts <= high)
        tiles, counts = tiles[inside], counts[inside]
        cycles = counts * step_cycles(self.problem, self.sketch, tiles, self.machine.vector_registers)
        best: dict[int, RegisterTile] = {}
        for k in np.lexsort([cycles, counts]):
            best.setdefault(int(counts[k]), tuple(int(n) for n in tiles[k]))
        return best

    def k_blocks(self, tile: RegisterTile) -> tuple[int, ...]:
        """Points of the K-blocks that a register tile may have, the whole axis included."""
        axis = self.sketch.k_block_axis
        if axis is None or self.sketch.lane in self.problem.reduce:
            return ()
        rules = self.space.lattices[axis].rules
        largest = rules.extent if rules.max_l1 is None else rules.max_l1
        sizes = [n for n in k_block_sizes(rules.extent) if n % tile[axis] == 0 and n <= largest]
        return tuple(n for n in sizes if n >= rules.min_l1 or n == rules.extent)

    def k_block_near(self, grid: Grid, tile: RegisterTile, task_bytes: float) -> int | None:
        """The K-block of a register tile with which the inputs of a task take about so many bytes per K-block."""
        options = self.k_blocks(tile)
        if not options:
            return None
        needed = self.chunk_bytes(grid, options)
        return options[int(np.argmin(np.abs(np.log(needed / task_bytes))))]

    def chunk_bytes(self, grid: Grid, k_blocks: Sequence[int]) -> Numbers:
        """Bytes of the operands that a task of a grid reads per K-block of so many points."""
        box = [np.full(len(k_blocks), float(a.extent)) for a in self.problem.axes]
        for axis, tasks in zip(self.problem.spatial, grid, strict=True):
            box[axis] = np.ceil(box[axis] / tasks)
        if self.sketch.k_block_axis is not None:
            box[self.sketch.k_block_axis] = np.array(k_blocks, np.float64)
        return input_bytes(self.problem, box)

    def sizes(self, grid: Grid, tile: RegisterTile, k_block: int | None) -> Sizes:
        """Tile sizes [candidate, level, axis] of a grid, a register tile and a K-block: one per tile of L1."""
        spatial = self.problem.spatial
        per_task = [max(1, self.whole_tiles(a, tile[a]) // n) for a, n in zip(spatial, grid, strict=True)]
        choices = list(product(*(_thinned(divisors(n), MAX_L1_SIZES) for n in per_task)))
        sizes = np.ones((len(choices), 3, len(self.problem.axes)), np.int64)
        sizes[:, REGISTER] = tile
        for position, (a, n) in enumerate(zip(spatial, per_task, strict=True)):
            sizes[:, L2, a] = tile[a] * n
            sizes[:, L1, a] = tile[a] * np.array([c[position] for c in choices])
        for k in self.problem.reduce:
            extent = self.problem.axes[k].extent
            cover = -(-extent // tile[k]) * tile[k] if k == self.sketch.lane else extent
            sizes[:, L2, k] = cover
            sizes[:, L1, k] = k_block if k == self.sketch.k_block_axis and k_block else cover
        return sizes

    def are_legal(self, sizes: Sizes) -> Mask:
        """Which candidates are legal and can be lowered."""
        return is_legal(self.problem, self.sketch, sizes) & self.space.are_lowerable(sizes)

    def times(self, sizes: Sizes) -> Numbers:
        """Predicted nanoseconds of candidates."""
        if self.problem.samples:
            return mean_time(self.problem, self.sketch, sizes, self.machine)
        return program_times(self.problem, self.sketch, sizes, self.machine).total


def step_cycles(problem: Problem, sketch: Sketch, tiles: Array, registers: int) -> Numbers:
    """Cycles of one step of register tiles [candidate, axis] over one point of the reduction: two multiply-adds and two
    loads per cycle, and what too few accumulators and too many registers cost."""
    box = [tiles[:, k].astype(np.float64) for k in range(len(problem.axes))]
    for k in problem.reduce:
        if k != sketch.lane:
            box[k] = np.ones(len(tiles))
    accumulators = np.prod(box, axis=0) / sketch.lanes
    loads: Numbers = np.zeros(len(tiles))
    most_vectors: Numbers = np.zeros(len(tiles))
    for o in problem.read_operands:
        elements = touched_elements(o, box)
        vectors = elements / sketch.lanes if o.uses(sketch.lane) else elements
        loads = loads + vectors
        most_vectors = np.maximum(most_vectors, vectors if o.uses(sketch.lane) else 1.0)
    stalls = np.maximum(0.0, MIN_ACCUMULATORS - accumulators)
    spills = np.maximum(0.0, accumulators + most_vectors + 1 - registers)
    return np.maximum(accumulators, loads) / 2 + STALL_PENALTY * stalls / 2 + SPILL_PENALTY * spills


def _thinned(options: Sequence[int], count: int) -> tuple[int, ...]:
    """At most so many of ascending options, the first and the last among them."""
    if len(options) <= count:
        return tuple(options)
    positions = np.unique(np.linspace(0, len(options) - 1, count).round().astype(int))
    return tuple(options[int(k)] for k in positions)
