"""The state of construction: for every axis of a problem a chain of tile sizes over the levels of a machine.

    whole  >=  L2 tile  >=  L1 tile  >=  register tile

The loops that a program stands for, outermost first:

    over L2 tiles (spatial axes, threads share them)
      over L1 tiles (spatial axes)
        over chunks of the reduction            # sums of chunks are added to the L1 tile's totals
          over register tiles (spatial axes)
            over the chunk's points (reduction axes)
              the register tile, written out; accumulators in registers

Sizes are in elements. A size is a multiple of the one below it, and the tiles of a level fill those of the next level,
so that only register tiles have tails: lanes beyond the end are masked, rows beyond the end become a part of their own
with a smaller register tile. Chunks of a reduction have one as well: the last may be shorter.
"""

from dataclasses import dataclass
from math import isqrt

import numpy as np
import numpy.typing as npt

from tilewright.errors import ScheduleError
from tilewright.tile.problem import Problem

REGISTER, L1, L2 = 0, 1, 2
LEVELS = ("register", "L1", "L2")
"""Names of the levels that have tiles, nearest first."""

Sizes = npt.NDArray[np.int64]
"""Tile sizes [level, axis], or [candidate, level, axis] of many programs."""

Mask = npt.NDArray[np.bool_]

LINE_BYTES = 64
"""Bytes of a cache line."""


@dataclass(frozen=True, slots=True)
class Sketch:
    """What programs that are scored together have in common.

    Attributes:
        lane: the axis along which vectors lie; where it is one of the reduction, every lane adds up a strand of it.
        lanes: elements of one vector.
        order: spatial axes, the outermost loop first; the same at every level.
        chunked: the reduction axis that may be cut, None without one.
        packed: (operand, axis) of the operands that are read from a copy in panels along the axis, the lanes' or one
            of rows: one panel per register tile, or per line where the operand comes from far memory.
        transposed: whether results are stored along another axis than the lanes'.
        ahead: packed operands that come from far memory: they are asked for before they are read.
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
    """One program.

    Attributes:
        problem: what it computes.
        form: its lanes, loop order and packing.
        sizes: per level of `LEVELS` and axis.
    """

    problem: Problem
    sketch: Sketch
    sizes: tuple[tuple[int, ...], ...]

    @staticmethod
    def of(problem: Problem, sketch: Sketch, sizes: Sizes) -> "TileProgram":
        """The program with sizes from an array [level, axis]."""
        return TileProgram(problem, sketch, size_tuples(sizes))

    @property
    def array(self) -> Sizes:
        """The sizes as an array [level, axis]."""
        return np.array(self.sizes, np.int64)

    def __str__(self) -> str:
        parts: list[str] = []
        for k, axis in enumerate(self.problem.axes):
            chain = " > ".join(str(level[k]) for level in reversed(self.sizes))
            marks = "|" * (k == self.sketch.lane) + "+" * axis.is_reduction
            parts.append(f"{axis.name}{marks} {axis.extent}: {chain}")
        packed = ", ".join(self.problem.operands[o].buffer for o, _ in self.sketch.packed)
        order = " ".join(self.problem.axes[k].name for k in self.sketch.order)
        return f"{'; '.join(parts)}; order {order}" + (f"; packed {packed}" if packed else "")


def size_tuples(sizes: Sizes) -> tuple[tuple[int, ...], ...]:
    """An array of sizes [level, axis] as plain numbers."""
    return tuple(tuple(int(x) for x in level) for level in sizes)


def register_tiles(problem: Problem, sketch: Sketch, sizes: Sizes) -> Sizes:
    """How many register tiles cover each axis, the last one maybe not whole; sizes [..., level, axis]."""
    return -(-problem.extents // np.maximum(sizes[..., REGISTER, :], 1))


def whole_tiles(problem: Problem, sketch: Sketch, sizes: Sizes) -> Sizes:
    """Like `register_tiles`, but rows beyond the last whole tile do not count: they are a part of their own."""
    counts = problem.extents // np.maximum(sizes[..., REGISTER, :], 1)
    counts[..., sketch.lane] = register_tiles(problem, sketch, sizes)[..., sketch.lane]
    return counts


def remainders(problem: Problem, sketch: Sketch, sizes: Sizes) -> Sizes:
    """Rows beyond the last whole register tile, per axis; 0 for the lane axis, whose tail is masked."""
    return count_remainder_rows(problem.extents, sketch, sizes)


def count_remainder_rows(extents: Sizes, sketch: Sketch, sizes: Sizes) -> Sizes:
    """Rows beyond the last whole register tile of axes with these extents; 0 for the lane axis."""
    rest = extents % np.maximum(sizes[..., REGISTER, :], 1)
    rest[..., sketch.lane] = 0
    return rest


def remainder_tile_heights(rows: int) -> tuple[int, ...]:
    """Heights of the tiles that rows beyond the last whole register tile get where their number is not known: with
    about the root of a tile's rows, then single ones, few tiles are left."""
    return (isqrt(rows - 1) + 1, 1) if rows > 2 else (1,)


