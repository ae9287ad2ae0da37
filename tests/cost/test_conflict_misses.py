"""Conflict misses of rows that alias to few sets of a cache, against counting lines set by set."""

from collections import Counter
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tile.problems import matrix_product

from tilewright.cost.analytical import family_times, program_times
from tilewright.cost.caches import CacheHierarchy
from tilewright.cost.candidate_batch import CandidateBatch
from tilewright.cost.conflict_misses import conflict_factors, reloaded_row_bytes
from tilewright.cost.shape_family import ShapeFamily
from tilewright.cost.traffic import cache_traffic
from tilewright.machine.shipped import machine_named
from tilewright.tile.operand import Operand
from tilewright.tile.problem import Problem, ProblemAxis
from tilewright.tile.program import Sketch

SETS, LINE = 16, 64


def matrix(rows: int, columns: int) -> Operand:
    """A float32 matrix with an axis along either dimension."""
    return Operand("x", 4, False, (rows, columns), ((1, 0), (0, 1)), False)


def pictures(channels: int, rows: int, columns: int) -> Operand:
    """Planes of float32 with an axis along every dimension."""
    return Operand("x", 4, False, (channels, rows, columns), ((1, 0, 0), (0, 1, 0), (0, 0, 1)), False)


def lines(operand: Operand, box: tuple[int, ...]) -> set[int]:
    """The lines that a box touches from the first element on."""
    return {4 * int(np.ravel_multi_index(at, operand.shape)) // LINE for at in product(*map(range, box))}


def fullest(operand: Operand, box: tuple[int, ...]) -> int:
    """Lines in the fullest set."""
    return max(Counter(line % SETS for line in lines(operand, box)).values())


def factor(operand: Operand, box: tuple[int, ...]) -> float:
    """Of the second of two caches; in the first one, with a single set, nothing is a power of two apart."""
    factors = conflict_factors(operand, [np.array([float(n)]) for n in box], (1, SETS), LINE)
    assert 0 not in factors
    return float(factors[1][0]) if factors else 1.0


@given(st.integers(1, 64), st.sampled_from([16, 32, 48, 64, 128, 256, 512]), st.integers(1, 64))
def test_conflict_factor_matches_the_fullest_set(rows: int, columns: int, width: int) -> None:
    operand, box = matrix(rows, columns), (rows, min(width, columns))
    count = rows * -(-box[1] * 4 // LINE)
    predicted = count * factor(operand, box) / SETS
    counted = fullest(operand, box)
    # whole rows of lines in few sets; what is left over goes into some of them
    assert counted <= 2 * max(1.0, predicted) + 1
    assert predicted <= max(counted, count / SETS)


@given(st.integers(1, 16), st.integers(1, 8), st.sampled_from([16, 32, 48, 64, 80, 128]), st.sampled_from([8, 16, 24]))
def test_planes_alias_to_the_sets_of_their_rows(count: int, rows: int, columns: int, height: int) -> None:
    operand, box = pictures(16, height, columns), (count, rows, 4)
    touched = len(lines(operand, box))
    predicted = touched * factor(operand, box) / SETS
    # it is the sets that are counted; how evenly lines lie among those is left out
    assert predicted <= max(fullest(operand, box), touched / SETS)
    assert fullest(operand, box) <= 2 * max(1.0, predicted) + 2


def test_a_column_aliases_where_whole_planes_spread_evenly() -> None:
    # rows of four lines begin in four of sixteen sets, planes all in the same one
    assert factor(pictures(16, 16, 64), (16, 4, 4)) == SETS / 4
    assert factor(pictures(16, 16, 64), (16, 4, 64)) == 1.0


def test_only_rows_a_power_of_two_apart_alias() -> None:
    assert factor(matrix(64, 256), (64, 16)) == SETS
    assert factor(matrix(64, 256), (64, 64)) == SETS / 4
    assert factor(matrix(64, 256), (1, 16)) == 1.0
    assert factor(matrix(64, 272), (64, 16)) == 1.0
    assert factor(matrix(64, 32), (8, 16)) == 1.0, "eight rows begin in eight sets"
    assert factor(matrix(64, 32), (16, 16)) == 2.0


def transposing(rows: int, written: int = 1, ways: int = 8, apart: int = 1024) -> float:
    """Bytes that a transpose of 1024 x 1024 elements, or of rows that lie farther apart, moves into a first cache of 64
    sets of 8 ways or more, in register tiles of so many rows of what is read and of the result."""
    axes = (ProblemAxis("i", 1024, True, False), ProblemAxis("j", 1024, True, False))
    shape = (1024, apart)
    source = Operand("x", 4, False, shape, ((0, 1), (1, 0)), False)
    p = Problem("y", "y", axes, (source, Operand("y", 4, False, shape, ((1, 0), (0, 1)), True)), (), 1, 32)
    sketch = Sketch(1, 8, (1, 0), None)
    sizes = np.array([[[written, rows], [written, rows], [16, rows]]])
    columns = CandidateBatch.of(ShapeFamily.of(p), sketch, sizes)
    alone, _ = cache_traffic(p, sketch, columns, CacheHierarchy([4096.0 * ways, 524288.0, 2.0**25], LINE, [64, 1024]))
    return float(alone[0][0])


def test_aliased_rows_that_fit_the_ways_stay_cached() -> None:
    # eight lines of what is read lie in one set of eight ways, that of the result in another one
    elements = 1024 * 1024
    assert transposing(8) < 32 * elements
    # twice as many lose some of what they fetched, but do not fetch a line per element
    assert transposing(8) < transposing(16) < 64 * elements
    # rows of the result that do not all stay are no loss to what is read
    assert transposing(8, 16) < transposing(16, 16)


def test_conflict_penalty_grows_with_the_aliased_rows() -> None:
    for rows, written, ways in product((8, 9, 10, 12, 13, 14, 16, 20, 24, 32, 64), (1, 8), (8, 12)):
        assert transposing(rows, written, ways) >= 0.99 * transposing(rows, written, ways, 1040), (rows, written, ways)
    assert [transposing(n) for n in (16, 20, 24, 32, 64)] == sorted(transposing(n) for n in (16, 20, 24, 32, 64))


B_PACKED = Sketch(1, 16, (1, 0), 2, ((1, 1),))
"""Vectors along the columns of a product whose second operand is packed."""


def multiplying(rows: int, terms: int, ways: int = 8, unroll: int = 1, threads: int = 1) -> float:
    """Bytes per term that a product of 84 x 1024 elements moves into the same first cache in register tiles of so many
    rows, whose second operand is packed."""
    p, sizes = matrix_product(84, 1024, terms), np.array([[[rows, 32, unroll], *[[rows, 32, terms]] * 2]])
    hierarchy = CacheHierarchy([4096.0 * ways, 524288.0, 2.0**25], LINE, [64, 1024], [threads, threads, 1])
    traffic = cache_traffic(p, B_PACKED, CandidateBatch.of(ShapeFamily.of(p), B_PACKED, sizes), hierarchy)
    return float(traffic[threads > 1][0][0]) / terms


def reloaded(problem: Problem, sketch: Sketch, rows: int = 14, sets: int = 64) -> float:
    """Bytes that a step of a register tile of so many rows and 32 columns reads again of the first operand."""
    sizes = np.array([[[rows, 32, 1], *[[rows, 32, 1024]] * 2]])
    hierarchy = CacheHierarchy([512.0 * sets, 524288.0, 2.0**25], LINE, [sets, 1024])
    batch = CandidateBatch.rounded_up(ShapeFamily.of(problem), sizes)
    per_step = reloaded_row_bytes(problem.operands[0], problem, sketch, batch, hierarchy)
    return 0.0 if per_step is None else float(per_step[0])


def test_rows_of_a_register_tile_that_fit_the_ways_stay_from_step_to_step() -> None:
    # rows of 4 KiB begin in one set, those of a line more in sets of their own
    assert multiplying(7, 1024) == pytest.approx(multiplying(7, 1040), rel=0.01)
    assert multiplying(12, 1024, ways=12) == pytest.approx(multiplying(12, 1040, ways=12), rel=0.01)
    # rows of 2 KiB begin in two sets
    assert multiplying(14, 512) == pytest.approx(multiplying(14, 528), rel=0.01)


@given(st.sampled_from([12, 14, 21, 28, 42]), st.sampled_from([1024, 2048, 3072]), st.sampled_from([4, 6, 8]))
def test_rows_beyond_the_ways_load_a_line_per_step_at_most(rows: int, terms: int, ways: int) -> None:
    aliased, apart = multiplying(rows, terms, ways), multiplying(rows, terms + 16, ways)
    lines = 84 / rows * 1024 / 32 * rows * LINE
    assert aliased <= 1.01 * apart + lines
    assert aliased >= min(0.4 * lines, lines - 0.01 * apart)


def test_reloaded_lines_do_not_depend_on_unrolling_or_threads() -> None:
    once = multiplying(14, 1024)
    assert multiplying(14, 1024, unroll=4) == pytest.approx(once, rel=0.01)
    assert multiplying(14, 1024, threads=2) == pytest.approx(once, rel=0.05)
    assert once > 2 * multiplying(14, 1040)


def test_only_rows_that_follow_the_innermost_reduction_are_reloaded() -> None:
    p = matrix_product(84, 1024, 1024)
    assert reloaded(p, B_PACKED) == 14 * LINE
    # a way of 16 KiB: pages lie anywhere in it
    assert reloaded(matrix_product(84, 1024, 4096), B_PACKED, sets=256) == 0
    # lanes along the rows read each of them at once
    assert reloaded(p, Sketch(0, 14, (0, 1), 2)) == 0
    columns = replace(p.operands[0], shape=(1024, 1024), index=((0, 0, 1), (1, 0, 0)))
    assert reloaded(replace(p, operands=(columns, p.operands[1])), B_PACKED) == 0
    axes = (*p.axes, ProblemAxis("l", 8, True, True))
    operands = tuple(replace(o, index=tuple((*row, 0) for row in o.index)) for o in p.operands)
    results = tuple(replace(o, index=tuple((*row, 0) for row in o.index)) for o in p.results)
    innermost = replace(p, axes=axes, operands=operands, results=results)
    sizes = np.array([[[14, 32, 1, 1], *[[14, 32, 1024, 8]] * 2]])
    batch = CandidateBatch.rounded_up(ShapeFamily.of(innermost), sizes)
    hierarchy = CacheHierarchy([32768.0, 524288.0, 2.0**25], LINE, [64, 1024])
    assert reloaded_row_bytes(innermost.operands[0], innermost, B_PACKED, batch, hierarchy) is None


def test_a_packed_copy_has_no_rows_to_reload() -> None:
    p, sizes = matrix_product(84, 1024, 1024), np.array([[[14, 32, 1], *[[14, 32, 1024]] * 2]])
    batch = CandidateBatch.of(ShapeFamily.of(p), B_PACKED, sizes)
    hierarchy = CacheHierarchy([32768.0, 524288.0, 2.0**25], LINE, [64, 1024])
    packed = replace(B_PACKED, packed=((0, 0), (1, 1)))
    both, one = (cache_traffic(p, s, batch, hierarchy)[0][0][0] for s in (packed, B_PACKED))
    assert 2 * both < one


def test_shapes_of_one_batch_alias_each_for_itself() -> None:
    problems = [matrix_product(84, 1024, k) for k in (1000, 1024, 1040)]
    sizes = np.array([[[14, 32, 1], *[[14, 32, p.axes[2].extent]] * 2] for p in problems])
    machine = machine_named("zen4").with_cores(1)
    joint = family_times(ShapeFamily.joint(problems, [1, 1, 1]), B_PACKED, sizes, machine).total
    alone = [program_times(p, B_PACKED, s[None], machine).total[0] for p, s in zip(problems, sizes, strict=True)]
    np.testing.assert_allclose(joint, alone)
    assert joint[1] > 1.1 * joint[2]


def storing_across(lanes: int) -> float:
    """Bytes that a transpose of 1024 x 1024 moves into the same cache, of which so many rows of the result are written
    two elements each from as many rows of what is read."""
    axes = (ProblemAxis("i", 1024, True, False), ProblemAxis("j", 1024, True, False))
    shape = (1024, 1024)
    source = Operand("x", 4, False, shape, ((0, 1), (1, 0)), False)
    p = Problem("y", "y", axes, (source, Operand("y", 4, False, shape, ((1, 0), (0, 1)), True)), (), 1, 32)
    sketch = Sketch(0, 8, (0, 1), None)
    columns = CandidateBatch.of(ShapeFamily.of(p), sketch, np.array([[[lanes, 2], [lanes, 2], [lanes, 16]]]))
    alone, _ = cache_traffic(p, sketch, columns, CacheHierarchy([32768.0, 524288.0, 2.0**25], LINE, [64, 1024]))
    return float(alone[0][0])


def test_aliased_results_that_fit_the_ways_do_not_evict_operands() -> None:
    """However many rows are read between two stores to a line: they lie in other sets."""
    elements = 1024 * 1024
    assert storing_across(8) < 32 * elements
    assert storing_across(16) > 64 * elements


def product_with_planes(terms: int, apart: int) -> float:
    """Bytes that a product moves into the second cache beyond its operands' part, where 32 planes of the result lie
    so many elements apart: (32 planes) x (4096 elements) sums of so many terms, in register tiles of 32 x 8."""
    axes = (ProblemAxis("i", 32, True, False), ProblemAxis("j", 4096, True, False), ProblemAxis("k", terms, True, True))
    operands = (
        Operand("w", 4, True, (terms, 32), ((0, 0, 1), (1, 0, 0)), False),
        Operand("x", 4, False, (terms, 4096), ((0, 0, 1), (0, 1, 0)), False),
    )
    result = Operand("y", 4, False, (32, apart), ((1, 0, 0), (0, 1, 0)), True)
    p = Problem("y", "y", axes, operands, (result,), 1, 32)
    sketch = Sketch(0, 16, (1, 0), None)
    columns = CandidateBatch.of(ShapeFamily.of(p), sketch, np.array([[[32, 8, 1], [32, 8, terms], [32, 64, terms]]]))
    caches = CacheHierarchy([32768.0, 524288.0, 2.0**25], LINE, [64, 1024])
    return float(cache_traffic(p, sketch, columns, caches)[0][1][0])


@given(st.integers(9, 200))
def test_results_whose_lines_alias_are_stored_once_whatever_the_length_of_the_sum(terms: int) -> None:
    """Sums are in registers: no iteration of the reduction touches the lines that they are stored to."""
    added, least = (product_with_planes(n, 1 << 16) - product_with_planes(n, (1 << 16) + 32) for n in (terms, 8))
    assert least > 0
    assert added <= 1.1 * least
