"""Data flow of a program: readers and writers of buffers, and the steps along which a layout propagates."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from tilewright.expr.computation import Computation, Stage, View
from tilewright.expr.evaluate import evaluate
from tilewright.expr.nodes import Buffer, Const
from tilewright.expr.pattern import reads_elementwise
from tilewright.expr.traversal import free_vars
from tilewright.graph.program import Program, RuntimeStep, Step, step_outputs
from tilewright.layout.primitive import Array


class Reason(StrEnum):
    """Why a tensor keeps its layout, so that an operator with another request needs a conversion."""

    INPUT = "the model's inputs keep the user's layout"
    OUTPUT = "the model's outputs keep the user's layout"
    VIEW = "a view needs a row-major source"
    FALLBACK = "the reference evaluator has the user's layout only"
    OPERATORS = "the layouts of two operators differ"
    EXPANDS = "the layout expands the data, and its producer is not a simple step with this one reader"
    CONSTANT = "the constant is transformed at compile time"


@dataclass(frozen=True, slots=True, eq=False)
class Dataflow:
    """The steps of a program by the buffers that they access.

    Attributes:
        program: over logical tensors.
        writers: the step that writes a buffer; inputs and constants have none.
        readers: the steps that read a buffer, each once, in order.
        pinned: buffers whose layout is visible outside of computations, with the reason.
    """

    program: Program
    writers: Mapping[str, Step]
    readers: Mapping[str, tuple[Step, ...]]
    pinned: Mapping[str, Reason]

    @staticmethod
    def of(program: Program) -> "Dataflow":
        """The data flow of a program."""
        writers: dict[str, Step] = {}
        readers: dict[str, list[Step]] = {}
        pinned = {b.name: Reason.INPUT for b in program.inputs}
        pinned |= {b.name: Reason.OUTPUT for _, b in program.outputs}
        for step in program.steps:
            for b in dict.fromkeys(step.inputs):
                readers.setdefault(b.name, []).append(step)
            writers |= {b.name: step for b in step_outputs(step)}
            if isinstance(step, View):
                pinned.setdefault(step.source.name, Reason.VIEW)
            elif isinstance(step, RuntimeStep):
                for b in (*step.inputs, *step.outputs):
                    pinned.setdefault(b.name, Reason.FALLBACK)
        return Dataflow(program, writers, {name: tuple(steps) for name, steps in readers.items()}, pinned)

    def has_sole_reader(self, name: str) -> bool:
        """Whether exactly one step reads a buffer."""
        return len(self.readers.get(name, ())) == 1

    def elementwise_consumers(self, b: Buffer) -> Iterator[tuple[Buffer, Computation]]:
        """Results of the element-wise steps that read a buffer of the result's shape, with the steps."""
        for step in self.readers.get(b.name, ()):
            if isinstance(step, Computation) and is_elementwise(step, b):
                yield step.output, step

    def elementwise_operands(self, b: Buffer) -> Iterator[tuple[Buffer, Computation]]:
        """Operands of the element-wise step that writes a buffer, if they have the buffer's shape, with the step."""
        step = self.writers.get(b.name)
        if isinstance(step, Computation):
            for operand in step.inputs:
                if is_elementwise(step, operand):
                    yield operand, step

    def constant_data(self, b: Buffer) -> Array | None:
        """The elements of a buffer that depends on constants alone, None for other buffers."""
        constants = self.program.constants
        if b.name in constants:
            return constants[b.name].reshape([int(n.value) for n in b.shape if isinstance(n, Const)])
        step = self.writers.get(b.name)
        if step is None or isinstance(step, RuntimeStep) or not _has_literal_bytes(step):
            return None
        arrays = {x.name: self.constant_data(x) for x in step.inputs}
        operands = {name: array for name, array in arrays.items() if array is not None}
        if len(operands) < len(arrays):
            return None
        return np.ascontiguousarray(evaluate(step, operands, {}))


def _has_literal_bytes(step: Stage) -> bool:
    """Whether a step depends on no symbols."""
    if isinstance(step, View):
        return all(isinstance(n, Const) for n in step.output.shape)
    axes = (*step.axes, *step.reduce_axes)
    return all(isinstance(a.extent, Const) for a in axes) and free_vars(step.body) <= {a.var for a in axes}


def is_elementwise(step: Computation, operand: Buffer) -> bool:
    """Whether every element of the output depends on one element of the operand, at the same place: Y[i] = F(X[i])."""
    return not step.is_reduction and reads_elementwise(step, operand)
