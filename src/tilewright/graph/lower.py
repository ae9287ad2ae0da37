"""Lowering of a graph to a program: every node through its operator's definition, in one walk.

Shape and type inference is this walk: an output's shape is the shape of what the definition computes, and the values of
shape arithmetic are known as expressions. What is a literal in the end becomes a constant; steps that nobody needs are
dropped. Nodes without a definition become steps of ONNX's reference evaluator. Problems of all nodes are reported
together.
"""

import warnings
from collections.abc import Sequence
from dataclasses import replace

from tilewright.errors import FallbackWarning, ModelError, ShapeWarning, pluralize
from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.computation import Computation
from tilewright.expr.nodes import Expr, Var
from tilewright.expr.traversal import free_vars
from tilewright.graph.ir import Graph
from tilewright.graph.lower_nodes import NodeLowering
from tilewright.graph.program import Fallback, Program, Step, step_outputs
from tilewright.graph.solve_symbols import SolvedSize, solve_symbols, substitute_symbols

_MAX_LISTED = 8
"""Values with wrong declared shapes that the warning names."""


def lower_graph(graph: Graph) -> Program:
    """The program of a graph.

    Warns:
        FallbackWarning: nodes run on ONNX's reference evaluator; one warning names all of them.
        ShapeWarning: the model declares other shapes than it computes; one warning names them.

    Raises:
        ModelError: shapes do not fit, a type differs from what the model declares, or an operator can't be run at
            all; lists all such problems.
    """
    settled: dict[str, SolvedSize] = {}
    assumed: frozenset[Expr] = frozenset()
    while True:
        walk = NodeLowering(graph, settled, assumed).run()
        if walk.problems:
            raise ModelError(walk.problems)
        refined = solve_symbols(graph, walk.constraints, walk.data_symbols)
        # What is settled stays a constraint, which says the same again.
        found = {n: s for n, s in refined.data_sizes.items() if n not in settled or s.size is not settled[n].size}
        if refined.inputs or found:
            graph = substitute_symbols(graph, refined.inputs)
            settled |= found
            settled = {n: replace(s, size=substitute(s.size, refined.inputs)) for n, s in settled.items()}
        elif assumed.issuperset(walk.unproven_equalities):
            break
        assumed |= frozenset(walk.unproven_equalities)
    program = _build_program(graph, walk)
    _emit_warnings(program, walk.shape_mismatches)
    return program


def _build_program(graph: Graph, walk: NodeLowering) -> Program:
    outputs = tuple((name, walk.operands[name].buffer) for name in graph.outputs)
    steps = _eliminate_dead_steps(walk.steps, {b.name for _, b in outputs})
    used = {b.name for s in steps for b in s.inputs} | {b.name for _, b in outputs}
    kept = used | {b.name for s in steps for b in step_outputs(s)}
    fresh = tuple(v for s in steps if isinstance(s, Fallback) for v in s.data_symbols)
    return Program(
        name=graph.name,
        inputs=tuple(walk.operands[v.name].buffer for v in graph.inputs),
        outputs=outputs,
        constants={name: array for name, array in walk.constants.items() if name in used},
        steps=tuple(steps),
        symbols=graph.symbols + fresh,
        constraints=tuple({c.condition: c for c in reversed(walk.constraints)}.values())[::-1],
        metadata=graph.metadata,
        input_names=tuple(v.name for v in graph.inputs),
        symbol_names=graph.symbol_names,
        values={name: o.buffer for name, o in walk.operands.items() if o.buffer.name in kept},
    )


def _eliminate_dead_steps(steps: list[Step], live: set[str]) -> list[Step]:
    """The steps whose results reach `wanted`, or whose results' sizes those use, in order."""
    live = set(live)
    sizes: set[Var] = set()
    result: list[Step] = []
    for step in reversed(steps):
        tells = isinstance(step, Fallback) and not sizes.isdisjoint(step.data_symbols)
        if tells or any(b.name in live for b in step_outputs(step)):
            result.append(step)
            live |= {b.name for b in step.inputs}
            sizes |= {v for b in (*step_outputs(step), *step.inputs) for n in b.shape for v in free_vars(n)}
            sizes |= free_vars(step.body) if isinstance(step, Computation) else set()
    return result[::-1]


def _emit_warnings(program: Program, mismatches: Sequence[str]) -> None:
    if mismatches:
        listed = [
            *mismatches[:_MAX_LISTED],
            *([f"and {len(mismatches) - _MAX_LISTED} more"] if len(mismatches) > _MAX_LISTED else []),
        ]
        message = f"shapes that the model declares are not what it computes, which counts: {'; '.join(listed)}"
        warnings.warn(message, ShapeWarning, stacklevel=3)
    found = [s for s in program.steps if isinstance(s, Fallback)]
    if found:
        reasons: dict[str, list[str]] = {}
        for step in found:
            reasons.setdefault(step.reason, []).append(step.label)
        listed = "; ".join(f"{', '.join(labels)}: {reason}" for reason, labels in reasons.items())
        nodes = pluralize(sum(len(s.nodes) for s in found), "node")
        warnings.warn(
            f"{nodes} on ONNX's reference evaluator, which is slow: {listed}",
            FallbackWarning,
            stacklevel=3,
        )
