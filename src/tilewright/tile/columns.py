"""A batch of tile programs as columns of numbers, and small questions about it that all formulas ask."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tilewright.tile.family import Family, Placed
from tilewright.tile.footprint import Numbers, run_bytes, runs
from tilewright.tile.program import L1, REGISTER, Form, Sizes

PAGE = 4096
"""Bytes of a page of memory."""

LINE = 64
"""Bytes of a cache line."""


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop of the nest that a program stands for: over tiles of a level, along an axis."""

    axis: int
    level: int


@dataclass(frozen=True)
class Columns:
    """Sizes of a batch with one contiguous array per level and axis, as numbers.

    Attributes:
        sizes: [level, axis, candidate], what is covered as the last level.
        family: what candidates are programs of.
    """

    sizes: Numbers
    family: Family

    @cached_property
    def tiles(self) -> tuple[tuple[Numbers, ...], ...]:
        """[level][axis]"""
        return tuple([tuple(level) for level in self.sizes[:-1]])

    @cached_property
    def whole(self) -> tuple[Numbers, ...]:
        """Per axis what is covered: the extent, rounded up to whole lanes, or the rows of whole register tiles."""
        return tuple(self.sizes[-1])

    @staticmethod
    def _from(sizes: Numbers, whole: Numbers, family: Family) -> "Columns":
        """The columns of sizes [level, axis, candidate] and of what is covered [axis, candidate]."""
        return Columns(np.concatenate((sizes, whole[None])), family)

    @staticmethod
    def of(family: Family, form: Form, sizes: Sizes) -> "Columns":
        """The columns of candidates [candidate, level, axis], without the rows beyond the last whole register tile;
        where there is no whole one, those of one."""
        turned = np.ascontiguousarray(sizes.transpose(1, 2, 0)).astype(np.float64)
        return Columns._from(turned, _covered(family, form, turned[REGISTER]), family)

    @staticmethod
    def covering(family: Family, sizes: Sizes) -> "Columns":
        """The columns of candidates whose register tiles cover every axis, the last ones under masks or conditions."""
        turned = np.ascontiguousarray(sizes.transpose(1, 2, 0)).astype(np.float64)
        register = turned[REGISTER]
        return Columns._from(turned, np.ceil(family.sizes.T / register) * register, family)

    @staticmethod
    def of_rest(family: Family, form: Form, sizes: Sizes, heights: Sizes, rows: Sizes) -> "Columns":
        """The columns of tiles of some rows beyond the last whole register tile; candidates have some along one axis.

        Args:
            family, form, sizes: the candidates.
            heights, rows: of the tiles and in all [candidate, axis]; 0 along the other axes.
        """
        few = np.where(heights[:, None, :] > 0, heights[:, None, :], sizes)
        turned = np.ascontiguousarray(few.transpose(1, 2, 0)).astype(np.float64)
        return Columns._from(turned, np.where(rows.T > 0, rows.T, _covered(family, form, turned[REGISTER])), family)

    def joined(self, others: "Columns") -> "Columns":
        """These candidates and those behind them."""
        return Columns(np.concatenate((self.sizes, others.sizes), axis=2), self.family.joined(others.family))


def _covered(family: Family, form: Form, register: Numbers) -> Numbers:
    """What register tiles [axis, candidate] cover of each axis, without rows beyond the last whole one."""
    extents = np.ascontiguousarray(family.sizes.T)
    exact = extents / register
    reduced = np.array([[a.reduce] for a in family.problem.axes])
    count = np.where(reduced, exact, np.maximum(extents // register, 1.0))
    count[form.lane] = np.ceil(exact[form.lane])
    return count * register


def chunks(form: Form, columns: Columns) -> Numbers:
    """Into how many parts the reduction is cut."""
    k = form.chunked
    return np.ones_like(columns.whole[0]) if k is None else np.ceil(columns.whole[k] / columns.tiles[L1][k])


def rows(operand: Placed, box: Sequence[Numbers], apart: int | Numbers, packed: bool) -> Numbers:
    """Rows of an operand that a box touches, as far as they lie apart by so many bytes."""
    if packed:
        return np.ones_like(box[0])
    return np.minimum(runs(operand, box, LINE), _steps(operand, box, apart))


def row_bytes(operand: Placed, box: Sequence[Numbers], line: int, apart: int) -> Numbers:
    """Bytes in whole lines, per row, of an operand that a box touches; rows as far as they lie apart."""
    total = runs(operand, box, line)
    return run_bytes(operand, box, line, total) / np.minimum(total, _steps(operand, box, apart))


def _steps(operand: Placed, box: Sequence[Numbers], apart: int | Numbers) -> Numbers:
    """How many places so far apart there are between the first and the last element that a box touches."""
    reach = sum_of(step * (box[axis] - 1.0) for axis, step in operand.hops)
    return 1.0 + reach / apart


def sum_of(parts: Iterable[Numbers]) -> Numbers:
    """The sum of arrays; a plain 0 where there are none."""
    total: Numbers | None = None
    for part in parts:
        total = part if total is None else total + part
    return np.zeros(1) if total is None else total


def line_points(form: Form, element: int) -> int:
    """Points along the lanes in the narrowest panel of whole lines; bytes of an element."""
    return max(form.lanes, LINE // element)


def is_packed(form: Form, operand: int) -> bool:
    """Whether an operand, by its position among those of every point, is read from a packed copy."""
    return operand in dict(form.packed)
