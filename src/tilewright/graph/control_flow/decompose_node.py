"""Decomposition of a node into simpler ones: recurrent layers, a Scan as a Loop, and Loops that carry less."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.errors import Defect
from tilewright.graph.control_flow.node_list import NodeSource
from tilewright.graph.control_flow.recurrence import GATES, recurrent_nodes
from tilewright.graph.control_flow.scan import ScanAsLoop, scan_as_loop, scan_output_nodes
from tilewright.graph.control_flow.simplify_loop import simplify_loop
from tilewright.graph.ir import Array, Node
from tilewright.graph.program import Constraint
from tilewright.ops.definition import OpValue

OperandOf = Callable[[str], OpValue | None]
"""The operand of a value, None where it has none."""

Nodes = tuple[Sequence[Node], Mapping[str, Array]]
"""Nodes in topological order with the constants that they read."""


@dataclass(frozen=True, slots=True)
class Decomposition:
    """The nodes that replace one, in the order in which they are lowered.

    Attributes:
        nodes: the first nodes.
        constants: that all nodes but those of `after` read.
        constraints: on the sizes of the operands.
        loop: the Loop behind them; where only the evaluator can run it, it runs the node itself instead.
        renamed: the node's outputs by the names that the loop has for them.
        after: the nodes behind the loop, once its results have operands.
    """

    nodes: Sequence[Node]
    constants: Mapping[str, Array]
    constraints: Sequence[Constraint] = ()
    loop: Node | None = None
    renamed: Mapping[str, str] = field(default_factory=dict[str, str])
    after: Callable[[OperandOf], Iterable[Nodes]] = field(default=lambda _: ())


def decompose_node(
    node: Node, operand_of: OperandOf, constants: Mapping[str, Array], node_source: NodeSource
) -> Decomposition | Defect | None:
    """The nodes that replace a node; None where it needs none, a defect where it is not valid.

    Args:
        node: a node.
        operand_of: of the values that the node reads.
        constants: of the graph, by value name.
        node_source: the serialized node of an operator.
    """
    if node.domain:
        return None
    if node.op_type in GATES:
        operands = [operand_of(v) if v else None for v in node.arguments]
        expanded = recurrent_nodes(node, operands, node_source)
        return expanded if expanded is None or isinstance(expanded, Defect) else Decomposition(*expanded)
    if node.op_type == "Scan" and node.subgraphs:
        scan = scan_as_loop(node, node_source)
        if scan is None:
            return Defect("arity", f"node {node.label}", "its inputs and outputs do not fit those of its body")
        return _decomposed_scan(node, scan, node_source)
    if node.op_type == "Loop" and node.subgraphs:
        loop = simplify_loop(node, operand_of, constants.get, node_source)
        if loop is not None:
            after = loop.after
            return Decomposition(loop.before, loop.constants, (), loop.loop, after=lambda _: ((after, {}),))
    return None


def _decomposed_scan(node: Node, scan: ScanAsLoop, node_source: NodeSource) -> Decomposition:
    def after(operand_of: OperandOf) -> Iterable[Nodes]:
        for stacked, output, axis, is_reversed in scan.stacked:
            operand = operand_of(stacked)
            if operand is not None:
                yield scan_output_nodes(node, stacked, output, (operand.rank, axis, is_reversed), node_source)

    renamed = {stacked: output for stacked, output, _, _ in scan.stacked}
    return Decomposition(scan.before, scan.constants, (), scan.loop, renamed, after)
