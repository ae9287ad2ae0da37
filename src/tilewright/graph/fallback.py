"""Fallback steps: nodes that run on ONNX's reference evaluator.

Values that are not tensors of known rank (sequences, optional values) have buffers of dtype `opaque`. These, and
tensors of types without native code (strings, float8), pass between fallback steps as Python objects.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, MutableMapping, Sequence, Set
from dataclasses import dataclass, field

from tilewright.custom_operators import PYTHON_OPERATORS
from tilewright.errors import Defect, DefinitionError, UnsupportedError
from tilewright.expr.dtype import dtype_of, opaque
from tilewright.expr.nodes import Buffer, Const, Expr, Symbol, Var, as_expr, const
from tilewright.graph.data_dependent_shapes import (
    MAX_DATA_DEPENDENT_SIZE,
    DataDependentSize,
    ResultType,
    Size,
    data_dependent_types,
)
from tilewright.graph.ir import Array, FallbackRegion, Graph, Node
from tilewright.graph.program import Constraint, Fallback
from tilewright.graph.solve_symbols import SolvedSize
from tilewright.names import unique_name
from tilewright.ops.definition import OpValue

PYTHON_REASON = "a Python function that the user registered"
"""The reason of fallbacks that are no shortcoming: no warning names them."""


@dataclass(frozen=True, slots=True)
class FallbackContext:
    """The surroundings of a fallback node.

    Attributes:
        feeds: buffers of the non-constant values that it reads, by value name.
        constants: arrays of the constants that it reads, by value name.
        operands: operands of both, with known elements.
        graph: the whole graph.
        solved: what constraints say about data-dependent sizes, by symbol name.
        opaque_constants: Constant nodes of types without arrays, which the node reads.
        opaque_types: serialized types of opaque buffers by buffer name, where they are known.
        shared_sizes: symbol and size that stand for a data-dependent size, by its origin; extended by each node.
        taken_symbols: names of the symbols of enclosing programs.
    """

    feeds: Mapping[str, Buffer]
    constants: Mapping[str, Array]
    operands: Mapping[str, OpValue]
    graph: Graph
    solved: Mapping[str, SolvedSize]
    opaque_constants: Sequence[Node] = ()
    opaque_types: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    shared_sizes: MutableMapping[Hashable, tuple[Var, Expr]] = field(default_factory=dict[Hashable, tuple[Var, Expr]])
    taken_symbols: Set[str] = frozenset()

    def region(self, node: Node, results: Mapping[str, Buffer] | None = None) -> FallbackRegion:
        """The region of a node and the opaque constants that it reads."""
        return FallbackRegion(
            nodes=(*self.opaque_constants, node),
            feeds=self.feeds,
            constants=self.constants,
            results=results or {},
            opsets=self.graph.opsets,
            opaque_types=self.opaque_types,
        )


@dataclass(slots=True)
class FallbackResults:
    """The results of a fallback node.

    Attributes:
        buffers: by value name; opaque where not even the rank is known.
        opaque_types: serialized types of opaque buffers by buffer name, where they are known.
        runtime_shapes: shapes as the evaluator reports them: literals and symbols.
        data_symbols: the symbols among them that are defined here.
        constraints: equate the sizes of `buffers` with the reported ones where they differ.
    """

    buffers: dict[str, Buffer] = field(default_factory=dict[str, Buffer])
    opaque_types: dict[str, bytes] = field(default_factory=dict[str, bytes])
    runtime_shapes: dict[str, tuple[Expr, ...]] = field(default_factory=dict[str, tuple[Expr, ...]])
    data_symbols: list[Var] = field(default_factory=list[Var])
    constraints: list[Constraint] = field(default_factory=list[Constraint])


def infer_results(
    node: Node, context: FallbackContext, requested: Iterable[str], make_name: Callable[[str], str]
) -> FallbackResults:
    """The result buffers of a node, with new symbols for data-dependent sizes.

    Sizes that the model declares are not relied on: exporters write those of one run of the network.

    Args:
        node: the node.
        context: its surroundings.
        requested: names of the values that need a buffer.
        make_name: generates a buffer's name from a value's name.
    """
    types, serialized = _infer_types(node, context)
    return result_buffers(node, types, context, requested, make_name, serialized)


def result_buffers(
    node: Node,
    types: Mapping[str, ResultType],
    context: FallbackContext,
    requested: Iterable[str],
    make_name: Callable[[str], str],
    serialized: Mapping[str, bytes] | None = None,
) -> FallbackResults:
    """The result buffers of a node that the runtime executes, with new symbols for data-dependent sizes.

    Args:
        node: the node.
        types: of its results by value name; a result without one is opaque.
        context: its surroundings.
        requested: names of the values that need a buffer.
        make_name: generates a buffer's name from a value's name.
        serialized: serialized types of opaque results, where they are known.
    """
    result = FallbackResults()
    # Symbol and size per data-dependent size, so that outputs with a common size share them.
    node_sizes: dict[str, tuple[Var, Expr]] = {}
    for value in requested:
        buffer_name = make_name(value)
        if value not in types:
            result.buffers[value], result.runtime_shapes[value] = Buffer(buffer_name, (), opaque), ()
            if serialized is not None and value in serialized:
                result.opaque_types[buffer_name] = serialized[value]
            continue
        dims = [
            result_size(node, (value, buffer_name, axis), size, context, node_sizes, result)
            for axis, size in enumerate(types[value].shape)
        ]
        result.runtime_shapes[value] = tuple(p[0] for p in dims)
        result.buffers[value] = Buffer(buffer_name, tuple(p[1] for p in dims), types[value].dtype)
    return result


def result_size(
    node: Node,
    place: tuple[str, str, int],
    size: Size,
    context: FallbackContext,
    node_sizes: MutableMapping[str, tuple[Var, Expr]],
    result: FallbackResults,
) -> tuple[Expr, Expr]:
    """The size of a result as the runtime reports it, and the expression that stands for it in shapes.

    Args:
        node: the node.
        place: names of the value and of its buffer, and the axis.
        size: as far as it is known.
        context: the node's surroundings.
        node_sizes: those of the node so far by key; extended.
        result: receives new symbols.
    """
    value, buffer_name, axis = place
    if isinstance(size, Const | Var):
        return size, size
    key = size.key if isinstance(size, DataDependentSize) else f"{value}.{axis}"
    source = size.origin if isinstance(size, DataDependentSize) else None
    if key not in node_sizes and source in context.shared_sizes:
        node_sizes[key] = context.shared_sizes[source]
    if key not in node_sizes:
        description = f"node {node.label}: dimension {axis} of '{value}'"
        name = unique_name(f"{buffer_name}_n{axis}", context.taken_symbols)
        node_sizes[key] = _make_data_symbol(name, size, description, context.solved, result)
    if source is not None:
        context.shared_sizes[source] = node_sizes[key]
    return node_sizes[key]


def _make_data_symbol(
    name: str,
    size: Expr | DataDependentSize,
    description: str,
    solved: Mapping[str, SolvedSize],
    result: FallbackResults,
) -> tuple[Var, Expr]:
    """The symbol of a size that the evaluator reports, and the expression that stands for it in shapes."""
    symbol = Symbol(name, 0, size.upper_bound if isinstance(size, DataDependentSize) else MAX_DATA_DEPENDENT_SIZE)
    if isinstance(size, DataDependentSize):
        solution = solved.get(name)
        stands_for, message = (symbol, "") if solution is None else (solution.size, solution.message)
    else:
        stands_for, message = size, f"{description}: sizes {symbol} and {size} differ"
    if isinstance(stands_for, Var) and stands_for.name == name:
        symbol = stands_for
    elif stands_for is not symbol:
        result.constraints.append(Constraint(symbol.equals(stands_for), message))
    result.data_symbols.append(symbol)
    return symbol, stands_for


def _infer_types(node: Node, context: FallbackContext) -> tuple[Mapping[str, ResultType], Mapping[str, bytes]]:
    """Types of the tensor results, as far as their ranks are known, and serialized types of all results."""
    inferred, serialized = context.graph.dialect.infer_types(context.region(node))
    texts = {repr(s): s for b in context.feeds.values() for s in b.shape}
    data_dependent = data_dependent_types(node, [context.operands.get(v) for v in node.arguments]) or ()
    types: dict[str, ResultType] = {}
    for value in filter(None, node.outputs):
        dialect_type, declared = inferred.get(value), context.graph.declared_types.get(value)
        if dialect_type is not None:
            sizes = tuple(_parse_dim(d, texts, f"{value}.{axis}") for axis, d in enumerate(dialect_type.dims))
            types[value] = ResultType(dialect_type.dtype, sizes)
        elif declared is not None:
            sizes = tuple(_parse_dim(None, texts, f"{value}.{axis}") for axis, _ in enumerate(declared.shape))
            types[value] = ResultType(declared.dtype, sizes)
    types |= {v: t for v, t in zip(node.outputs, data_dependent, strict=False) if v}
    return types | _stated_types(node, context), serialized


def _stated_types(node: Node, context: FallbackContext) -> dict[str, ResultType]:
    """Types of the results of an operator that the user implements, as far as the user states them.

    Raises:
        DefinitionError: the user's function fails, or states no types.
    """
    custom = PYTHON_OPERATORS.get((node.domain, node.op_type))
    if custom is None or custom.result_types is None:
        return {}
    operands = [context.operands.get(v) for v in node.arguments]
    inputs = [None if o is None else (o.dtype.name, o.shape) for o in operands]
    try:
        stated = custom.result_types(inputs, node.attributes)
        return {
            value: ResultType(dtype_of(dtype), tuple(_stated_size(n, f"{value}.{k}") for k, n in enumerate(shape)))
            for value, (dtype, shape) in zip(node.outputs, stated, strict=False)
            if value
        }
    except Exception as error:
        what = f"result_types of the operator '{node.domain}::{node.op_type}' failed ({type(error).__name__}: {error})"
        raise DefinitionError(what, where=f"node {node.label}") from error


def _stated_size(size: "int | Expr | None", key: str) -> Size:
    return DataDependentSize(key) if size is None else as_expr(size)


def _parse_dim(dim: int | str | None, texts: Mapping[str, Expr], key: str) -> Size:
    """A dimension that the dialect infers: a size, the text of a feed's dimension, or unknown."""
    if isinstance(dim, int):
        return const(dim)
    size = texts.get(dim or "")
    return DataDependentSize(key) if size is None else size


def make_fallback(node: Node, context: FallbackContext, results: FallbackResults, reason: str) -> "Fallback | Defect":
    """The step that runs a node, or the problem that the dialect's evaluator cannot run it either."""
    if (node.domain, node.op_type) in PYTHON_OPERATORS:
        reason = PYTHON_REASON
    try:
        model = context.graph.dialect.serialize(context.region(node, results.buffers))
    except UnsupportedError as error:
        what = f"{reason}, and ONNX's reference evaluator can't run it either ({error.what})"
        return Defect("unsupported", f"node {node.label}", what)
    return Fallback(
        nodes=(node,),
        inputs=tuple(context.feeds.values()),
        outputs=tuple(results.buffers.values()),
        runtime_shapes=tuple(results.runtime_shapes[v] for v in results.buffers),
        data_symbols=tuple(results.data_symbols),
        reason=reason,
        model=model,
    )
