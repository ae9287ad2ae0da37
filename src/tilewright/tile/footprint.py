"""How much of an operand a box of points touches: closed formulas over arrays of boxes."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from tilewright.tile.problem import Operand

Numbers = npt.NDArray[np.float64]
"""One number per candidate."""


def distinct(row: tuple[int, ...], box: Sequence[Numbers]) -> tuple[Numbers, Numbers]:
    """How many values the index sum(c_a * x_a), 0 <= x_a < box_a, takes, and how far they reach from first to last.

    Taken by rising coefficients: an axis whose step is longer than what the axes before it reach leaves gaps, so that
    numbers multiply; else the runs overlap and join. Exact where runs that overlap have no gaps.
    """
    terms = _terms(row)
    if len(terms) == 1:
        ((c, axis),) = terms
        return box[axis], box[axis] if c == 1 else c * (box[axis] - 1.0) + 1.0
    if not terms:
        one = np.ones_like(box[0]) if box else np.ones(1)
        return one, one
    (c, axis), *others = terms
    count, reach = box[axis], c * (box[axis] - 1.0) + 1.0
    for c, axis in others:
        grown = c * (box[axis] - 1.0) + reach
        count = np.where(c >= reach, count * box[axis], np.minimum(count * box[axis], grown))
        reach = grown
    return count, reach


@lru_cache(maxsize=4096)
def _terms(row: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """(step, axis) of the axes that move an index, by rising steps."""
    return tuple(sorted((abs(c), k) for k, c in enumerate(row) if c))


def elements(operand: Operand, box: Sequence[Numbers]) -> Numbers:
    """How many elements of an operand the points of a box touch."""
    return _product(operand.index, operand.shape, box)


def _product(index: Sequence[tuple[int, ...]], shape: Sequence[int], box: Sequence[Numbers]) -> Numbers:
    """How many combinations the indices of some dimensions take."""
    total: Numbers | None = None
    for row, size in zip(index, shape, strict=True):
        if _terms(row):
            part = np.minimum(distinct(row, box)[0], max(1, size))
            total = part if total is None else total * part
    if total is None:
        return np.ones_like(box[0]) if box else np.ones(1)
    return total


def runs(operand: Operand, box: Sequence[Numbers]) -> Numbers:
    """How many runs along its last dimension the points of a box touch."""
    return _product(operand.index[:-1], operand.shape[:-1], box)


def moved_bytes(operand: Operand, box: Sequence[Numbers], line: int, packed: bool = False) -> Numbers:
    """How many bytes move when the points of a box are touched for the first time: whole cache lines.

    A packed operand has no gaps, so that only its elements count.
    """
    if packed or not operand.index:
        return elements(operand, box) * operand.bytes
    total = runs(operand, box)
    count, reach = distinct(operand.index[-1], box)
    count, reach = np.minimum(count, operand.shape[-1]), np.minimum(reach, operand.shape[-1])
    per_line = max(1, line // operand.bytes)
    if operand.shape[-1] < per_line:
        # several short rows share a line
        return np.maximum(total * count * operand.bytes, line)
    lines = np.ceil(reach / per_line)
    # a part of a row may begin anywhere in a line, and end in one more
    part = (reach < operand.shape[-1]) & ((reach % per_line != 0) | (operand.shape[-1] % per_line != 0))
    lines = np.where(part, 1.0 + (reach - 1.0) / per_line, lines)
    return total * np.minimum(count, lines) * line
