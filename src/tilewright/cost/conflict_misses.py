"""Conflict misses: cache sets to which rows a power of two apart alias, in closed formulas over arrays of boxes.

The set of a line is its address modulo the number of sets. Rows S bytes apart begin in only
sets / gcd(sets, S / line) different sets; more rows than that share the sets that they cover, however much of the cache
is free.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import gcd, prod

import numpy as np
import numpy.typing as npt

from tilewright.cost.caches import PAGE_BYTES, CacheHierarchy
from tilewright.cost.candidate_batch import CandidateBatch
from tilewright.cost.footprint import Numbers, all_true, any_true, index_count_and_span, moved_bytes
from tilewright.cost.shape_family import FloatPerCandidate, OperandView
from tilewright.machine.cost_parameters import CostParameters
from tilewright.tile.problem import Problem
from tilewright.tile.program import REGISTER, Mask, Sketch


def _is_below(start_sets: Sequence[FloatPerCandidate], sets: int) -> bool:
    return any(any_true(starts < sets) for starts in start_sets[:-1])


def conflict_factors(
    operand: OperandView, box: Sequence[Numbers], set_counts: Sequence[int], line: int
) -> dict[int, Numbers]:
    """Effective-footprint factor per cache due to set conflicts (1.0: evenly spread over the sets).

    Args:
        operand: an access that does not read a packed copy.
        box: sizes per axis.
        set_counts: number of sets of each cache.
        line: bytes of a cache line.

    Returns:
        The factors by the cache's position; caches without possible conflicts are omitted.
    """
    counts = [_start_set_counts(operand, sets, line) for sets in set_counts]
    start_sets = {k: x for k, x in enumerate(counts) if _is_below(x, set_counts[k])}
    if not start_sets:
        return {}
    factors: dict[int, Numbers] = {k: np.ones_like(box[0]) for k in start_sets}
    # sets of each cache that are touched, from the last dimension outwards
    touched: dict[int, Numbers] = {k: np.ones_like(box[0]) for k in start_sets}
    span: float | npt.NDArray[np.floating] = float(operand.element_bytes)
    pitch: float | npt.NDArray[np.floating] = float(operand.element_bytes)
    for d in range(len(operand.shape) - 1, -1, -1):
        size = operand.shape[d]
        if terms := operand.index_terms[d]:
            rows, row_span = (np.minimum(x, operand.dim_sizes[d]) for x in index_count_and_span(terms, box))
            span = span + (row_span - 1.0) * pitch
            lines, is_within_line = np.ceil(span / line), pitch < line
            for k, starts_by_dim in start_sets.items():
                sets, starts = set_counts[k], starts_by_dim[d]
                can_alias, covered = starts < sets, np.minimum(sets, starts * touched[k])
                if any_true(can_alias) and (aliases := (rows > starts) & can_alias).any():
                    factors[k] = np.where(aliases, np.maximum(factors[k], sets / covered), factors[k])
                if all_true(is_within_line):
                    touched[k] = np.minimum(sets, lines)
                elif d:
                    # touched sets count for dimensions further out: the first has none
                    spread = np.minimum(covered, rows * touched[k])
                    spread = np.where(is_within_line, sets, spread) if any_true(is_within_line) else spread
                    touched[k] = np.minimum(spread, lines)
        pitch = pitch * size
    return factors


def conflict_bytes(
    cached: Numbers, uncached: Numbers, pressure: Numbers, overflows: Mask, cost: CostParameters
) -> Numbers:
    """Bytes that a register tile moves of an access whose rows alias to few sets of L1.

    Args:
        cached: bytes that it moves if everything stays in L1 that an L2 tile touches.
        uncached: bytes that it moves if every element brings its line.
        pressure: lines in the aliased sets over the lines that fit them; 0 without aliasing.
        overflows: whether a register tile does not fit L1, whatever its sets.
        cost: the machine's parameters.
    """
    slowed = np.maximum(cached, uncached * cost.max_conflict_penalty * _share_without_room(pressure) ** 3)
    return np.where(pressure > 1.0, np.where(overflows, np.maximum(slowed, uncached), slowed), uncached)


def reloaded_row_bytes(
    operand: OperandView, problem: Problem, sketch: Sketch, batch: CandidateBatch, caches: CacheHierarchy
) -> Numbers | None:
    """Bytes that a step of a register tile loads again from beyond L1, where rows of an unpacked operand alias to fewer
    ways of L1 than there are rows; None where they do not.

    A tile reads its rows round-robin, and the line of each serves several steps of the reduction only if it stays
    meanwhile. This is for operands whose elements follow each other along the innermost reduction axis, such as A of a
    product.

    Args:
        operand: an access that does not read a packed copy.
        problem, sketch, batch: the candidates.
        caches: their parameters. Sets of an L1 that covers more than a page depend on physical addresses; rows do not
            alias there.
    """
    element, line, way_bytes = operand.element_bytes, caches.line, caches.set_counts[0] * caches.line
    innermost = problem.reduce[-1]
    is_contiguous = any(a == innermost and c * element < line for c, a in operand.index_terms[-1])
    if way_bytes > PAGE_BYTES or not is_contiguous or operand.written or operand.uses(sketch.lane):
        return None
    rows = [batch.tiles[REGISTER][a] for a in problem.spatial if operand.uses(a)]
    if prod(float(x.max()) for x in rows) <= caches.capacities[0] / way_bytes:
        return None  # as many lines as a set has ways stay whichever set they are in
    box = [np.ones_like(x) if a in problem.reduce else x for a, x in enumerate(batch.tiles[REGISTER])]
    factor = conflict_factors(operand, box, caches.set_counts[:1], line).get(0)
    if factor is None:
        return None
    lines = moved_bytes(operand, box, line)
    pressure = np.where(factor > 1.0, lines * factor / caches.capacities[0], 0.0)
    return lines * np.minimum(1.0, caches.cost.aliased_row_miss_factor * _share_without_room(pressure) ** 3)


def _share_without_room(pressure: Numbers) -> Numbers:
    """Share of the lines in aliased sets that these have no way for; `pressure` as for `conflict_bytes`."""
    return 1.0 - 1.0 / np.maximum(pressure, 1.0)


def _start_set_counts(operand: OperandView, sets: int, line: int) -> tuple[FloatPerCandidate, ...]:
    """Per dimension of an operand the number of different sets in which its rows can begin."""
    return operand.per_shape(lambda o: _start_set_counts_of_shape(o.element_bytes, o.shape, sets, line))


@lru_cache(maxsize=4096)
def _start_set_counts_of_shape(element_bytes: int, shape: tuple[int, ...], sets: int, line: int) -> tuple[int, ...]:
    """Per dimension of an array the number of different sets in which its rows can begin."""
    pitches = [element_bytes * prod(shape[d + 1 :]) for d in range(len(shape))]
    return tuple(sets // gcd(sets, max(1, s // line)) if s % line == 0 and s else sets for s in pitches)
