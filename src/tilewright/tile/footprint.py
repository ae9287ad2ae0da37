"""How much of an operand a box of points touches: closed formulas over arrays of boxes."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tilewright.tile.family import Number, Placed
from tilewright.tile.program import Mask

Numbers = npt.NDArray[np.float64]
"""One number per candidate."""

Steps = tuple[tuple[int, int], ...]
"""An index as (c_a, a), by rising c_a; see `Operand.steps`."""


def distinct(steps: Steps, box: Sequence[Numbers]) -> tuple[Numbers, Numbers]:
    """How many values the index sum(c_a * x_a), 0 <= x_a < box_a, takes, and how far they reach from first to last.

    Taken by rising coefficients: an axis whose step is longer than what the axes before it reach leaves gaps, so that
    numbers multiply; else the runs overlap and join. Exact where runs that overlap have no gaps.
    """
    if len(steps) == 1:
        ((c, axis),) = steps
        return box[axis], box[axis] if c == 1 else c * (box[axis] - 1.0) + 1.0
    if not steps:
        one = np.ones_like(box[0]) if box else np.ones(1)
        return one, one
    (c, axis), *others = steps
    count, reach = box[axis], c * (box[axis] - 1.0) + 1.0
    for c, axis in others:
        grown = c * (box[axis] - 1.0) + reach
        count = np.where(c >= reach, count * box[axis], np.minimum(count * box[axis], grown))
        reach = grown
    return count, reach


def elements(operand: Placed, box: Sequence[Numbers]) -> Numbers:
    """How many elements of an operand the points of a box touch."""
    return _product(operand.steps, operand.room, box)


def _product(index: Sequence[Steps], room: Sequence[Number], box: Sequence[Numbers]) -> Numbers:
    """How many combinations the indices of some dimensions take."""
    total: Numbers | None = None
    for steps, size in zip(index, room, strict=True):
        if steps:
            part = np.minimum(distinct(steps, box)[0], size)
            total = part if total is None else total * part
    if total is None:
        return np.ones_like(box[0]) if box else np.ones(1)
    return total


def joined(operand: Placed, line: int) -> list[bool | Mask]:
    """Per dimension whether it goes on with the row of those behind it: the last one does, and others as long as rows
    are shorter than a line, as these follow each other within one."""
    found: list[bool | Mask] = [True]
    size = operand.bytes * operand.shape[-1]
    for length in operand.shape[-2::-1]:
        if not some(found[0]) or not some(size < line):
            return [False] * (len(operand.shape) - len(found)) + found
        found.insert(0, found[0] & (size < line))
        size = size * length
    return found


def runs(operand: Placed, box: Sequence[Numbers], line: int) -> Numbers:
    """How many rows the points of a box touch; see `joined`."""
    total: Numbers = np.ones_like(box[0])
    for steps, size, row in zip(operand.steps, operand.room, joined(operand, line), strict=True):
        if steps and not every(row):
            part = np.minimum(distinct(steps, box)[0], size)
            total = total * (np.where(row, 1.0, part) if some(row) else part)
    return total


def moved_bytes(
    operand: Placed, box: Sequence[Numbers], line: int, packed: bool = False, anywhere: bool = True
) -> Numbers:
    """How many bytes move when the points of a box are touched for the first time: whole cache lines.

    A packed operand has no gaps, so that only its elements count. Where rows begin `anywhere`, they end in one more
    line as often as they would; else they are in as few lines as can be.
    """
    if packed or not operand.index:
        return elements(operand, box) * operand.bytes
    return run_bytes(operand, box, line, runs(operand, box, line), anywhere)


def run_bytes(operand: Placed, box: Sequence[Numbers], line: int, total: Numbers, anywhere: bool = True) -> Numbers:
    """What `moved_bytes` answers for an operand that is not packed, with the runs that the points touch in `total`."""
    count, reach, size = _row(operand, box, line)
    per_line = max(1, line // operand.bytes)
    # a whole operand of less than a line
    short = size < per_line
    if every(short):
        return np.maximum(total * count * operand.bytes, line)
    lines = np.ceil(reach / per_line)
    if anywhere:
        part, ragged = reach < size, size % per_line != 0
        if not every(ragged):
            part &= (reach % per_line != 0) | ragged
        lines = np.where(part, 1.0 + (reach - 1.0) / per_line, lines)
    found = total * np.minimum(count, lines) * line
    return np.where(short, np.maximum(total * count * operand.bytes, line), found) if some(short) else found


def _row(operand: Placed, box: Sequence[Numbers], line: int) -> tuple[Numbers, Numbers, Number]:
    """Of a row: the elements that a box touches, those from the first to the last of them, and all."""
    size = operand.shape[-1]
    count, reach = (np.minimum(x, size) for x in distinct(operand.steps[-1], box))
    for d, row in reversed(list(enumerate(joined(operand, line)))[:-1]):
        if not some(row):
            break
        length = operand.shape[d]
        more, far = (np.minimum(x, length) for x in distinct(operand.steps[d], box))
        reach = np.where(row, (far - 1.0) * size + reach, reach)
        count = np.where(row, count * more, count)
        size = size * length if every(row) else np.where(row, size * length, size)
    return count, reach, size


def every(answer: bool | Mask) -> bool:
    """Whether it is yes for all candidates."""
    return answer if isinstance(answer, bool) else bool(answer.all())


def some(answer: bool | Mask) -> bool:
    """Whether it is yes for any candidate."""
    return answer if isinstance(answer, bool) else bool(answer.any())
