"""A Scan as a Loop whose body gathers its slices, with its outputs transposed and reversed behind it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilewright.graph.control_flow.node_list import NodeSource
from tilewright.graph.ir import Array, Node, Subgraph

_MODERN_OPSET = 13
"""Version of the generated nodes."""


@dataclass(frozen=True, slots=True)
class ScanAsLoop:
    """The nodes that stand for a Scan.

    Attributes:
        before: compute the number of iterations.
        loop: the Loop.
        stacked: name of each scan output of the loop, with that of the Scan's output, its axis, and whether it is
            reversed.
        constants: that the nodes read, by value name.
    """

    before: tuple[Node, ...]
    loop: Node
    stacked: tuple[tuple[str, str, int, bool], ...]
    constants: Mapping[str, Array]


def scan_as_loop(node: Node, node_source: NodeSource) -> ScanAsLoop | None:
    """The nodes for a Scan; None where its numbers of inputs and outputs do not fit its body.

    Args:
        node: the Scan.
        node_source: the serialized node of an operator.
    """
    body, arguments = node.subgraphs["body"], node.arguments
    count = node.attributes.get("num_scan_inputs")
    if not isinstance(count, int) or not 1 <= count <= len(arguments) or len(body.inputs) != len(arguments):
        return None
    states, sequences = arguments[: len(arguments) - count], arguments[len(arguments) - count :]
    outputs = len(body.outputs) - len(states)
    if outputs < 0 or len(node.outputs) > len(body.outputs):
        return None
    builder = _Builder(node, node_source)
    axes = _list(node, "scan_input_axes", count)
    shape, length, trips, axis = (builder.name(x) for x in ("shape", "length", "trips", "axis"))
    constants = {axis: np.array(axes[0], np.int64)}
    before = (builder.node("Shape", (sequences[0],), shape), builder.node("Gather", (shape, axis), trips))
    inner = _body_with_slices(builder, body, len(states), axes, _list(node, "scan_input_directions", count), length)
    captures = (*node.captures, *inner.captures)
    captured = {**node.captured, **dict(zip(inner.captures, (*sequences, trips), strict=True))}
    stacked: list[tuple[str, str, int, bool]] = []
    names = list(node.outputs[: len(states)])
    directions, places = _list(node, "scan_output_directions", outputs), _list(node, "scan_output_axes", outputs)
    for k, output in enumerate(node.outputs[len(states) :]):
        plain = places[k] == 0 and not directions[k]
        names.append(output if plain or not output else builder.name(f"{output}.stacked"))
        if names[-1] != output:
            stacked.append((names[-1], output, places[k], bool(directions[k])))
    loop = replace(
        node,
        op_type="Loop",
        inputs=(trips, "", *states, *(captured[c] for c in captures)),
        outputs=tuple(names),
        attributes={},
        captures=captures,
        subgraphs={"body": inner.body},
    )
    return ScanAsLoop(before, loop, tuple(stacked), constants)


def scan_output_nodes(
    node: Node, stacked: str, output: str, place: tuple[int, int, bool], node_source: NodeSource
) -> tuple[tuple[Node, ...], Mapping[str, Array]]:
    """The nodes that bring a stacked output into its place, with their constants.

    Args:
        node: the Scan.
        stacked: name of the value with the iterations first.
        output: name of the result.
        place: rank of the value, axis of the iterations in the result, and whether they are reversed.
        node_source: the serialized node of an operator.
    """
    builder, (rank, axis, is_reversed) = _Builder(node, node_source), place
    order = list(range(1, rank))
    order.insert(axis % rank, 0)
    if not is_reversed:
        return (builder.node("Transpose", (stacked,), output, perm=tuple(order)),), {}
    bounds = {
        builder.name(f"{output}.{what}"): np.array([value], np.int64)
        for what, value in (("start", -1), ("end", -(1 << 63)), ("axis", 0), ("step", -1))
    }
    flipped = builder.name(f"{output}.flipped")
    nodes = (
        builder.node("Slice", (stacked, *bounds), flipped),
        builder.node("Transpose", (flipped,), output, perm=tuple(order)),
    )
    return nodes, bounds


@dataclass(frozen=True, slots=True)
class _Body:
    """A loop's body with the names by which it captures the scanned values, and the number of iterations."""

    body: Subgraph
    captures: tuple[str, ...]


def _body_with_slices(
    builder: "_Builder", body: Subgraph, states: int, axes: Sequence[int], directions: Sequence[int], length: str
) -> _Body:
    """The body as that of a Loop: the number of the iteration selects the slices of captured values."""
    iteration, go, last, one = (builder.name(x) for x in ("iteration", "go", "last", "one"))
    reverse = builder.name("reverse")
    captures = [builder.name(f"{name}.all") for name in body.inputs[states:]]
    nodes: list[Node] = []
    if any(directions):
        nodes = [builder.node("Sub", (length, one), last), builder.node("Sub", (last, iteration), reverse)]
    for name, capture, axis, direction in zip(body.inputs[states:], captures, axes, directions, strict=True):
        index = reverse if direction else iteration
        nodes.append(builder.node("Gather", (capture, index), name, axis=axis))
    subgraph = Subgraph(
        inputs=(iteration, go, *body.inputs[:states]),
        outputs=(go, *body.outputs),
        constants={**body.constants, one: np.array(1, np.int64)},
        nodes=(*nodes, *body.nodes),
        declared_types={v: t for v, t in body.declared_types.items() if v not in body.inputs},
    )
    return _Body(subgraph, (*captures, length))


@dataclass(frozen=True, slots=True)
class _Builder:
    """Makes nodes and names for a Scan."""

    scan: Node
    node_source: NodeSource

    def name(self, what: str) -> str:
        """A name that belongs to the node alone."""
        return f"{self.scan.name}/{what}"

    def node(self, op_type: str, inputs: Sequence[str], output: str, **attributes: int | tuple[int, ...]) -> Node:
        """A standard node."""
        return Node(
            f"{self.scan.name}/{op_type}:{output}", op_type, "", _MODERN_OPSET, tuple(inputs), (output,), attributes,
            self.node_source(op_type),
        )  # fmt: skip


def _list(node: Node, name: str, count: int) -> Sequence[int]:
    """An attribute with a number per input or output; 0 by default."""
    values = node.attributes.get(name)
    numbers = [v for v in values if isinstance(v, int)] if isinstance(values, tuple) else []
    return numbers if len(numbers) == count else [0] * count
