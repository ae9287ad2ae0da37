"""Cost terms and legality of the states of a sketch, of one kernel or of several that differ only in their sizes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tilewright.cost.candidate_batch import is_packed
from tilewright.cost.footprint import Numbers, moved_bytes, touched_elements
from tilewright.cost.shape_family import OperandView, ShapeFamily
from tilewright.loops.private_memory import MAX_STACK_BYTES
from tilewright.machine.model import Machine
from tilewright.optimize.construct.tile_lattice import Indices
from tilewright.tile.prefetches import distant_operands
from tilewright.tile.problem import Problem
from tilewright.tile.program import L1, L2, REGISTER, Sizes, Sketch
from tilewright.tile.transposed_columns import MIN_COLUMNS

PARTIAL_SUM_FRACTION = 0.25
"""Largest share of a core's part of L2 that the partial sums of an L1 tile take; what a K-block reads of the
operands takes most of the rest."""

MAX_PACKED_SUM_BYTES = 64 << 10
"""Bytes of the partial sums of an L1 tile whose operands are all packed: panels are contiguous, so that K-blocks around
more columns gain nothing and take room in L2. The least limit of other L1 tiles, too, whatever the caches."""

MAX_UNROLLED_OPS = 128
"""Vector operations of one unrolled step; more would only bloat the code."""


@dataclass(frozen=True, slots=True)
class StateCosts:
    """The terms, as formulas over arrays.

    Attributes:
        family: the kernels, and that of every state.
        sketch, machine: of the programs.
        column_axes: axes whose tiles are columns of an operand that is transposed in registers.
    """

    family: ShapeFamily
    sketch: Sketch
    machine: Machine
    column_axes: tuple[int, ...]

    @property
    def problem(self) -> Problem:
        """The first kernel's, for everything but sizes."""
        return self.family.problem

    def select(self, states: Indices) -> "StateCosts":
        """Those of some of the states."""
        return replace(self, family=self.family.select(states))

    def bytes_read(self, box: list[Numbers]) -> Numbers:
        """S: bytes that the points of tiles read, in whole cache lines."""
        return operand_bytes(self.family.operands, self.sketch, box, self.machine.levels[0].line)

    def footprint(self, box: list[Numbers], level: Indices) -> Numbers:
        """F: the footprint of tiles as a fraction of the usable capacity of their level."""
        registers = self._register_count(box) / self.machine.vector_registers
        if (level == REGISTER).all():
            return registers
        usable = self.machine.cost.usable_cache_fraction
        budget = np.array([1.0, *(x.share * usable for x in self.machine.levels[:2])])
        return np.where(level == REGISTER, registers, self.bytes_read(box) / budget[level])

    def _register_count(self, box: list[Numbers]) -> Numbers:
        accumulators = np.ones_like(box[0]) / self.sketch.lanes
        for a in self.problem.spatial:
            accumulators = accumulators * box[a]
        row = box[self.sketch.lane] / self.sketch.lanes
        if self.problem.axes[self.sketch.lane].is_reduction:
            accumulators = accumulators * box[self.sketch.lane]
        return accumulators + np.where(accumulators > row, row, 0.0) + 1

    def traffic(self, box: list[Numbers], level: Indices) -> Numbers:
        """Q: bytes per result that move into tiles of a level, where every tile is loaded anew over the whole
        reduction."""
        results: Numbers = np.ones_like(box[0])
        for a in self.problem.spatial:
            results = results * box[a]
        reduced_box = list(box)
        for k in self.problem.reduce:
            reduced_box[k] = np.zeros_like(box[k]) + self.family.extents[k]
        element_bytes = operand_bytes(self.family.operands, self.sketch, reduced_box, 1) / results
        if (level == REGISTER).all():
            return element_bytes
        return np.where(level == REGISTER, element_bytes, self.bytes_read(reduced_box) / results)

    def are_lowerable(self, sizes: Sizes) -> npt.NDArray[np.bool_]:
        """Which candidates can be lowered within the limits of code size and stack."""
        # one array row per axis, so that combined values are contiguous
        register, l1 = (np.ascontiguousarray(sizes[:, level].T) for level in (REGISTER, L1))
        extents = self.family.extents
        spatial, reduce = list(self.problem.spatial), list(self.problem.reduce)
        unrolled_ops = register[spatial].prod(axis=0) * register[reduce].prod(axis=0) / self.sketch.lanes
        partial_sum_bytes = l1[spatial].prod(axis=0) * self.problem.bits / 8
        rows = [k for k in spatial if k != self.sketch.lane]
        # a tile of more than one row may leave a remainder of a symbolic number of rows
        leaves_remainder = [
            extents[k] % register[k] > 0 if self.problem.axes[k].is_static else register[k] > 1 for k in rows
        ]
        remainder_axes = np.sum(leaves_remainder, axis=0) if leaves_remainder else np.zeros(len(sizes))
        k_block_axis = self.sketch.k_block_axis
        # columns beyond the whole tiles are transposed in registers where one loop counts the tiles, and peels its last
        cut = [
            (register[k] >= MIN_COLUMNS) & (extents[k] % register[k] > 0) & (sizes[:, L2, k] > register[k])
            for k in self.column_axes
        ]
        is_cut = np.any(cut, axis=0) if cut else np.zeros(len(sizes), np.bool_)
        is_k_blocked = (
            np.zeros(len(sizes), np.bool_) if k_block_axis is None else l1[k_block_axis] < extents[k_block_axis]
        )
        return (
            (unrolled_ops <= MAX_UNROLLED_OPS)
            & (~is_k_blocked | (partial_sum_bytes <= max_partial_sum_bytes(self.problem, self.sketch, self.machine)))
            & (remainder_axes <= 1)
            & ~is_cut
        )


def max_partial_sum_bytes(problem: Problem, sketch: Sketch, machine: Machine) -> float:
    """Bytes that the partial sums of an L1 tile may take: a share of a core's part of L2, or of L1 without one, and no
    more than stay on a thread's stack; less where no operand has distant rows that are not packed."""
    if not distant_operands(problem, sketch):
        return MAX_PACKED_SUM_BYTES
    near = max((x.share for x in machine.levels[:-1][:L2] if x.ways), default=0.0)
    return max(min(near * PARTIAL_SUM_FRACTION, MAX_STACK_BYTES), MAX_PACKED_SUM_BYTES)


def operand_bytes(operands: Sequence[OperandView], sketch: Sketch, box: list[Numbers], line: int) -> Numbers:
    """Bytes of the operands, without results, that the points of a box read: whole cache lines, or single elements
    where `line` is 1."""
    total: Numbers = np.zeros_like(box[0])
    for k, o in enumerate(operands):
        total = total + (
            touched_elements(o, box) * o.element_bytes if line == 1 else moved_bytes(o, box, line, is_packed(sketch, k))
        )
    return total
