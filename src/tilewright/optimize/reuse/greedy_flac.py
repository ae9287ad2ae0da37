"""Directed Steiner trees by GreedyFLAC: a cheap tree from a root to some of the nodes of a directed graph.

Water flows from every terminal against the direction of the arcs, and fills all arcs into the nodes that it has
reached; an arc whose volume has reached its cost is saturated, and the water flows on. A node into which the water of k
terminals flows fills its arcs k times as fast. When an arc from the root is saturated, what is saturated behind it is
the part of the tree with the smallest cost per terminal, up to a factor. The part joins the root, and the rest follows
(Watel and Weisser, Journal of Combinatorial Optimization 32, 2016). With k terminals the tree costs at most k times the
optimum.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from heapq import heappop, heappush

from tilewright.errors import OptionError

Arc = tuple[int, int]
"""Tail and head of an arc, as numbers of nodes."""


@dataclass(slots=True)
class _Node:
    """The flow into a node.

    Attributes:
        arcs: (cost, whether the tail is outside of the tree, tail) of the arcs into it, ascending: of equal ones those
            from the tree are saturated first.
        position: the first of these that is neither saturated nor dropped.
        sources: terminals whose water flows into it.
        level: volume in each of its arcs at `time`.
        time: when its flow last changed.
        saturated_heads: heads of the saturated arcs out of it.
        saturated_tails: tails of the saturated arcs into it.
        version: number of changes of its flow; older entries of the queue do not count.
    """

    arcs: list[tuple[float, bool, int]]
    position: int = 0
    sources: frozenset[int] = frozenset()
    level: float = 0.0
    time: float = 0.0
    saturated_heads: list[int] = field(default_factory=list[int])
    saturated_tails: list[int] = field(default_factory=list[int])
    version: int = 0


def greedy_flac(costs: Mapping[Arc, float], root: int, terminals: Iterable[int]) -> tuple[Arc, ...]:
    """The arcs of a tree from a root to all terminals.

    Args:
        costs: cost of every arc, >= 0.
        root: the node that every terminal is to be reached from.
        terminals: nodes that must be in the tree; others may be.

    Raises:
        OptionError: a terminal can't be reached from the root.
    """
    into: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for (tail, head), cost in costs.items():
        into[head].append((tail, cost))
    tree, arcs = {root}, list[Arc]()
    remaining = dict.fromkeys(t for t in terminals if t != root)
    while remaining:
        part = _cheapest_part(into, tree, tuple(remaining))
        arcs += part
        for _, head in part:
            tree.add(head)
            remaining.pop(head, None)
    return tuple(arcs)


def _cheapest_part(
    into: Mapping[int, Sequence[tuple[int, float]]], tree: Set[int], terminals: Sequence[int]
) -> list[Arc]:
    """One flow: the arcs from the tree to some of the terminals that are saturated first."""
    nodes = {v: _Node(sorted((c, t not in tree, t) for t, c in arcs)) for v, arcs in into.items() if v not in tree}
    queue: list[tuple[float, bool, int, int, int]] = []

    def enqueue(v: int) -> None:
        node = nodes[v]
        node.version += 1
        if node.position < len(node.arcs):
            cost, is_outside, tail = node.arcs[node.position]
            when = node.time + (cost - node.level) / len(node.sources)
            heappush(queue, (when, is_outside, tail, v, node.version))

    for t in terminals:
        nodes.setdefault(t, _Node([])).sources = frozenset([t])
        enqueue(t)
    while queue:
        now, is_outside, tail, head, version = heappop(queue)
        node = nodes[head]
        if version != node.version:
            continue
        if not is_outside:
            return [(tail, head), *_saturated_arcs(nodes, head)]
        node.level, node.time = node.arcs[node.position][0], now
        node.position += 1
        upstream = _ancestors(nodes, tail)
        # an arc that would let the water of a terminal flow into a node twice is dropped
        if not any(nodes[w].sources & node.sources for w in upstream):
            nodes[tail].saturated_heads.append(head)
            node.saturated_tails.append(tail)
            for w in upstream:
                _let_in(nodes[w], node.sources, now)
                enqueue(w)
        enqueue(head)
    names = ", ".join(str(t) for t in terminals)
    raise OptionError(f"nodes {names} can't be reached from the root", where="costs", hint="add arcs to them")


def _let_in(node: _Node, sources: frozenset[int], now: float) -> None:
    """Adds the water of terminals to a node's flow."""
    node.level += (now - node.time) * len(node.sources)
    node.time = now
    node.sources |= sources


def _ancestors(nodes: dict[int, _Node], start: int) -> list[int]:
    """A node and all nodes from which saturated arcs lead to it."""
    visited, stack = {start: None}, [start]
    while stack:
        for tail in nodes.setdefault(stack.pop(), _Node([])).saturated_tails:
            if tail not in visited:
                visited[tail] = None
                stack.append(tail)
    return list(visited)


def _saturated_arcs(nodes: Mapping[int, _Node], start: int) -> list[Arc]:
    """All saturated arcs that can be reached from a node, parents first."""
    arcs, stack = list[Arc](), [start]
    while stack:
        tail = stack.pop()
        for head in nodes[tail].saturated_heads:
            arcs.append((tail, head))
            stack.append(head)
    return arcs
