"""Tile trees of row-wise kernels, loops over blocks of rows around one nest per stage, by `rowwise.py`.

The stages of a block of rows are short and depend on each other, so what a stage waits for and which rows stay close
decide, not tiles. Which trees these are follows from the sketch: all loops around several statements are over rows that
all of them have, everything between the statements is on the stack, and what is not indexed by rows fits L1.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilewright.cost.breakdown import CostBreakdown
from tilewright.cost.caches import caches
from tilewright.cost.footprint import Numbers
from tilewright.cost.rowwise import row_block_cycles, rowwise_times
from tilewright.cost.rowwise_breakdown import rowwise_breakdown
from tilewright.cost.shape_family import Integers
from tilewright.cost.trees.boxes import StatementNest, TreeBoxes, is_tile_loop
from tilewright.cost.trees.nests import NestBatch, NestShape
from tilewright.cost.trees.statements import common_depth
from tilewright.loops.ir import LoopKind
from tilewright.machine.model import Machine
from tilewright.tile.problem import Problem
from tilewright.tile.program import Sizes, Sketch, TileProgram
from tilewright.tile.rowwise import RowBlocking, RowwiseProgram, row_block_problem, row_blocking
from tilewright.tile.tree_sizes import LoopStep


@dataclass(frozen=True)
class RowwiseNests:
    """The stages of a row-wise kernel.

    Attributes:
        shapes: of their nests.
        rank: number of loops over rows around them, all of which are over leading axes.
        is_parallel: whether threads share the rows.
    """

    shapes: tuple[NestShape, ...]
    rank: int
    is_parallel: bool

    @staticmethod
    def of(shapes: Sequence[NestShape], machine: Machine) -> "RowwiseNests | None":
        """The stages of a tree; None where it is no tree of a row-wise kernel."""
        stages = [x for x in shapes if not x.nest.statement.is_sum]
        nests = [x.nest for x in stages]
        if len(nests) < 2 or len({x.statement.name for x in nests}) < len(nests):
            # a statement with several nests is cut into parts
            return None
        depths = {common_depth(a.path, b.path) for k, a in enumerate(nests) for b in nests[:k]}
        rank = min(depths)
        rows = nests[0].path.nodes[:rank]
        if depths != {rank} or not rank or not all(is_tile_loop(x) for x in rows):
            return None
        axes = tuple(x.axis for x in rows)
        internal = {x.statement.buffer for x in nests[:-1]}
        if any(_leading_axes(x, rank) != axes for x in nests):
            return None
        if any(o.buffer in internal and not o.private for x in nests for o in x.accesses):
            return None
        shared = {
            o.buffer: o.bytes
            for x in nests for o in x.accesses if not o.private and not any(o.uses(a) for a in range(rank))
        }  # fmt: skip
        if sum(shared.values()) > caches(machine)[0].share * machine.cost.usable_cache_fraction:
            return None
        kinds = [x.loop.kind for x in rows if isinstance(x, LoopStep)]
        return RowwiseNests(tuple(stages), rank, LoopKind.PARALLEL in kinds)

    def times(self, boxes: TreeBoxes, machine: Machine) -> Numbers:
        """Nanoseconds of candidates."""
        rows = np.stack([boxes.sizes[x.place] for x in self.shapes[0].nodes[: self.rank]])
        batches = self._stage_batches(boxes, machine)
        total = np.empty(rows.shape[1])
        # sizes that problems have are plain numbers: candidates with the same blocks of rows are one batch
        for key in np.unique(rows, axis=1).T:
            chosen = np.flatnonzero((rows == key[:, None]).all(axis=0))
            blocking, problems = self._blocks_of_rows(int(key[-1]))
            stages = [(p, *self._stage_sizes(x, chosen)) for x, p in zip(batches, problems, strict=True)]
            work = [row_block_cycles(*stage, blocking, machine) for stage in stages]
            total[chosen] = rowwise_times(blocking, problems, work, self._used_machine(machine)).total
        return total

    def breakdown(self, boxes: TreeBoxes, machine: Machine) -> CostBreakdown:
        """The terms of one candidate, the first one of a batch."""
        rows = int(boxes.sizes[self.shapes[0].nodes[self.rank - 1].place][0])
        blocking, problems = self._blocks_of_rows(rows)
        programs: list[TileProgram] = []
        for batch, problem in zip(self._stage_batches(boxes, machine), problems, strict=True):
            sketch, sizes = self._stage_sizes(batch, np.zeros(1, np.int64))
            programs.append(TileProgram.of(problem, sketch, sizes[0]))
        return rowwise_breakdown(RowwiseProgram(blocking, tuple(programs)), self._used_machine(machine))

    def _used_machine(self, machine: Machine) -> Machine:
        return machine if self.is_parallel else machine.with_cores(1)

    def _stage_batches(self, boxes: TreeBoxes, machine: Machine) -> list[NestBatch]:
        line = caches(machine)[0].line
        return [NestBatch.of(x, boxes, line) for x in self.shapes]

    def _blocks_of_rows(self, rows_per_block: int) -> tuple[RowBlocking, list[Problem]]:
        """How rows are split, and the problems of the stages for one block."""
        private = frozenset(o.buffer for x in self.shapes for o in x.nest.accesses if o.private)
        problems = {x.nest.statement.name: x.nest.statement.problem for x in self.shapes}
        blocking = row_blocking(problems, self.rank, rows_per_block, private)
        return blocking, [row_block_problem(p, self.rank, rows_per_block, private) for p in problems.values()]

    def _stage_sizes(self, batch: NestBatch, chosen: Integers) -> tuple[Sketch, Sizes]:
        """The sketch of a stage and its tile sizes [candidate, level, axis]: a register tile of results, over all terms
        of a reduction."""
        sketch, problem = batch.sketch, batch.batch.family.problem
        sketch = replace(sketch, packed=tuple(x for x in sketch.packed if x[1] >= 0))
        levels = batch.batch.sizes[:, :, chosen].astype(np.int64)
        register, around = levels[0].T, levels[0].T.copy()
        around[:, problem.reduce] = levels[1].T[:, problem.reduce]
        if sketch.lane < self.rank:
            # one result per row: the vectors of a few rows take as long as scalars
            sketch, register = replace(sketch, lanes=1), np.ones_like(register)
            around = np.maximum(register, np.where(np.isin(np.arange(register.shape[1]), problem.reduce), around, 1))
        return sketch, np.stack([register, around, around], axis=1)


def _leading_axes(nest: StatementNest, rank: int) -> tuple[str, ...]:
    """The first spatial axes of a statement."""
    problem = nest.statement.problem
    return tuple(a for k, a in enumerate(nest.statement.axes) if not problem.axes[k].is_reduction)[:rank]
