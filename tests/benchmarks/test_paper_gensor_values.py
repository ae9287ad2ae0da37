"""Value iteration over Gensor's state graph, against all paths."""

import numpy as np
import pytest
from benchmarks.one_thread import one_thread_space, tile_spaces
from benchmarks.operators.cases import gemm
from benchmarks.paper_gensor.operators import operator_of
from benchmarks.paper_gensor.value_iteration import (
    NO_ACTION,
    StateGraph,
    build_graph,
    follow_policy,
    iterate_values,
    potential,
    run_experiment,
)

from tilewright.optimize.construct.gensor import Annealing


def reachable(g: StateGraph) -> set[int]:
    """All nodes that actions lead to from the first one."""
    visited, pending = {0}, [0]
    while pending:
        node = pending.pop()
        for j in np.flatnonzero(g.probabilities[node] > 0):
            if int(g.targets[node, j]) not in visited:
                visited.add(int(g.targets[node, j]))
                pending.append(int(g.targets[node, j]))
    return visited


def test_value_iteration_finds_the_state_of_highest_payoff() -> None:
    """Along a level payoffs telescope to quotients of 1 / (Q F); `cache` multiplies. Checked against all paths."""
    programs = one_thread_space(operator_of(gemm("payoff", 8, 16, 16)).task)
    for space, _ in tile_spaces(programs):
        g = build_graph(space, Annealing(vthreads=False))
        assert reachable(g) == set(range(len(g.states)))
        value = potential(space, g.states, g.levels)
        solution = iterate_values(g.targets, g.benefits)
        assert solution.iterations is not None
        # the best payoff by Dijkstra's rule would need weights of one sign; here levels are taken one by one
        best = np.full(len(g.states), -np.inf)
        best[0] = 0.0
        for _ in range(len(g.states)):
            fresh = best.copy()
            with np.errstate(divide="ignore"):
                np.maximum.at(fresh, g.targets, best[:, None] + np.log(g.benefits))
            if np.allclose(fresh, best):
                break
            best = fresh
        assert np.log(solution.values[0]) == pytest.approx(best.max(), abs=1e-6)
        path = follow_policy(g.targets, solution.policy)
        assert best[path[-1]] == pytest.approx(best.max(), abs=1e-6)
        assert solution.policy[path[-1]] == NO_ACTION
        at_last_level = g.levels == g.levels[path[-1]]
        assert value[path[-1]] == pytest.approx(value[at_last_level].max(), rel=1e-6)


def test_cycles_that_gain_have_no_fixed_point() -> None:
    to = np.array([[1, 0], [0, 1]])
    assert iterate_values(to, np.array([[2.0, 1.0], [0.6, 1.0]])).iterations is None
    assert iterate_values(to, np.array([[2.0, 1.0], [0.5, 1.0]])).iterations is not None
    assert follow_policy(to, iterate_values(to, np.array([[2.0, 1.0], [0.5, 1.0]])).policy) == [0, 1]


def test_the_experiment_on_a_small_product() -> None:
    programs = one_thread_space(operator_of(gemm("payoff", 8, 16, 32)).task)
    space, forms = tile_spaces(programs)[0]
    result = run_experiment(space, forms[0], Annealing(walks=4, vthreads=False))
    assert result["payoff"] == pytest.approx(result["along"])
    assert result["rests"]
    assert result["printed_log10"] < -10
    assert result["walks_best"] >= 1.0
