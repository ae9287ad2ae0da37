"""Definitions and uses of the buffers of a program."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.computation import Computation, View
from tilewright.expr.nodes import Buffer, Expr, Load
from tilewright.expr.traversal import is_one, loads, replace_loads
from tilewright.graph.program import Program, Step, step_outputs

_MAX_COMPOSED = 16
"""Computations that are composed into one expression at most."""


# without slots, because cached properties need a place
@dataclass(frozen=True, eq=False)
class DefUse:
    """The steps that write and read the buffers of a program."""

    program: Program

    @cached_property
    def writers(self) -> dict[Buffer, Step]:
        """The step that writes each buffer."""
        return {b: s for s in self.program.steps for b in step_outputs(s)}

    @cached_property
    def readers(self) -> dict[Buffer, list[Step]]:
        """The steps that read each buffer."""
        result: dict[Buffer, list[Step]] = {}
        for s in self.program.steps:
            for b in dict.fromkeys(s.inputs):
                result.setdefault(b, []).append(s)
        return result

    @cached_property
    def pinned(self) -> frozenset[str]:
        """Names of the program's results."""
        return frozenset(b.name for _, b in self.program.outputs)

    def computation(self, b: Buffer) -> Computation | None:
        """The computation that writes a buffer."""
        step = self.writers.get(b)
        return step if isinstance(step, Computation) else None

    def elementwise(self, b: Buffer) -> Computation | None:
        """The computation without reductions that writes a buffer."""
        step = self.computation(b)
        return None if step is None or step.is_reduction else step

    def view(self, b: Buffer) -> View | None:
        """The view that a buffer is."""
        step = self.writers.get(b)
        return step if isinstance(step, View) else None

    def is_private(self, b: Buffer, readers: int = 1) -> bool:
        """Whether a buffer is no result of the program and has the given number of readers."""
        return b.name not in self.pinned and len(self.readers.get(b, ())) == readers

    def composed(self, c: Computation) -> Expr:
        """The body of a computation over what is not element-wise: private element-wise producers that it reads at its
        own place are part of it."""
        body = c.body
        for _ in range(_MAX_COMPOSED):
            producer = next(self._composable(c, body), None)
            if producer is None:
                break
            body = _inlined(producer, body)
        return body

    def _composable(self, c: Computation, body: Expr) -> Iterator[Computation]:
        for x in loads(body):
            producer = self.elementwise(x.buffer)
            same = x.buffer.shape == c.output.shape and is_own_element(x, c)
            if producer is not None and same and self.is_private(x.buffer):
                yield producer


def _inlined(producer: Computation, body: Expr) -> Expr:
    axes = [a.var for a in producer.axes]

    def load(x: Load) -> Expr:
        return x if x.buffer != producer.output else substitute(producer.body, dict(zip(axes, x.indices, strict=True)))

    return replace_loads(body, load)


def is_own_element(x: Load, c: Computation) -> bool:
    """Whether a load is at the computation's own place, dimensions of size 1 aside."""
    index = [a.var for a in c.axes if not is_one(a.extent)]
    return [i for i, n in zip(x.indices, x.buffer.shape, strict=True) if not is_one(n)] == index
