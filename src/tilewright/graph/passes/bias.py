"""Graph pass: the addition of a constant per channel after a convolution becomes the convolution's bias."""

from dataclasses import replace

import numpy as np

from tilewright.graph.ir import Array, Graph, Node
from tilewright.graph.passes.def_use import is_standard, producers, use_counts
from tilewright.names import unique_name


def fold_bias(graph: Graph) -> Graph:
    """`Add(Conv(x, w[, b]), c)` becomes `Conv(x, w, b + c)` for a constant c of shape [1, C, 1, ...]."""
    producer_of, counts = producers(graph), use_counts(graph)
    constants = dict(graph.constants)
    taken = graph.value_names
    replaced: dict[str, Node] = {}
    folded_nodes: set[str] = set()
    for node in graph.nodes:
        if not is_standard(node, "Add"):
            continue
        for value, other in (node.inputs, node.inputs[::-1]):
            conv = producer_of.get(value)
            if conv is None or not is_standard(conv, "Conv", "ConvTranspose") or counts[value] != 1:
                continue
            conv = replaced.get(conv.name, conv)
            bias = _merged_bias(conv, constants.get(other), constants)
            if bias is not None:
                name = unique_name(f"{node.outputs[0]}.bias", taken)
                taken.add(name)
                constants[name] = bias
                merged = replace(conv, inputs=(*conv.inputs[:2], name), outputs=node.outputs)
                replaced[conv.name] = merged
                producer_of[node.outputs[0]] = merged
                folded_nodes.add(node.name)
                break
    nodes = tuple(replaced.get(n.name, n) for n in graph.nodes if n.name not in folded_nodes)
    return graph.with_nodes(nodes, constants)


def output_channels(conv: Node, weight: Array) -> int:
    """The number of output channels of a Conv or ConvTranspose."""
    if conv.op_type == "Conv":
        return weight.shape[0]
    group = conv.attributes.get("group", 1)
    return weight.shape[1] * (group if isinstance(group, int) else 1)


def _merged_bias(conv: Node, added: Array | None, constants: dict[str, Array]) -> Array | None:
    """The sum of a convolution's bias and an added constant, None where the constant is not one value per channel."""
    weight = constants.get(conv.inputs[1])
    if weight is None or added is None or added.dtype != weight.dtype or weight.ndim < 3:
        return None
    count = output_channels(conv, weight)
    sizes = (*(1,) * (weight.ndim - added.ndim), *added.shape)
    if added.ndim < weight.ndim - 1 or sizes != (1, count, *(1,) * (weight.ndim - 2)):
        return None
    bias = added.reshape(count)
    if len(conv.inputs) > 2 and conv.inputs[2]:
        old = constants.get(conv.inputs[2])
        if old is None or old.shape != bias.shape:
            return None
        with np.errstate(all="ignore"):
            return old + bias
    return bias
