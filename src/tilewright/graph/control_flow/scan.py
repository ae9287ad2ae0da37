"""A Scan as a Loop whose body gathers its slices, with its outputs transposed and reversed behind it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilewright.graph.control_flow.node_list import NodeList, NodeSource
from tilewright.graph.ir import Array, Node, Subgraph


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
    work, axes = NodeList(node, node_source, ""), _list(node, "scan_input_axes", count)
    trips = work.add("Gather", work.add("Shape", sequences[0]), work.constant(np.array(axes[0], np.int64)))
    inner_work, reversals = NodeList(node, node_source, "body/"), _list(node, "scan_input_directions", count)
    inner = _body_with_slices(inner_work, body, len(states), axes, reversals)
    captures = (*node.captures, *inner.captures)
    captured = {**node.captured, **dict(zip(inner.captures, (*sequences, trips), strict=True))}
    stacked: list[tuple[str, str, int, bool]] = []
    names = list(node.outputs[: len(states)])
    directions, places = _list(node, "scan_output_directions", outputs), _list(node, "scan_output_axes", outputs)
    for k, output in enumerate(node.outputs[len(states) :]):
        plain = places[k] == 0 and not directions[k]
        names.append(output if plain or not output else work.name(f"{output}.stacked"))
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
    return ScanAsLoop(tuple(work.nodes), loop, tuple(stacked), work.constants)


def scan_output_nodes(
    node: Node, stacked: str, output: str, place: tuple[int, int, bool], node_source: NodeSource
) -> tuple[Sequence[Node], Mapping[str, Array]]:
    """The nodes that bring a stacked output into its place, with their constants.

    Args:
        node: the Scan.
        stacked: name of the value with the iterations first.
        output: name of the result.
        place: rank of the value, axis of the iterations in the result, and whether they are reversed.
        node_source: the serialized node of an operator.
    """
    work, (rank, axis, is_reversed) = NodeList(node, node_source, f"{output}/"), place
    order = list(range(1, rank))
    order.insert(axis % rank, 0)
    if is_reversed:
        stacked = work.add("Slice", stacked, work.ints(-1), work.ints(-(1 << 63)), work.ints(0), work.ints(-1))
    work.add("Transpose", stacked, output=output, perm=tuple(order))
    return work.nodes, work.constants


@dataclass(frozen=True, slots=True)
class _Body:
    """A loop's body with the names by which it captures the scanned values, and the number of iterations."""

    body: Subgraph
    captures: tuple[str, ...]


def _body_with_slices(
    work: NodeList, body: Subgraph, states: int, axes: Sequence[int], directions: Sequence[int]
) -> _Body:
    """The body as that of a Loop: the number of the iteration selects the slices of captured values."""
    iteration, go, length = (work.name(x) for x in ("iteration", "go", "length"))
    captures = [work.name(f"{name}.all") for name in body.inputs[states:]]
    reverse = ""
    if any(directions):
        last = work.add("Sub", length, work.constant(np.array(1, np.int64)))
        reverse = work.add("Sub", last, iteration)
    for name, capture, axis, direction in zip(body.inputs[states:], captures, axes, directions, strict=True):
        work.add("Gather", capture, reverse if direction else iteration, output=name, axis=axis)
    subgraph = Subgraph(
        inputs=(iteration, go, *body.inputs[:states]),
        outputs=(go, *body.outputs),
        constants={**body.constants, **work.constants},
        nodes=(*work.nodes, *body.nodes),
        declared_types={v: t for v, t in body.declared_types.items() if v not in body.inputs},
    )
    return _Body(subgraph, (*captures, length))


def _list(node: Node, name: str, count: int) -> Sequence[int]:
    """An attribute with a number per input or output; 0 by default."""
    values = node.attributes.get(name)
    numbers = [v for v in values if isinstance(v, int)] if isinstance(values, tuple) else []
    return numbers if len(numbers) == count else [0] * count
