"""Graph pass: BatchNormalization after a convolution or Gemm is folded into its weights.

With s = scale / sqrt(var + epsilon):  s * (W x + b - mean) + shift  =  (s W) x + (s * (b - mean) + shift). The new
weights are computed in double precision and rounded once.
"""

from dataclasses import replace

import numpy as np

from tilewright.graph.ir import Array, Graph, Node
from tilewright.graph.passes.bias import output_channels
from tilewright.graph.passes.def_use import is_standard, producers, use_counts
from tilewright.names import unique_name


def fold_batch_normalization(graph: Graph) -> Graph:
    """Folds inference BatchNormalization with constant parameters into a Conv, ConvTranspose or Gemm before it."""
    producer_of, counts = producers(graph), use_counts(graph)
    constants = dict(graph.constants)
    taken = graph.value_names
    replaced: dict[str, Node] = {}
    folded_nodes: set[str] = set()
    for node in graph.nodes:
        producer = producer_of.get(node.inputs[0]) if node.inputs else None
        if producer is None or counts[node.inputs[0]] != 1 or not _is_inference(node, constants):
            continue
        with np.errstate(all="ignore"):
            parameters = _folded_parameters(producer, node, constants)
        if parameters is None:
            continue
        weight, bias = (unique_name(f"{node.outputs[0]}.{what}", taken) for what in ("weight", "bias"))
        taken |= {weight, bias}
        constants[weight], constants[bias] = parameters
        inputs = (producer.inputs[0], weight, bias)
        replaced[producer.name] = replace(producer, inputs=inputs, outputs=node.outputs[:1])
        folded_nodes.add(node.name)
    nodes = tuple(replaced.get(n.name, n) for n in graph.nodes if n.name not in folded_nodes)
    return graph.with_nodes(nodes, constants)


def _is_inference(node: Node, constants: dict[str, Array]) -> bool:
    return (
        is_standard(node, "BatchNormalization")
        and not any(node.outputs[1:])
        and not node.attributes.get("training_mode", 0)
        and bool(node.attributes.get("spatial", 1))
        and all(v in constants for v in node.inputs[1:5])
    )


def _folded_parameters(producer: Node, node: Node, constants: dict[str, Array]) -> tuple[Array, Array] | None:
    """The new weight and bias, None where the producer cannot take them."""
    if not is_standard(producer, "Conv", "ConvTranspose", "Gemm") or len(producer.outputs) != 1:
        return None
    weight = constants.get(producer.inputs[1])
    old_bias = constants.get(producer.inputs[2]) if len(producer.inputs) > 2 and producer.inputs[2] else np.zeros(())
    if weight is None or old_bias is None or not np.issubdtype(weight.dtype, np.floating):
        return None
    scale, shift, mean, variance = (constants[v].astype(np.float64).reshape(-1) for v in node.inputs[1:5])
    # Shapes that do not fit are reported where the nodes are lowered.
    if {scale.size} != {shift.size, mean.size, variance.size} or weight.ndim < 2:
        return None
    epsilon = node.attributes.get("epsilon", 1e-5)
    factor = scale / np.sqrt(variance + (epsilon if isinstance(epsilon, float) else 1e-5))
    wide = weight.astype(np.float64)
    if producer.op_type == "Gemm":
        pair = _folded_gemm_parameters(producer, wide, old_bias, factor, mean, shift)
        if pair is None:
            return None
        scaled, bias = pair
    else:
        if weight.ndim < 3 or output_channels(producer, weight) != factor.size or old_bias.size not in (1, factor.size):
            return None
        if producer.op_type == "ConvTranspose" and (not wide.size or wide.shape[0] % (factor.size // wide.shape[1])):
            return None
        scaled = _scale_weights(producer, wide, factor)
        bias = (old_bias.astype(np.float64) - mean) * factor + shift
    return scaled.astype(weight.dtype), np.ascontiguousarray(bias.astype(weight.dtype))


def _scale_weights(conv: Node, weight: Array, factor: Array) -> Array:
    """The weights of a Conv or ConvTranspose times a factor per output channel."""
    tail = (1,) * (weight.ndim - 2)
    if conv.op_type == "Conv":
        return weight * factor.reshape(-1, 1, *tail)
    # ConvTranspose: [C_in, C_out / group, ...], where a block of input channels belongs to each group.
    per_group = weight.shape[1]
    grouped = weight.reshape(factor.size // per_group, -1, *weight.shape[1:])
    return (grouped * factor.reshape(-1, 1, per_group, *tail)).reshape(weight.shape)


def _folded_gemm_parameters(
    gemm: Node, weight: Array, old_bias: Array, factor: Array, mean: Array, shift: Array
) -> tuple[Array, Array] | None:
    """The new weight and bias of a Gemm, None where the factor does not fit its columns or its bias is not a row."""
    transposed = bool(gemm.attributes.get("transB", 0))
    count = weight.shape[0] if transposed else weight.shape[1]
    beta = gemm.attributes.get("beta", 1.0)
    is_row = old_bias.ndim <= 1 or (old_bias.ndim == 2 and old_bias.shape[0] == 1)
    if (
        weight.ndim != 2
        or count != factor.size
        or old_bias.size not in (1, count)
        or not is_row
        or not isinstance(beta, float)
        or beta == 0.0
    ):
        return None
    scaled = weight * (factor.reshape(-1, 1) if transposed else factor)
    # Gemm multiplies its bias by beta, which stays as it is.
    bias = ((beta * old_bias.reshape(-1).astype(np.float64) - mean) * factor + shift) / beta
    return scaled, bias
