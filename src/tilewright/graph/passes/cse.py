"""Graph pass: common subexpression elimination of nodes and of small constants."""

from typing import Any

import numpy as np

from tilewright.graph.ir import Graph, Node
from tilewright.graph.passes.def_use import RANDOM_OPERATORS, with_aliases

_MAX_COMPARED_BYTES = 1 << 10
"""Constants up to this many bytes are compared."""


def eliminate_common_subexpressions(graph: Graph) -> Graph:
    """Merges equal nodes into the first one. Nodes with sub-graphs, random nodes and outputs of the model stay."""
    alias = _merge_equal_constants(graph)
    first: dict[Any, Node] = {}
    kept: list[Node] = []
    for node in graph.nodes:
        inputs = tuple(alias.get(v, v) for v in node.inputs)
        if (
            node.has_opaque_attributes
            or node.op_type in RANDOM_OPERATORS
            or any(o in graph.outputs for o in node.outputs)
        ):
            kept.append(node)
            continue
        attributes = tuple(sorted((name, _hashable(value)) for name, value in node.attributes.items()))
        used = tuple(bool(o) for o in node.outputs)
        other = first.setdefault((node.domain, node.op_type, node.opset, inputs, attributes, used), node)
        if other is node:
            kept.append(node)
        else:
            alias.update(
                {
                    duplicate: original
                    for duplicate, original in zip(node.outputs, other.outputs, strict=True)
                    if duplicate
                }
            )
    return with_aliases(graph, tuple(kept), alias)


def _merge_equal_constants(graph: Graph) -> dict[str, str]:
    first: dict[Any, str] = {}
    alias: dict[str, str] = {}
    for name, array in graph.constants.items():
        if array.nbytes <= _MAX_COMPARED_BYTES and name not in graph.outputs:
            other = first.setdefault((array.dtype.name, array.shape, array.tobytes()), name)
            if other != name:
                alias[name] = other
    return alias


def _hashable(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"array {value.dtype.name} {value.shape} {value.tobytes().hex()}"
    return f"{type(value).__name__} {value!r}"
