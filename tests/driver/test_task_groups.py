"""Groups of tasks that are constructed in lock step."""

import random
from dataclasses import replace

import pytest
from tests.optimize.computations import column_maxima, image, product, relu
from tests.optimize.programs import Program
from tests.optimize.tasks import task_of

from tilewright.driver.kernel_build.task_groups import MAX_GROUP, task_groups
from tilewright.graph.fusion import Fusion, FusionPattern
from tilewright.machine.shipped import machine_named
from tilewright.optimize.construct.gensor import Annealing
from tilewright.optimize.construct.optimizer import Gensor
from tilewright.optimize.constructions import Constructions, construction_key
from tilewright.optimize.task import Task


def tasks(count: int) -> list[Task]:
    """Tasks of three structures and many sizes, mixed."""
    rng = random.Random(count)
    result: list[Task] = []
    for k in range(count):
        m, n = rng.randint(2, 60), rng.randint(2, 60)
        stage = product(m, n, 20)
        stages = ([stage], [stage, relu(stage)], [column_maxima(m, n)])[k % 3]
        result.append(task_of(Program(stages, {}, frozenset({"w"}))).canonical())
    return result


@pytest.mark.parametrize(("count", "jobs"), [(0, 1), (1, 2), (13, 1), (13, 2), (40, 2), (40, 3)])
def test_every_task_is_in_one_group_with_its_like(count: int, jobs: int) -> None:
    groups = task_groups(tasks(count), [False] * count, jobs)
    assert sorted(k for group in groups for k in group) == list(range(count))
    assert all(len({k % 3 for k in group}) == 1 for group in groups)
    assert max(map(len, groups), default=0) <= (MAX_GROUP if jobs == 1 else max(1, count // (2 * jobs)))
    assert [len(group) for group in groups] == sorted((len(group) for group in groups), reverse=True)


def test_groups_with_most_work_come_first() -> None:
    elementwise = [task_of(Program([relu(product(m, 8, 8))])).canonical() for m in range(3, 11)]
    every = [*elementwise, *tasks(9)]
    groups = task_groups(every, [False] * len(every), 2)
    assert min(groups[-1]) < len(elementwise)
    assert len(groups[-1]) > 2
    fused = [replace(tasks(1)[0], fusion=Fusion(FusionPattern.CHAIN, 0, ()))]
    assert task_groups([*tasks(9), *fused], [False] * 10, 1)[-1] == [9]
    assert task_groups([*tasks(3), *fused], [False] * 4, 1)[0] == [3]


def test_few_tasks_are_spread_over_the_processes() -> None:
    assert sorted(task_groups(tasks(6), [False] * 6, 2)) == [[k] for k in range(6)]


def test_tasks_that_are_not_constructed_are_alone() -> None:
    groups = task_groups(tasks(24), [k < 6 for k in range(24)], 1)
    assert all(len(group) == 1 for group in groups if min(group) < 6)
    assert {len(group) for group in groups} == {1, 6}


def test_constructions_of_a_group_are_used_later() -> None:
    machine = machine_named("x86-64-v4").with_cores(2)
    optimizer = Gensor(machine, Annealing(walks=3))
    together, alone = Constructions(optimizer), Constructions(optimizer)
    group = [task_of(Program([image(1, 4, 8, size, 3)])).canonical() for size in (8, 12, 12)]
    together.construct_all(group)
    assert (together.constructed, together.reused) == (2, 0)
    assert all(together.has_constructed(construction_key(task)) for task in group)
    assert together.estimate(group[0]) == alone.estimate(group[0])
    for task in group[:2]:
        schedules = [x.schedule_programs(task) for x in (together, alone)]
        assert all(x is not None for x in schedules)
        first, second = (x.schedules[0].trace for x in schedules if x is not None)
        assert first == second
    # the one that was estimated is used again, the other one for the first time
    assert (together.constructed, together.reused) == (alone.constructed, alone.reused) == (2, 1)
