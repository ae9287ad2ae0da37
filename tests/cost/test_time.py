"""Parallel time: waiting for the last task adds no more than the variation of core speeds."""

import numpy as np
import pytest

from tilewright.cost.parallel_time import Phase, parallel_time
from tilewright.machine.shipped import machine_named

MACHINE = machine_named("x86-64-v4")
WORK = 1e7
"""Nanoseconds on one core."""


def totals(*tasks: int) -> list[float]:
    """Nanoseconds of the same work in so many tasks each."""
    counts = np.array(tasks, float)
    nothing = [np.zeros(len(tasks)) for _ in MACHINE.levels[1:]]
    times = parallel_time([Phase(np.full(len(tasks), WORK), nothing)], counts, np.ones(len(tasks)), MACHINE)
    return [float(x) for x in times.total - times.parallel]


def test_smaller_tasks_have_less_imbalance() -> None:
    cores = MACHINE.cores
    counts = [cores * k for k in (8, 16, 64, 1024)]
    times = totals(*counts)
    assert times == sorted(times, reverse=True)
    assert len(set(times)) == len(times)
    # half of the last task, of which each core has `k`
    assert times[1] == pytest.approx(WORK / cores * (1 + 1 / 32))
    assert times[-1] == pytest.approx(WORK / cores, rel=1e-3)


def test_imbalance_of_one_task_per_core_is_the_speed_variation() -> None:
    assert totals(MACHINE.cores, 2 * MACHINE.cores) == pytest.approx(
        [WORK / MACHINE.cores * (1 + MACHINE.cost.core_speed_variation)] * 2
    )


def test_partial_rounds_include_the_imbalance() -> None:
    """All but one core are idle in the last round, and take what the slow ones have left."""
    cores = MACHINE.cores
    assert totals(2 * cores + 1) == pytest.approx([WORK / cores * 3 * cores / (2 * cores + 1)])


def test_remaining_threads_use_the_shared_bandwidth() -> None:
    far = MACHINE.levels[-1]
    tasks, nothing = np.array([MACHINE.cores, 64.0 * MACHINE.cores]), np.zeros(2)
    moved = [nothing] * (len(MACHINE.levels) - 2) + [np.full(2, WORK * far.total_gbs)]
    times = parallel_time([Phase(nothing, moved)], tasks, np.ones(2), MACHINE)
    assert times.total[0] == times.total[1]


def test_imbalance_decides_between_one_thread_and_all() -> None:
    """Work for which starting threads pays just so where nobody is waited for."""
    saved, woken = 1.0 - 1.0 / MACHINE.cores, MACHINE.sync_us * 1e3
    work = np.full(2, woken / saved * 1.005)
    tasks = np.array([MACHINE.cores, 1024.0 * MACHINE.cores])
    times = parallel_time([Phase(work, [np.zeros(2)] * (len(MACHINE.levels) - 1))], tasks, np.ones(2), MACHINE)
    assert list(times.parallel) == [0.0, woken]
