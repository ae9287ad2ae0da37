"""The task scheduler: a first round for every kernel, then those with the largest expected gain per second."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.driver.tune.scheduler import (
    BACKWARD_SHARE,
    MAX_SIMILAR_ROUNDS,
    SIMILARITY,
    TaskProgress,
    expected_gains,
    next_task,
)


def progress(*best: float, weight: float = 1.0, group: str = "", operations: float = 0.0) -> TaskProgress:
    return TaskProgress(weight, best, operations, group or str(best), seconds=1.0 if len(best) > 1 else 0.0)


def test_every_kernel_has_a_round_first_the_longest_one_before_others() -> None:
    tasks = [progress(10.0), progress(20.0, weight=3), progress(40.0), progress(9.0, 8.0)]
    order: list[int] = []
    for _ in range(3):
        chosen = next_task(tasks)
        assert chosen is not None
        order.append(chosen)
        tasks[chosen] = replace(tasks[chosen], best=(*tasks[chosen].best, tasks[chosen].best[-1]), seconds=1.0)
    assert order == [1, 2, 0]


def test_finished_kernels_get_no_round() -> None:
    assert next_task([replace(progress(5.0, 4.0), is_finished=True), progress(1.0, 1.0)]) == 1
    assert next_task([replace(progress(5.0), is_finished=True)]) is None
    assert next_task([]) is None


def test_the_gain_is_the_formula_of_the_paper() -> None:
    """g(t) = 8 after 4 rounds, 11 three rounds before: backward 1 per round, forward max(8 / 4, 8 - beta C / V)."""
    task = progress(20.0, 11.0, 9.0, 8.5, 8.0, weight=5)
    forward = 8.0 / 4
    (gain,) = expected_gains([task])
    assert gain == pytest.approx(5 * (BACKWARD_SHARE * (11.0 - 8.0) / 3 + (1 - BACKWARD_SHARE) * forward))
    # a kernel of the same group with as many operations that takes 1 ns: 8 - 2 * 1 = 6 is more than 8 / 4
    similar = [replace(task, group="g", operations=100.0), progress(1.0, 1.0, group="g", operations=100.0)]
    expected = 5 * (BACKWARD_SHARE * 1.0 + (1 - BACKWARD_SHARE) * (8.0 - SIMILARITY * 1.0))
    assert expected_gains(similar)[0] == pytest.approx(expected)


def test_a_kernel_that_stays_behind_its_group_is_not_compared_with_it_any_more() -> None:
    fast = progress(1.0, 1.0, group="g", operations=100.0)
    slow = progress(*[8.0] * (MAX_SIMILAR_ROUNDS + 2), group="g", operations=100.0)
    assert expected_gains([slow, fast])[0] == pytest.approx((1 - BACKWARD_SHARE) * 8.0 / (MAX_SIMILAR_ROUNDS + 1))


def test_rounds_that_take_longer_count_less() -> None:
    quick, slow = progress(9.0, 8.0), replace(progress(9.0, 8.0), seconds=4.0)
    gains = expected_gains([quick, slow])
    assert gains[0] == pytest.approx(4 * gains[1])


@given(st.lists(st.tuples(st.floats(1, 1e6), st.integers(1, 20), st.integers(1, 8)), min_size=1, max_size=8))
def test_gains_are_not_negative_and_the_largest_is_chosen(rows: list[tuple[float, int, int]]) -> None:
    tasks = [progress(*np.linspace(t, t / 2, rounds + 1), weight=w) for t, w, rounds in rows]
    gains, chosen = expected_gains(tasks), next_task(tasks)
    assert chosen is not None
    assert min(gains) >= 0
    assert gains[chosen] == max(gains)


def test_the_time_goes_where_the_gain_is() -> None:
    """One kernel takes most of the time and improves with every round, the others do not."""
    tasks = [progress(1000.0), progress(50.0), progress(50.0)]
    rounds = [0, 0, 0]
    for _ in range(60):
        k = next_task(tasks)
        assert k is not None
        rounds[k] += 1
        last = tasks[k].best[-1]
        tasks[k] = replace(tasks[k], best=(*tasks[k].best, last * (0.97 if k == 0 else 1.0)), seconds=1.0)
    assert rounds[0] > 40
    assert min(rounds) >= 1
