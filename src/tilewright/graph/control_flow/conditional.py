"""Conditionals: steps that hold the programs of two branches, and conditions that are known.

A branch that no sizes suit can't be taken: where the condition is an expression over sizes, that it selects the other
branch is a constraint on the model's sizes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.errors import Defect, pluralize
from tilewright.expr.algebra.bounds import interval
from tilewright.expr.algebra.prover import can_prove
from tilewright.expr.dtype import boolean, float32, int32, int64
from tilewright.expr.nodes import COMPARISONS, Binary, Cast, Const, Expr, const
from tilewright.expr.operations import binary, cast
from tilewright.expr.traversal import free_vars
from tilewright.graph.control_flow.subgraphs import (
    ControlFlowContext,
    InvalidSubgraphError,
    NotNativeError,
    lower_subgraph,
    own_symbols,
    read_buffers,
)
from tilewright.graph.data_dependent_shapes import DataDependentSize, ResultType
from tilewright.graph.fallback import FallbackResults, result_buffers
from tilewright.graph.ir import Node, Subgraph
from tilewright.graph.program import Body, Conditional, Constraint, ControlFlow
from tilewright.ops.definition import OpValue


class RankConflictError(NotNativeError):
    """A conditional whose branches compute a value of different rank."""


@dataclass(frozen=True, slots=True)
class ForcedCondition:
    """A conditional with a branch that no sizes suit: its condition, an expression over sizes, tells the valid sizes.

    Attributes:
        holds: the only value that the condition may have.
        constraint: that it has this value.
    """

    holds: bool
    constraint: Constraint


EXACT_FLOAT32 = 1 << 24
"""Integers up to which float32 is exact."""

_NO_CONDITIONS: Mapping[Expr, bool] = {}


def known_condition(condition: OpValue | None, assumed: Mapping[Expr, bool] = _NO_CONDITIONS) -> bool | None:
    """The value of a condition where it follows from constants, from ranges of symbols or from what is assumed, else
    None."""
    element = _condition_element(condition)
    if element is None or element in assumed:
        return None if element is None else assumed[element]
    element = _of_integers(element)
    if can_prove(element):
        return True
    return False if can_prove(~element) else None


def _of_integers(element: Expr) -> Expr:
    """A comparison of integers that were converted to float32 as one of the integers, where these are exact."""
    if not isinstance(element, Binary) or element.op not in COMPARISONS:
        return element
    a, b = (_integer_in_float(e) for e in (element.a, element.b))
    return element if a is None or b is None else binary(element.op, a, b)


def _integer_in_float(e: Expr) -> Expr | None:
    if isinstance(e, Const) and e.dtype is float32:
        value = float(e.value)
        return const(int(value)) if value.is_integer() and abs(value) <= EXACT_FLOAT32 else None
    if not isinstance(e, Cast) or e.dtype is not float32 or e.a.dtype not in (int32, int64):
        return None
    integer = cast(int64, e.a)
    return integer if is_within(integer, EXACT_FLOAT32) else None


def is_within(integer: Expr, limit: int) -> bool:
    """Whether an int64 expression is known to be from -limit to limit."""
    low, high = interval(integer)
    return low is not None and high is not None and -limit <= low and high <= limit


def _condition_element(condition: OpValue | None) -> Expr | None:
    """A condition as an expression over symbols, where it is known as one."""
    elements = None if condition is None else condition.known_elements
    return elements[0] if elements is not None and len(elements) == 1 and elements[0].dtype is boolean else None


def _assuming(context: ControlFlowContext, condition: OpValue, holds: bool) -> ControlFlowContext:
    """The context of a branch, in which the condition has a known value."""
    element = _condition_element(condition)
    if element is None:
        return context
    enclosing = replace(context.enclosing, assumed={**context.enclosing.assumed, element: holds})
    return replace(context, enclosing=enclosing)


def lower_conditional(
    node: Node, context: ControlFlowContext
) -> tuple[ControlFlow, FallbackResults] | ForcedCondition | Defect:
    """The step of an If with its results; what its condition has to be, where one branch can't be taken; or what is
    wrong with it.

    Raises:
        NotNativeError: only the evaluator can run it; RankConflictError where ranks of a result differ.
    """
    condition = context.values.operands.get(node.inputs[0])
    if condition is None or condition.dtype is not boolean:
        raise NotNativeError("its condition is no bool")
    branches = [node.subgraphs["then_branch"], node.subgraphs["else_branch"]]
    if any(len(b.outputs) != len(node.outputs) for b in branches):
        counts = " and ".join(str(len(b.outputs)) for b in branches)
        count = pluralize(len(node.outputs), "output")
        return Defect("arity", f"node {node.label}", f"has {count}, its branches have {counts}")
    kept = [k for k, o in enumerate(node.outputs) if o in context.used]
    branches = [replace(b, outputs=tuple(b.outputs[k] for k in kept)) for b in branches]
    bodies = _lower_branches(node, branches, condition, context)
    if isinstance(bodies, ForcedCondition):
        return bodies
    types: dict[str, ResultType] = {}
    for position, k in enumerate(kept):
        first, second = (b.program.outputs[position][1] for b in bodies)
        if first.dtype != second.dtype:
            what = f"computes '{node.outputs[k]}' as {first.dtype} in one branch, as {second.dtype} in the other"
            return Defect("type", f"node {node.label}", what)
        if first.rank != second.rank:
            ranks = f"{first.rank} and {second.rank} axes"
            raise RankConflictError(f"the branches compute '{node.outputs[k]}' with {ranks}")
        inner = set().union(*(own_symbols(b.program, ()) for b in bodies))
        pairs = zip(first.shape, second.shape, strict=True)
        shape = tuple(
            a if a is b and inner.isdisjoint(free_vars(a)) else DataDependentSize(f"{node.outputs[k]}.{axis}")
            for axis, (a, b) in enumerate(pairs)
        )
        types[node.outputs[k]] = ResultType(first.dtype, shape)
    results = result_buffers(node, types, context.values, [node.outputs[k] for k in kept], context.make_name)
    results = replace(results, constraints=[*results.constraints, *_shared_constraints(*bodies)])
    step = Conditional(
        nodes=(node,), inputs=read_buffers((condition.buffer,), bodies), outputs=tuple(results.buffers.values()),
        runtime_shapes=tuple(results.runtime_shapes.values()), data_symbols=tuple(results.data_symbols),
        condition=condition.buffer, then_branch=bodies[0], else_branch=bodies[1],
    )  # fmt: skip
    return step, results


def _shared_constraints(then_branch: Body, else_branch: Body) -> list[Constraint]:
    """The conditions on the symbols around a conditional that both of its branches need."""
    other = {c.condition for c in else_branch.program.constraints}
    own = then_branch.own_symbols | else_branch.own_symbols
    return [
        c
        for c in then_branch.program.constraints
        if c.condition in other and own.isdisjoint(v.name for v in free_vars(c.condition))
    ]


def _lower_branches(
    node: Node, branches: Sequence[Subgraph], condition: OpValue, context: ControlFlowContext
) -> list[Body] | ForcedCondition:
    """The bodies of the branches of a condition that holds, and of one that does not; the condition that has to hold
    where no sizes suit one of them."""
    bodies: list[Body] = []
    invalid: dict[bool, InvalidSubgraphError] = {}
    for branch, holds in zip(branches, (True, False), strict=True):
        try:
            bodies.append(lower_subgraph(node, branch, {}, _assuming(context, condition, holds)))
        except InvalidSubgraphError as error:
            invalid[holds] = error
    if not invalid:
        return bodies
    (refused, error), element = next(iter(invalid.items())), _condition_element(condition)
    if len(invalid) == 2 or element is None:
        raise error
    message = f"{error.problem.where}: {error.problem.what}"
    return ForcedCondition(not refused, Constraint(~element if refused else element, message))
