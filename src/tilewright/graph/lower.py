"""Lowering of a graph to a program of tensor expressions.

Every node is lowered by its operator's definition in one walk (`NodeLowering`), which infers shapes and types on the
way: an output's shape is the shape of what the definition computes, and results of shape arithmetic are known as
expressions. Literal results become constants, and steps without uses are dropped. Nodes without a definition become
steps of ONNX's reference evaluator, and control flow becomes steps that hold programs. The problems of all nodes are
reported together.
"""

from collections.abc import Sequence
from dataclasses import replace

from tilewright.errors import FallbackWarning, ModelError, ShapeWarning, pluralize
from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.nodes import Expr
from tilewright.graph.control_flow.duplicate_tail import duplicate_tail
from tilewright.graph.control_flow.inline_branches import inline_branches
from tilewright.graph.control_flow.subgraphs import Enclosing, NotNativeError
from tilewright.graph.fallback import PYTHON_REASON
from tilewright.graph.ir import Graph
from tilewright.graph.lower_nodes import NodeLowering
from tilewright.graph.passes import simplify_graph
from tilewright.graph.program import (
    Constraint,
    Fallback,
    Program,
    RuntimeStep,
    eliminate_dead_steps,
    nested_programs,
    step_outputs,
)
from tilewright.graph.solve_symbols import SolvedSize, solve_symbols, substitute_symbols
from tilewright.user_warnings import warn_user

_MAX_LISTED = 8
"""Values with wrong declared shapes that one warning names."""


def lower_graph(graph: Graph) -> Program:
    """The program of a graph.

    The graph is walked again until no constraint narrows a symbol any further.

    Warns:
        FallbackWarning: nodes run on ONNX's reference evaluator; one warning names all of them.
        ShapeWarning: the model declares other shapes than it computes; one warning names them.

    Raises:
        ModelError: shapes do not fit, a type differs from the declared one, or an operator cannot be run at all; lists
            all such problems.
    """
    program, mismatches = _lower(graph, Enclosing())
    _emit_warnings(program, mismatches)
    return program


def _lower(graph: Graph, enclosing: Enclosing) -> tuple[Program, Sequence[str]]:
    """The program of a graph, and what it declares otherwise than it computes.

    Args:
        graph: a model, or what stands for a sub-graph.
        enclosing: the programs around it.
    """
    solved: dict[str, SolvedSize] = {}
    assumed_equal: frozenset[Expr] = frozenset()
    forced: list[Constraint] = []
    tails = _Tails()
    while True:
        lowering = NodeLowering(graph, solved, assumed_equal, enclosing, _lower_body).run()
        # a conditional may have no native step only because of another one whose results differ in rank
        longer = tails.with_next(graph, lowering)
        if longer is not None:
            graph = longer
            continue
        if lowering.known_conditions and not lowering.problems:
            forced += lowering.forced_conditions
            conditions = lowering.known_conditions
            graph = simplify_graph(inline_branches(graph, lambda node: conditions.get(node.name)))  # noqa: B023 - called here
            continue
        shorter = tails.without_refused(lowering)
        if shorter is not None:
            graph = shorter
            continue
        if lowering.problems:
            raise ModelError(lowering.problems)
        solution = solve_symbols(graph, (*forced, *lowering.constraints), lowering.data_symbols)
        # Solved sizes stay constraints, so they are solved again.
        new = {n: s for n, s in solution.data_sizes.items() if n not in solved or s.size is not solved[n].size}
        if solution.inputs or new:
            graph = substitute_symbols(graph, solution.inputs)
            solved |= new
            forced = [replace(c, condition=substitute(c.condition, solution.inputs)) for c in forced]
            solved = {n: replace(s, size=substitute(s.size, solution.inputs)) for n, s in solved.items()}
        elif assumed_equal.issuperset(lowering.unproven_equalities):
            break
        assumed_equal |= frozenset(lowering.unproven_equalities)
    return _build_program(graph, lowering, (*forced, *lowering.constraints)), lowering.shape_mismatches


class _Tails:
    """Conditionals of one graph that got copies of their tails, because their branches' results differ in rank."""

    def __init__(self) -> None:
        self._before: dict[str, Graph] = {}
        self._refused: set[str] = set()

    def without_refused(self, lowering: NodeLowering) -> Graph | None:
        """The graph before a tail was copied into a conditional that has no native step; None where all have one.

        Raises:
            NotNativeError: the conditional is part of a tail that was copied in the graph around.
        """
        if not lowering.refused_tails:
            return None
        name, reason = lowering.refused_tails[0]
        if name not in self._before:
            # a copy of a conditional of the graph around, which has to do without
            raise NotNativeError(reason)
        self._refused.add(name)
        return self._before[name]

    def with_next(self, graph: Graph, lowering: NodeLowering) -> Graph | None:
        """The graph with one more tail copied; None where no conditional needs it."""
        for name in lowering.rank_conflicts:
            longer = None if name in self._refused else duplicate_tail(graph, name)
            if longer is not None:
                self._before[name] = graph
                return simplify_graph(longer)
        return None


def _lower_body(graph: Graph, enclosing: Enclosing) -> Program:
    """The program of a sub-graph."""
    program, _ = _lower(simplify_graph(graph), enclosing)
    outer = sorted(program.used_symbols - set(program.symbols), key=lambda v: v.name)
    return replace(program, symbols=(*program.symbols, *outer))


def _build_program(graph: Graph, lowering: NodeLowering, constraints: Sequence[Constraint]) -> Program:
    outputs = tuple((name, lowering.operands[name].buffer) for name in graph.outputs)
    steps = eliminate_dead_steps(lowering.steps, {b.name for _, b in outputs})
    used = {b.name for s in steps for b in s.inputs} | {b.name for _, b in outputs}
    live = used | {b.name for s in steps for b in step_outputs(s)}
    data_symbols = tuple(v for s in steps if isinstance(s, RuntimeStep) for v in s.data_symbols)
    return Program(
        name=graph.name,
        inputs=tuple(lowering.operands[v.name].buffer for v in graph.inputs),
        outputs=outputs,
        constants={name: array for name, array in lowering.constants.items() if name in used},
        steps=tuple(steps),
        symbols=graph.symbols + data_symbols,
        constraints=tuple({c.condition: c for c in reversed(constraints)}.values())[::-1],
        metadata=graph.metadata,
        input_names=tuple(v.name for v in graph.inputs),
        symbol_names=graph.symbol_names,
        values={name: o.buffer for name, o in lowering.operands.items() if o.buffer.name in live},
    )


def _emit_warnings(program: Program, mismatches: Sequence[str]) -> None:
    if mismatches:
        listed = [
            *mismatches[:_MAX_LISTED],
            *([f"and {len(mismatches) - _MAX_LISTED} more"] if len(mismatches) > _MAX_LISTED else []),
        ]
        message = f"shapes that the model declares are not what it computes, which counts: {'; '.join(listed)}"
        warn_user(message, ShapeWarning)
    programs = (program, *nested_programs(program))
    fallbacks = [s for p in programs for s in p.steps if isinstance(s, Fallback) and s.reason != PYTHON_REASON]
    if fallbacks:
        reasons: dict[str, list[str]] = {}
        for step in fallbacks:
            reasons.setdefault(step.reason, []).append(step.label)
        listed = "; ".join(f"{', '.join(labels)}: {reason}" for reason, labels in reasons.items())
        nodes = pluralize(sum(len(s.nodes) for s in fallbacks), "node")
        warn_user(f"{nodes} on ONNX's reference evaluator, which is slow: {listed}", FallbackWarning)
