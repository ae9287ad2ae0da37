"""Selective tuning: clusters of similar operators, of which one is searched and the others take its programs as they
are.

The baseline of ETO (Section 7). Two operators are as similar as their tilings are common: the number of tilings that
both have over the number that one of them has. Operators of a cluster are pairwise similar; clusters are maximal
cliques, the largest one first.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import gcd, prod

from tilewright.optimize.construct.tile_lattice import divisors
from tilewright.optimize.reuse.loop_vector import LoopVector

MIN_SIMILARITY = 0.01
"""Similarity from which operators may share a cluster."""

TOP_PROGRAMS = 3
"""Programs of the searched operator that are tried for the others, the fastest ones."""

SPATIAL_SPLITS, REDUCTION_SPLITS = 4, 2
"""How often the structure SSSRRSRS splits an axis."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Operators that share programs, by position.

    Attributes:
        searched: the one that is searched: the one most similar to the others.
        others: those that take its programs.
    """

    searched: int
    others: tuple[int, ...]


def similarity(a: LoopVector, b: LoopVector) -> float:
    """The share of tilings that two operators have in common, 0 to 1; 0 for different kinds."""
    if not a.has_kind_of(b):
        return 0.0
    splits = [SPATIAL_SPLITS] * len(a.spatial) + [REDUCTION_SPLITS] * len(a.reduction)

    def tilings(extents: Iterable[int]) -> int:
        return prod(_chains(n, levels) for n, levels in zip(extents, splits, strict=True))

    common = tilings(map(gcd, a.extents, b.extents))
    return common / (tilings(a.extents) + tilings(b.extents) - common)


@lru_cache(maxsize=4096)
def _chains(extent: int, levels: int) -> int:
    """Number of chains of tile sizes, each a divisor of the next and the last one a divisor of the extent."""
    return 1 if levels == 0 else sum(_chains(d, levels - 1) for d in divisors(extent))


def clusters(operators: Sequence[LoopVector], threshold: float = MIN_SIMILARITY) -> tuple[Cluster, ...]:
    """The clusters of operators: the largest clique of operators that are pairwise similar, then that of the rest, and
    so on; of cliques of one size the one of the first operators.

    Args:
        operators: loop vectors.
        threshold: the least similarity within a cluster.
    """
    pairs = [(i, k) for i, a in enumerate(operators) for k, b in enumerate(operators) if a.has_kind_of(b)]
    ratios = {(i, k): similarity(operators[i], operators[k]) for i, k in pairs}
    remaining = set(range(len(operators)))
    result: list[Cluster] = []
    while remaining:
        neighbours = {i: {k for k in remaining if k != i and ratios.get((i, k), -1.0) >= threshold} for i in remaining}
        members = _largest_clique(neighbours)
        searched = max(members, key=lambda i: (sum(ratios[i, k] for k in members), -i))
        result.append(Cluster(searched, tuple(sorted(set(members) - {searched}))))
        remaining -= set(members)
    return tuple(sorted(result, key=lambda c: min(c.searched, *c.others, len(operators))))


def _largest_clique(neighbours: dict[int, set[int]]) -> tuple[int, ...]:
    """The largest set of nodes that are all neighbours of each other, by branch and bound."""
    best: tuple[int, ...] = ()

    def extend(clique: tuple[int, ...], candidates: set[int]) -> None:
        nonlocal best
        if len(clique) > len(best):
            best = clique
        for node in sorted(candidates, key=lambda i: (-len(neighbours[i] & candidates), i)):
            if len(clique) + len(candidates) <= len(best):
                return
            extend((*clique, node), candidates & neighbours[node])
            candidates = candidates - {node}

    extend((), set(neighbours))
    return tuple(sorted(best))
