"""Nodes that run on ONNX's reference evaluator: what they compute, and the model that computes it.

Values that are no tensors of known rank (sequences, optional values) have buffers of the type `opaque`; they and
tensors of types that native code does not touch (strings, float8) flow between these steps as Python objects.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field

from tilewright.errors import Problem
from tilewright.expr.dtype import opaque
from tilewright.expr.nodes import Buffer, Const, Expr, Symbol, Var, const
from tilewright.graph.data_dependent_shapes import (
    MAX_DATA_DEPENDENT_SIZE,
    DataDependentSize,
    ResultType,
    Size,
    data_dependent_types,
)
from tilewright.graph.ir import Array, Graph, Node
from tilewright.graph.program import Constraint, Fallback
from tilewright.graph.solve_symbols import SolvedSize
from tilewright.ops.definition import Operand


@dataclass(frozen=True, slots=True)
class FallbackContext:
    """What surrounds fallback nodes.

    Attributes:
        feeds: buffers of the values that they need, by value name.
        constants: constant values that they need, by value name.
        operands: both, with the elements that are known.
        graph: the whole graph.
        settled: what is known of sizes that only the evaluator tells, by the symbol's name.
        loose: Constant nodes whose values are no arrays of native types, and which they need.
        types: serialized TypeProtos of opaque buffers, by the buffer's name, where they are known.
        told: symbols of sizes that nodes before told, by what they are functions of; grows.
    """

    feeds: Mapping[str, Buffer]
    constants: Mapping[str, Array]
    operands: Mapping[str, Operand]
    graph: Graph
    solved: Mapping[str, SolvedSize]
    opaque_constants: Sequence[Node] = ()
    opaque_types: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    shared_sizes: MutableMapping[Hashable, tuple[Var, Expr]] = field(default_factory=dict[Hashable, tuple[Var, Expr]])


@dataclass(slots=True)
class FallbackResults:
    """The values that fallback nodes give.

    Attributes:
        buffers: by value name; opaque where not even a rank is known.
        types: serialized TypeProtos of opaque buffers, by the buffer's name, where they are known.
        arriving: their sizes as the evaluator tells them: literals and symbols.
        fresh: those symbols that come up here for the first time.
        constraints: that sizes are what `buffers` say where that is something else than what arrives.
    """

    buffers: dict[str, Buffer] = field(default_factory=dict[str, Buffer])
    opaque_types: dict[str, bytes] = field(default_factory=dict[str, bytes])
    runtime_shapes: dict[str, tuple[Expr, ...]] = field(default_factory=dict[str, tuple[Expr, ...]])
    data_symbols: list[Var] = field(default_factory=list[Var])
    constraints: list[Constraint] = field(default_factory=list[Constraint])


def infer_results(
    node: Node, context: FallbackContext, requested: Iterable[str], make_name: Callable[[str], str]
) -> FallbackResults:
    """What a node gives, with fresh symbols for sizes that nobody knows.

    Sizes that the model declares are not relied on: exporters write those of one run of the network.

    Args:
        node: the node.
        outside: what it takes.
        wanted: values to make buffers for.
        name: gives a buffer's name for a value's name.
    """
    types, others = _infer_types(node, context)
    result = FallbackResults()
    # The symbols of unknown sizes, so that outputs that have one in common share it, and what is known of them.
    shared: dict[str, tuple[Var, Expr]] = {}
    for value in requested:
        buffer_name = make_name(value)
        if value not in types:
            result.buffers[value], result.runtime_shapes[value] = Buffer(buffer_name, (), opaque), ()
            if value in others:
                result.opaque_types[buffer_name] = others[value]
            continue
        known = types[value]
        pairs: list[tuple[Expr, Expr]] = []
        for axis, size in enumerate(known.shape):
            key = size.key if isinstance(size, DataDependentSize) else f"{value}.{axis}"
            if isinstance(size, Const | Var):
                pairs.append((size, size))
                continue
            source = size.origin if isinstance(size, DataDependentSize) else None
            if key not in shared and source in context.shared_sizes:
                shared[key] = context.shared_sizes[source]
            if key not in shared:
                what = f"node {node.label}: dimension {axis} of '{value}'"
                shared[key] = _make_data_symbol(f"{buffer_name}_n{axis}", size, what, context.solved, result)
            if source is not None:
                context.shared_sizes[source] = shared[key]
            pairs.append(shared[key])
        result.runtime_shapes[value] = tuple(p[0] for p in pairs)
        result.buffers[value] = Buffer(buffer_name, tuple(p[1] for p in pairs), known.dtype)
    return result


def _make_data_symbol(
    name: str,
    size: Expr | DataDependentSize,
    description: str,
    solved: Mapping[str, SolvedSize],
    result: FallbackResults,
) -> tuple[Var, Expr]:
    """The symbol of a size that the evaluator tells, and the expression that stands for it elsewhere."""
    symbol = Symbol(name, 0, size.upper_bound if isinstance(size, DataDependentSize) else MAX_DATA_DEPENDENT_SIZE)
    if isinstance(size, DataDependentSize):
        known = solved.get(name)
        meant, message = (symbol, "") if known is None else (known.size, known.message)
    else:
        meant, message = size, f"{description}: sizes {symbol} and {size} differ"
    if isinstance(meant, Var) and meant.name == name:
        symbol = meant
    elif meant is not symbol:
        result.constraints.append(Constraint(symbol.equals(meant), message))
    result.data_symbols.append(symbol)
    return symbol, meant


def _infer_types(node: Node, context: FallbackContext) -> tuple[dict[str, ResultType], dict[str, bytes]]:
    """Types of the tensors that a node computes, as far as ranks are known, and the serialized types of the others."""
    from tilewright.frontend.onnx.reference_evaluator import infer_outputs  # here because it imports onnx

    inferred, others = infer_outputs(node, context)
    texts = {repr(s): s for b in context.feeds.values() for s in b.shape}
    ours = data_dependent_types(node, [context.operands.get(v) for v in node.arguments]) or ()
    found: dict[str, ResultType] = {}
    for value in filter(None, node.outputs):
        theirs, declared = inferred.get(value), context.graph.declared_types.get(value)
        if theirs is not None:
            sizes = tuple(_parse_dim(d, texts, f"{value}.{axis}") for axis, d in enumerate(theirs.dims))
            found[value] = ResultType(theirs.dtype, sizes)
        elif declared is not None:
            sizes = tuple(_parse_dim(None, texts, f"{value}.{axis}") for axis, _ in enumerate(declared.shape))
            found[value] = ResultType(declared.dtype, sizes)
    return found | {v: known for v, known in zip(node.outputs, ours, strict=False) if v}, others


def _parse_dim(dim: int | str | None, texts: Mapping[str, Expr], key: str) -> Size:
    """A dimension that ONNX infers: a size, the text of an input's dimension, or nothing."""
    if isinstance(dim, int):
        return const(dim)
    known = texts.get(dim or "")
    return DataDependentSize(key) if known is None else known


def make_fallback(node: Node, context: FallbackContext, results: FallbackResults, reason: str) -> "Fallback | Problem":
    """The step, or the problem that the reference evaluator has no such operator either."""
    from tilewright.frontend.onnx.reference_evaluator import (  # here because it imports onnx
        evaluator_error,
        reference_model,
    )

    model = reference_model(
        (*context.opaque_constants, node),
        context.feeds,
        context.constants,
        results.buffers,
        context.graph.opsets,
        context.opaque_types,
    )
    lacking = evaluator_error(model)
    if lacking is not None:
        what = f"{reason}, and ONNX's reference evaluator can't run it either ({lacking})"
        return Problem("unsupported", f"node {node.label}", what)
    data = model.SerializeToString(deterministic=True)
    outputs, arriving = results.buffers.values(), tuple(results.runtime_shapes[v] for v in results.buffers)
    return Fallback(
        (node,), tuple(context.feeds.values()), tuple(outputs), arriving, tuple(results.data_symbols), reason, data
    )
