"""Replacement of conditionals whose condition is known by the nodes of their branch."""

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace

from tilewright.graph.ir import Array, Graph, Node
from tilewright.names import unique_name

BRANCHES = ("then_branch", "else_branch")
"""Attributes of an If: the branch of a condition that holds, and that of one which does not."""


@dataclass(frozen=True, slots=True)
class InlinedBranch:
    """The nodes of a branch under names that are free in the enclosing graph, and its constants by value name."""

    nodes: tuple[Node, ...]
    constants: Mapping[str, Array]


def inline_constant_branches(graph: Graph) -> Graph:
    """Graph pass: the branch in place of every conditional on a constant, also of those inside branches."""

    def decide(node: Node) -> bool | None:
        value = constants.get(node.inputs[0])
        return bool(value.reshape(-1)[0]) if value is not None and value.size == 1 and value.dtype == bool else None

    while True:
        constants = graph.constants
        simpler = inline_branches(graph, decide)
        if simpler is graph:
            return graph
        graph = simpler


def inline_branches(graph: Graph, decide: Callable[[Node], bool | None]) -> Graph:
    """The graph with the branch in place of every conditional that is decided; the graph itself without one.

    Args:
        graph: a graph.
        decide: the value of a conditional's condition, None where it is not known.
    """
    nodes: list[Node] = []
    constants = dict(graph.constants)
    taken, identity = graph.value_names, graph.dialect.node_source("Identity")
    count = 0
    for node in graph.nodes:
        condition = decide(node) if is_conditional(node) else None
        if condition is None:
            nodes.append(node)
            continue
        branch = inline_branch(node, condition, taken, identity)
        count += 1
        nodes += branch.nodes
        constants |= branch.constants
        taken |= branch.constants.keys() | {o for n in branch.nodes for o in n.outputs}
    return graph.with_nodes(tuple(nodes), constants) if count else graph


def is_conditional(node: Node) -> bool:
    """Whether a node is an If with branches that fit its outputs."""
    branches = [node.subgraphs[b] for b in BRANCHES if b in node.subgraphs]
    return node.op_type == "If" and len(branches) == 2 and all(len(b.outputs) == len(node.outputs) for b in branches)


def inline_branch(node: Node, condition: bool, taken: Container[str], identity: bytes) -> InlinedBranch:
    """The branch of a conditional that is taken.

    Args:
        node: the conditional.
        condition: its condition.
        taken: names of values that exist already.
        identity: the serialized node of an Identity.
    """
    branch = node.subgraphs[BRANCHES[0] if condition else BRANCHES[1]]
    names: dict[str, str] = dict(node.captured)
    used: set[str] = set()
    for v in (*branch.constants, *(o for n in branch.nodes for o in n.outputs if o)):
        name = f"{node.name}/{v}"
        while name in taken or name in used:
            name = unique_name(f"{name}'", used)
        names[v] = name
        used.add(name)
    nodes = [
        replace(
            n,
            name=f"{node.name}/{n.name}",
            inputs=tuple(names.get(v, v) for v in n.inputs),
            outputs=tuple(names.get(v, v) for v in n.outputs),
        )
        for n in branch.nodes
    ]
    nodes += [
        Node(f"{node.name}/{output}", "Identity", "", node.opset, (names[value],), (output,), {}, identity)
        for value, output in zip(branch.outputs, node.outputs, strict=True)
        if output
    ]
    return InlinedBranch(tuple(nodes), {names[v]: a for v, a in branch.constants.items()})
