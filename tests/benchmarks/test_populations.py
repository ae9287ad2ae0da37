"""Populations of programs: drawn uniformly from the whole space, or from what walks recorded."""

import numpy as np
import pytest
from benchmarks.cost_model import APART, MORE_CASES, kind_row, task_of
from benchmarks.populations import POPULATIONS, at_random, func_of, reachable, recorded

from tilewright.optimize.construct.ladder import EDGES, NONE, Ladder
from tilewright.tile.program import TileProgram, check_program

CASE = "reducesum_columns_128x768"


def test_every_chain_of_an_axis_is_reached() -> None:
    ladder = Ladder(12, 1, (1, 2, 3, 4, 6, 12))
    found = reachable(ladder, ladder.fitted(1, 1, 1))
    chains = {ladder.chains[k] for k in found}
    wanted = {(r, m, f) for r in (1, 2, 3, 4, 6, 12) for m in range(r, 13, r) for f in range(m, 13, m) if 12 % f == 0}
    assert chains == wanted
    # no edge leads out of them
    ends = {int(k) for c in found for k in ladder.step_from(np.full(EDGES, c), np.arange(EDGES))} - {NONE}
    assert ends <= set(found)


def test_random_programs_are_legal_distinct_and_the_same_every_time() -> None:
    task = task_of(CASE)
    found = at_random(task, 12)
    assert [str(p) for _, p in found] == [str(p) for _, p in at_random(task, 12)]
    assert len({str(p) for _, p in found}) == 12
    for predicted, program in found:
        assert predicted > 0
        assert isinstance(program, TileProgram)
        check_program(program)
        assert func_of(program, task).params[-1].name == "out"


def test_a_small_space_has_as_many_programs_as_it_has() -> None:
    found = at_random(task_of("softmax_64x1000"), 40)
    assert 2 <= len(found) < 40


def test_recorded_programs_begin_with_the_best_one() -> None:
    times = [t for t, _ in recorded(task_of(CASE), 12)]
    assert times[0] == min(times)
    assert len(times) == 12


def test_a_case_that_does_not_exist() -> None:
    with pytest.raises(ValueError, match="there is no operator 'gemm_of_nothing'"):
        task_of("gemm_of_nothing")
    assert CASE in {c.name for c in MORE_CASES}
    assert set(POPULATIONS) == {"at random", "recorded"}


def test_kinds_have_a_mean_of_the_kernels_that_can_be_told_apart() -> None:
    alike = {"correlation": -1.0, "agreement": 0.2, "spread": 1.0, "measured": [1.0, 2.0], "predicted": [2.0, 1.0]}
    different = {"correlation": 1.0, "agreement": 0.6, "spread": APART, "measured": [3.0, 4.0], "predicted": [3.0, 4.0]}
    assert kind_row("sum", "recorded", [alike, different]) == [
        "sum",
        "recorded",
        "2",
        "0.80",
        "0.00",
        "0.40",
        "1",
        "1.00",
    ]
    assert kind_row("sum", "recorded", [alike]) == ["sum", "recorded", "1", "-1.00", "-1.00", "0.20", "0", "-"]
