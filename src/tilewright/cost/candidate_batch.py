"""Batches of candidates of one sketch as a structure of arrays, the form in which the cost model scores them."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tilewright.cost.footprint import Numbers
from tilewright.cost.shape_family import ShapeFamily
from tilewright.tile.program import L1, REGISTER, Sizes, Sketch, count_remainder_rows


@dataclass(frozen=True)
class CandidateBatch:
    """Tile sizes of candidates, one contiguous array per level and axis.

    Attributes:
        sizes: tile sizes [level, axis, candidate]; the covered extents are the last level.
        family: the problems of the candidates.
        operations: instructions per point where they are fewer than the problem's, as points of a register tile share
            some; None for the problem's.
        reuse_bytes: of a remainder, what is touched since the whole tiles used an access [access, candidate]; infinite
            where they did not use its elements. None where nothing was executed before.
    """

    sizes: Numbers
    family: ShapeFamily
    operations: Numbers | None = None
    reuse_bytes: Numbers | None = None

    @cached_property
    def tiles(self) -> tuple[tuple[Numbers, ...], ...]:
        """Tile sizes [level][axis]."""
        return tuple([tuple(level) for level in self.sizes[:-1]])

    @cached_property
    def covered(self) -> tuple[Numbers, ...]:
        """Covered extent per axis, of whole register tiles: rounded up along the lanes, down along rows."""
        return tuple(self.sizes[-1])

    @staticmethod
    def _build(sizes: Numbers, covered: Numbers, family: ShapeFamily) -> "CandidateBatch":
        """The batch of sizes [level, axis, candidate] and covered extents [axis, candidate]."""
        symbolic = [k for k, a in enumerate(family.problem.axes) if not (a.is_static or a.is_reduction)]
        if symbolic:
            # one tile of a level may be larger than all of the axis
            sizes = sizes.copy()
            sizes[:, symbolic] = np.minimum(sizes[:, symbolic], covered[symbolic])
        return CandidateBatch(np.concatenate((sizes, covered[None])), family)

    @staticmethod
    def of(family: ShapeFamily, sketch: Sketch, sizes: Sizes) -> "CandidateBatch":
        """The whole register tiles of candidates [candidate, level, axis], at least one per axis of rows; without the
        remainder."""
        by_level = _by_level(sizes)
        return CandidateBatch._build(by_level, _covered_extents(family, sketch, by_level[REGISTER]), family)

    @staticmethod
    def rounded_up(family: ShapeFamily, sizes: Sizes) -> "CandidateBatch":
        """Candidates whose register tiles cover every axis, partial last ones included."""
        by_level = _by_level(sizes)
        register = by_level[REGISTER]
        return CandidateBatch._build(by_level, np.ceil(family.sizes.T / register) * register, family)

    @staticmethod
    def of_remainder(
        family: ShapeFamily, sketch: Sketch, sizes: Sizes, heights: Sizes, rows: Sizes
    ) -> "CandidateBatch":
        """The remainder of candidates, each of which has one along one axis.

        Args:
            family, sketch, sizes: the candidates.
            heights: rows of a remainder tile [candidate, axis]; 0 along the other axes.
            rows: rows of the remainder [candidate, axis]; 0 along the other axes.
        """
        by_level = _by_level(np.where(heights[:, None, :] > 0, heights[:, None, :], sizes))
        covered = _covered_extents(family, sketch, by_level[REGISTER])
        return CandidateBatch._build(by_level, np.where(rows.T > 0, rows.T, covered), family)

    def select(self, candidates: npt.NDArray[np.int64]) -> "CandidateBatch":
        """Some of the candidates of a program's whole register tiles."""
        return CandidateBatch(self.sizes[:, :, candidates], self.family.select(candidates))

    def concat(self, others: "CandidateBatch") -> "CandidateBatch":
        """These candidates followed by others."""
        reuse_bytes = None
        if self.reuse_bytes is not None or others.reuse_bytes is not None:
            reuse_bytes = np.concatenate((self._reuse_or_none(), others._reuse_or_none()), axis=1)
        return CandidateBatch(
            np.concatenate((self.sizes, others.sizes), axis=2), self.family.concat(others.family), None, reuse_bytes
        )

    def _reuse_or_none(self) -> Numbers:
        """`reuse_bytes`, infinite where there are none."""
        if self.reuse_bytes is not None:
            return self.reuse_bytes
        return np.full((len(self.family.accesses), self.sizes.shape[2]), np.inf)


def _by_level(sizes: Sizes) -> Numbers:
    """Sizes [candidate, level, axis] as floats [level, axis, candidate]."""
    return np.ascontiguousarray(sizes.transpose(1, 2, 0)).astype(np.float64)


def _covered_extents(family: ShapeFamily, sketch: Sketch, register: Numbers) -> Numbers:
    """What register tiles [axis, candidate] cover of each axis, without the remainder."""
    extents = np.ascontiguousarray(family.sizes.T)
    exact = extents / register
    is_reduction = np.array([[a.is_reduction] for a in family.problem.axes])
    count = np.where(is_reduction, exact, np.maximum(extents // register, 1.0))
    count[sketch.lane] = np.ceil(exact[sketch.lane])
    return count * register


def k_block_count(sketch: Sketch, batch: CandidateBatch) -> Numbers:
    """Number of K-blocks of the reduction."""
    k = sketch.k_block_axis
    return np.ones_like(batch.covered[0]) if k is None else np.ceil(batch.covered[k] / batch.tiles[L1][k])


def is_packed(sketch: Sketch, operand: int) -> bool:
    """Whether an operand, by its position in `Problem.operands`, is read from a packed copy."""
    return any(k == operand for k, _ in sketch.packed)


def is_on_stack(sketch: Sketch, operand: int) -> bool:
    """Whether an access, by its position among operands and results, is to an intermediate on the stack: it is dense,
    as a packed copy is, but has no panels."""
    return (operand, -1) in sketch.packed


def remainder_tiles(family: ShapeFamily, sketch: Sketch, sizes: Sizes) -> tuple[Sizes, Sizes]:
    """Heights and number of the remainder's tiles [candidate, axis]; 0 along axes without a remainder.

    A static remainder is one tile. In a dynamic one, single rows count like tiles of the first height of
    `remainder_tile_heights`, since tiles of few rows wait for their additions about equally long.
    """
    rows = count_remainder_rows(family.sizes, sketch, sizes)
    is_static = np.array([a.is_static for a in family.problem.axes])
    register = sizes[..., REGISTER, :]
    height = np.where(register > 2, np.sqrt(np.maximum(register - 1, 0)).astype(np.int64) + 1, 1)
    counts = np.where(is_static, np.minimum(rows, 1), rows // height + rows % height)
    return np.where(rows > 0, np.where(is_static, rows, height), 0), counts
