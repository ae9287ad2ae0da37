"""A batch of tile programs as columns of numbers, and small questions about it that all formulas ask."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.tile.footprint import Numbers, runs
from tilewright.tile.problem import Operand, Problem
from tilewright.tile.program import L1, L2, REGISTER, Form, Sizes

PAGE = 4096
"""Bytes of a page of memory."""


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop of the nest that a program stands for: over tiles of a level, along an axis."""

    axis: int
    level: int


@dataclass(frozen=True, slots=True)
class Columns:
    """Sizes of a batch with one contiguous array per level and axis, as numbers.

    Attributes:
        tiles: [level][axis]
        whole: per axis what is covered: the extent, rounded up to whole lanes, or the rows of whole register tiles.
    """

    tiles: tuple[tuple[Numbers, ...], ...]
    whole: tuple[Numbers, ...]

    @staticmethod
    def of(problem: Problem, form: Form, sizes: Sizes) -> "Columns":
        """The columns of candidates [candidate, level, axis], without the rows beyond the last whole register tile;
        where there is no whole one, those of one."""
        turned = np.ascontiguousarray(sizes.transpose(1, 2, 0)).astype(np.float64)
        whole: list[Numbers] = []
        for k, a in enumerate(problem.axes):
            size = turned[REGISTER, k]
            rows = a.extent / size if a.reduce else np.maximum(a.extent // size, 1.0)
            count = np.ceil(a.extent / size) if k == form.lane else rows
            whole.append(count * size)
        return Columns(tuple(tuple(level) for level in turned), tuple(whole))

    @staticmethod
    def covering(problem: Problem, sizes: Sizes) -> "Columns":
        """The columns of candidates whose register tiles cover every axis, the last ones under masks or conditions."""
        turned = np.ascontiguousarray(sizes.transpose(1, 2, 0)).astype(np.float64)
        whole = [np.ceil(a.extent / turned[REGISTER, k]) * turned[REGISTER, k] for k, a in enumerate(problem.axes)]
        return Columns(tuple(tuple(level) for level in turned), tuple(whole))

    @staticmethod
    def of_rest(problem: Problem, form: Form, sizes: Sizes, heights: Sizes, rows: Sizes) -> "Columns":
        """The columns of tiles of some rows beyond the last whole register tile; candidates have some along one axis.

        Args:
            problem, form, sizes: the candidates.
            heights, rows: of the tiles and in all [candidate, axis]; 0 along the other axes.
        """
        few = np.where(heights[:, None, :] > 0, heights[:, None, :], sizes)
        columns = Columns.of(problem, form, few)
        whole = tuple(np.where(rows[:, k] > 0, rows[:, k], w) for k, w in enumerate(columns.whole))
        return Columns(columns.tiles, whole)

    def joined(self, others: "Columns") -> "Columns":
        """These candidates and those behind them."""
        tiles = [tuple(map(_behind, mine, more)) for mine, more in zip(self.tiles, others.tiles, strict=True)]
        return Columns(tuple(tiles), tuple(map(_behind, self.whole, others.whole)))

    def count(self, loop: Loop) -> Numbers:
        """Iterations of a loop; not whole where the last tile is a remainder."""
        above = self.whole if loop.level == L2 else self.tiles[loop.level + 1]
        return above[loop.axis] / self.tiles[loop.level][loop.axis]


def _behind(first: Numbers, others: Numbers) -> Numbers:
    return np.concatenate((first, others))


def chunks(form: Form, columns: Columns) -> Numbers:
    """Into how many parts the reduction is cut."""
    k = form.chunked
    return np.ones_like(columns.whole[0]) if k is None else np.ceil(columns.whole[k] / columns.tiles[L1][k])


def rows(operand: Operand, box: Sequence[Numbers], apart: int, packed: bool) -> Numbers:
    """Rows of an operand that a box touches, as far as they lie apart."""
    if packed:
        return np.ones_like(box[0])
    reach = sum_of(abs(s) * (b - 1.0) * operand.bytes for s, b in zip(operand.strides, box, strict=True) if s)
    return np.minimum(runs(operand, box), 1.0 + reach / apart)


def sum_of(parts: Iterable[Numbers]) -> Numbers:
    """The sum of arrays; a plain 0 where there are none."""
    total: Numbers | None = None
    for part in parts:
        total = part if total is None else total + part
    return np.zeros(1) if total is None else total


def accesses_of(problem: Problem) -> tuple[Operand, ...]:
    """Everything that is read and written."""
    return (*problem.operands, *problem.results)


def is_packed(form: Form, operand: int) -> bool:
    """Whether an operand, by its position among those of every point, is read from a packed copy."""
    return any(k == operand for k, _ in form.packed)
