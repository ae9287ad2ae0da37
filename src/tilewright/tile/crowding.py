"""How rows that lie a power of two apart crowd into few sets of a cache: closed formulas over arrays of boxes.

A line's set is its address modulo the sets. Rows S bytes apart begin in only sets / gcd(sets, S / line) different ones;
more rows than those share the sets that they cover, however much of the cache is free.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import gcd, prod

import numpy as np

from tilewright.tile.footprint import Numbers, distinct
from tilewright.tile.problem import Operand


def crowds(operand: Operand, sets: int, line: int) -> bool:
    """Whether rows of an operand can crowd in a cache at all."""
    return any(p < sets for p in _places(operand, sets, line)[:-1])


def crowding(operand: Operand, box: Sequence[Numbers], sets: int, line: int) -> Numbers:
    """By how much more of a cache the points of a box take than their lines: 1 where these lie in all sets alike.

    Args:
        operand: that is read where it lies, not from a packed copy.
        box: sizes per axis.
        sets: of the cache.
        line: bytes of a line.
    """
    found: Numbers = np.ones_like(box[0])
    reach: Numbers = np.ones_like(box[0]) * operand.bytes
    rows = list(zip(operand.index, operand.shape, _places(operand, sets, line), strict=True))
    step = float(operand.bytes)
    for row, size, places in reversed(rows):
        if any(row):
            count, far = (np.minimum(x, max(1, size)) for x in distinct(row, box))
            if places < sets:
                # a row covers its lines, in the sets that follow the one where it begins
                covered = np.minimum(sets, places * np.ceil(np.minimum(reach, step) / line))
                found = np.maximum(found, np.where(count > places, sets / covered, 1.0))
            reach = reach + (far - 1.0) * step
        step *= size
    return found


@lru_cache(maxsize=4096)
def _places(operand: Operand, sets: int, line: int) -> list[int]:
    """In how many different sets rows along each dimension can begin."""
    steps = [operand.bytes * prod(operand.shape[d + 1 :]) for d in range(len(operand.shape))]
    return [sets // gcd(sets, max(1, s // line)) if s % line == 0 and s else sets for s in steps]
