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
    count = reach = np.ones_like(box[0]) if box else np.ones(1)
    for c, axis in terms:
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
    total = np.ones_like(box[0]) if box else np.ones(1)
    for row, size in zip(operand.index, operand.shape, strict=True):
        if any(row):
            total = total * np.minimum(distinct(row, box)[0], max(1, size))
    return total


def moved_bytes(operand: Operand, box: Sequence[Numbers], line: int, packed: bool = False) -> Numbers:
    """How many bytes move when the points of a box are touched for the first time: whole cache lines.

    A packed operand has no gaps, so that only its elements count.
    """
    if packed or not operand.index:
        return elements(operand, box) * operand.bytes
    total = np.ones_like(box[0]) if box else np.ones(1)
    for row, size in zip(operand.index[:-1], operand.shape[:-1], strict=True):
        if any(row):
            total = total * np.minimum(distinct(row, box)[0], max(1, size))
    count, reach = distinct(operand.index[-1], box)
    count, reach = np.minimum(count, operand.shape[-1]), np.minimum(reach, operand.shape[-1])
    per_line = max(1, line // operand.bytes)
    if operand.shape[-1] < per_line:
        # several short rows share a line
        return np.maximum(total * count * operand.bytes, line)
    return total * np.minimum(count, np.ceil(reach / per_line)) * line
