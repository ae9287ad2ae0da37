"""How rows that lie a power of two apart crowd into few sets of a cache: closed formulas over arrays of boxes.

A line's set is its address modulo the sets. Rows S bytes apart begin in only sets / gcd(sets, S / line) different ones;
more rows than those share the sets that they cover, however much of the cache is free.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import gcd, prod

import numpy as np
import numpy.typing as npt

from tilewright.cost.footprint import Numbers, any_true, index_count_and_span
from tilewright.cost.shape_family import FloatPerCandidate, OperandView


def can_conflict(operand: OperandView, sets: int, line: int) -> bool:
    """Whether rows of an operand can crowd in a cache at all."""
    return any(any_true(begins < sets) for begins in _start_set_counts(operand, sets, line)[:-1])


def conflict_factors(
    operand: OperandView, box: Sequence[Numbers], set_counts: Sequence[int], line: int
) -> dict[int, Numbers]:
    """By how much more of caches the points of a box take than their lines: 1 where these lie in all sets alike; of the
    caches, by their positions, in which rows can crowd at all.

    Args:
        operand: that is read where it lies, not from a packed copy.
        box: sizes per axis.
        caches: sets of each.
        line: bytes of a line.
    """
    places = {
        k: _start_set_counts(operand, sets, line)
        for k, sets in enumerate(set_counts)
        if can_conflict(operand, sets, line)
    }
    if not places:
        return {}
    found: dict[int, Numbers] = {k: np.ones_like(box[0]) for k in places}
    # sets that are touched of each cache, from the last dimension outwards
    touched: dict[int, Numbers] = {k: np.ones_like(box[0]) for k in places}
    reach: float | npt.NDArray[np.floating] = float(operand.element_bytes)
    step: float | npt.NDArray[np.floating] = float(operand.element_bytes)
    for d in range(len(operand.shape) - 1, -1, -1):
        size = operand.shape[d]
        if operand.index_terms[d]:
            count, far = (
                np.minimum(x, operand.dim_sizes[d]) for x in index_count_and_span(operand.index_terms[d], box)
            )
            reach = reach + (far - 1.0) * step
            for k, begins in places.items():
                sets, starts = set_counts[k], begins[d]
                covered = np.minimum(sets, starts * touched[k])
                found[k] = np.where((count > starts) & (starts < sets), np.maximum(found[k], sets / covered), found[k])
                apart = np.minimum(covered, count * touched[k])
                touched[k] = np.minimum(np.where(step < line, sets, apart), np.ceil(reach / line))
        step = step * size
    return found


def _start_set_counts(operand: OperandView, sets: int, line: int) -> tuple[FloatPerCandidate, ...]:
    """In how many different sets rows along each dimension of an operand can begin."""
    return operand.per_shape(lambda o: _start_set_counts_of_shape(o.element_bytes, o.shape, sets, line))


@lru_cache(maxsize=4096)
def _start_set_counts_of_shape(element_bytes: int, shape: tuple[int, ...], sets: int, line: int) -> tuple[int, ...]:
    """In how many different sets rows along each dimension of an array can begin; bytes of an element and a line."""
    steps = [element_bytes * prod(shape[d + 1 :]) for d in range(len(shape))]
    return tuple(sets // gcd(sets, max(1, s // line)) if s % line == 0 and s else sets for s in steps)
