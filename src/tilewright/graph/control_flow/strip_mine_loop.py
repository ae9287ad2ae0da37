"""Strip-mining of loops whose number of iterations is data: a loop over chunks around one of few iterations.

The inner loop is counted, at most `CHUNK` iterations, so that it is native code inside one call; the outer one is
walked by the runtime, which can be interrupted between chunks. The number of iterations of a chunk becomes a size that
data decide, as it is the length of a range.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from tilewright.graph.control_flow.node_list import NodeList, NodeSource
from tilewright.graph.ir import Array, Node, Subgraph
from tilewright.graph.program import ControlFlow, Loop, RuntimeStep

CHUNK = 4096
"""Iterations of native code without an interruption."""

_MARK = "strip_mined"
"""Attribute of the loops that this module writes."""


def suits_strip_mining(step: ControlFlow) -> bool:
    """Whether native code could run a loop if its number of iterations were known before.

    Its condition always holds, it stacks no results, its values keep their sizes, and its body needs nothing from the
    runtime.
    """
    if not isinstance(step, Loop) or _MARK in step.nodes[0].attributes:
        return False
    is_unknown = step.trip_count is not None and step.count is None
    numbers = (step.trip_count, step.body.program.inputs[0])
    return (
        is_unknown
        and step.is_counted
        and step.condition is None
        and all(b is not None and not b.rank for b in numbers)
        and len(step.outputs) == len(step.initial)
        and not step.body.own_symbols
        and not any(isinstance(s, RuntimeStep) for s in step.body.program.steps)
    )


def strip_mined_loop(node: Node, node_source: NodeSource) -> tuple[Sequence[Node], Mapping[str, Array]]:
    """The nodes that stand for a counted Loop without stacked results, and their constants.

    Args:
        node: a Loop with a trip count and carried values, whose condition always holds.
        node_source: the serialized node of an operator.
    """
    outer = NodeList(node, node_source, "chunks/")
    trips = outer.add("Max", node.arguments[0], outer.constant(np.array(0, np.int64)))
    rounded = outer.add("Add", trips, outer.constant(np.array(CHUNK - 1, np.int64)))
    chunks = outer.add("Div", rounded, outer.constant(np.array(CHUNK, np.int64)))
    names = _Names(node)
    captured = {names.trips: trips, **node.captured}
    loop = replace(
        node,
        inputs=(chunks, "", *node.arguments[2:], *captured.values()),
        captures=tuple(captured),
        attributes={_MARK: 1},
        subgraphs={"body": _chunk_body(node, names, node_source)},
    )
    return (*outer.nodes, loop), outer.constants


class _Names:
    """Names inside the loop over chunks, which are no names of the loop's own values."""

    def __init__(self, node: Node) -> None:
        self.trips, self.first, self.number, self.go = (
            f"{node.name}/chunks/{what}" for what in ("trips", "first", "number", "go")
        )


def _chunk_body(node: Node, names: _Names, node_source: NodeSource) -> Subgraph:
    """The body of the loop over chunks."""
    original = node.subgraphs["body"]
    work = NodeList(node, node_source, "chunk/")
    size = work.constant(np.array(CHUNK, np.int64))
    zero = work.constant(np.array(0, np.int64))
    one = work.constant(np.array(1, np.int64))
    work.add("Mul", names.number, size, output=names.first)
    left = work.add("Min", work.add("Sub", names.trips, names.first), size)
    length = work.add("Gather", work.add("Shape", work.add("Range", zero, left, one)), zero)
    count = work.add("Min", length, size)
    before = [f"{node.name}/chunks/{name}.before" for name in original.inputs[2:]]
    after = [f"{node.name}/chunks/{name}.after" for name in original.inputs[2:]]
    inner = replace(
        node,
        name=f"{node.name}/chunk",
        inputs=(count, "", *before, names.first, *node.captures),
        outputs=tuple(after),
        captures=(names.first, *node.captures),
        attributes={_MARK: 1},
        subgraphs={"body": _numbered_from(original, names.first, node, node_source)},
    )
    return Subgraph(
        inputs=(names.number, names.go, *before),
        outputs=(names.go, *after),
        constants=work.constants,
        nodes=(*work.nodes, inner),
    )


def _numbered_from(body: Subgraph, first: str, node: Node, node_source: NodeSource) -> Subgraph:
    """A loop's body whose number of the iteration is counted from a captured value."""
    work = NodeList(node, node_source, "iteration/")
    number = work.name("number")
    work.add("Add", number, first, output=body.inputs[0])
    return replace(
        body,
        inputs=(number, *body.inputs[1:]),
        outputs=(body.inputs[1], *body.outputs[1:]),
        nodes=(*work.nodes, *body.nodes),
        declared_types={v: t for v, t in body.declared_types.items() if v != body.inputs[0]},
    )