def min_panel_width(sketch: Sketch, element_bytes: int) -> int:
    """Points along the lanes in the narrowest panel of whole lines; bytes of an element."""
    return max(sketch.lanes, LINE_BYTES // element_bytes)


def is_nested(problem: Problem, sketch: Sketch, sizes: Sizes) -> Mask:
    """Whether every size is a multiple of the one below, and the tiles of a level fill those of the next.

    Axes of unknown size have no tiles between register tiles and the whole. The last chunk of a reduction may be
    shorter than the others, by whole register tiles.
    """
    whole = sizes.copy()
    if sketch.k_block_axis is not None:
        k = sketch.k_block_axis
        shorter = sizes[..., L1, k] <= sizes[..., L2, k]
        whole[..., L1, k] = np.where(shorter, sizes[..., REGISTER, k], sizes[..., L1, k])
    below, above = whole[..., :-1, :], whole[..., 1:, :]
    divides = ((sizes[..., 0, :] >= 1) & (above % np.maximum(below, 1) == 0).all(axis=-2)).all(axis=-1)
    divides &= (sizes[..., L1, :] % np.maximum(sizes[..., REGISTER, :], 1) == 0).all(axis=-1)
    counts = whole_tiles(problem, sketch, sizes)
    top = sizes[..., L2, :]
    cover = counts * sizes[..., REGISTER, :]
    fills = (top <= cover) & (cover % np.maximum(top, 1) == 0)
    literal = np.array([a.is_static or a.is_reduction for a in problem.axes])
    apart = literal | (sizes[..., L2, :] == sizes[..., REGISTER, :])
    return divides & (fills & apart).all(axis=-1)


def has_whole_vectors(problem: Problem, sketch: Sketch, sizes: Sizes) -> Mask:
    """Whether the lane axis of a register tile consists of whole vectors."""
    return sizes[..., REGISTER, sketch.lane] % sketch.lanes == 0


def has_one_remainder(problem: Problem, sketch: Sketch, sizes: Sizes) -> Mask:
    """Whether at most one axis may have rows beyond its last whole register tile, and no reduction axis."""
    rest = remainders(problem, sketch, sizes)
    rest = np.where(_dynamic_row_axes(problem, sketch) & (sizes[..., REGISTER, :] > 1), 1, rest)
    reduce = np.array([a.is_reduction for a in problem.axes])
    return ((rest > 0).sum(axis=-1) <= 1) & ~(rest[..., reduce] > 0).any(axis=-1)


def _dynamic_row_axes(problem: Problem, sketch: Sketch) -> Mask:
    """Which axes have an unknown number of rows, so that any tile may leave some."""
    return np.array([not (a.is_static or a.is_reduction) and k != sketch.lane for k, a in enumerate(problem.axes)])


def has_one_k_blocking(problem: Problem, sketch: Sketch, sizes: Sizes) -> Mask:
    """Whether no reduction axis but the one of the form is cut below the L2 tile, and none above it."""
    result = np.ones(sizes.shape[:-2], np.bool_)
    covered = register_tiles(problem, sketch, sizes) * sizes[..., REGISTER, :]
    for k in problem.reduce:
        whole = covered[..., k] if k == sketch.lane else problem.axes[k].extent
        result &= sizes[..., L2, k] == whole
        if k != sketch.k_block_axis:
            result &= sizes[..., L1, k] == whole
    return result


CHECKS = {
    "sizes are multiples of those below and fill those above": is_nested,
    "the register tile has whole vectors": has_whole_vectors,
    "one axis has a remainder at most": has_one_remainder,
    "one reduction axis is cut at most": has_one_k_blocking,
}
"""What every program fulfils, by name."""


def is_legal(problem: Problem, sketch: Sketch, sizes: Sizes) -> Mask:
    """Which candidates [candidate, level, axis] are programs."""
    result = np.ones(sizes.shape[:-2], np.bool_)
    for check in CHECKS.values():
        result &= check(problem, sketch, sizes)
    return result


def check_program(program: TileProgram) -> None:
    """Raises ScheduleError where a program is none; says which condition it breaks."""
    for what, check in CHECKS.items():
        if not check(program.problem, program.sketch, program.array[None]).all():
            raise ScheduleError(f"expected that {what}, got {program}", where="tile program")
