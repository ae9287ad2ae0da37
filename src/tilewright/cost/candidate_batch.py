"""A batch of tile programs as columns of numbers, and small questions about it that all formulas ask."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tilewright.cost.footprint import Numbers, segment_bytes, segment_count
from tilewright.cost.shape_family import OperandView, ShapeFamily
from tilewright.tile.program import L1, LINE_BYTES, REGISTER, Sizes, Sketch, count_remainder_rows

PAGE_BYTES = 4096
"""Bytes of a page of memory."""


@dataclass(frozen=True, slots=True)
class TileLoop:
    """A loop of the nest that a program stands for: over tiles of a level, along an axis."""

    axis: int
    level: int


@dataclass(frozen=True)
class CandidateBatch:
    """Sizes of a batch with one contiguous array per level and axis, as numbers.

    Attributes:
        sizes: [level, axis, candidate], what is covered as the last level.
        family: what candidates are programs of.
    """

    sizes: Numbers
    family: ShapeFamily

    @cached_property
    def tiles(self) -> tuple[tuple[Numbers, ...], ...]:
        """[level][axis]"""
        return tuple([tuple(level) for level in self.sizes[:-1]])

    @cached_property
    def covered(self) -> tuple[Numbers, ...]:
        """Per axis what is covered: the extent, rounded up to whole lanes, or the rows of whole register tiles."""
        return tuple(self.sizes[-1])

    @staticmethod
    def _build(sizes: Numbers, covered: Numbers, family: ShapeFamily) -> "CandidateBatch":
        """The columns of sizes [level, axis, candidate] and of what is covered [axis, candidate]."""
        return CandidateBatch(np.concatenate((sizes, covered[None])), family)

    @staticmethod
    def of(family: ShapeFamily, sketch: Sketch, sizes: Sizes) -> "CandidateBatch":
        """The columns of candidates [candidate, level, axis], without the rows beyond the last whole register tile;
        where there is no whole one, those of one."""
        turned = np.ascontiguousarray(sizes.transpose(1, 2, 0)).astype(np.float64)
        return CandidateBatch._build(turned, _covered_extents(family, sketch, turned[REGISTER]), family)

    @staticmethod
    def rounded_up(family: ShapeFamily, sizes: Sizes) -> "CandidateBatch":
        """The columns of candidates whose register tiles cover every axis, the last ones under masks or conditions."""
        turned = np.ascontiguousarray(sizes.transpose(1, 2, 0)).astype(np.float64)
        register = turned[REGISTER]
        return CandidateBatch._build(turned, np.ceil(family.sizes.T / register) * register, family)

    @staticmethod
    def of_remainder(
        family: ShapeFamily, sketch: Sketch, sizes: Sizes, heights: Sizes, rows: Sizes
    ) -> "CandidateBatch":
        """The columns of tiles of some rows beyond the last whole register tile; candidates have some along one axis.

        Args:
            family, form, sizes: the candidates.
            heights, rows: of the tiles and in all [candidate, axis]; 0 along the other axes.
        """
        few = np.where(heights[:, None, :] > 0, heights[:, None, :], sizes)
        turned = np.ascontiguousarray(few.transpose(1, 2, 0)).astype(np.float64)
        return CandidateBatch._build(
            turned, np.where(rows.T > 0, rows.T, _covered_extents(family, sketch, turned[REGISTER])), family
        )

    def concat(self, others: "CandidateBatch") -> "CandidateBatch":
        """These candidates and those behind them."""
        return CandidateBatch(np.concatenate((self.sizes, others.sizes), axis=2), self.family.concat(others.family))


def _covered_extents(family: ShapeFamily, sketch: Sketch, register: Numbers) -> Numbers:
    """What register tiles [axis, candidate] cover of each axis, without rows beyond the last whole one."""
    extents = np.ascontiguousarray(family.sizes.T)
    exact = extents / register
    reduced = np.array([[a.is_reduction] for a in family.problem.axes])
    count = np.where(reduced, exact, np.maximum(extents // register, 1.0))
    count[sketch.lane] = np.ceil(exact[sketch.lane])
    return count * register


def k_block_count(sketch: Sketch, batch: CandidateBatch) -> Numbers:
    """Into how many parts the reduction is cut."""
    k = sketch.k_block_axis
    return np.ones_like(batch.covered[0]) if k is None else np.ceil(batch.covered[k] / batch.tiles[L1][k])


def distant_segments(operand: OperandView, box: Sequence[Numbers], distance: int | Numbers, packed: bool) -> Numbers:
    """Rows of an operand that a box touches, as far as they lie apart by so many bytes."""
    if packed:
        return np.ones_like(box[0])
    return np.minimum(segment_count(operand, box, LINE_BYTES), _distance_count(operand, box, distance))


def distant_segment_bytes(operand: OperandView, box: Sequence[Numbers], line: int, distance: int) -> Numbers:
    """Bytes in whole lines, per row, of an operand that a box touches; rows as far as they lie apart."""
    total = segment_count(operand, box, line)
    return segment_bytes(operand, box, line, total) / np.minimum(total, _distance_count(operand, box, distance))


def _distance_count(operand: OperandView, box: Sequence[Numbers], distance: int | Numbers) -> Numbers:
    """How many places so far apart there are between the first and the last element that a box touches."""
    reach = sum_arrays(step * (box[axis] - 1.0) for axis, step in operand.byte_strides)
    return 1.0 + reach / distance


def sum_arrays(arrays: Iterable[Numbers]) -> Numbers:
    """The sum of arrays; a plain 0 where there are none."""
    total: Numbers | None = None
    for part in arrays:
        total = part if total is None else total + part
    return np.zeros(1) if total is None else total


def is_packed(sketch: Sketch, operand: int) -> bool:
    """Whether an operand, by its position among those of every point, is read from a packed copy."""
    return operand in dict(sketch.packed)


def remainder_tiles(family: ShapeFamily, sketch: Sketch, sizes: Sizes) -> tuple[Sizes, Sizes]:
    """The tiles of the rows beyond the last whole register tile: their heights and how many there are
    [candidate, axis], 0 where no row is left.

    A known number of rows is one tile. Of an unknown one single rows count as the first of the
    `remainder_tile_heights`, since tiles of few rows wait for their additions about equally long.
    """
    left = count_remainder_rows(family.sizes, sketch, sizes)
    known = np.array([a.is_static for a in family.problem.axes])
    register = sizes[..., REGISTER, :]
    high = np.where(register > 2, np.sqrt(np.maximum(register - 1, 0)).astype(np.int64) + 1, 1)
    counts = np.where(known, np.minimum(left, 1), left // high + left % high)
    return np.where(left > 0, np.where(known, left, high), 0), counts
