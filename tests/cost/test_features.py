"""Closed formulas against counting, point by point, on small problems."""

from dataclasses import replace
from itertools import product as pairs
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tile.problems import SKETCH, matrix_product, tiles

from tilewright.cost.caches import CacheHierarchy
from tilewright.cost.candidate_batch import CandidateBatch
from tilewright.cost.features import extract_features
from tilewright.cost.footprint import contiguous_dims, moved_bytes, touched_elements
from tilewright.cost.hw_prefetch import ramp_factors
from tilewright.cost.instructions import tile_cycles
from tilewright.cost.shape_family import ShapeFamily
from tilewright.cost.traffic import cache_traffic
from tilewright.machine import Target
from tilewright.machine.cost_parameters import CostParameters
from tilewright.machine.shipped import machine_named
from tilewright.optimize.construct.gensor import Annealing, run_walks
from tilewright.optimize.construct.reduction_sketches import reduction_sketches
from tilewright.optimize.construct.search_space import SearchSpace
from tilewright.tile.operand import Operand
from tilewright.tile.problem import Problem
from tilewright.tile.program import L1, L2, REGISTER, Sizes, Sketch, is_legal

COST = CostParameters()


def numbers(values: "tuple[int, ...] | list[int]") -> list[np.ndarray]:
    """A batch of one box."""
    return [np.array([float(v)]) for v in values]


def touched(operand: Operand, box: tuple[int, ...], first: tuple[int, ...]) -> set[tuple[int, ...]]:
    """The elements that the points of a box touch."""
    elements: set[tuple[int, ...]] = set()
    for point in pairs(*(range(f, f + n) for f, n in zip(first, box, strict=True))):
        elements.add(tuple(sum(c * x for c, x in zip(row, point, strict=True)) for row in operand.index))
    return elements


@st.composite
def windows(draw: st.DrawFn) -> tuple[Operand, tuple[int, ...]]:
    """An operand of one to three dimensions, each moved by an axis and maybe by a window of it, and a box."""
    count = draw(st.integers(1, 4))
    box = tuple(draw(st.integers(1, 4)) for _ in range(count))
    index: list[tuple[int, ...]] = []
    free = list(range(count))
    for _ in range(draw(st.integers(1, 3))):
        row = [0] * count
        if free:
            row[free.pop()] = draw(st.sampled_from([1, 1, -1]))
        if free and draw(st.booleans()):
            row[free.pop()] = draw(st.integers(1, 3))
        index.append(tuple(row))
    return Operand("x", 4, False, (100,) * len(index), tuple(index), False), box


def dense(operand: Operand, box: tuple[int, ...]) -> bool:
    """Whether runs that overlap have no gaps: a step is no longer than what the steps before it fill."""
    for row in operand.index:
        reach = 1
        for c, n in sorted((abs(c), n) for c, n in zip(row, box, strict=True) if c):
            if 1 < reach < c:
                return False
            reach += c * (n - 1)
    return True


@given(windows())
def test_touched_elements_match_enumeration(case: tuple[Operand, tuple[int, ...]]) -> None:
    operand, box = case
    counted = len(touched(operand, box, (0,) * len(box)))
    formula = touched_elements(operand, numbers(box))[0]
    assert formula >= counted or np.isclose(formula, counted)
    if dense(operand, box):
        assert formula == counted
    assert moved_bytes(operand, numbers(box), 4)[0] >= 4 * counted
    assert moved_bytes(operand, numbers(box), 64)[0] >= 4 * counted
    assert moved_bytes(operand, numbers(box), 64, packed=True)[0] == 4 * formula


