"""Breakdowns of predicted times: the named terms add up to the number by which programs are ranked."""

from dataclasses import replace
from functools import reduce
from operator import add

import numpy as np
import pytest
from tests.cost.measured_programs import column_sums, transposition
from tests.optimize.computations import normalised
from tests.optimize.programs import Program
from tests.optimize.tasks import task_of
from tests.tile.problems import matrix_product

from tilewright.cost.analytical import program_times
from tilewright.cost.breakdown import CostBreakdown, CostPart, cost_breakdown
from tilewright.cost.rowwise_breakdown import rowwise_breakdown
from tilewright.machine import Target
from tilewright.machine.model import Machine
from tilewright.machine.shipped import machine_named
from tilewright.optimize.construct.elementwise_sketches import elementwise_sketches
from tilewright.optimize.construct.gensor import Annealing, run_walks
from tilewright.optimize.construct.reduction_sketches import reduction_sketches
from tilewright.optimize.construct.rowwise_programs import best_rowwise_programs, rowwise_problem
from tilewright.optimize.construct.search_space import SearchSpace
from tilewright.tile.problem import Problem

ZEN5 = machine_named("zen5")
V4, AVX512, AVX2 = Target.parse("x86-64-v4"), machine_named("sapphire-rapids").with_cores(2), machine_named("zen3")
PROBLEMS = {
    "rows left over": matrix_product(83, 64, 96),
    "square": matrix_product(512, 512, 512),
    "K-blocks": matrix_product(16, 256, 4096),
    "few terms": matrix_product(200, 64, 9),
    "not packed": matrix_product(61, 2048, 700),
    "sums": column_sums(1024, 1024),
    "transposition": transposition(1024, 1000),
}


def breakdowns(problem: Problem, machine: Machine) -> list[CostBreakdown]:
    """Those of the states that short walks record, by sketch."""
    sketches = reduction_sketches(problem, V4, machine) if problem.reduce else elementwise_sketches(problem, V4)
    result: list[CostBreakdown] = []
    for sketch in sketches:
        sizes = run_walks(SearchSpace.of(problem, sketch, machine), Annealing(walks=8), 1).recorded_sizes()
        breakdown = cost_breakdown(problem, sketch, sizes, machine)
        np.testing.assert_array_equal(breakdown.total, program_times(problem, sketch, sizes, machine).total)
        result.append(breakdown)
    return result


def total_of_phases(part: CostPart, machine: Machine) -> np.ndarray:
    """By the rule of the model: that of the slowest resource and a share of the others."""
    exposed, totals = machine.cost.exposed_fraction, []
    for phase in part.phases:
        resources = [phase.compute, *phase.memory]
        if part.levels_in_turn:
            resources = [phase.compute + phase.memory[0], reduce(add, phase.memory[1:])]
        longest = reduce(np.maximum, resources)
        totals.append(longest + exposed * (reduce(add, resources) - longest))
    return reduce(add, totals)


def check_sums(breakdown: CostBreakdown, machine: Machine) -> None:
    """Terms, phases, parts and the whole agree."""
    for part in breakdown.parts:
        np.testing.assert_allclose(part.compute, reduce(add, [x.compute for x in part.phases]), rtol=1e-12)
        for k, level in enumerate(part.levels):
            by_phases = reduce(add, [x.memory[k] for x in part.phases])
            np.testing.assert_allclose(reduce(add, level.time.values()), by_phases, rtol=1e-9, atol=1e-6)
        total = part.slowdown * total_of_phases(part, machine) + part.fork_join
        np.testing.assert_allclose(part.total, total, rtol=1e-12)
    np.testing.assert_allclose(
        breakdown.total, reduce(add, [x.total for x in breakdown.parts]) + breakdown.packing, rtol=1e-12
    )


@pytest.mark.parametrize("machine", [AVX512, AVX2, AVX512.with_cores(1)], ids=["v4", "zen3", "one core"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_terms_add_up_to_the_time_that_ranks(name: str, machine: Machine) -> None:
    for breakdown in breakdowns(PROBLEMS[name], machine):
        check_sums(breakdown, machine)


def test_stages_of_a_rowwise_program_add_up() -> None:
    problem = rowwise_problem(task_of(Program(normalised(64, 256), {}), "x86-64-v4"))
    assert problem is not None
    for time, program in best_rowwise_programs(problem, V4, ZEN5, 3):
        found = rowwise_breakdown(program, ZEN5)
        check_sums(found, ZEN5)
        assert [part.name for part in found.parts] == [p.problem.block for p in program.stages]
        assert found.total[0] == pytest.approx(time, rel=1e-12)


def test_terms_are_where_their_causes_are() -> None:
    (alone,) = (x.parts[0] for x in breakdowns(matrix_product(83, 64, 96), AVX512.with_cores(1))[:1])
    assert (alone.threads == 1).all()
    assert (alone.fork_join == 0).all()
    assert not any(np.abs(x.time["imbalance"]).any() or x.time["shared_data"].any() for x in alone.levels)
    parts = [p for x in breakdowns(transposition(1024, 1024), AVX512) for p in x.parts]
    assert any((p.levels[0].bytes["conflict_misses"] > 0).any() for p in parts), "rows a power of two apart alias"
    assert any((p.levels[-1].bytes["ramp_up"] > 0).any() for p in parts), "short runs"
    assert any(p.contained["shuffles"].any() for p in parts)


def test_terms_follow_their_parameters() -> None:
    """What a parameter scales, and nothing else of the core, follows it."""
    problem = matrix_product(16, 256, 4096)
    sketch = reduction_sketches(problem, V4, AVX512)[0]
    sizes = run_walks(SearchSpace.of(problem, sketch, AVX512), Annealing(walks=4), 1).recorded_sizes()
    one_core = AVX512.with_cores(1)
    slow = replace(one_core, cost=replace(one_core.cost, loop_cycles=2 * one_core.cost.loop_cycles))
    before, after = (cost_breakdown(problem, sketch, sizes, m).parts[0] for m in (one_core, slow))
    assert before.exposed["loop_entry"].any()
    np.testing.assert_array_equal(after.exposed["loop_entry"], 2 * before.exposed["loop_entry"])
    same = [k for k in before.exposed if k not in ("loop_entry", "imbalance")]
    assert all((before.exposed[k] == after.exposed[k]).all() for k in same)


def test_features_are_one_number_per_candidate_and_name() -> None:
    for breakdown in breakdowns(PROBLEMS["rows left over"], AVX512):
        features = breakdown.features()
        assert {len(x) for x in features.values()} == {len(breakdown.total)}
        assert all(np.isfinite(x).all() for x in features.values())
        assert {"whole tiles.core.multiply_adds", "whole tiles.L2.traffic", "whole tiles.threads.fork_join",
                "packing", "total"} <= features.keys()  # fmt: skip
