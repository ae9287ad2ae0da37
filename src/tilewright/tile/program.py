"""Tile programs: a loop structure (sketch) and tile sizes per axis and memory level.

Along every axis

    extent  >=  L2 tile  >=  L1 tile  >=  register tile

and a program stands for these loops, outermost first:

    over L2 tiles (spatial axes, parallel)
      over L1 tiles (spatial axes)
        over K-blocks of the reduction          # their sums are accumulated in the L1 tile's partial sums
          over register tiles (spatial axes)
            over the K-block's points (reduction axes)
              the register tile, fully unrolled; accumulators in registers

Sizes are in elements. A size is a multiple of the one below it, and the tiles of a level fill those of the next level,
so only register tiles have tails: lanes beyond the extent are masked, and rows beyond the last whole register tile get
loops of their own with a smaller tile (the remainder). The last K-block may be shorter than the others. Along an axis
of symbolic size the last L1 and L2 tile have as many register tiles as are left.
"""

from dataclasses import dataclass
from math import isqrt

import numpy as np
import numpy.typing as npt

from tilewright.errors import ScheduleError
from tilewright.machine.alignment import CACHE_LINE_BYTES
from tilewright.tile.problem import Problem

REGISTER, L1, L2 = 0, 1, 2
LEVELS = ("register", "L1", "L2")
"""Names of the levels that have tiles, innermost first."""

Sizes = npt.NDArray[np.int64]
"""Tile sizes [level, axis], or [candidate, level, axis] of many programs."""

SizeTuples = tuple[tuple[int, ...], ...]
"""Tile sizes [level][axis] of one program."""

Mask = npt.NDArray[np.bool_]

MIN_FULL_VECTORS = 4
"""Full vectors of elementwise work from which on they get a loop of their own without masks."""


@dataclass(frozen=True, slots=True)
class Sketch:
    """The loop structure of programs, without sizes.

    Attributes:
        lane: the vectorised axis; where it is a reduction axis, every lane accumulates a partial sum.
        lanes: elements of one vector.
        order: spatial axes, the outermost loop first; the same at every level.
        k_block_axis: the reduction axis that may be K-blocked; None without a reduction.
        packed: (operand, axis) of the operands that are read from a packed copy, in panels along the lane axis or an
            axis of rows: one panel per register tile, or per cache line where the operand comes from beyond L2. Axis -1
            is for intermediates on the stack, which are as dense but have no panels; results follow the operands.
        transposed_store: whether results are stored along another axis than the lane axis.
        prefetched_operands: operands that come from beyond L2 and are prefetched by software: packed ones, and those
            that are read along the lanes where they are.
    """

    lane: int
    lanes: int
    order: tuple[int, ...]
    k_block_axis: int | None
    packed: tuple[tuple[int, int], ...] = ()
    transposed_store: bool = False
    prefetched_operands: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TileProgram:
    """A problem with a sketch and tile sizes.

    Attributes:
        problem: what it computes.
        sketch: lanes, loop order and packing.
        sizes: tile sizes per level of `LEVELS` and axis.
    """

    problem: Problem
    sketch: Sketch
    sizes: SizeTuples

    @staticmethod
    def of(problem: Problem, sketch: Sketch, sizes: Sizes) -> "TileProgram":
        """The program with sizes from an array [level, axis]."""
        return TileProgram(problem, sketch, size_tuples(sizes))

    @property
    def array(self) -> Sizes:
        """The sizes as an array [level, axis]."""
        return np.array(self.sizes, np.int64)

    def __str__(self) -> str:
        axes: list[str] = []
        for k, axis in enumerate(self.problem.axes):
            sizes = " > ".join(str(level[k]) for level in reversed(self.sizes))
            marks = "|" * (k == self.sketch.lane) + "+" * axis.is_reduction
            axes.append(f"{axis.name}{marks} {axis.extent}: {sizes}")
        packed = ", ".join(self.problem.operands[o].buffer for o, _ in self.sketch.packed)
        order = " ".join(self.problem.axes[k].name for k in self.sketch.order)
        return f"{'; '.join(axes)}; order {order}" + (f"; packed {packed}" if packed else "")


def size_tuples(sizes: Sizes) -> SizeTuples:
    """An array of sizes [level, axis] as tuples."""
    return tuple(tuple(int(x) for x in level) for level in sizes)


