"""The search space of one sketch: the initial state, and the times of its states.

A state holds the tiling of every axis; an edge makes the tile of one axis at the level being scheduled larger or
smaller. The sizes of an axis and their neighbours are in `tile_lattice.py`.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from math import isqrt

import numpy as np
import numpy.typing as npt

from tilewright.cost.footprint import Numbers
from tilewright.cost.joint_times import Candidates
from tilewright.cost.shape_family import ShapeFamily
from tilewright.machine.model import Machine
from tilewright.optimize.construct.lock_step import SteppedSearch
from tilewright.optimize.construct.state_costs import StateCosts
from tilewright.optimize.construct.tile_lattice import (
    NO_EDGE,
    AxisLattice,
    EdgeKind,
    Indices,
    TilingRules,
    balanced_sizes,
    k_block_sizes,
)
from tilewright.optimize.reduction_blocking import max_accumulation_length
from tilewright.tile.problem import Problem
from tilewright.tile.program import L1, LEVELS, Sizes, Sketch
from tilewright.tile.transposed_columns import MIN_COLUMNS, column_axis

MAX_TILE_ROWS = 16
"""Rows of a register tile along one axis."""

SYMBOLIC_TILE_ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14)
"""Rows of a register tile along an axis of symbolic size."""

SYMBOLIC_TILE_COUNTS = (1, 2, 4, 8, 16, 32)
"""Register tiles of an L1 or L2 tile along an axis of symbolic size."""

MIN_STATIC_TILE_ROWS = 4
"""Extent of an axis of literal size that makes tiling of a symbolic axis needless."""

MAX_VECTORS = 8
"""Vectors of a register tile along the lane axis."""

UNROLL_FACTORS = (1, 2, 4)
"""Unroll factors of a long reduction."""

REDUCTION_VECTOR_COUNTS = (1, 2, 4, 8)
"""Vectors of a register tile whose lanes lie along the reduction: each holds partial sums of its own."""

MAX_WINDOW_EXTENT = 9
"""The largest extent of a reduction axis that may be fully unrolled."""

MIN_K_BLOCK = 16
"""Terms of the smallest K-block: smaller ones cost more than they gain, and many short blocks make a long total."""

MAX_STREAMED_TERMS = 64
"""Terms beyond which a sum without reuse of operands gets K-blocks of twice the square root, whose error is smaller
still."""


@dataclass(frozen=True, slots=True, eq=False)
class SearchSpace:
    """The states of one sketch of a problem on a machine.

    Attributes:
        problem, sketch, machine: what programs are constructed for.
        lattices: per axis its tilings.
        column_axes: axes whose tiles are columns of an operand that is transposed in registers.
        known_times: nanoseconds of the states that have been scored, by sketch and state.
    """

    problem: Problem
    sketch: Sketch
    machine: Machine
    lattices: tuple[AxisLattice, ...]
    column_axes: tuple[int, ...]
    known_times: dict[Sketch, dict[bytes, float]] = field(
        default_factory=dict[Sketch, dict[bytes, float]], init=False, repr=False
    )

    @staticmethod
    def of(problem: Problem, sketch: Sketch, machine: Machine) -> "SearchSpace":
        """The search space of a sketch."""
        lattices = tuple(AxisLattice(_tiling_rules(problem, sketch, k, machine)) for k in range(len(problem.axes)))
        columns = {column_axis(problem, sketch, o) for o in range(len(problem.operands))}
        return SearchSpace(problem, sketch, machine, lattices, tuple(k for k in columns if k is not None))

    def initial_state(self) -> Indices:
        """The unscheduled state: one vector, one row."""
        state: list[int] = []
        for k, (axis, lattice) in enumerate(zip(self.problem.axes, self.lattices, strict=True)):
            size = lattice.rules.register_sizes[0]
            if axis.is_reduction and k != self.sketch.lane:
                state.append(lattice.id_of((size, self._initial_k_block(k), axis.extent)))
            else:
                state.append(lattice.closest(size, size, size))
        return np.array(state, np.int64)

    def _initial_k_block(self, axis: int) -> int:
        """The initial L1 tile of a reduction axis: as many points as may be accumulated in sequence."""
        return self.lattices[axis].rules.max_l1 or self.problem.axes[axis].extent

    def shrink_k_block(self, states: Indices, steps: int) -> Indices:
        """The states [state, axis] after `steps` steps to smaller K-blocks; only those that changed and can be
        lowered."""
        axis = self.sketch.k_block_axis
        if axis is None:
            return states[:0]
        shrunk = states.copy()
        for _ in range(steps):
            smaller = self.lattices[axis].successor(shrunk[:, axis], np.full(len(shrunk), EdgeKind.INV_TILE + L1))
            shrunk[:, axis] = np.where(smaller == NO_EDGE, shrunk[:, axis], smaller)
        shrunk = shrunk[shrunk[:, axis] != states[:, axis]]
        return shrunk[self.are_lowerable(self.sizes(shrunk))] if len(shrunk) else shrunk

    def sizes(self, states: Indices) -> Sizes:
        """Tile sizes [state, level, axis] of states [state, axis]."""
        sizes = np.empty((len(states), len(LEVELS), len(self.lattices)), np.int64)
        for k, lattice in enumerate(self.lattices):
            sizes[:, :, k] = lattice.sizes[states[:, k]]
        return sizes

    def nanoseconds(self, sketch: Sketch, states: Indices) -> SteppedSearch[Numbers]:
        """Nanoseconds of states [state, axis], each scored once: searches from several starts and of several rounds
        meet the same states.

        Args:
            sketch: of the space, or one that differs only in the order of loops.
            states: the states.
        """
        known = self.known_times.setdefault(sketch, {})
        keys = [state.tobytes() for state in states]
        new = {key: k for k, key in enumerate(keys) if key not in known}
        if new:
            sizes = self.sizes(states[list(new.values())])
            (times,) = yield [Candidates(self.problem, sketch, sizes, self.machine)]
            known.update(zip(new, times.tolist(), strict=True))
        return np.array([known[key] for key in keys])

    @property
    def costs(self) -> StateCosts:
        """Cost terms of the states."""
        return StateCosts(ShapeFamily.of(self.problem), self.sketch, self.machine, self.column_axes)

    @property
    def structure(self) -> Hashable:
        """All that cost terms depend on except sizes."""
        return id(self.machine), self.sketch, self.problem.structure, self.column_axes

    def costs_with(self, spaces: Sequence["SearchSpace"], counts: Sequence[int]) -> StateCosts:
        """Cost terms of so many states of each space, whose kernels differ from this one in their sizes alone."""
        return replace(self.costs, family=ShapeFamily.joint([x.problem for x in spaces], counts))

    def are_lowerable(self, sizes: Sizes) -> npt.NDArray[np.bool_]:
        """Which candidates can be lowered within the limits of code size and stack."""
        return self.costs.are_lowerable(sizes)


def _symbolic_tile_rows(problem: Problem, sketch: Sketch, k: int) -> tuple[int, ...]:
    """Rows of a register tile along an axis of symbolic size: a single row where an axis of literal size offers the
    same reuse, as its rows leave no remainder at run time."""
    uses = [o.uses(k) for o in problem.operands]
    static_axes = [a for a in problem.spatial if a not in (k, sketch.lane) and problem.axes[a].is_static]
    if any(
        problem.axes[a].extent >= MIN_STATIC_TILE_ROWS and [o.uses(a) for o in problem.operands] == uses
        for a in static_axes
    ):
        return (1,)
    return tuple(r for r in SYMBOLIC_TILE_ROWS if r <= problem.axes[k].extent)


def max_k_block(problem: Problem, k: int, min_size: int) -> int | None:
    """The largest K-block of a long sum, in points of a reduction axis; None where the sum need not be blocked.

    A sum whose operands all move along every axis reuses nothing and waits for its loads. K-blocks of twice the square
    root of its terms, as the rule makes them, cost little there.

    Args:
        problem, k: the axis.
        min_size: points of the smallest K-block that is worth it.
    """
    terms = problem.reduction_length
    max_length = (
        max_accumulation_length(terms) if problem.has_reuse or terms <= MAX_STREAMED_TERMS else 2 * isqrt(terms)
    )
    if terms <= max_length:
        return None
    extent = problem.axes[k].extent
    sizes = [d for d in k_block_sizes(extent) if d >= min_size or d == extent]
    return max([d for d in sizes if d * terms <= max_length * extent], default=sizes[0])


def _tiling_rules(problem: Problem, sketch: Sketch, k: int, machine: Machine) -> TilingRules:
    axis = problem.axes[k]
    if axis.is_reduction and k == sketch.lane:
        max_vectors = -(-axis.extent // sketch.lanes)
        counts = tuple(c for c in REDUCTION_VECTOR_COUNTS if c <= max_vectors or c == 1)
        max_length = max_accumulation_length(problem.reduction_length)
        counts = tuple(c for c in counts if problem.reduction_length <= sketch.lanes * c * max_length) or counts[-1:]
        return TilingRules(
            axis.extent, sketch.lanes, tuple(sketch.lanes * c for c in counts), is_l2_whole=True, is_l1_whole=True
        )
    if axis.is_reduction:
        options = tuple(u for u in UNROLL_FACTORS if axis.extent % u == 0) if axis.is_static else (1,)
        if axis.is_static and axis.extent <= MAX_WINDOW_EXTENT:
            options = tuple(sorted({1, axis.extent}))
        min_l1 = -(-max(MIN_K_BLOCK, isqrt(problem.reduction_length)) // (problem.reduction_length // axis.extent))
        max_l1 = max_k_block(problem, k, min_l1) if k == sketch.k_block_axis else None
        return TilingRules(
            axis.extent,
            1,
            options,
            is_l2_whole=True,
            is_l1_whole=k != sketch.k_block_axis,
            min_l1=min_l1,
            max_l1=max_l1,
        )
    if k == sketch.lane:
        vectors = -(-axis.extent // sketch.lanes)
        counts = balanced_sizes(vectors, MAX_VECTORS) if axis.is_static else (1, 2, 4)
        widths = tuple(sketch.lanes * c for c in counts)
        # of several tiles in a level the last one would be masked as well, and the others of its level with it
        return TilingRules(axis.extent, sketch.lanes, widths, tile_counts=() if axis.is_static else (1,))
    if problem.axes[sketch.lane].is_reduction and any(problem.operands[o].uses(k) for o, _ in sketch.packed):
        return TilingRules(axis.extent, 1, (axis.extent,))
    rows = balanced_sizes(axis.extent, MAX_TILE_ROWS) if axis.is_static else _symbolic_tile_rows(problem, sketch, k)
    if any(column_axis(problem, sketch, o) == k for o in range(len(problem.operands))):
        # columns that are transposed in registers fill vectors
        widths = [w for w in (MIN_COLUMNS, 2 * MIN_COLUMNS, 4 * MIN_COLUMNS) if w <= min(sketch.lanes, axis.extent)]
        rows = tuple(sorted({*rows, *widths}))
    return TilingRules(axis.extent, 1, rows, tile_counts=_tile_counts(problem, k, machine))


def _tile_counts(problem: Problem, k: int, machine: Machine) -> tuple[int, ...]:
    """Register tiles of an L1 or L2 tile along an axis of symbolic size; empty for one of literal size.

    Several where the operands that do not depend on it leave L2 from one register tile to the next. Where they stay,
    larger tiles gain nothing, and the choice among so many programs that the model takes for equal is no better.
    """
    if problem.axes[k].is_static:
        return ()
    shared = sum(o.bytes for o in problem.operands if not o.uses(k))
    l2 = machine.levels[1].share * machine.cost.usable_cache_fraction
    return SYMBOLIC_TILE_COUNTS if problem.reduce and shared > l2 else (1,)
