"""A batch of tile programs as columns of numbers, and small questions about it that all formulas ask."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.tile.footprint import Numbers, distinct
from tilewright.tile.problem import Operand, Problem
from tilewright.tile.program import L1, L2, REGISTER, Form, Sizes, remainders

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
        """The columns of candidates [candidate, level, axis], without the rows beyond the last whole register tile."""
        turned = np.ascontiguousarray(sizes.transpose(1, 2, 0)).astype(np.float64)
        whole: list[Numbers] = []
        for k, a in enumerate(problem.axes):
            size = turned[REGISTER, k]
            count = np.ceil(a.extent / size) if k == form.lane else a.extent / size if a.reduce else a.extent // size
            whole.append(count * size)
        return Columns(tuple(tuple(level) for level in turned), tuple(whole))

    @staticmethod
    def covering(problem: Problem, sizes: Sizes) -> "Columns":
        """The columns of candidates whose register tiles cover every axis, the last ones under masks or conditions."""
        turned = np.ascontiguousarray(sizes.transpose(1, 2, 0)).astype(np.float64)
        whole = [np.ceil(a.extent / turned[REGISTER, k]) * turned[REGISTER, k] for k, a in enumerate(problem.axes)]
        return Columns(tuple(tuple(level) for level in turned), tuple(whole))

    @staticmethod
    def of_rest(problem: Problem, form: Form, sizes: Sizes) -> "Columns":
        """The columns of the rows beyond the last whole register tile; candidates have some along one axis."""
        left = remainders(problem, form, sizes)
        few = np.where(left[:, None, :] > 0, left[:, None, :], sizes)
        columns = Columns.of(problem, form, few)
        whole = tuple(np.where(left[:, k] > 0, left[:, k], w) for k, w in enumerate(columns.whole))
        return Columns(columns.tiles, whole)

    def count(self, loop: Loop) -> Numbers:
        """Iterations of a loop; not whole where the last tile is a remainder."""
        above = self.whole if loop.level == L2 else self.tiles[loop.level + 1]
        return above[loop.axis] / self.tiles[loop.level][loop.axis]


def chunks(form: Form, columns: Columns) -> Numbers:
    """Into how many parts the reduction is cut."""
    k = form.chunked
    return np.ones_like(columns.whole[0]) if k is None else np.ceil(columns.whole[k] / columns.tiles[L1][k])


def rows(operand: Operand, box: Sequence[Numbers], apart: int, packed: bool) -> Numbers:
    """Rows of an operand that a box touches, as far as they lie apart."""
    rows: Numbers = np.ones_like(box[0])
    if packed:
        return rows
    for row, size in zip(operand.index[:-1], operand.shape[:-1], strict=True):
        if any(row):
            rows = rows * np.minimum(distinct(row, box)[0], max(1, size))
    reach = sum_of(abs(s) * (b - 1.0) * operand.bytes for s, b in zip(operand.strides, box, strict=True))
    return np.minimum(rows, 1.0 + reach / apart)


def sum_of(parts: Iterable[Numbers]) -> Numbers:
    """The sum of arrays; a plain 0 where there are none."""
    total: Numbers = np.zeros(1)
    for part in parts:
        total = total + part
    return total


def accesses_of(problem: Problem) -> tuple[Operand, ...]:
    """Everything that is read and written."""
    return (*problem.operands, *problem.results)


def is_packed(form: Form, operand: int) -> bool:
    """Whether an operand, by its position among those of every point, is read from a packed copy."""
    return any(k == operand for k, _ in form.packed)
