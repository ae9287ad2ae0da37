"""Control flow as steps: a conditional and a loop hold the programs of their sub-graphs.

A sub-graph is lowered like a graph whose inputs are its parameters and the values that it captures, over the symbols of
the programs around it and its own. Sizes of carried values that an iteration may change are symbols of the body.
"""

from collections.abc import Sequence, Set
from dataclasses import replace

from tilewright.errors import Defect, pluralize
from tilewright.expr.algebra.prover import can_prove
from tilewright.expr.computation import View
from tilewright.expr.dtype import DType, boolean, int64
from tilewright.expr.nodes import Buffer, Const, Expr, Symbol, Var, const
from tilewright.expr.traversal import free_vars
from tilewright.graph.control_flow.conditional import ForcedCondition, known_condition, lower_conditional
from tilewright.graph.control_flow.subgraphs import (
    ControlFlowContext,
    NotNativeError,
    lower_subgraph,
    own_symbols,
    read_buffers,
)
from tilewright.graph.data_dependent_shapes import MAX_DATA_DEPENDENT_SIZE, DataDependentSize, ResultType, Size
from tilewright.graph.fallback import FallbackResults, result_buffers
from tilewright.graph.ir import Node, Subgraph, TensorType
from tilewright.graph.program import Body, ControlFlow, Loop, Program, step_outputs
from tilewright.ops.definition import OpValue

MAX_NATIVE_DEPTH = 4
"""Levels of control flow inside each other that get native code; the reference evaluator runs those further inside.
Every level is lowered several times for one time that the level around it is."""

_ENDLESS = (1 << 63) - 1
"""A trip count with which exporters say that there is none."""


def lower_control_flow(
    node: Node, context: ControlFlowContext
) -> tuple[ControlFlow, FallbackResults] | ForcedCondition | Defect:
    """The step of an If or a Loop with its results; what the condition of an If has to be; or what is wrong with it.

    Raises:
        NotNativeError: only the evaluator can run it.
    """
    if context.enclosing.depth > MAX_NATIVE_DEPTH:
        raise NotNativeError(f"is inside of {MAX_NATIVE_DEPTH} levels of control flow")
    if context.values.opaque_constants:
        raise NotNativeError("a sub-graph reads constants without a native type")
    return lower_conditional(node, context) if node.op_type == "If" else _lower_loop(node, context)


def _lower_loop(node: Node, context: ControlFlowContext) -> tuple[ControlFlow, FallbackResults] | Defect:
    subgraph, operands = node.subgraphs["body"], context.values.operands
    arguments = [operands.get(v) if v else None for v in node.arguments]
    carried = [o.buffer for o in arguments[2:] if o is not None]
    if len(subgraph.inputs) != len(arguments) or len(subgraph.outputs) < len(arguments) - 1 or (
        len(node.outputs) > len(subgraph.outputs) - 1
    ):  # fmt: skip
        what = (
            f"has {pluralize(len(arguments), 'input')} and {pluralize(len(node.outputs), 'output')},"
            f" its body {len(subgraph.inputs)} and {len(subgraph.outputs)}"
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
    if is_endless(trip_count):
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
        nodes=(node,), inputs=read_buffers((*operand_buffers, *carried), [body]),
        outputs=tuple(results.buffers.values()),
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
    # ordered, as the order of symbols decides which code is generated
    own: dict[Var, None] = {}
    while True:
        types = [*scalars, *(TensorType(b.dtype, tuple(s)) for b, s in zip(carried, shapes, strict=True))]
        parameters = dict(zip(subgraph.inputs, types, strict=True))
        body = lower_subgraph(node, subgraph, parameters, context, tuple(own))
        changed = False
        results = [b for _, b in body.program.outputs[1 : 1 + len(carried)]]
        for k, (parameter, result) in enumerate(zip(body.program.inputs[2:], results, strict=False)):
            if parameter.rank != result.rank:
                raise NotNativeError(f"an iteration changes the rank of '{subgraph.inputs[k + 2]}'")
            for axis, (size, new) in enumerate(zip(parameter.shape, result.shape, strict=True)):
                if size is not new and not (isinstance(shapes[k][axis], Var) and shapes[k][axis] in own):
                    shapes[k][axis] = symbol = Symbol(f"{names[k]}_d{axis}", 0, MAX_DATA_DEPENDENT_SIZE)
                    own[symbol] = None
                    changed = True
        if not changed:
            return body, own_symbols(body.program, own)


def _scalar_type(subgraph: Subgraph, position: int, dtype: DType) -> TensorType:
    """The type of the number of the iteration or of the condition: a scalar, or a vector of one element where the body
    declares it so."""
    declared = subgraph.declared_types.get(subgraph.inputs[position])
    rank = 0 if declared is None else min(1, len(declared.shape))
    return TensorType(dtype, (const(1),) * rank)


def is_endless(trip_count: OpValue | None) -> bool:
    """Whether a trip count is the one with which exporters say that there is none."""
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
