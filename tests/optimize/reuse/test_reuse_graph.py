"""Graphs of reuse: numbers of pairs and bridges of the paper's operators, costs, and recorded sources."""

from itertools import permutations

import numpy as np
import pytest
from benchmarks.paper_eto.operator_sets import loop_vector, operator_sets, vectors_of
from hypothesis import given
from hypothesis import strategies as st
from tests.optimize.reuse.depthwise_graph import artifact_costs, artifact_loops

from tilewright.errors import OptionError
from tilewright.optimize.reuse.arborescence import total_cost
from tilewright.optimize.reuse.bridges import all_bridges, one_hop_bridges, reuse_pairs
from tilewright.optimize.reuse.loop_vector import LoopVector, bridge
from tilewright.optimize.reuse.reuse_graph import ROOT, BridgeChoice, SearchCosts, reuse_graph
from tilewright.optimize.reuse.search_cost import (
    CROSS_THREAD_REDUCTION,
    GPU_SEARCH,
    TWO_LEVEL_TILES,
    estimated_search_cost,
)

EXTENTS = st.lists(st.integers(1, 60), min_size=4, max_size=4)


def _product(extents: list[int]) -> LoopVector:
    return loop_vector("BMM", "x".join(str(n) for n in extents))


@given(EXTENTS, EXTENTS)
def test_both_operators_dominate_their_bridge_and_no_larger_one(first: list[int], second: list[int]) -> None:
    a, b = _product(first), _product(second)
    smaller = bridge(a, b)
    assert a.dominates(smaller)
    assert b.dominates(smaller)
    assert a.can_reuse(b) == (smaller in (a, b))
    for k in range(4):
        grown = [n + (i == k) for i, n in enumerate(smaller.extents)]
        assert not (a.dominates(_product(grown)) and b.dominates(_product(grown)))


@given(st.lists(EXTENTS, min_size=1, max_size=5))
def test_all_bridges_are_closed(vectors: list[list[int]]) -> None:
    operators = tuple(dict.fromkeys(_product(v) for v in vectors))
    bridges = all_bridges(operators)
    assert bridges[: len(one_hop_bridges(operators))] == one_hop_bridges(operators)
    closure = {*operators, *bridges}
    assert len(closure) == len(operators) + len(bridges)
    assert all(bridge(a, b) in closure for a, b in permutations(closure, 2))


@pytest.mark.parametrize(
    ("name", "one_hop", "total"),
    [("BERT-Base", 3, 4), ("ResNet50", 44, 49), ("MobileNetV2", 81, 121), ("ResNet50(L)", 88, 98), ("DCGAN", 10, 10)],
)
def test_numbers_of_bridges(name: str, one_hop: int, total: int) -> None:
    vectors = vectors_of(name)
    assert len(one_hop_bridges(vectors)) == one_hop
    assert len(all_bridges(vectors)) == total


def test_products_of_bert_have_4_pairs_and_24_with_bridges() -> None:
    vectors = vectors_of("BERT-Base")
    assert len(reuse_pairs(vectors)) == 4
    assert len(reuse_pairs((*vectors, *one_hop_bridges(vectors)))) == 24


def test_operators_that_differ_in_strides_alone_have_equal_vectors() -> None:
    assert len(vectors_of("R(2+1)D")) == 25
    assert len(set(vectors_of("R(2+1)D"))) == 22
    assert len(operator_sets()) == 9


def test_the_graph_of_depthwise_convolutions_is_the_artifact_graph() -> None:
    depthwise = [v for v in vectors_of("MobileNetV2") if v.kind.name.startswith("DEP")]
    graph = reuse_graph(depthwise)
    names = ("root", *(str(v) for v in graph.nodes))
    arcs = {(names[t], names[h]) for t, h in graph.costs}
    assert arcs == set(artifact_loops().values())
    assert len([a for a in graph.costs if a[0] == ROOT]) == 21
    assert len(arcs) == 216 + 21


def test_estimated_costs_are_near_the_artifact_costs() -> None:
    """The artifact drew other samples: single costs differ, their mean and their order do not."""
    costs, loops = artifact_costs(), artifact_loops()
    theirs = np.array([costs[a] for a in loops if loops[a][0] != "root"])
    pairs = [[loop_vector("DEP", x) for x in loops[a]] for a in loops if loops[a][0] != "root"]
    ours = np.array([estimated_search_cost(target, source) for source, target in pairs])
    assert 0.9 < np.exp(np.log(ours / theirs).mean()) < 1.1
    assert np.corrcoef(np.log(ours), np.log(theirs))[0, 1] > 0.95
    assert (ours / theirs).min() > 0.5
    assert (ours / theirs).max() < 2


def test_total_costs_are_near_those_of_the_paper() -> None:
    """BERT-Base: 3190.8 without bridges, 1555.2 with them, of which one operator is searched in full (ETO, Section
    6.2); ResNet-50 without bridges searches 8 of 20 operators (Section 7.2)."""
    bert = vectors_of("BERT-Base")
    for choice, cost in ((BridgeChoice.NONE, 3190.8), (BridgeChoice.ONE_HOP, 1555.2)):
        graph = reuse_graph(bert, choice)
        assert total_cost(graph.costs, graph.tree()) == pytest.approx(cost, rel=0.1)
    tree = reuse_graph(vectors_of("ResNet50"), BridgeChoice.NONE).tree()
    assert len([a for a in tree if a[0] == ROOT]) == 8


def test_the_largest_cost_counts_until_the_sketch_is_known() -> None:
    target, source = loop_vector("C2D", "1x64x28x28x64x3x3"), loop_vector("C2D", "1x64x56x56x64x3x3")
    frozen = estimated_search_cost(target, source, (CROSS_THREAD_REDUCTION,))
    tiles = estimated_search_cost(target, source, (TWO_LEVEL_TILES,))
    everything = estimated_search_cost(target, source, (GPU_SEARCH,))
    assert frozen < tiles < everything
    assert estimated_search_cost(target, source, (CROSS_THREAD_REDUCTION, GPU_SEARCH)) == everything


def test_kinds_do_not_mix() -> None:
    a, b = loop_vector("C2D", "1x8x4x4x8x1x1", "K1"), loop_vector("C2D", "1x8x4x4x8x1x1", "K2")
    assert not a.can_reuse(b)
    assert set(reuse_graph([a, b]).costs) == {(0, 1), (0, 2)}


def test_recorded_programs_replace_full_searches() -> None:
    target, source = loop_vector("BMM", "1x128x768x768"), loop_vector("BMM", "1x128x768x3072")
    graph = reuse_graph([target], recorded=[source])
    assert graph.tree() == ((0, 2), (2, 1))
    assert graph.is_recorded(2)
    assert not graph.is_bridge(2)
    assert total_cost(graph.costs, graph.tree()) < 1000
    unrelated = reuse_graph([target], recorded=[loop_vector("BMM", "2x1x1x1")])
    assert unrelated.tree() == ((0, 1),)


def test_negative_costs_are_refused() -> None:
    with pytest.raises(OptionError, match="at least 0"):
        reuse_graph([loop_vector("BMM", "1x2x3x4")], costs=SearchCosts(full=-1))
