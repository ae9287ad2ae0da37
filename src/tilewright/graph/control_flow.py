"""Control flow as steps: a conditional and a loop hold the programs of their sub-graphs.

A sub-graph is lowered like a graph whose inputs are its parameters and the values that it captures, over the symbols of
the programs around it and its own. Sizes of carried values that an iteration may change are symbols of the body.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from tilewright.errors import Defect, ModelError
from tilewright.expr.algebra.prover import can_prove
from tilewright.expr.computation import View
from tilewright.expr.dtype import DType, boolean, int64, opaque
from tilewright.expr.nodes import Buffer, Const, Expr, Symbol, Var, const
from tilewright.expr.traversal import free_vars
from tilewright.graph.data_dependent_shapes import MAX_DATA_DEPENDENT_SIZE, DataDependentSize, ResultType, Size
from tilewright.graph.fallback import FallbackContext, FallbackResults, result_buffers
from tilewright.graph.ir import Array, Graph, Node, Subgraph, TensorType, Value
from tilewright.graph.program import Body, Conditional, ControlFlow, Loop, Program, step_outputs
from tilewright.ops.definition import KnownElements, OpValue

MAX_NATIVE_DEPTH = 4
"""Levels of control flow inside each other that get native code; the reference evaluator runs those further inside.
Every level is lowered several times for one time that the level around it is."""

_ENDLESS = (1 << 63) - 1
"""A trip count with which exporters say that there is none."""


@dataclass(frozen=True, slots=True)
class Enclosing:
    """What the lowering of a sub-graph knows of the programs around it.

    Attributes:
        symbols: names of their symbols.
        data_symbols: names of those whose size may be 1 where a node broadcasts.
        known: elements of captured values by the name that the sub-graph has for them.
        depth: levels of control flow around.
    """

    symbols: Set[str] = frozenset()
    data_symbols: Set[str] = frozenset()
    known: Mapping[str, KnownElements] = field(default_factory=dict[str, KnownElements])
    depth: int = 0


LowerBody = Callable[[Graph, Enclosing], Program]
"""Lowers the graph that stands for a sub-graph; raises ModelError."""


class NotNativeError(Exception):
    """A control-flow node that only the evaluator can run; the reason."""


@dataclass(frozen=True, slots=True)
class ControlFlowContext:
    """The surroundings of a control-flow node.

    Attributes:
        values: operands, constants and symbols, as for a fallback.
        enclosing: of the sub-graphs.
        lower_body: lowers them.
        make_name: generates a buffer's name from a value's name.
        used: names of the values that are read or returned.
    """

    values: FallbackContext
    enclosing: Enclosing
    lower_body: LowerBody
    make_name: Callable[[str], str]
    used: Set[str]


def known_condition(condition: OpValue | None) -> bool | None:
    """The value of a condition where it follows from constants and from ranges of symbols, else None."""
    elements = None if condition is None else condition.known_elements
    if elements is None or len(elements) != 1 or elements[0].dtype is not boolean:
        return None
    if can_prove(elements[0]):
        return True
    return False if can_prove(~elements[0]) else None


def lower_control_flow(node: Node, context: ControlFlowContext) -> tuple[ControlFlow, FallbackResults] | Defect:
    """The step of an If or a Loop with its results, or what is wrong with it.

    Raises:
        NotNativeError: only the evaluator can run it.
    """
    if context.enclosing.depth > MAX_NATIVE_DEPTH:
        raise NotNativeError(f"is inside of {MAX_NATIVE_DEPTH} levels of control flow")
    if context.values.opaque_constants:
        raise NotNativeError("a sub-graph reads constants without a native type")
    return _lower_if(node, context) if node.op_type == "If" else _lower_loop(node, context)


def _lower_if(node: Node, context: ControlFlowContext) -> tuple[ControlFlow, FallbackResults] | Defect:
    condition = context.values.operands.get(node.inputs[0])
    if condition is None or condition.dtype is not boolean:
        raise NotNativeError("its condition is no bool")
    branches = [node.subgraphs["then_branch"], node.subgraphs["else_branch"]]
    if any(len(b.outputs) != len(node.outputs) for b in branches):
        counts = " and ".join(str(len(b.outputs)) for b in branches)
        return Defect("arity", f"node {node.label}", f"has {len(node.outputs)} outputs, its branches have {counts}")
    kept = [k for k, o in enumerate(node.outputs) if o in context.used]
    bodies = [_lower_subgraph(node, replace(b, outputs=tuple(b.outputs[k] for k in kept)), {}, context)
              for b in branches]  # fmt: skip
    types: dict[str, ResultType] = {}
    for position, k in enumerate(kept):
        first, second = (b.program.outputs[position][1] for b in bodies)
        if first.dtype != second.dtype:
            what = f"computes '{node.outputs[k]}' as {first.dtype} in one branch, as {second.dtype} in the other"
            return Defect("type", f"node {node.label}", what)
        if first.rank != second.rank:
            raise NotNativeError(f"the branches compute '{node.outputs[k]}' with {first.rank} and {second.rank} axes")
        inner = set().union(*(_own_symbols(b.program, ()) for b in bodies))
        pairs = zip(first.shape, second.shape, strict=True)
        shape = tuple(
            a if a is b and inner.isdisjoint(free_vars(a)) else DataDependentSize(f"{node.outputs[k]}.{axis}")
            for axis, (a, b) in enumerate(pairs)
        )
        types[node.outputs[k]] = ResultType(first.dtype, shape)
    results = result_buffers(node, types, context.values, [node.outputs[k] for k in kept], context.make_name)
    step = Conditional(
        nodes=(node,), inputs=_reads((condition.buffer,), bodies), outputs=tuple(results.buffers.values()),
        runtime_shapes=tuple(results.runtime_shapes.values()), data_symbols=tuple(results.data_symbols),
        condition=condition.buffer, then_branch=bodies[0], else_branch=bodies[1],
    )  # fmt: skip
    return step, results


def _lower_loop(node: Node, context: ControlFlowContext) -> tuple[ControlFlow, FallbackResults] | Defect:
    subgraph, operands = node.subgraphs["body"], context.values.operands
    arguments = [operands.get(v) if v else None for v in node.arguments]
    carried = [o.buffer for o in arguments[2:] if o is not None]
    if len(subgraph.inputs) != len(arguments) or len(subgraph.outputs) < len(arguments) - 1 or (
        len(node.outputs) > len(subgraph.outputs) - 1
    ):  # fmt: skip
        what = (
            f"has {len(arguments)} inputs and {len(node.outputs)} outputs, its body {len(subgraph.inputs)} and "
            f"{len(subgraph.outputs)}"
        )
        return Defect("arity", f"node {node.label}", what)
    if len(carried) < len(arguments) - 2 or any(not b.dtype.is_native for b in carried):
        raise NotNativeError("a carried value has no native type")
    scans = [k for k in range(len(carried), len(node.outputs)) if node.outputs[k] in context.used]
    kept = [0, *(k + 1 for k in range(len(carried))), *(k + 1 for k in scans)]
    subgraph = replace(subgraph, outputs=tuple(subgraph.outputs[k] for k in kept))
    body, own = _lower_loop_body(node, subgraph, carried, context)
    for k, (b, (name, result)) in enumerate(zip(carried, body.program.outputs[1:], strict=False)):
        if b.dtype != result.dtype:
            what = f"its body computes '{name}' as {result.dtype}, carried value {k} is {b.dtype}"
            return Defect("type", f"node {node.label}", what)
    trip_count, condition = arguments[0], arguments[1] if len(arguments) > 1 else None
    if _is_endless(trip_count):
        trip_count = None
    condition = None if known_condition(condition) is True else condition
    is_counted = _keeps_condition(body.program)
    if is_counted:
        body = replace(body, program=replace(body.program, outputs=body.program.outputs[1:]))
    count = _iteration_count(trip_count) if is_counted and condition is None else None
    names = [o or f"{node.name}.{k}" for k, o in enumerate(node.outputs)]
    names = [*names, *(f"{node.name}.{k}" for k in range(len(names), len(carried)))]
    types = _loop_types(body.program, [names[k] for k in (*range(len(carried)), *scans)], len(carried), own, count)
    results = result_buffers(node, types, context.values, list(types), context.make_name)
    operand_buffers = [o.buffer for o in (trip_count, condition) if o is not None]
    step = Loop(
        nodes=(node,), inputs=_reads((*operand_buffers, *carried), [body]), outputs=tuple(results.buffers.values()),
        runtime_shapes=tuple(results.runtime_shapes.values()), data_symbols=tuple(results.data_symbols),
        trip_count=None if trip_count is None else trip_count.buffer,
        condition=None if condition is None else condition.buffer,
        initial=tuple(carried), body=body, is_counted=is_counted, count=count,
    )  # fmt: skip
    return step, results


def _lower_loop_body(
    node: Node, subgraph: Subgraph, carried: Sequence[Buffer], context: ControlFlowContext
) -> tuple[Body, Set[Var]]:
    """The body, and its symbols for sizes that an iteration may change.

    Sizes of a carried value begin as those of its first value. Where the body computes another one, it is lowered again
    with a symbol in that place, until no size changes.
    """
    scalars = [_scalar_type(subgraph, 0, int64), _scalar_type(subgraph, 1, boolean)]
    names = [context.make_name(v) for v in subgraph.inputs[2:]]
    shapes = [list(b.shape) for b in carried]
    own: set[Var] = set()
    while True:
        types = [*scalars, *(TensorType(b.dtype, tuple(s)) for b, s in zip(carried, shapes, strict=True))]
        parameters = dict(zip(subgraph.inputs, types, strict=True))
        body = _lower_subgraph(node, subgraph, parameters, context, tuple(own))
        changed = False
        results = [b for _, b in body.program.outputs[1 : 1 + len(carried)]]
        for k, (parameter, result) in enumerate(zip(body.program.inputs[2:], results, strict=False)):
            if parameter.rank != result.rank:
                raise NotNativeError(f"an iteration changes the rank of '{subgraph.inputs[k + 2]}'")
            for axis, (size, new) in enumerate(zip(parameter.shape, result.shape, strict=True)):
                if size is not new and not (isinstance(shapes[k][axis], Var) and shapes[k][axis] in own):
                    shapes[k][axis] = symbol = Symbol(f"{names[k]}_d{axis}", 0, MAX_DATA_DEPENDENT_SIZE)
                    own.add(symbol)
                    changed = True
        if not changed:
            return body, _own_symbols(body.program, own)


def _scalar_type(subgraph: Subgraph, position: int, dtype: DType) -> TensorType:
    """The type of the number of the iteration or of the condition: a scalar, or a vector of one element where the body
    declares it so."""
    declared = subgraph.declared_types.get(subgraph.inputs[position])
    rank = 0 if declared is None else min(1, len(declared.shape))
    return TensorType(dtype, (const(1),) * rank)


def _lower_subgraph(
    node: Node,
    subgraph: Subgraph,
    parameters: Mapping[str, TensorType],
    context: ControlFlowContext,
    symbols: tuple[Var, ...] = (),
) -> Body:
    """The program of a sub-graph with the buffers that it captures.

    Args:
        node: its node.
        subgraph: the sub-graph.
        parameters: types of its parameters by name, in order.
        context: of the node.
        symbols: its own symbols in them.
    """
    outer = context.values
    defined = {*subgraph.inputs, *subgraph.constants, *(o for n in subgraph.nodes for o in n.outputs)}
    read = {v for n in subgraph.nodes for v in n.inputs} | set(subgraph.outputs)
    captured = {v: name for v, name in node.captured.items() if v in read and v not in defined}
    constants: dict[str, Array] = {v: outer.constants[n] for v, n in captured.items() if n in outer.constants}
    feeds = {v: outer.feeds[n] for v, n in captured.items() if n in outer.feeds}
    known = {v: e for v in feeds if (e := outer.operands[captured[v]].known_elements) is not None}
    values = [Value(v, t) for v, t in parameters.items()]
    values += [Value(v, TensorType(b.dtype, b.shape)) for v, b in feeds.items()]
    declared = {v: t for v, t in subgraph.declared_types.items() if v not in subgraph.inputs}
    graph = Graph(
        name=node.name, inputs=tuple(values), outputs=subgraph.outputs, constants=constants | dict(subgraph.constants),
        nodes=subgraph.nodes, symbols=symbols, declared_types=declared, opsets=outer.graph.opsets,
        symbol_names=outer.graph.symbol_names, dialect=outer.graph.dialect,
        opaque_types={v: outer.opaque_types[b.name] for v, b in feeds.items() if b.name in outer.opaque_types},
    )  # fmt: skip
    try:
        program = context.lower_body(graph, replace(context.enclosing, known=known))
    except ModelError as error:
        raise NotNativeError(f"a sub-graph has no native code ({error.problems[0]})") from error
    if any(b.dtype is opaque for _, b in program.outputs):
        raise NotNativeError("a sub-graph returns values that are no tensors")
    return _without_unread_captures(program, len(parameters), list(feeds.values()))


def _without_unread_captures(program: Program, parameters: int, captures: Sequence[Buffer]) -> Body:
    read = {b.name for s in program.steps for b in s.inputs} | {b.name for _, b in program.outputs}
    kept = [k for k, b in enumerate(program.inputs) if k < parameters or b.name in read]
    inputs, names = (tuple(x[k] for k in kept) for x in (program.inputs, program.input_names))
    body = replace(program, inputs=inputs, input_names=names)
    return Body(body, tuple(captures[k - parameters] for k in kept if k >= parameters))


def _own_symbols(program: Program, parameters: Iterable[Var]) -> Set[Var]:
    """The symbols that have no meaning outside of a program: those of its parameters, and data-dependent sizes."""
    data = (v for s in program.steps if not isinstance(s, View) for v in getattr(s, "data_symbols", ()))
    names = {v.name for v in parameters}
    sizes = (v for b in program.inputs for n in b.shape for v in free_vars(n) if v.name in names)
    return frozenset((*parameters, *sizes, *data))


def _reads(operands: Sequence[Buffer], bodies: Sequence[Body]) -> tuple[Buffer, ...]:
    return tuple(dict.fromkeys((*operands, *(b for body in bodies for b in body.captures))))


def _is_endless(trip_count: OpValue | None) -> bool:
    elements = None if trip_count is None else trip_count.known_elements
    return elements is not None and isinstance(elements[0], Const) and int(elements[0].value) == _ENDLESS


def _keeps_condition(body: Program) -> bool:
    """Whether a loop's body returns the condition that it was given, or a constant that holds."""
    writers = {b.name: s for s in body.steps for b in step_outputs(s)}
    buffer = body.outputs[0][1]
    while isinstance(step := writers.get(buffer.name), View):
        buffer = step.source
    if buffer.name in body.constants:
        return bool(body.constants[buffer.name].all())
    return buffer.name == body.inputs[1].name


