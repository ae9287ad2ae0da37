"""Trees of reuse: from a root to the operators that are tuned, through bridges where these make the rest cheaper.

Without bridges every node must be reached, and the cheapest tree is a minimum-cost arborescence (Edmonds). With bridges
it is a directed Steiner tree, which is NP-hard: GreedyFLAC's tree is taken, or the arborescence over all nodes without
the bridges that lead nowhere, or that over the operators alone, whichever is cheapest; over the nodes of the one chosen
the arborescence is optimal.
"""

from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

from tilewright.errors import OptionError
from tilewright.optimize.reuse.greedy_flac import Arc, greedy_flac

Tree = tuple[Arc, ...]
"""The arcs of a tree, parents first."""


def minimum_arborescence(costs: Mapping[Arc, float], root: int) -> Tree:
    """The cheapest tree from a root to all nodes.

    Args:
        costs: cost of every arc, >= 0.
        root: arcs into it are left out.

    Raises:
        OptionError: a node can't be reached, or networkx is not installed.
    """
    networkx = load_networkx()
    graph = networkx.DiGraph()
    graph.add_node(root)
    graph.add_weighted_edges_from((t, h, c) for (t, h), c in sorted(costs.items()) if h != root)
    if graph.number_of_nodes() == 1:
        return ()
    try:
        tree = networkx.minimum_spanning_arborescence(graph)
    except networkx.NetworkXException as error:
        what = "expected a node that all others can be reached from, got none"
        raise OptionError(what, where="costs", hint="add arcs from the root") from error
    return parents_first(((int(t), int(h)) for t, h in tree.edges), root)


def pruned(tree: Iterable[Arc], terminals: Iterable[int]) -> Tree:
    """A tree without the branches that lead to no terminal."""
    needed, arcs = set[int](), tuple(tree)
    parents = {h: t for t, h in arcs}
    for terminal in terminals:
        node: int | None = terminal
        while node is not None and node not in needed:
            needed.add(node)
            node = parents.get(node)
    return tuple(a for a in arcs if a[1] in needed)


def cheapest_tree(costs: Mapping[Arc, float], root: int, terminals: Iterable[int]) -> Tree:
    """A cheap tree from a root to all terminals, never dearer than the one over the terminals alone.

    Args:
        costs: cost of every arc, >= 0.
        root: the node that every terminal is to be reached from.
        terminals: nodes that must be in the tree.

    Raises:
        OptionError: a terminal can't be reached from the root.
    """
    required = tuple(terminals)
    trees = [greedy_flac(costs, root, required)]
    reachable = _reachable(costs, root)
    trees.append(pruned(minimum_arborescence(_arcs_between(costs, reachable), root), required))
    alone = {root, *required}
    if _reachable(_arcs_between(costs, alone), root) == alone:
        trees.append(minimum_arborescence(_arcs_between(costs, alone), root))
    best = min(trees, key=lambda tree: total_cost(costs, tree))
    nodes = {root, *(h for _, h in best)}
    return min((best, pruned(minimum_arborescence(_arcs_between(costs, nodes), root), required)),
               key=lambda tree: total_cost(costs, tree))  # fmt: skip


def total_cost(costs: Mapping[Arc, float], tree: Iterable[Arc]) -> float:
    """The sum of the costs of arcs."""
    return sum(costs[a] for a in tree)


def parents_first(arcs: Iterable[Arc], root: int) -> Tree:
    """The arcs of a tree in the order of a walk from its root, children of a node by number."""
    children: dict[int, list[int]] = {}
    for tail, head in sorted(arcs):
        children.setdefault(tail, []).append(head)
    order, stack = list[Arc](), [root]
    while stack:
        tail = stack.pop()
        heads = children.get(tail, [])
        order += [(tail, head) for head in heads]
        stack += reversed(heads)
    return tuple(order)


def _arcs_between(costs: Mapping[Arc, float], nodes: set[int]) -> dict[Arc, float]:
    return {(t, h): c for (t, h), c in costs.items() if t in nodes and h in nodes}


def _reachable(costs: Mapping[Arc, float], root: int) -> set[int]:
    heads: dict[int, list[int]] = {}
    for tail, head in costs:
        heads.setdefault(tail, []).append(head)
    visited, stack = {root}, [root]
    while stack:
        for head in heads.get(stack.pop(), []):
            if head not in visited:
                visited.add(head)
                stack.append(head)
    return visited


def load_networkx() -> Any:
    """The package that computes arborescences.

    Raises:
        OptionError: it is not installed.
    """
    try:
        return import_module("networkx")
    except ImportError as error:
        what = "planning reuse needs networkx, which is not installed"
        raise OptionError(what, where="plan", hint="pip install networkx, which the extra `tune` has") from error
