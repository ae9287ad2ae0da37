"""Populations of programs: drawn uniformly from the whole space, or from what walks recorded."""

import numpy as np
import pytest
from benchmarks.cost_model import EXTRA_REDUCTIONS, MIN_SPREAD, kind_table_row, largest_kernel_task
from benchmarks.populations import POPULATIONS, lowered_func, reachable_tile_sizes, sample_recorded, sample_uniformly

from tilewright.optimize.construct.tile_lattice import NO_EDGE, NUM_EDGES, AxisLattice, TilingRules
from tilewright.tile.program import TileProgram, check_program

CASE = "reducesum_columns_128x768"


def test_every_chain_of_an_axis_is_reached() -> None:
    ladder = AxisLattice(TilingRules(12, 1, (1, 2, 3, 4, 6, 12)))
    reachable = reachable_tile_sizes(ladder, ladder.closest(1, 1, 1))
    chains = {ladder.tilings[k] for k in reachable}
    expected = {(r, m, f) for r in (1, 2, 3, 4, 6, 12) for m in range(r, 13, r) for f in range(m, 13, m) if 12 % f == 0}
    assert chains == expected
    # no edge leads out of them
    ends = {int(k) for c in reachable for k in ladder.successor(np.full(NUM_EDGES, c), np.arange(NUM_EDGES))} - {
        NO_EDGE
    }
    assert ends <= set(reachable)


def test_random_programs_are_legal_distinct_and_the_same_every_time() -> None:
    task = largest_kernel_task(CASE)
    samples = sample_uniformly(task, 12)
    assert [str(p) for _, p in samples] == [str(p) for _, p in sample_uniformly(task, 12)]
    assert len({str(p) for _, p in samples}) == 12
    for predicted, program in samples:
        assert predicted > 0
        assert isinstance(program, TileProgram)
        check_program(program)
        assert lowered_func(program, task).outputs[-1].name == "out"


def test_a_small_space_has_as_many_programs_as_it_has() -> None:
    samples = sample_uniformly(largest_kernel_task("softmax_64x1000"), 40)
    assert 2 <= len(samples) < 40


def test_recorded_programs_begin_with_the_best_one() -> None:
    times = [t for t, _ in sample_recorded(largest_kernel_task(CASE), 12)]
    assert times[0] == min(times)
    assert len(times) == 12


def test_a_case_that_does_not_exist() -> None:
    with pytest.raises(ValueError, match="there is no operator 'gemm_of_nothing'"):
        largest_kernel_task("gemm_of_nothing")
    assert CASE in {c.name for c in EXTRA_REDUCTIONS}
    assert set(POPULATIONS) == {"at random", "recorded"}


def test_kinds_have_a_mean_of_the_kernels_that_can_be_told_apart() -> None:
    alike = {"correlation": -1.0, "agreement": 0.2, "spread": 1.0, "measured": [1.0, 2.0], "predicted": [2.0, 1.0]}
    different = {
        "correlation": 1.0,
        "agreement": 0.6,
        "spread": MIN_SPREAD,
        "measured": [3.0, 4.0],
        "predicted": [3.0, 4.0],
    }
    assert kind_table_row("sum", "recorded", [alike, different]) == [
        "sum",
        "recorded",
        "2",
        "0.80",
        "0.00",
        "0.40",
        "1",
        "1.00",
    ]
    assert kind_table_row("sum", "recorded", [alike]) == ["sum", "recorded", "1", "-1.00", "-1.00", "0.20", "0", "-"]
