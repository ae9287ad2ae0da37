"""Views that only add or drop dimensions of size 1 are read at their source.

A reduction that keeps its dimensions is a view of its results. Readers of the source depend on the reduction itself, so
they can be fused with it.
"""

from dataclasses import replace

from tilewright.expr.computation import Computation, View
from tilewright.expr.nodes import Buffer, Expr, Load, const
from tilewright.expr.traversal import is_one, replace_loads
from tilewright.graph.program import Program, Step, eliminate_dead_steps


def read_through_views(program: Program) -> Program:
    """The program whose computations read the sources of such views; views that nothing reads any more are gone."""
    sources: dict[Buffer, Buffer] = {}
    steps: list[Step] = []
    for step in program.steps:
        if isinstance(step, View) and _sizes(step.source) == _sizes(step.output):
            sources[step.output] = sources.get(step.source, step.source)
        steps.append(_read_sources(step, sources) if isinstance(step, Computation) else step)
    live = {b.name for _, b in program.outputs}
    return replace(program, steps=tuple(eliminate_dead_steps(steps, live))) if sources else program


def _read_sources(c: Computation, sources: dict[Buffer, Buffer]) -> Computation:
    if sources.keys().isdisjoint(c.inputs):
        return c

    def load(x: Load) -> Load:
        source = sources.get(x.buffer)
        if source is None:
            return x
        used = iter([i for i, n in zip(x.indices, x.buffer.shape, strict=True) if not is_one(n)])
        return Load(source, tuple(const(0) if is_one(n) else next(used) for n in source.shape))

    return replace(c, body=replace_loads(c.body, load))


def _sizes(b: Buffer) -> list[Expr]:
    """The sizes other than 1."""
    return [n for n in b.shape if not is_one(n)]
