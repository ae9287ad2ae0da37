"""Tail duplication: what follows a conditional moves into its branches, each of which gets a copy.

A conditional whose branches compute a value with different numbers of axes, such as an exported `squeeze` of an axis
that may have one element, has no native step: buffers have one rank. After tail duplication a branch and what reads its
results are one sub-graph, in which every rank is known; only the results of the graph cross the border.
"""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from tilewright.graph.control_flow.inline_branches import BRANCHES, inline_branch
from tilewright.graph.ir import Array, Graph, Node, Subgraph

MAX_COPIED_NODES = 20_000
"""Nodes in a tail, beyond which it isn't copied."""


_MARK = "copied_tail"
"""Attribute of the conditionals that this module writes."""


def duplicate_tail(graph: Graph, name: str) -> Graph | None:
    """The graph with the nodes that depend on a conditional in both of its branches.

    Inside a branch the conditional's condition is a constant.

    Args:
        graph: a graph.
        name: of a conditional (`inline_branches.is_conditional`).

    Returns:
        None where the conditional is no node of the graph, as one inside of a branch that is about to be inlined, and
        where nothing or too much depends on it.
    """
    position = next((k for k, n in enumerate(graph.nodes) if n.name == name), None)
    if position is None:
        return None
    node = graph.nodes[position]
    tail = _dependents(graph.nodes[position + 1 :], node.outputs)
    if not tail or len(tail) > MAX_COPIED_NODES:
        return None
    in_tail = {n.name for n in tail}
    moved = {o for n in (node, *tail) for o in n.outputs if o}
    outputs = tuple(o for o in dict.fromkeys(graph.outputs) if o in moved)
    identity = graph.dialect.node_source("Identity")
    branches = {
        attribute: _branch_with_tail(node, condition, tail, outputs, graph, identity)
        for attribute, condition in zip(BRANCHES, (True, False), strict=True)
    }
    captures = tuple(dict.fromkeys(v for b in branches.values() for v in _outer_values(b, graph.value_names)))
    longer = replace(
        node,
        inputs=(node.inputs[0], *captures),
        captures=captures,
        outputs=outputs,
        subgraphs=branches,
        attributes={_MARK: 1},
        source=b"",
    )
    kept = [n for n in graph.nodes if n is not node and n.name not in in_tail]
    return graph.with_nodes((*kept, longer))


def has_copied_tail(node: Node) -> bool:
    """Whether a node is a conditional that `duplicate_tail` wrote, which the dialect's evaluator can't run."""
    return _MARK in node.attributes


def _dependents(nodes: Iterable[Node], values: Iterable[str]) -> list[Node]:
    """The nodes of a topological order that read these values, and those that read their results."""
    reached = {v for v in values if v}
    result: list[Node] = []
    for node in nodes:
        if not reached.isdisjoint(node.inputs):
            result.append(node)
            reached.update(o for o in node.outputs if o)
    return result


def _branch_with_tail(
    node: Node, condition: bool, tail: list[Node], outputs: tuple[str, ...], graph: Graph, identity: bytes
) -> Subgraph:
    branch = inline_branch(node, condition, graph.value_names, identity)
    constants: dict[str, Array] = {node.inputs[0]: np.array(condition), **branch.constants}
    # what the model declares for values after the conditional is right in one of the branches at most
    return Subgraph((), outputs, constants, (*branch.nodes, *tail))


def _outer_values(branch: Subgraph, outer: Iterable[str]) -> list[str]:
    """The values of the enclosing graph that a branch reads."""
    own = {*branch.constants, *(o for n in branch.nodes for o in n.outputs)}
    read = [*(v for n in branch.nodes for v in n.inputs if v), *branch.outputs]
    known = set(outer)
    return [v for v in dict.fromkeys(read) if v not in own and v in known]
