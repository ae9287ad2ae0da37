"""Types that a model declares for its values beside those that it computes."""

from tilewright.errors import Defect
from tilewright.expr.nodes import Buffer
from tilewright.graph.ir import Graph, Node, TensorType


def declared_mismatch(graph: Graph, node: Node, name: str, computed: Buffer) -> Defect | str:
    """What differs between the declared and the computed type of a value; empty where nothing does.

    Another element type is a defect. Another shape is only told: exporters write the shapes of one run of the network,
    and editors leave those of other input sizes.

    Args:
        graph: that declares types.
        node: the node that computes the value.
        name: of the value.
        computed: its buffer.
    """
    declared, inferred = graph.declared_types.get(name), TensorType(computed.dtype, computed.shape)
    if declared is None:
        return ""
    if inferred.dtype != declared.dtype:
        what = f"computes '{name}' as {inferred}, but the model declares {declared}"
        return Defect("type", f"node {node.label}", what)
    return f"'{name}' is {inferred}, declared {declared}" if inferred.has_other_shape(declared) else ""
