"""The exact cost of a directed Steiner tree, by the dynamic program of Dreyfus and Wagner over sets of terminals."""

from collections.abc import Mapping, Sequence

import numpy as np

from tilewright.optimize.reuse.greedy_flac import Arc


def exact_steiner_cost(costs: Mapping[Arc, float], root: int, terminals: Sequence[int]) -> float:
    """The least cost of a tree from a root to all terminals; infinite where there is none.

    3^k * n steps for k terminals and n nodes.
    """
    nodes = sorted({root, *terminals, *(v for arc in costs for v in arc)})
    number = {v: k for k, v in enumerate(nodes)}
    distance = np.full((len(nodes), len(nodes)), np.inf)
    np.fill_diagonal(distance, 0.0)
    for (tail, head), cost in costs.items():
        distance[number[tail], number[head]] = min(cost, distance[number[tail], number[head]])
    for k in range(len(nodes)):
        distance = np.minimum(distance, distance[:, k, None] + distance[None, k, :])
    best = np.full((1 << len(terminals), len(nodes)), np.inf)
    for k, t in enumerate(terminals):
        best[1 << k] = distance[:, number[t]]
    for members in range(1, 1 << len(terminals)):
        if members & (members - 1) == 0:
            continue
        joined = np.full(len(nodes), np.inf)
        part = (members - 1) & members
        while part > members ^ part:
            joined = np.minimum(joined, best[part] + best[members ^ part])
            part = (part - 1) & members
        best[members] = (distance + joined[None, :]).min(axis=1)
    return float(best[-1][number[root]])
