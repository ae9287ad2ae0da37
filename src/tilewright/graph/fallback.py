"""Nodes that run on ONNX's reference evaluator: what they compute, and the model that computes it.

Values that are no tensors of known rank (sequences, optional values) have buffers of the type `opaque`; they and
tensors of types that native code does not touch (strings, float8) flow between these steps as Python objects.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.errors import Problem
from tilewright.expr.buffer import Buffer
from tilewright.expr.dtype import opaque
from tilewright.expr.nodes import Const, Expr, Var, const
from tilewright.graph.ir import Array, Graph, Node
from tilewright.graph.program import Fallback

_MAX_SIZE = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Outside:
    """What surrounds fallback nodes.

    Attributes:
        feeds: buffers of the values that they need, by value name.
        constants: constant values that they need, by value name.
        graph: the whole graph.
        loose: Constant nodes whose values are no arrays of native types, and which they need.
        types: serialized TypeProtos of opaque buffers, by the buffer's name, where they are known.
    """

    feeds: Mapping[str, Buffer]
    constants: Mapping[str, Array]
    graph: Graph
    loose: Sequence[Node] = ()
    types: Mapping[str, bytes] = field(default_factory=dict[str, bytes])


def output_buffers(
    node: Node, outside: Outside, wanted: Iterable[str], name: Callable[[str], str]
) -> tuple[dict[str, Buffer], tuple[Var, ...], dict[str, bytes]]:
    """Buffers of the wanted values with fresh symbols for sizes that nobody knows; opaque where no rank is known.

    With them the fresh symbols, and the types of opaque buffers by the buffers' names, where they are known.

    Args:
        node: the node.
        outside: what they take.
        wanted: values to make buffers for.
        name: gives a buffer's name for a value's name.
    """
    from tilewright.graph.reference import infer_outputs  # here because it imports onnx

    inferred, others = infer_outputs(node, outside)
    sizes = {repr(s): s for b in outside.feeds.values() for s in b.shape}
    fresh: list[Var] = []
    result: dict[str, Buffer] = {}
    types: dict[str, bytes] = {}
    for value in wanted:
        declared = outside.graph.declared.get(value)
        found = inferred.get(value)
        if found is None and declared is None:
            result[value] = Buffer(name(value), (), opaque)
            if value in others:
                types[result[value].name] = others[value]
            continue
        dtype = found.dtype if found is not None else declared.dtype if declared is not None else None
        stated: tuple[Expr | None, ...] = declared.shape if declared is not None else ()
        dims = found.dims if found is not None else (None,) * len(stated)
        if len(stated) != len(dims):
            stated = (None,) * len(dims)
        if dtype is None:  # pragma: no cover - one of the two is known
            continue
        buffer_name = name(value)
        shape: list[Expr] = []
        for axis, (dim, hint) in enumerate(zip(dims, stated, strict=True)):
            size = const(dim) if isinstance(dim, int) else sizes.get(dim or "")
            if size is None and isinstance(hint, Const):
                size = hint
            if size is None:
                size = Var(f"{buffer_name}_n{axis}", 0, _MAX_SIZE)
                fresh.append(size)
            shape.append(size)
        result[value] = Buffer(buffer_name, tuple(shape), dtype)
    return result, tuple(fresh), types


def make_fallback(
    node: Node, outside: Outside, outputs: Mapping[str, Buffer], fresh: tuple[Var, ...], reason: str
) -> "Fallback | Problem":
    """The step, or the problem that the reference evaluator has no such operator either."""
    from tilewright.graph.reference import evaluator_lacks, reference_model  # here because it imports onnx

    model = reference_model(
        (*outside.loose, node), outside.feeds, outside.constants, outputs, outside.graph.opsets, outside.types
    )
    lacking = evaluator_lacks(model)
    if lacking is not None:
        what = f"{reason}, and ONNX's reference evaluator can't run it either ({lacking})"
        return Problem("unsupported", f"node {node.label}", what)
    data = model.SerializeToString(deterministic=True)
    return Fallback((node,), tuple(outside.feeds.values()), tuple(outputs.values()), fresh, reason, data)
