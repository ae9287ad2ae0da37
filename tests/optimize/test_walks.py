"""Walks of `gensor` remember the states that they have met: what they recall is what they would compute."""

import numpy as np
import pytest
from tests.optimize.computations import KERNELS
from tests.optimize.tasks import task_of

from tilewright.machine.shipped import machine_named
from tilewright.optimize.construct.gensor import Annealing, action_probabilities, all_actions, edge_targets, run_walks
from tilewright.optimize.construct.optimizer import search_spaces
from tilewright.optimize.construct.search_space import SearchSpace
from tilewright.optimize.construct.tile_lattice import NO_EDGE, NUM_EDGES
from tilewright.tile.problem import extract_problem

ANNEALING = Annealing(walks=6, start=12, end=-4)


def first_space(name: str) -> SearchSpace:
    task = task_of(KERNELS[name])
    problem = extract_problem(task.func, task.constants)
    assert problem is not None
    return next(iter(search_spaces(problem, task, machine_named("zen5"))))


@pytest.mark.parametrize("name", sorted(KERNELS)[:6])
def test_steps_follow_the_edges_with_the_probabilities_of_their_states(name: str) -> None:
    space = first_space(name)
    history = run_walks(space, ANNEALING, 1)
    fresh = first_space(name)
    actions = all_actions(fresh, ANNEALING)
    walk = np.arange(ANNEALING.walks)
    for i in range(ANNEALING.iterations):
        state, level = history.states[i], history.levels[i]
        targets, exists = edge_targets(space, actions, state, level)
        odds = action_probabilities(space, ANNEALING, actions, (state, level), (targets, exists), i)
        assert (history.probabilities[i] == odds).all()
        assert np.allclose(odds.sum(axis=1), 1.0)
        assert (history.states[i + 1] == targets[walk, history.chosen[i]]).all()


@pytest.mark.parametrize("name", sorted(KERNELS)[:6])
def test_rows_of_ladders_are_their_single_steps(name: str) -> None:
    space = first_space(name)
    for ladder, start in zip(space.lattices, space.initial_state(), strict=True):
        met = np.array([start])
        for _ in range(3):
            rows = ladder.successors(met)
            for edge in range(NUM_EDGES):
                assert (ladder.successor(met, np.full(len(met), edge)) == rows[:, edge]).all()
            met = np.unique(np.concatenate([met, rows[rows != NO_EDGE]]))
        assert [ladder.ids[c] for c in ladder.tilings] == list(range(len(ladder.tilings)))
