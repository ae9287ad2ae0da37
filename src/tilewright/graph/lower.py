"""Lowering of a graph to a program: every node through its operator's definition, in one walk.

Shape and type inference is this walk: an output's shape is the shape of what the definition computes, and the values of
shape arithmetic are known as expressions. What is a literal in the end becomes a constant; steps that nobody needs are
dropped. Nodes without a definition become steps of ONNX's reference evaluator. Problems of all nodes are reported
together.
"""

import warnings
from collections.abc import Sequence
from dataclasses import replace

from tilewright.errors import FallbackWarning, ModelError, ShapeWarning, counted
from tilewright.expr.computation import Computation
from tilewright.expr.nodes import Expr, Var, free_vars
from tilewright.expr.simplify import substitute
from tilewright.graph.ir import Graph
from tilewright.graph.program import Fallback, Program, Step, written
from tilewright.graph.refine import Settled, refined_symbols, with_symbols
from tilewright.graph.walk import Walk

_LISTED = 8
"""Values with wrong declared shapes that the warning names."""


def lower(graph: Graph) -> Program:
    """The program of a graph.

    Warns:
        FallbackWarning: nodes run on ONNX's reference evaluator; one warning names all of them.
        ShapeWarning: the model declares other shapes than it computes; one warning names them.

    Raises:
        ModelError: shapes do not fit, a type differs from what the model declares, or an operator can't be run at
            all; lists all such problems.
    """
    settled: dict[str, Settled] = {}
    assumed: frozenset[Expr] = frozenset()
    while True:
        walk = Walk(graph, settled, assumed).run()
        if walk.problems:
            raise ModelError(walk.problems)
        refined = refined_symbols(graph, walk.constraints, walk.fresh)
        # What is settled stays a constraint, which says the same again.
        found = {n: s for n, s in refined.settled.items() if n not in settled or s.size is not settled[n].size}
        if refined.inputs or found:
            graph = with_symbols(graph, refined.inputs)
            settled |= found
            settled = {n: replace(s, size=substitute(s.size, refined.inputs)) for n, s in settled.items()}
        elif assumed.issuperset(walk.differing):
            break
        assumed |= frozenset(walk.differing)
    program = _program(graph, walk)
    _warn(program, walk.declared)
    return program


def _program(graph: Graph, walk: Walk) -> Program:
    outputs = tuple((name, walk.operands[name].buffer) for name in graph.outputs)
    steps = _needed(walk.steps, {b.name for _, b in outputs})
    used = {b.name for s in steps for b in s.inputs} | {b.name for _, b in outputs}
    kept = used | {b.name for s in steps for b in written(s)}
    fresh = tuple(v for s in steps if isinstance(s, Fallback) for v in s.fresh)
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


def _needed(steps: list[Step], wanted: set[str]) -> list[Step]:
    """The steps whose results reach `wanted`, or whose results' sizes those use, in order."""
    wanted = set(wanted)
    sizes: set[Var] = set()
    result: list[Step] = []
    for step in reversed(steps):
        tells = isinstance(step, Fallback) and not sizes.isdisjoint(step.fresh)
        if tells or any(b.name in wanted for b in written(step)):
            result.append(step)
            wanted |= {b.name for b in step.inputs}
            sizes |= {v for b in (*written(step), *step.inputs) for n in b.shape for v in free_vars(n)}
            sizes |= free_vars(step.body) if isinstance(step, Computation) else set()
    return result[::-1]


def _warn(program: Program, declared: Sequence[str]) -> None:
    if declared:
        listed = [*declared[:_LISTED], *([f"and {len(declared) - _LISTED} more"] if len(declared) > _LISTED else [])]
        message = f"shapes that the model declares are not what it computes, which counts: {'; '.join(listed)}"
        warnings.warn(message, ShapeWarning, stacklevel=3)
    found = [s for s in program.steps if isinstance(s, Fallback)]
    if found:
        reasons: dict[str, list[str]] = {}
        for step in found:
            reasons.setdefault(step.reason, []).append(step.label)
        listed = "; ".join(f"{', '.join(labels)}: {reason}" for reason, labels in reasons.items())
        nodes = counted(sum(len(s.nodes) for s in found), "node")
        warnings.warn(
            f"{nodes} on ONNX's reference evaluator, which is slow: {listed}",
            FallbackWarning,
            stacklevel=3,
        )
