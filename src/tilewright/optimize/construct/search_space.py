"""The graph of tile programs: where construction starts, and the edges out of every state.

A state is a program and the level being scheduled; an edge makes the tile of one axis at that level larger or smaller.
Which sizes there are says `ladder.py`.
"""

from dataclasses import dataclass
from math import isqrt

import numpy as np
import numpy.typing as npt

from tilewright.cost.caches import USABLE_CACHE_FRACTION
from tilewright.cost.footprint import Numbers, moved_bytes, touched_elements
from tilewright.machine.model import Machine
from tilewright.optimize.construct.tile_lattice import (
    NO_EDGE,
    AxisLattice,
    EdgeKind,
    Indices,
    balanced_sizes,
    k_block_sizes,
)
from tilewright.optimize.reduction_blocking import max_accumulation_length
from tilewright.tile.problem import Problem
from tilewright.tile.program import L1, LEVELS, REGISTER, Sizes, Sketch

MAX_TILE_ROWS = 16
"""Rows of a register tile along one axis."""

SYMBOLIC_TILE_ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14)
"""Rows of a register tile where their number is a symbol."""

MIN_STATIC_TILE_ROWS = 4
"""Rows of known number that make tiles of rows of unknown number needless."""

MAX_VECTORS = 8
"""Vectors of a register tile along the lane axis."""

UNROLL_FACTORS = (1, 2, 4)
"""Points of a long reduction that may be written out."""

REDUCTION_VECTOR_COUNTS = (1, 2, 4, 8)
"""Vectors of a register tile where lanes lie along the reduction: each has sums of its own."""

MAX_WINDOW_EXTENT = 9
"""A reduction axis of at most this extent may be written out as a whole."""

MAX_PARTIAL_SUM_BYTES = 64 << 10
"""What the totals of an L1 tile may take of a thread's stack."""

MIN_K_BLOCK = 16
"""Terms of a sum below which a cut would cost more than it gains; and many short chunks make a long total."""

MAX_STREAMED_TERMS = 64
"""Terms beyond which a sum that uses nothing again is cut into chunks of twice the root, so that it errs less still."""

MAX_UNROLLED_OPS = 128
"""Vector operations of one step: more would only bloat the code."""


