"""Searches in lock step: the results that they have alone, from fewer batches, to the last bit."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.optimize.computations import column_maxima, image, product, relu
from tests.optimize.programs import Program
from tests.optimize.states import random_states
from tests.optimize.tasks import QUICK, task_of

from tilewright.cost.analytical import mean_time
from tilewright.cost.footprint import Numbers
from tilewright.cost.joint_times import Candidates
from tilewright.machine.shipped import machine_named
from tilewright.optimize.construct import lock_step
from tilewright.optimize.construct.lock_step import Question, SteppedSearch, answers_to, in_lock_step, run
from tilewright.optimize.construct.optimizer import Gensor, Roller, problem_for, search_spaces
from tilewright.optimize.task import Task

MACHINE = machine_named("sapphire-rapids").with_cores(2)


def matrix_product(m: int, n: int, k: int) -> Task:
    return task_of(Program([product(m, n, k)], {}, frozenset({"w"})))


def product_and_relu(m: int, n: int, k: int) -> Task:
    stage = product(m, n, k)
    return task_of(Program([stage, relu(stage)], {}, frozenset({"w", "bias"})))


def convolution(channels: int, filters: int, size: int) -> Task:
    return task_of(Program([image(1, channels, filters, size, 3)], {}, frozenset({"w"})))


def maxima(rows: int, columns: int, _: int) -> Task:
    return task_of(Program([column_maxima(rows, columns)]))


def candidates(task: Task, seed: int) -> list[Candidates]:
    """States near the initial ones of every sketch of a task."""
    problem, rng = problem_for(task), np.random.default_rng(seed)
    assert problem is not None
    batches: list[Candidates] = []
    for space, sketches in search_spaces(problem, task, MACHINE).items():
        states = random_states(space, rng)
        batches += [Candidates(problem, sketch, space.sizes(states), MACHINE) for sketch in sketches]
    return batches


KERNELS: list[Callable[[int, int, int], Task]] = [matrix_product, product_and_relu, convolution, maxima]


@pytest.mark.parametrize("kernel", KERNELS)
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=8)
def test_kernels_of_one_structure_have_the_same_times_in_one_batch(
    kernel: Callable[[int, int, int], Task], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    batches = [x for _ in range(3) for x in candidates(kernel(*(int(n) for n in rng.integers(2, 200, 3))), seed)]
    for x, times in zip(batches, answers_to(batches), strict=True):
        assert (times == mean_time(x.problem, x.sketch, x.sizes, x.machine)).all()


def test_batches_of_different_structure_machine_or_kernel_are_told_apart() -> None:
    tasks = [matrix_product(64, 96, 80), convolution(8, 32, 14), matrix_product(3, 40, 500), maxima(30, 50, 0)]
    batches = [x for task in tasks for x in candidates(task, 7)]
    batches += [Candidates(x.problem, x.sketch, x.sizes, machine_named("zen3")) for x in batches]
    for x, times in zip(batches, answers_to(batches), strict=True):
        assert (times == mean_time(x.problem, x.sketch, x.sizes, x.machine)).all()
    assert answers_to([]) == []


def sums(x: Candidates, rounds: int) -> SteppedSearch[float]:
    """The sum of times that are asked for in so many rounds."""
    total = 0.0
    for _ in range(rounds):
        first, second = yield [x, x]
        assert (first == second).all()
        total += float(first.sum())
    return total


def test_searches_end_when_they_have_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def counted(batches: Sequence[Question]) -> list[Numbers]:
        sizes.append(len(batches))
        return answers_to(batches)

    monkeypatch.setattr(lock_step, "answers_to", counted)
    batches, rounds = candidates(matrix_product(24, 48, 30), 3)[:3], (2, 0, 3)
    inner = in_lock_step([sums(x, n) for x, n in zip(batches, rounds, strict=True)])
    results, alone = run(in_lock_step([inner, in_lock_step([])]))
    assert alone == []
    assert sizes == [4, 4, 2]
    assert results == [run(sums(x, n)) for x, n in zip(batches, rounds, strict=True)]


def test_an_error_of_one_search_ends_all() -> None:
    def failing() -> SteppedSearch[None]:
        yield [candidates(matrix_product(24, 48, 30), 3)[0]]
        raise ValueError("no states")

    with pytest.raises(ValueError, match="no states"):
        run(in_lock_step([failing(), failing()]))


@pytest.mark.parametrize("optimizer", [Roller(MACHINE), Gensor(MACHINE, QUICK)])
def test_constructions_in_lock_step_are_those_alone(optimizer: Roller | Gensor) -> None:
    tasks = [product_and_relu(50, 64, 96), product_and_relu(128, 33, 70), convolution(16, 32, 14), maxima(9, 40, 0)]
    for task, result in zip(tasks, optimizer.construct_all(tasks), strict=True):
        alone = optimizer.construct(task)
        assert alone is not None
        assert result is not None
        assert result.programs == alone.programs
        assert result.nanoseconds == alone.nanoseconds
