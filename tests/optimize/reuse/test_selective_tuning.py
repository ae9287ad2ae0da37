"""Clusters of similar operators, the baseline of reuse."""

from itertools import combinations

import numpy as np
import pytest
from benchmarks.paper_eto.operator_sets import loop_vector, vectors_of

from tilewright.optimize.reuse.selective_tuning import MIN_SIMILARITY, clusters, similarity


def test_similarity_is_the_share_of_common_tilings() -> None:
    a, b = loop_vector("BMM", "1x2x1x1"), loop_vector("BMM", "1x1x1x1")
    # an axis of 2 has 5 chains of four divisors, each dividing the next, and one of 1 has one, which is among them
    assert similarity(a, b) == pytest.approx(1 / 5)
    assert similarity(a, a) == 1.0
    assert similarity(a, loop_vector("C1D", "1x1x1x1x1")) == 0.0


def test_every_operator_is_in_one_cluster_and_similar_to_all_of_it() -> None:
    rng = np.random.default_rng()
    vectors = [loop_vector("BMM", "x".join(str(n) for n in rng.integers(1, 65, 4))) for _ in range(12)]
    vectors += vectors_of("ResNet50")
    groups = clusters(vectors)
    members = [[c.searched, *c.others] for c in groups]
    assert sorted(k for group in members for k in group) == list(range(len(vectors)))
    for group in members:
        assert all(similarity(vectors[a], vectors[b]) >= MIN_SIMILARITY for a, b in combinations(group, 2))


def test_a_threshold_of_nothing_gives_one_cluster_per_kind() -> None:
    assert len(clusters(vectors_of("MobileNetV2"), 0.0)) == 3
    assert len(clusters(vectors_of("MobileNetV2"), 1.0)) == 31