@dataclass(frozen=True, slots=True, eq=False)
class SearchSpace:
    """The states of one form of a problem on a machine.

    Attributes:
        problem, form, machine: what is constructed.
        ladders: per axis its chains.
    """

    problem: Problem
    sketch: Sketch
    machine: Machine
    lattices: tuple[AxisLattice, ...]

    @staticmethod
    def of(problem: Problem, sketch: Sketch, machine: Machine) -> "SearchSpace":
        """The space of a form."""
        return SearchSpace(
            problem, sketch, machine, tuple(_axis_lattice(problem, sketch, k) for k in range(len(problem.axes)))
        )

    def initial_state(self) -> Indices:
        """The unscheduled state: one vector, one row."""
        found: list[int] = []
        for k, (axis, ladder) in enumerate(zip(self.problem.axes, self.lattices, strict=True)):
            size = ladder.register_sizes[0]
            if axis.is_reduction and k != self.sketch.lane:
                found.append(ladder.id_of((size, self._initial_k_block(k), axis.extent)))
            else:
                found.append(ladder.closest(size, size, size))
        return np.array(found, np.int64)

    def _initial_k_block(self, axis: int) -> int:
        """The points of a reduction axis that an L1 tile starts with: as many as may be added one after the other."""
        return self.lattices[axis].max_l1 or self.problem.axes[axis].extent

    def shrink_k_block(self, states: Indices, steps: int) -> Indices:
        """The states [state, axis] after so many steps to a shorter cut of the reduction; only those that have one and
        are possible."""
        axis = self.sketch.k_block_axis
        if axis is None:
            return states[:0]
        found = states.copy()
        for _ in range(steps):
            shorter = self.lattices[axis].successor(found[:, axis], np.full(len(found), EdgeKind.INV_TILE + L1))
            found[:, axis] = np.where(shorter == NO_EDGE, found[:, axis], shorter)
        found = found[found[:, axis] != states[:, axis]]
        return found[self.are_lowerable(self.sizes(found))] if len(found) else found

    def sizes(self, states: Indices) -> Sizes:
        """Tile sizes [state, level, axis] of states [state, axis]."""
        found = np.empty((len(states), len(LEVELS), len(self.lattices)), np.int64)
        for k, ladder in enumerate(self.lattices):
            found[:, :, k] = ladder.sizes[states[:, k]]
        return found

    def bytes_read(self, box: list[Numbers]) -> Numbers:
        """S: bytes that the points of tiles read, in whole lines."""
        return operand_bytes(self.problem, self.sketch, box, self.machine.levels[0].line)

    def footprint(self, box: list[Numbers], level: Indices) -> Numbers:
        """F: what tiles take of their levels, as a part of what they may take."""
        registers = self._register_count(box) / self.machine.vector_registers
        if (level == REGISTER).all():
            return registers
        budget = np.array([1.0, *(x.share * USABLE_CACHE_FRACTION for x in self.machine.levels[:2])])
        return np.where(level == REGISTER, registers, self.bytes_read(box) / budget[level])

    def _register_count(self, box: list[Numbers]) -> Numbers:
        held = np.ones_like(box[0]) / self.sketch.lanes
        for a in self.problem.spatial:
            held = held * box[a]
        row = box[self.sketch.lane] / self.sketch.lanes
        if self.problem.axes[self.sketch.lane].is_reduction:
            held = held * box[self.sketch.lane]
        return held + np.where(held > row, row, 0.0) + 1

    def traffic(self, box: list[Numbers], level: Indices) -> Numbers:
        """Q: bytes that move into tiles of a level per result, each tile loaded anew over the whole reduction."""
        results: Numbers = np.ones_like(box[0])
        for a in self.problem.spatial:
            results = results * box[a]
        full = list(box)
        for k in self.problem.reduce:
            full[k] = np.full_like(box[k], self.problem.axes[k].extent)
        exact = operand_bytes(self.problem, self.sketch, full, 1) / results
        if (level == REGISTER).all():
            return exact
        return np.where(level == REGISTER, exact, self.bytes_read(full) / results)

    def are_lowerable(self, sizes: Sizes) -> npt.NDArray[np.bool_]:
        """Which candidates can be lowered at a bearable size: of the code, and of a thread's stack."""
        # one row per axis: what is combined lies side by side
        register, near = (np.ascontiguousarray(sizes[:, level].T) for level in (REGISTER, L1))
        extents = [a.extent for a in self.problem.axes]
        spatial, reduce = list(self.problem.spatial), list(self.problem.reduce)
        written = register[spatial].prod(axis=0) * register[reduce].prod(axis=0) / self.sketch.lanes
        totals = near[spatial].prod(axis=0) * self.problem.bits / 8
        rows = [k for k in spatial if k != self.sketch.lane]
        # any tile of an unknown number of rows may leave some
        rest = [extents[k] % register[k] > 0 if self.problem.axes[k].is_static else register[k] > 1 for k in rows]
        left = np.sum(rest, axis=0) if rest else np.zeros(len(sizes))
        chunked = self.sketch.k_block_axis
        cut = np.zeros(len(sizes), np.bool_) if chunked is None else near[chunked] < extents[chunked]
        return (written <= MAX_UNROLLED_OPS) & (~cut | (totals <= MAX_PARTIAL_SUM_BYTES)) & (left <= 1)


def operand_bytes(problem: Problem, sketch: Sketch, box: list[Numbers], line: int) -> Numbers:
    """Bytes that the points of a box read of the operands, without results: whole cache lines, or only the elements
    where a line is one byte."""
    packed = {k for k, _ in sketch.packed}
    total: Numbers = np.zeros_like(box[0])
    for k, o in enumerate(problem.operands):
        total = total + (
            touched_elements(o, box) * o.element_bytes if line == 1 else moved_bytes(o, box, line, k in packed)
        )
    return total


