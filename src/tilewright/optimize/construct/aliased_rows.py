"""Sizes at which rows of what a kernel reads alias in its caches: a distance between rows that is a multiple of large
powers of two, as in planes of 64 x 64 or 128 x 128 elements.

At such sizes another program is the fastest than at all around them, by factors, which no count of tiles tells.
"""

from functools import reduce

from tilewright.expr.nodes import Buffer, Const, Expr
from tilewright.expr.operations import maximum, minimum
from tilewright.expr.traversal import loads
from tilewright.loops.ir import Func, blocks

ALIASING_BYTES = 16 << 10
"""Rows so many bytes apart share a few sets of L1 and L2: by the cost model a 1x1 convolution of 96 channels takes 3.5
times as long at planes of 64 x 64, 160 x 128 and 192 x 192, and as long as in blocks of channels at 4 KiB."""


def rows_alias(func: Func) -> Expr | None:
    """1 where rows of an operand of a kernel alias, else 0, over the kernel's symbols; None where no distance between
    rows depends on them.

    Args:
        func: the kernel's loops.
    """
    inputs = frozenset(func.inputs)
    read = dict.fromkeys(x.buffer for b in blocks(func.body) for x in loads(b.body.value) if x.buffer in inputs)
    distances = dict.fromkeys((d, ALIASING_BYTES * 8 // b.dtype.bits) for b in read for d in _row_distances(b))
    tests = [1 - minimum(d % elements, 1) for d, elements in distances]
    return reduce(maximum, tests) if tests else None


def _row_distances(buffer: Buffer) -> list[Expr]:
    """The distances of neighbours along every dimension but the last, in elements, that depend on symbols."""
    distances: list[Expr] = []
    distance: Expr | int = 1
    for size in reversed(buffer.shape[1:]):
        distance = size * distance
        distances.append(distance)
    return [d for d in distances if not isinstance(d, Const)]
