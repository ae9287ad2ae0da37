"""Structure checks: every value is produced once and before its uses; sub-graphs see the values of enclosing graphs."""

from collections.abc import Iterable, Sequence

import onnx

from tilewright.errors import Defect
from tilewright.frontend.onnx.node_protos import captured_names
from tilewright.frontend.onnx.topological_order import stable_topological_order

_MAX_CYCLE_LABELS = 8
"""Nodes at either end of a cycle that a problem names."""


def node_names(nodes: Sequence[onnx.NodeProto]) -> list[str]:
    """A unique name for every node: the model's own, or "OpType#index"."""
    used: set[str] = set()
    result: list[str] = []
    for index, node in enumerate(nodes):
        name = node.name or f"{node.op_type}#{index}"
        if name in used:
            name = f"{name}#{index}"
        used.add(name)
        result.append(name)
    return result


def node_label(name: str, node: onnx.NodeProto) -> str:
    """A node's name in problems."""
    return f"node {name} ({node.op_type})"


def check_structure(
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    nodes: Sequence[onnx.NodeProto],
    constants: Iterable[str],
    problems: list[Defect],
) -> list[int]:
    """Checks names and order; appends problems.

    Args:
        inputs: of the graph.
        outputs: of the graph.
        nodes: the graph's nodes after inlining.
        constants: names of initializers.
        problems: appended to.

    Returns:
        Positions of the nodes in a topological order that keeps the model's order where it can; nodes on cycles are
        missing.
    """
    names = node_names(nodes)
    producers = _producers(inputs, nodes, names, set(constants), problems)
    for name, node in zip(names, nodes, strict=True):
        for position, value in enumerate(node.input):
            if value and value not in producers:
                what = f"input {position} '{value}' is produced by no node, input or initializer"
                problems.append(Defect("dangling", node_label(name, node), what))
        problems.extend(
            Defect("dangling", node_label(name, node), f"its sub-graph uses '{value}', which nothing produces")
            for value in captured_names(node)
            if value not in producers
        )
    _check_outputs(outputs, producers, problems)
    return _topological_order(nodes, names, producers, problems)


def _producers(
    graph_inputs: Sequence[onnx.ValueInfoProto],
    nodes: Sequence[onnx.NodeProto],
    names: list[str],
    constants: set[str],
    problems: list[Defect],
) -> dict[str, int]:
    """The position of the node that produces each value, -1 for inputs and initializers."""
    producers: dict[str, int] = dict.fromkeys(constants, -1)
    inputs: set[str] = set()
    for value in graph_inputs:
        if value.name in inputs:
            problems.append(Defect("duplicate", f"input '{value.name}'", "the model has two inputs of this name"))
        inputs.add(value.name)
        producers[value.name] = -1
    for index, node in enumerate(nodes):
        for value in node.output:
            if value and value in producers:
                first = producers[value]
                other = node_label(names[first], nodes[first]) if first >= 0 else "an input or initializer"
                what = f"produces '{value}', which {other} produces too"
                problems.append(Defect("duplicate", node_label(names[index], node), what, "a value has one producer"))
            elif value:
                producers[value] = index
    return producers


def _check_outputs(outputs: Sequence[onnx.ValueInfoProto], producers: dict[str, int], problems: list[Defect]) -> None:
    seen: set[str] = set()
    for value in outputs:
        where = f"output '{value.name}'"
        if value.name in seen:
            problems.append(Defect("duplicate", where, "the model has two outputs of this name"))
        elif value.name not in producers:
            problems.append(Defect("dangling", where, "is produced by no node, input or initializer"))
        seen.add(value.name)
    if not seen:
        problems.append(Defect("output", "model", "has no outputs"))


def _topological_order(
    nodes: Sequence[onnx.NodeProto], names: list[str], producers: dict[str, int], problems: list[Defect]
) -> list[int]:
    needs = [{p for v in (*node.input, *captured_names(node)) if (p := producers.get(v, -1)) >= 0} for node in nodes]
    order = stable_topological_order(needs)
    if len(order) < len(nodes):
        _report_cycles(sorted({*range(len(nodes))}.difference(order)), needs, nodes, names, problems)
    return order


def _report_cycles(
    blocked: list[int],
    needs: list[set[int]],
    nodes: Sequence[onnx.NodeProto],
    names: list[str],
    problems: list[Defect],
) -> None:
    """Adds one problem per cycle that is met on the way back from blocked inputs."""
    state = set(blocked)
    for start in blocked:
        path: dict[int, int] = {}
        current: int | None = start if start in state else None
        while current is not None and current not in path:
            path[current] = len(path)
            current = min((p for p in needs[current] if p in state), default=None)
        if current is not None:
            cycle = list(path)[path[current] :][::-1]
            labels = [f"{names[i]} ({nodes[i].op_type})" for i in (*cycle, cycle[0])]
            if len(labels) > 2 * _MAX_CYCLE_LABELS:
                labels = [
                    *labels[:_MAX_CYCLE_LABELS],
                    f"{len(labels) - 2 * _MAX_CYCLE_LABELS} more",
                    *labels[-_MAX_CYCLE_LABELS:],
                ]
            problems.append(Defect("cycle", "model", f"nodes feed each other: {' -> '.join(labels)}"))
        state -= path.keys()
