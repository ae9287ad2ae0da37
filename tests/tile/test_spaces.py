"""Every program of a space can be lowered, and proved right by algebra alone, also where rows, lanes and chunks are all
left over; `python -m tests.tile.test_spaces SEED COUNT` goes on with other seeds."""

import sys
from dataclasses import replace

import numpy as np
import pytest
from tests.optimize.computations import product, relu
from tests.optimize.programs import TARGETS, Program, check
from tests.optimize.tasks import task_of
from tests.tile.results import check_same_results
from tests.tile.spaces import Drawn, drawn

from tilewright.expr.nodes import Symbol
from tilewright.optimize.construct.optimizer import problem_for
from tilewright.optimize.rule import Rule
from tilewright.tile.lower import lower_program
from tilewright.tile.program import Sketch, TileProgram
from tilewright.verify import coverage_fallbacks
from tilewright.verify.verifier import verify

SEEDS = 18
"""Kernels."""


@pytest.fixture(autouse=True)
def algebra_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is proved by running through the iterations of small programs, so that they stand for large ones."""
    monkeypatch.setattr(coverage_fallbacks, "MAX_ENUMERATED_GROUPS", 0)


def check_program_of(case: Drawn, seed: int) -> None:
    """Lowers a program, verifies it, and compares its results."""
    lowered = lower_program(case.tiled, case.task.func, case.parallel, case.cores)
    verify(lowered.func)
    check_same_results(case.task.func, lowered.func, case.kernel, np.random.default_rng(seed))


def test_random_programs_of_a_space_compute_the_same() -> None:
    feature_sets: set[frozenset[str]] = set()
    for seed in range(SEEDS):
        for case in drawn(seed, TARGETS[seed % len(TARGETS)]):
            check_program_of(case, seed)
            feature_sets.add(case.features())
    assert {frozenset({"rows", "lanes", "chunks"}), frozenset({"lanes", "chunks", "symbols"})} <= feature_sets


@pytest.mark.parametrize("target", ["x86-64-v4", "x86-64-v3"])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_remainders_of_rows_lanes_and_k_blocks_together(order: tuple[int, int], target: str) -> None:
    """Sums of chunks share a buffer with those of the last one, and lie at another row in every tile of rows."""
    task = task_of(Program([product(171, 120, 1520)], {}, frozenset({"w"})), target)
    problem = problem_for(task)
    assert problem is not None
    sizes = ((5, 80, 1), (85, 80, 509), (85, 80, 1520))
    sketch = Sketch(1, task.target.lanes(32), order, 2, ((1, 1),))
    lowered = lower_program(TileProgram(problem, sketch, sizes), task.func)
    verify(lowered.func)
    assert sum(step.primitive == "peel" for step in lowered.trace) == 5, (
        "rows; and the last chunk, and its end, of both"
    )


def test_remainders_of_even_row_counts() -> None:
    """Tiles of the first smaller height do them all, so that no part is left for single rows."""
    m = Symbol("M", 1, 20)
    program = Program([product(m * 2, 33, 47)], {m: 7}, frozenset({"w"}))
    task = task_of(program)
    problem = problem_for(task)
    assert problem is not None
    sizes = ((4, 48, 1), (4, 48, 13), (4, 48, 47))
    lowered = lower_program(
        TileProgram(replace(problem, samples=()), Sketch(1, 16, (0, 1), 2, ((1, 1),)), sizes), task.func
    )
    verify(lowered.func)
    check_same_results(task.func, lowered.func, program, np.random.default_rng(0))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("rows", [1, 7, 13])
def test_the_rule_with_remainders_of_rows_lanes_and_k_blocks(rows: int, target: str) -> None:
    first = product(rows, 37, 509)
    schedule = check(Program([first, relu(first)], {}, frozenset({"w"})), target, Rule())
    assert any(step.primitive == "rfactor" for step in schedule.trace)


if __name__ == "__main__":
    coverage_fallbacks.MAX_ENUMERATED_GROUPS = 0
    first, count = int(sys.argv[1]), int(sys.argv[2])
    for seed in range(first, first + count):
        for case in drawn(seed, TARGETS[seed % len(TARGETS)], 3):
            try:
                check_program_of(case, seed)
            except Exception as e:
                print(seed, type(e).__name__, case.tiled, case.parallel, case.cores, str(e)[:500], flush=True)
