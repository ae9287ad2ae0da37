"""Programs and features that are read back from traces, kinds of tasks, and tasks of bridges."""

from collections.abc import Callable

import numpy as np
import pytest
from tests.optimize.computations import row_sums
from tests.optimize.programs import Program
from tests.optimize.reuse.reuse_tasks import (
    convolution_of,
    lowered,
    product_of,
    random_arrays,
    random_programs,
    reusable,
)
from tests.optimize.search_tasks import MACHINE, search_task

from tilewright.errors import ScheduleError
from tilewright.loops.interpreter import interpret
from tilewright.optimize.reuse.loop_vector import bridge
from tilewright.optimize.reuse.program_features import features_of
from tilewright.optimize.reuse.recognize import tile_program_of
from tilewright.optimize.reuse.reusable_task import ReusableTask, bridge_task
from tilewright.optimize.rule import Rule
from tilewright.schedule.step import Step
from tilewright.tile.program import TileProgram

TASKS_BY_NAME: dict[str, Callable[[], ReusableTask]] = {
    "product": lambda: product_of(24, 48, 40),
    "product with epilogue": lambda: product_of(37, 50, 64, True),
    "convolution": lambda: convolution_of(6, 16, 14),
    "sums": lambda: reusable(Program([row_sums(30, 64)])),
}


@pytest.mark.parametrize("name", TASKS_BY_NAME)
def test_programs_are_read_back_from_their_traces(name: str) -> None:
    task, rng = TASKS_BY_NAME[name](), np.random.default_rng()
    count = 0
    for program in random_programs(task, 10, rng):
        for parallel in (False, True):
            try:
                trace = lowered(task, program, parallel).trace
            except ScheduleError:
                continue
            same = tile_program_of(task, trace)
            assert same is not None, program
            assert lowered(task, same, parallel).trace == trace
            assert features_of(same) == features_of(program)
            count += 1
    assert count >= 10


def test_traces_of_no_tile_program_have_none() -> None:
    task = product_of(24, 48, 40)
    assert tile_program_of(task, ()) is None
    assert tile_program_of(task, (Step.of("parallel", "nothing"),)) is None


def test_traces_of_other_steps_are_read_as_a_program_with_their_loops() -> None:
    task = product_of(24, 48, 40)
    schedule = Rule().optimize(task.task)
    assert schedule is not None
    read_back = tile_program_of(task, schedule.trace)
    assert read_back is not None
    trace = lowered(task, read_back).trace
    assert trace != schedule.trace
    again = tile_program_of(task, trace)
    assert again is not None
    assert lowered(task, again).trace == trace


def test_traces_of_other_tasks_never_raise() -> None:
    rng = np.random.default_rng()
    tasks = [make() for make in TASKS_BY_NAME.values()]
    for task in tasks:
        for other in tasks:
            program = random_programs(other, 1, rng)[0]
            try:
                trace = lowered(other, program).trace
            except ScheduleError:
                continue
            cut = trace[: int(rng.integers(len(trace) + 1))]
            read_back = tile_program_of(task, cut)
            if read_back is None:
                assert task is not other or cut != trace
            else:
                assert read_back.problem is task.problem


def test_features_of_a_program() -> None:
    task = product_of(24, 64, 40)
    lane = next(k for k in task.problem.spatial if task.problem.axes[k].extent == 64)
    row = next(k for k in task.problem.spatial if k != lane)
    (k,) = task.problem.reduce
    sketch = next(s for _, forms in task.spaces for s in forms if s.lane == lane)
    sizes = [[0, 0, 0] for _ in range(3)]
    for level, (rows, lanes, points) in enumerate(((4, 16, 2), (4, 32, 20), (12, 32, 40))):
        sizes[level][row], sizes[level][lane], sizes[level][k] = rows, lanes, points
    program = TileProgram(task.problem, sketch, tuple(tuple(x) for x in sizes))
    features = features_of(program)
    assert features.blocks == 2 * 2
    assert features.threads == 6 * 4
    # per task and K-block of 20 points: 12 rows of one operand and 32 columns of the other one
    assert features.memory == 4 * (12 * 20 + 20 * 32) * 4


def test_kinds_are_told_apart_by_accesses_and_not_by_sizes_or_epilogues() -> None:
    plain, larger, fused = product_of(24, 48, 40), product_of(48, 96, 80), product_of(24, 48, 40, True)
    assert plain.vector.can_reuse(larger.vector)
    assert plain.vector.can_reuse(fused.vector)
    assert not plain.vector.has_kind_of(convolution_of(6, 16, 14).vector)
    assert ReusableTask.of(search_task("rows"), MACHINE) is None


def test_bridges_compute_what_their_kind_computes() -> None:
    wide, tall = product_of(24, 96, 40), product_of(48, 48, 40, True)
    vector = bridge(wide.vector, tall.vector)
    between = bridge_task(vector, wide)
    assert between is not None
    assert between.vector == vector
    assert sorted(vector.extents) == sorted((24, 48, 40))
    func = between.task.func
    arrays = random_arrays(func, np.random.default_rng())
    interpret(func, arrays, {})
    first, second = (arrays[p.name].reshape(-1, arrays[p.name].shape[-1]) for p in func.params[:2])
    left, right = (first, second) if first.shape == (24, 40) else (second, first)
    np.testing.assert_array_equal(arrays[func.params[2].name], left @ right)
    assert len(between.task.constants) == 1


def test_operators_that_are_no_products_have_no_bridges() -> None:
    sums = reusable(Program([row_sums(30, 64)]))
    assert bridge_task(sums.vector, sums) is None
