"""Walks of `gensor` remember the states that they have met: what they recall is what they would compute."""

import numpy as np
import pytest
from tests.optimize.test_construct import task_of
from tests.optimize.test_rule import KERNELS

from tilewright.machine.shipped import machine_named
from tilewright.optimize.construct.gensor import Annealing, actions_of, edges, probabilities, walks
from tilewright.optimize.construct.ladder import EDGES, NONE
from tilewright.optimize.construct.optimizer import spaces
from tilewright.optimize.construct.space import Space
from tilewright.tile.problem import problem_of

ANNEALING = Annealing(walks=6, start=12, end=-4)


def first_space(name: str) -> Space:
    task = task_of(KERNELS[name])
    problem = problem_of(task.func, task.constants)
    assert problem is not None
    return next(iter(spaces(problem, task, machine_named("zen5"))))


@pytest.mark.parametrize("name", sorted(KERNELS)[:6])
def test_steps_follow_the_edges_with_the_probabilities_of_their_states(name: str) -> None:
    space = first_space(name)
    history = walks(space, ANNEALING, 1)
    fresh = first_space(name)
    actions = actions_of(fresh, ANNEALING)
    walk = np.arange(ANNEALING.walks)
    for i in range(ANNEALING.iterations):
        state, level = history.states[i], history.levels[i]
        targets, exists = edges(space, actions, state, level)
        odds = probabilities(space, ANNEALING, actions, (state, level), (targets, exists), i)
        assert (history.probabilities[i] == odds).all()
        assert np.allclose(odds.sum(axis=1), 1.0)
        assert (history.states[i + 1] == targets[walk, history.chosen[i]]).all()


@pytest.mark.parametrize("name", sorted(KERNELS)[:6])
def test_rows_of_ladders_are_their_single_steps(name: str) -> None:
    space = first_space(name)
    for ladder, start in zip(space.ladders, space.start(), strict=True):
        met = np.array([start])
        for _ in range(3):
            rows = ladder.rows(met)
            for edge in range(EDGES):
                assert (ladder.step_from(met, np.full(len(met), edge)) == rows[:, edge]).all()
            met = np.unique(np.concatenate([met, rows[rows != NONE]]))
        assert [ladder.numbers[c] for c in ladder.chains] == list(range(len(ladder.chains)))
