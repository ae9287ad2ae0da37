"""Trees of reuse: known optima, the guaranteed factor on random graphs, and graphs without an answer."""

import sys

import numpy as np
import pytest
from tests.optimize.reuse.depthwise_graph import ROOT, TERMINALS, artifact_costs
from tests.optimize.reuse.exact_steiner import exact_steiner_cost

from tilewright.errors import OptionError
from tilewright.optimize.reuse.arborescence import cheapest_tree, minimum_arborescence, pruned, total_cost
from tilewright.optimize.reuse.greedy_flac import Arc, greedy_flac


def _random_graph(rng: np.random.Generator) -> tuple[dict[Arc, float], tuple[int, ...]]:
    """Costs of random arcs between up to 14 nodes, with arcs from the root 0 to all of them, and up to 6 terminals."""
    nodes = int(rng.integers(2, 15))
    density = rng.uniform(0.1, 0.9)
    scale = 10.0 ** rng.uniform(0, 3)
    costs: dict[Arc, float] = {(0, v): float(rng.uniform(0.5, 1.5) * scale) for v in range(1, nodes)}
    for tail in range(1, nodes):
        for head in range(1, nodes):
            if tail != head and rng.random() < density:
                costs[tail, head] = float(rng.integers(0, 100))
    count = int(rng.integers(1, min(6, nodes - 1) + 1))
    return costs, tuple(int(t) for t in rng.permutation(np.arange(1, nodes))[:count])


def _assert_is_tree(arcs: tuple[Arc, ...], root: int, terminals: tuple[int, ...]) -> None:
    heads = [head for _, head in arcs]
    assert len(set(heads)) == len(heads)
    reached = {root}
    for tail, head in arcs:
        assert tail in reached
        reached.add(head)
    assert set(terminals) <= reached


def test_trees_of_the_artifact_graph_cost_what_they_must() -> None:
    costs = artifact_costs()
    alone = {(t, h): c for (t, h), c in costs.items() if {t, h} <= {ROOT, *TERMINALS}}
    assert exact_steiner_cost(costs, ROOT, TERMINALS) == pytest.approx(1816.0)
    flac = greedy_flac(costs, ROOT, TERMINALS)
    assert total_cost(costs, flac) == pytest.approx(1816.0)
    assert [head for tail, head in flac if tail == ROOT] == [9]
    assert total_cost(alone, minimum_arborescence(alone, ROOT)) == pytest.approx(2685.6)
    assert total_cost(costs, pruned(minimum_arborescence(costs, ROOT), TERMINALS)) == pytest.approx(1857.6)
    assert total_cost(costs, cheapest_tree(costs, ROOT, TERMINALS)) == pytest.approx(1816.0)


def test_greedy_flac_stays_within_its_factor_on_random_graphs() -> None:
    rng = np.random.default_rng()
    ratios: list[float] = []
    for _ in range(500):
        costs, terminals = _random_graph(rng)
        arcs = greedy_flac(costs, 0, terminals)
        _assert_is_tree(arcs, 0, terminals)
        optimum, cost = exact_steiner_cost(costs, 0, terminals), total_cost(costs, arcs)
        assert optimum - 1e-6 <= cost <= len(terminals) * optimum + 1e-6, (costs, terminals)
        ratios.append(cost / optimum if optimum else 1.0)
    assert np.mean(ratios) < 1.1


def test_cheapest_tree_is_never_dearer_than_any_of_its_parts() -> None:
    rng = np.random.default_rng()
    for _ in range(100):
        costs, terminals = _random_graph(rng)
        arcs = cheapest_tree(costs, 0, terminals)
        _assert_is_tree(arcs, 0, terminals)
        alone = {(t, h): c for (t, h), c in costs.items() if {t, h} <= {0, *terminals}}
        flac = total_cost(costs, greedy_flac(costs, 0, terminals))
        limit = min(flac, total_cost(alone, minimum_arborescence(alone, 0)))
        assert exact_steiner_cost(costs, 0, terminals) - 1e-6 <= total_cost(costs, arcs) <= limit + 1e-6


def test_a_bridge_is_used_where_it_saves_more_than_it_costs() -> None:
    costs: dict[Arc, float] = {(0, 1): 100, (0, 2): 100, (0, 3): 90, (3, 1): 5, (3, 2): 5}
    assert cheapest_tree(costs, 0, (1, 2)) == ((0, 3), (3, 1), (3, 2))
    assert cheapest_tree(costs | {(0, 3): 195}, 0, (1, 2)) == ((0, 1), (0, 2))


def test_the_root_alone_and_no_terminals_give_an_empty_tree() -> None:
    assert greedy_flac({(0, 1): 1.0}, 0, ()) == ()
    assert cheapest_tree({(0, 1): 1.0}, 0, (0,)) == ()
    assert minimum_arborescence({}, 0) == ()


def test_terminals_out_of_reach_are_refused() -> None:
    with pytest.raises(OptionError, match="can't be reached"):
        greedy_flac({(0, 1): 1.0, (2, 1): 1.0}, 0, (2,))
    with pytest.raises(OptionError, match="got none"):
        minimum_arborescence({(0, 1): 1.0, (2, 3): 1.0}, 0)


def test_networkx_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "networkx", None)
    with pytest.raises(OptionError, match="pip install networkx"):
        minimum_arborescence({(0, 1): 1.0}, 0)