@given(st.integers(1, 24), st.sampled_from([(40, 2), (24, 2, 2), (40, 3), (12, 4, 7), (6, 56)]), st.data())
def test_short_rows_share_lines(height: int, shape: tuple[int, ...], data: st.DataObject) -> None:
    count = len(shape)
    operand = Operand("x", 4, False, shape, tuple(tuple(int(a == d) for a in range(count)) for d in range(count)), True)
    box = (min(height, shape[0]), *(data.draw(st.integers(1, n)) for n in shape[1:]))
    predicted = moved_bytes(operand, numbers(box), 64)[0] / 64
    line_counts: list[int] = []
    for first in pairs(*(range(n - b + 1) for n, b in zip(shape, box, strict=True))):
        places = touched(operand, box, first)
        line_counts.append(len({int(np.ravel_multi_index(at, shape)) // 16 for at in places}))
    # a box may begin anywhere in a line, but one of whole lines begins with one
    assert min(line_counts) <= predicted
    if all(b == n for b, n in zip(box[1:], shape[1:], strict=True)):
        assert predicted < max(line_counts) + 1
    whole = [n for n, row in zip(shape, contiguous_dims(operand, 64), strict=True) if row]
    assert prod(whole) >= 16 > prod(whole[1:])


"""Vectors of two lanes along j."""


@given(tiles())
def test_cache_shares_of_tiles_match_enumeration(case: tuple[Problem, Sizes]) -> None:
    problem, sizes = case
    assert is_legal(problem, SKETCH, sizes).all()
    shipped = machine_named("x86-64-v3")
    # with lines of one element all bytes are asked for
    machine = replace(shipped, levels=tuple(replace(x, line=4) for x in shipped.levels))
    space = SearchSpace(problem, SKETCH, machine, (), ())
    extents = [a.extent for a in problem.axes]
    for level in (REGISTER, L1, L2):
        box, at = tuple(int(x) for x in sizes[0, level]), np.array([level])
        rows, vectors = box[0], box[1] // SKETCH.lanes
        held = rows * vectors + (vectors if rows > 1 else 0) + 1
        read = sum(4 * len(touched(o, box, (0, 0, 0))) for o in problem.operands)
        part = held / machine.vector_registers
        if level != REGISTER:
            part = read / (machine.levels[level - 1].share * COST.usable_cache_fraction)
        assert np.isclose(space.costs.footprint(numbers(box), at)[0], part)
        full = (*box[:2], extents[2])
        firsts = [(x, y, 0) for x in range(0, extents[0], box[0]) for y in range(0, extents[1], box[1])]
        moved = sum(4 * len(touched(o, full, f)) for f in firsts for o in problem.operands)
        assert np.isclose(space.costs.traffic(numbers(box), at)[0], moved / (extents[0] * extents[1]))


@given(tiles())
def test_task_and_tile_counts_match_enumeration(case: tuple[Problem, Sizes]) -> None:
    problem, sizes = case
    features = extract_features(problem, SKETCH, CandidateBatch.of(ShapeFamily.of(problem), SKETCH, sizes), 64, COST)
    (register, near, far), extents = sizes[0], [a.extent for a in problem.axes]
    tasks = len(range(0, extents[0], far[0])) * len(range(0, extents[1], far[1]))
    assert features.tasks[0] == tasks
    micro = (extents[0] // register[0]) * (extents[1] // register[1]) * (extents[2] // near[2])
    assert features.register_tiles[0] == micro
    assert features.accumulators[0] == register[0] * register[1] / 2
    assert features.steps[0] * register[2] * features.register_tiles[0] == (
        extents[0] // register[0] * (extents[1] // register[1]) * extents[2]
    )
    assert features.vector_operations[0] * features.steps[0] * features.register_tiles[0] * 2 == problem.points
    assert features.vector_loads[0] == register[2] * register[1] / 2
    assert features.broadcast_loads[0] == register[2] * register[0]


@given(tiles(), st.integers(0, 4))
def test_cache_traffic_is_between_one_load_and_a_load_per_tile(case: tuple[Problem, Sizes], size: int) -> None:
    problem, sizes = case
    columns = CandidateBatch.of(ShapeFamily.of(problem), SKETCH, sizes)
    everything = (*problem.operands, *problem.results)
    once = sum(4 * len(touched(o, tuple(a.extent for a in problem.axes), (0, 0, 0))) * (1 + o.written)
               for o in everything)  # fmt: skip
    none, small, large = (
        cache_traffic(problem, SKETCH, columns, CacheHierarchy([capacity, 1e12], 4))[0]
        for capacity in (0.0, 4.0 * 2**size, 1e9)
    )
    assert large[0][0] == once
    assert none[0][0] >= small[0][0] >= once
    # what fits the farthest cache is there already
    assert large[1][0] == 0.0


def test_shared_data_is_loaded_by_every_thread() -> None:
    problem = matrix_product(8, 8, 4)
    # 4 x 2 tasks, rows outside
    columns = CandidateBatch.of(
        ShapeFamily.of(problem), SKETCH, np.array([[[2, 4, 1], [2, 4, 4], [2, 4, 4]]], np.int64)
    )
    a, b, c = 4 * 8 * 4, 4 * 4 * 8, 4 * 8 * 8
    for threads, rows, tasks in ((1, 1, 1), (2, 2, 2), (4, 4, 4), (8, 4, 8), (64, 4, 8)):
        _, (private, shared) = cache_traffic(problem, SKETCH, columns, CacheHierarchy([1e6, 1e6], 4, threads=[threads]))
        # threads beyond those that have rows of their own take columns, and read the same rows
        assert private[0] == a * tasks / rows + b * rows + 2 * c
        assert shared[0] == 0.0
    turned = Sketch(1, 2, (1, 0), 2)
    assert (
        cache_traffic(problem, turned, columns, CacheHierarchy([1e6, 1e6], 4, threads=[2]))[1][0][0]
        == 2 * a + b + 2 * c
    )


def test_shared_data_takes_more_of_the_last_private_cache() -> None:
    problem = matrix_product(8, 8, 4)
    columns = CandidateBatch.of(
        ShapeFamily.of(problem), SKETCH, np.array([[[2, 4, 1], [2, 4, 4], [2, 4, 4]]], np.int64)
    )
    a, b, c = 4 * 8 * 4, 4 * 4 * 8, 4 * 8 * 8
    strip, line = a / 4 + b + c / 4, 4
    by = [x.cache[0] for x in ramp_factors(problem, SKETCH, columns, CacheHierarchy([1e6, 1e6, 1e6], line))]
    fits_twice = (strip + b) / COST.usable_cache_fraction
    for capacity, times_read in ((fits_twice - 1, 4), (fits_twice, 2)):
        # two threads with two strips of rows each
        alone, together = cache_traffic(
            problem, SKETCH, columns, CacheHierarchy([1e6, capacity, 1e6], line, threads=[2, 2, 1])
        )
        assert alone[1][0] == by[0] * a + by[1] * b + by[2] * 2 * c
        assert together[1][0] == by[0] * a + by[1] * times_read * b + by[2] * 2 * c
    # what the first cache loses comes from the core's own second one, or from one of several cores
    for capacities in ([strip / COST.usable_cache_fraction, 1e6, 1e6], [strip / COST.usable_cache_fraction, 1e6]):
        threads = [2, 2, 1][-len(capacities) :]
        assert (
            cache_traffic(problem, SKETCH, columns, CacheHierarchy(capacities, line, threads=threads))[1][0][0]
            == a + 2 * b + 2 * c
        )


def test_masked_lanes_are_wasted_work() -> None:
    problem = matrix_product(4, 5, 3)
    sizes = np.array([[[2, 4, 1], [2, 4, 3], [4, 8, 3]]], np.int64)
    features = extract_features(problem, SKETCH, CandidateBatch.of(ShapeFamily.of(problem), SKETCH, sizes), 64, COST)
    # 4 of 4 rows, 8 of 5 columns: two vectors too many of each row's five elements
    assert features.vector_operations[0] * features.steps[0] * features.register_tiles[0] * 2 == 4 * 8 * 3


def test_vectors_of_half_a_register_take_half_the_time_of_a_narrow_datapath() -> None:
    """On Zen 4; the multiply-adds of a product of 8 columns, in registers of 16 and of 8 elements."""
    zen4, problem = machine_named("zen4"), matrix_product(64, 8, 512)
    wide = replace(zen4, cost=replace(zen4.cost, half_width_rate=1))
    cycles: list[float] = []
    for machine, lanes in ((zen4, 16), (zen4, 8), (wide, 8)):
        sketch = Sketch(1, lanes, (0, 1), 2)
        sizes = np.array([[[16, lanes, 1], [16, lanes, 512], [64, lanes, 512]]], np.int64)
        batch = CandidateBatch.of(ShapeFamily.of(problem), sketch, sizes)
        features = extract_features(problem, sketch, batch, 64, machine.cost)
        cycles.append(float(tile_cycles(problem, sketch, batch, features, machine).total[0]))
    assert cycles[0] == pytest.approx(cycles[2], rel=0.1)
    assert cycles[1] < 0.6 * cycles[0]


@pytest.mark.parametrize(("terms", "group"), [(512, "load_store_ports"), (4, "loads")])
def test_elements_may_take_less_of_a_port_than_vectors(terms: int, group: str) -> None:
    """Tiles of 8 x 64 with a loop over the sum, and unrolled: 8 elements and 4 vectors per term."""
    problem, sketch = matrix_product(64, 64, terms), Sketch(1, 16, (0, 1), 2)
    sizes = np.array([[[8, 64, 1], [8, 64, terms], [64, 64, terms]]], np.int64)
    batch = CandidateBatch.of(ShapeFamily.of(problem), sketch, sizes)
    loads: list[float] = []
    for factor in (1.0, 0.25):
        machine = machine_named("x86-64-v4")
        machine = replace(machine, cost=replace(machine.cost, broadcast_load_factor=factor))
        features = extract_features(problem, sketch, batch, 64, machine.cost)
        terms_of = tile_cycles(problem, sketch, batch, features, machine)
        cycles = {**terms_of.cycles("overlapping"), **terms_of.cycles("contained")}
        loads.append(float(cycles[group][0]))
    assert loads[1] / loads[0] == pytest.approx((8 * 0.25 + 4) / 12, rel=0.04)


def test_streams_count_reads_only() -> None:
    problem = matrix_product(64, 4096, 2048)
    sizes = np.array([[[8, 4, 1], [8, 4, 2048], [8, 4, 2048]]], np.int64)
    columns = CandidateBatch.of(ShapeFamily.of(problem), SKETCH, sizes)
    read = replace(problem, results=())
    assert (
        extract_features(problem, SKETCH, columns, 64, COST).streams[0]
        == extract_features(read, SKETCH, columns, 64, COST).streams[0]
        == 8 + 1
    )


@given(st.integers(2, 9), st.integers(1, 3), st.integers(2, 7))
def test_windows_with_strides_keep_what_later_steps_reuse(columns: int, stride: int, taps: int) -> None:
    product = matrix_product(columns, 16, taps)
    picture = Operand("x", 4, False, (99,), ((stride, 0, 1),), False)
    window = replace(product, operands=(picture, product.operands[1]))
    batch = CandidateBatch.of(ShapeFamily.of(window), SKETCH, np.array([[[columns, 16, taps]] * 3]))
    waiting = extract_features(window, SKETCH, batch, 64, COST).waiting_vectors[0]
    steps = [{stride * x + tap for x in range(columns)} for tap in range(taps)]
    live = [len(set().union(*steps[: t + 1]) & set().union(*steps[t + 1 :])) for t in range(taps - 1)]
    reused = sum(map(len, steps)) - len(set().union(*steps))
    assert waiting + reused / (taps - 1) == pytest.approx(max(live))


def test_features_do_not_depend_on_the_batch() -> None:
    problem = matrix_product(48, 80, 60)
    for sketch in reduction_sketches(problem, Target.parse("x86-64-v3"), machine_named("haswell")):
        space = SearchSpace.of(problem, sketch, machine_named("zen3"))
        sizes = run_walks(space, Annealing(walks=2), 3).recorded_sizes()
        many = extract_features(problem, sketch, CandidateBatch.of(ShapeFamily.of(problem), sketch, sizes), 64, COST)
        for k in range(0, len(sizes), 7):
            one = extract_features(
                problem, sketch, CandidateBatch.of(ShapeFamily.of(problem), sketch, sizes[k : k + 1]), 64, COST
            )
            assert (one.registers[0], one.streams[0]) == (many.registers[k], many.streams[k])
