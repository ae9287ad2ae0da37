"""How work is shared out: what waiting for the last task adds, which is no more than what cores differ by."""

import numpy as np
import pytest

from tilewright.cost.time import UNEVEN, shared_out
from tilewright.machine.shipped import machine_named

MACHINE = machine_named("x86-64-v4")
WORK = 1e7
"""Nanoseconds on one core."""


def totals(*tasks: int) -> list[float]:
    """Nanoseconds of the same work in so many tasks each."""
    counts = np.array(tasks, dtype=np.int64)
    nothing = [np.zeros(len(tasks)) for _ in MACHINE.levels[1:]]
    found = shared_out([(np.full(len(tasks), WORK), nothing)], counts, np.ones(len(tasks)), MACHINE)
    return [float(x) for x in found.total - found.parallel]


def test_smaller_tasks_are_waited_for_less() -> None:
    cores = MACHINE.cores
    counts = [cores * k for k in (8, 16, 64, 1024)]
    found = totals(*counts)
    assert found == sorted(found, reverse=True)
    assert len(set(found)) == len(found)
    # half of the last task, of which each core has `k`
    assert found[1] == pytest.approx(WORK / cores * (1 + 1 / 32))
    assert found[-1] == pytest.approx(WORK / cores, rel=1e-3)


def test_a_task_per_core_waits_as_long_as_cores_differ() -> None:
    assert totals(MACHINE.cores, 2 * MACHINE.cores) == pytest.approx([WORK / MACHINE.cores * (1 + UNEVEN)] * 2)


def test_what_one_core_does_alone_waits_for_nobody() -> None:
    assert totals(1) == [WORK]