def _iteration_count(trip_count: OpValue | None) -> Expr | None:
    """How often a loop without a condition runs, where that is known as an expression."""
    elements = None if trip_count is None else trip_count.known_elements
    if elements is None or len(elements) != 1 or elements[0].dtype is not int64:
        return None
    return elements[0] if can_prove(const(0) <= elements[0]) else None


def _loop_types(
    body: Program, names: Sequence[str], carried: int, own: Set[Var], count: Expr | None
) -> dict[str, ResultType]:
    """Types of a loop's results by value name: the carried values, then the stacked ones."""
    outputs = [b for _, b in body.outputs[len(body.outputs) - len(names) :]]
    types: dict[str, ResultType] = {}
    for k, (name, result) in enumerate(zip(names, outputs, strict=True)):
        sizes = body.inputs[2 + k].shape if k < carried else result.shape
        dims: list[Size] = [
            DataDependentSize(f"{name}.{axis}") if not own.isdisjoint(free_vars(n)) else n
            for axis, n in enumerate(sizes)
        ]
        if k >= carried:
            # without any iteration only literal sizes and symbols are known
            dims = [n if isinstance(n, Const | Var) else DataDependentSize(f"{name}.{axis}+1")
                    for axis, n in enumerate(dims)]  # fmt: skip
            dims.insert(0, DataDependentSize(f"{names[carried]}.count") if count is None else count)
        types[name] = ResultType(result.dtype, tuple(dims))
    return types