def register_tiles(problem: Problem, sizes: Sizes) -> Sizes:
    """Number of register tiles that cover each axis, a partial last one included; sizes [..., level, axis]."""
    return -(-problem.extents // np.maximum(sizes[..., REGISTER, :], 1))


def whole_tiles(problem: Problem, sketch: Sketch, sizes: Sizes) -> Sizes:
    """Like `register_tiles`, without the remainder of axes of rows, which has loops of its own."""
    counts = problem.extents // np.maximum(sizes[..., REGISTER, :], 1)
    counts[..., sketch.lane] = register_tiles(problem, sizes)[..., sketch.lane]
    return counts


def remainders(problem: Problem, sketch: Sketch, sizes: Sizes) -> Sizes:
    """Rows beyond the last whole register tile, per axis; 0 for the lane axis, whose tail is masked."""
    return count_remainder_rows(problem.extents, sketch, sizes)


def count_remainder_rows(extents: Sizes, sketch: Sketch, sizes: Sizes) -> Sizes:
    """Rows beyond the last whole register tile of axes with these extents; 0 for the lane axis."""
    rows = extents % np.maximum(sizes[..., REGISTER, :], 1)
    rows[..., sketch.lane] = 0
    return rows


def remainder_tile_heights(rows: int) -> tuple[int, ...]:
    """Heights of the tiles for a remainder of unknown size, below register tiles of `rows` rows: about the square root
    of `rows`, then single rows, so that there are few tiles."""
    return (isqrt(rows - 1) + 1, 1) if rows > 2 else (1,)


def min_panel_width(sketch: Sketch, element_bytes: int) -> int:
    """Points along the lane axis in the narrowest panel of whole cache lines."""
    return max(sketch.lanes, CACHE_LINE_BYTES // element_bytes)


def is_nested(problem: Problem, sketch: Sketch, sizes: Sizes) -> Mask:
    """Whether every size is a multiple of the one below, and the tiles of a level fill those of the next.

    The last K-block, and the last L1 and L2 tile of an axis of symbolic size, may be smaller than the others, by whole
    register tiles.
    """
    outer = sizes.copy()
    if sketch.k_block_axis is not None:
        k = sketch.k_block_axis
        may_be_shorter = sizes[..., L1, k] <= sizes[..., L2, k]
        outer[..., L1, k] = np.where(may_be_shorter, sizes[..., REGISTER, k], sizes[..., L1, k])
    below, above = outer[..., :-1, :], outer[..., 1:, :]
    divides = ((sizes[..., 0, :] >= 1) & (above % np.maximum(below, 1) == 0).all(axis=-2)).all(axis=-1)
    divides &= (sizes[..., L1, :] % np.maximum(sizes[..., REGISTER, :], 1) == 0).all(axis=-1)
    l2 = sizes[..., L2, :]
    covered = whole_tiles(problem, sketch, sizes) * sizes[..., REGISTER, :]
    fills = (l2 <= covered) & (covered % np.maximum(l2, 1) == 0)
    may_be_partial = np.array([not (a.is_static or a.is_reduction) for a in problem.axes])
    return divides & (fills | may_be_partial).all(axis=-1)


def has_whole_vectors(problem: Problem, sketch: Sketch, sizes: Sizes) -> Mask:
    """Whether the lane axis of a register tile consists of whole vectors."""
    return sizes[..., REGISTER, sketch.lane] % sketch.lanes == 0


def has_one_remainder(problem: Problem, sketch: Sketch, sizes: Sizes) -> Mask:
    """Whether at most one axis, and no reduction axis, may have rows beyond its last whole register tile."""
    rows = remainders(problem, sketch, sizes)
    rows = np.where(_dynamic_row_axes(problem, sketch) & (sizes[..., REGISTER, :] > 1), 1, rows)
    is_reduction = np.array([a.is_reduction for a in problem.axes])
    return ((rows > 0).sum(axis=-1) <= 1) & ~(rows[..., is_reduction] > 0).any(axis=-1)


def _dynamic_row_axes(problem: Problem, sketch: Sketch) -> Mask:
    """Which axes have an unknown number of rows, so that any tile may leave a remainder."""
    return np.array([not (a.is_static or a.is_reduction) and k != sketch.lane for k, a in enumerate(problem.axes)])


def has_one_k_blocking(problem: Problem, sketch: Sketch, sizes: Sizes) -> Mask:
    """Whether only the sketch's reduction axis is K-blocked, and no reduction axis is split above the L1 tile."""
    result = np.ones(sizes.shape[:-2], np.bool_)
    covered = register_tiles(problem, sizes) * sizes[..., REGISTER, :]
    for k in problem.reduce:
        extent = covered[..., k] if k == sketch.lane else problem.axes[k].extent
        result &= sizes[..., L2, k] == extent
        if k != sketch.k_block_axis:
            result &= sizes[..., L1, k] == extent
    return result


CHECKS = {
    "every size is a multiple of the one below and fills the one above": is_nested,
    "the register tile has whole vectors": has_whole_vectors,
    "at most one axis has a remainder": has_one_remainder,
    "at most one reduction axis is split": has_one_k_blocking,
}
"""The conditions of a legal program, by the text of their error messages."""


def is_legal(problem: Problem, sketch: Sketch, sizes: Sizes) -> Mask:
    """Which candidates [candidate, level, axis] are legal programs."""
    result = np.ones(sizes.shape[:-2], np.bool_)
    for check in CHECKS.values():
        result &= check(problem, sketch, sizes)
    return result


def check_program(program: TileProgram) -> None:
    """Checks that a program is legal.

    Raises:
        ScheduleError: names the condition that does not hold.
    """
    for condition, check in CHECKS.items():
        if not check(program.problem, program.sketch, program.array[None]).all():
            raise ScheduleError(f"expected that {condition}, got {program}", where="tile program")
