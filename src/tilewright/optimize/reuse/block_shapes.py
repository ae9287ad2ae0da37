"""Block shapes: how the results of an operator are shared out to parallel tasks of a given size.

For every size of a block, the shape whose inputs lie in the fewest cache lines is chosen (ETO, Section 5.1, BShape
cost). Extents of blocks are divisors of the axes' extents.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from tilewright.machine.alignment import CACHE_LINE_BYTES
from tilewright.optimize.construct.tile_lattice import divisors
from tilewright.optimize.reuse.loop_vector import Access, LoopVector

LINE_ELEMENTS = CACHE_LINE_BYTES // 4
"""float32 elements of a cache line."""

Extents = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class BlockShape:
    """The shape of a block of results.

    Attributes:
        extents: per spatial axis.
        lines: cache lines that the inputs of the block lie in, over the whole reduction.
        elements: elements of its inputs, over the whole reduction.
    """

    extents: tuple[int, ...]
    lines: int
    elements: int


@lru_cache(maxsize=1024)
def block_shapes(operator: LoopVector, line: int = LINE_ELEMENTS) -> dict[int, BlockShape]:
    """The block shape with the fewest cache lines for every size of a block, by ascending size; of equal ones the one
    with the fewest elements, and then the one that is cut along the first axes.

    Args:
        operator: its loop nest.
        line: elements of a cache line.
    """
    options = [np.array(divisors(n), np.int64) for n in operator.spatial]
    grid = np.stack([x.reshape(-1) for x in np.meshgrid(*options, indexing="ij")], axis=1)
    reduction = np.broadcast_to(np.array(operator.reduction, np.int64), (len(grid), len(operator.reduction)))
    boxes = np.concatenate([grid, reduction], axis=1)
    lines = sum(_touched(a, boxes, line) for a in operator.kind.accesses)
    elements = sum(_touched(a, boxes, 1) for a in operator.kind.accesses)
    lines, elements = (np.broadcast_to(x, len(grid)) for x in (lines, elements))
    sizes = grid.prod(axis=1)
    keys = [*reversed([grid[:, k] for k in range(grid.shape[1])]), elements, lines, sizes]
    shapes: dict[int, BlockShape] = {}
    for k in np.lexsort(keys):
        shape = BlockShape(tuple(int(n) for n in grid[k]), int(lines[k]), int(elements[k]))
        shapes.setdefault(int(sizes[k]), shape)
    return shapes


def _touched(access: Access, boxes: Extents, line: int) -> Extents:
    """Cache lines of an operand that the points of boxes [box, axis] read, the first of which starts a line."""
    widths = [_width(dimension, boxes) for dimension in access]
    if not widths:
        return np.ones(len(boxes), np.int64)
    widths[-1] = -(-widths[-1] // line)
    return np.prod(np.stack(widths), axis=0)


def _width(dimension: Sequence[int], boxes: Extents) -> Extents:
    """Number of indices that a sum of axes takes."""
    total = np.ones(len(boxes), np.int64)
    for axis in dimension:
        total = total + boxes[:, axis] - 1
    return total