def _symbolic_tile_rows(problem: Problem, sketch: Sketch, k: int) -> tuple[int, ...]:
    """Rows of a register tile along an axis whose size is a symbol: a single one where an axis of known size lets as
    much be used again, as its rows leave no tails at run time."""
    moved = [o.uses(k) for o in problem.operands]
    known = [a for a in problem.spatial if a not in (k, sketch.lane) and problem.axes[a].is_static]
    if any(
        problem.axes[a].extent >= MIN_STATIC_TILE_ROWS and [o.uses(a) for o in problem.operands] == moved for a in known
    ):
        return (1,)
    return tuple(r for r in SYMBOLIC_TILE_ROWS if r <= problem.axes[k].extent)


def _max_k_block(problem: Problem, k: int, min_size: int) -> int | None:
    """The points of a reduction axis in one chunk of a long sum, at most; None for one that need not be cut.

    A sum whose operands all move along every axis, so that nothing is used again, waits for its loads. Chunks of twice
    the root of its terms, as the rule makes them, cost little there.

    Args:
        problem, k: the axis.
        least: points of a chunk that are worth it.
    """
    terms = problem.reduction_length
    longest = max_accumulation_length(terms) if problem.has_reuse or terms <= MAX_STREAMED_TERMS else 2 * isqrt(terms)
    if terms <= longest:
        return None
    extent = problem.axes[k].extent
    long = [d for d in k_block_sizes(extent) if d >= min_size or d == extent]
    return max([d for d in long if d * terms <= longest * extent], default=long[0])


def _axis_lattice(problem: Problem, sketch: Sketch, k: int) -> AxisLattice:
    axis = problem.axes[k]
    if axis.is_reduction and k == sketch.lane:
        most = -(-axis.extent // sketch.lanes)
        counts = tuple(c for c in REDUCTION_VECTOR_COUNTS if c <= most or c == 1)
        longest = max_accumulation_length(problem.reduction_length)
        counts = tuple(c for c in counts if problem.reduction_length <= sketch.lanes * c * longest) or counts[-1:]
        return AxisLattice(
            axis.extent, sketch.lanes, tuple(sketch.lanes * c for c in counts), is_l2_whole=True, is_l1_whole=True
        )
    if axis.is_reduction:
        options = tuple(u for u in UNROLL_FACTORS if axis.extent % u == 0) if axis.is_static else (1,)
        if axis.is_static and axis.extent <= MAX_WINDOW_EXTENT:
            options = tuple(sorted({1, axis.extent}))
        least = -(-max(MIN_K_BLOCK, isqrt(problem.reduction_length)) // (problem.reduction_length // axis.extent))
        most = _max_k_block(problem, k, least) if k == sketch.k_block_axis else None
        return AxisLattice(
            axis.extent, 1, options, is_l2_whole=True, is_l1_whole=k != sketch.k_block_axis, min_l1=least, max_l1=most
        )
    if k == sketch.lane:
        vectors = -(-axis.extent // sketch.lanes)
        counts = balanced_sizes(vectors, MAX_VECTORS) if axis.is_static else (1, 2, 4)
        return AxisLattice(
            axis.extent, sketch.lanes, tuple(sketch.lanes * c for c in counts), has_cache_tiles=axis.is_static
        )
    if problem.axes[sketch.lane].is_reduction and any(problem.operands[o].uses(k) for o, _ in sketch.packed):
        return AxisLattice(axis.extent, 1, (axis.extent,))
    rows = balanced_sizes(axis.extent, MAX_TILE_ROWS) if axis.is_static else _symbolic_tile_rows(problem, sketch, k)
    return AxisLattice(axis.extent, 1, rows, has_cache_tiles=axis.is_static)
