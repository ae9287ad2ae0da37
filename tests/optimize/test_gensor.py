"""Walks of `gensor`: the table of visited states agrees with recomputed edges and probabilities."""

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
def test_walks_follow_edges_with_the_probabilities_of_their_states(name: str) -> None:
    space = first_space(name)
    walks = run_walks(space, ANNEALING, 1)
    fresh = first_space(name)
    actions = all_actions(fresh, ANNEALING)
    walk = np.arange(ANNEALING.walks)
    for i in range(ANNEALING.iterations):
        state, level = walks.states[i], walks.levels[i]
        targets, exists = edge_targets(space, actions, state, level)
        probabilities = action_probabilities(space, ANNEALING, actions, (state, level), (targets, exists), i)
        assert (walks.probabilities[i] == probabilities).all()
        assert np.allclose(probabilities.sum(axis=1), 1.0)
        assert (walks.states[i + 1] == targets[walk, walks.chosen[i]]).all()


@pytest.mark.parametrize("name", sorted(KERNELS)[:6])
def test_successor_tables_agree_with_single_successors(name: str) -> None:
    space = first_space(name)
    for lattice, start in zip(space.lattices, space.initial_state(), strict=True):
        visited = np.array([start])
        for _ in range(3):
            successors = lattice.successors(visited)
            for edge in range(NUM_EDGES):
                assert (lattice.successor(visited, np.full(len(visited), edge)) == successors[:, edge]).all()
            visited = np.unique(np.concatenate([visited, successors[successors != NO_EDGE]]))
        assert [lattice.ids[c] for c in lattice.tilings] == list(range(len(lattice.tilings)))
