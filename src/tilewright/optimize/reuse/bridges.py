"""Bridge operators: small operators that nobody needs, through which two others reuse each other's programs.

Two operators neither of which dominates the other have a bridge, their component-wise minimum. Bridges between the
operators of a model alone are those of one hop; the closure adds bridges between bridges until none is new.
"""

from collections.abc import Sequence
from itertools import combinations

from tilewright.optimize.reuse.loop_vector import LoopVector, bridge


def one_hop_bridges(operators: Sequence[LoopVector]) -> tuple[LoopVector, ...]:
    """The bridges of all pairs of operators that are no reuse pair, without duplicates and without operators, in the
    order of the pairs."""
    distinct = dict.fromkeys(operators)
    bridges: dict[LoopVector, None] = {}
    for a, b in combinations(distinct, 2):
        if a.has_kind_of(b) and not a.can_reuse(b):
            between = bridge(a, b)
            if between not in distinct:
                bridges[between] = None
    return tuple(bridges)


def all_bridges(operators: Sequence[LoopVector]) -> tuple[LoopVector, ...]:
    """The bridges of operators, of these and the operators, and so on until none is new; those of one hop first."""
    bridges: tuple[LoopVector, ...] = ()
    while more := one_hop_bridges((*operators, *bridges)):
        bridges += more
    return bridges


def reuse_pairs(operators: Sequence[LoopVector]) -> tuple[tuple[int, int], ...]:
    """The ordered pairs (source, target) of operators, by position, where the target may reuse the source's program."""
    distinct = range(len(operators))
    return tuple((s, t) for s in distinct for t in distinct if s != t and operators[s].can_reuse(operators[t]))
