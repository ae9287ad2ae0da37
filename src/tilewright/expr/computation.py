"""Computations: stages of a program as scalar expressions over axes, without a schedule.

A `Computation` defines every element of its output by an expression over the output's axes and, for a reduction, the
reduction axes. FLOPs, bytes, access patterns, loops and reference results are derived from it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from tilewright.expr.dtype import DType
from tilewright.expr.nodes import BinaryOp, Buffer, Const, Expr, Var, const
from tilewright.expr.traversal import loads


class Reducer(StrEnum):
    """The operation that combines the values along reduction axes."""

    SUM = "sum"
    PROD = "prod"
    MAX = "max"
    MIN = "min"

    @property
    def op(self) -> BinaryOp:
        """The binary operation that combines two values."""
        operations: dict[Reducer, BinaryOp] = {
            Reducer.SUM: "add", Reducer.PROD: "mul", Reducer.MAX: "max", Reducer.MIN: "min",
        }  # fmt: skip
        return operations[self]

    def identity(self, dtype: DType) -> Const:
        """The neutral element: 0, 1, or the end of the type's range."""
        if self is Reducer.SUM:
            return const(0, dtype)
        if self is Reducer.PROD:
            return const(1, dtype)
        is_max = self is Reducer.MAX
        if dtype.is_float:
            return const(float("-inf") if is_max else float("inf"), dtype)
        if dtype.kind == "b":
            return const(not is_max, dtype)
        low, high = dtype.integer_range
        return const(low if is_max else high, dtype)


@dataclass(frozen=True, slots=True)
class Axis:
    """An iteration variable with its extent: 0 <= var < extent."""

    var: Var
    extent: Expr

    def __str__(self) -> str:
        return f"{self.var.name} in {self.extent}"


@dataclass(frozen=True, slots=True)
class Computation:
    """`output[axes] = reducer over reduce_axes of body`, or `= body` without reduction axes.

    Attributes:
        output: the buffer that is written; its shape equals the extents of `axes`.
        axes: one per dimension of the output.
        reduce_axes: reduction axes; empty exactly when `reducer` is None.
        body: an expression of the output's dtype over the variables of both.
        reducer: how values are combined; None for an element-wise stage.
        label: the user's node that this came from ("conv1 (Conv)"), for errors and profiles; no part of the meaning.
    """

    output: Buffer
    axes: tuple[Axis, ...]
    reduce_axes: tuple[Axis, ...]
    body: Expr
    reducer: Reducer | None = None
    label: str = ""

    @property
    def inputs(self) -> tuple[Buffer, ...]:
        """The buffers read, in order of first use."""
        return tuple(dict.fromkeys(load.buffer for load in loads(self.body)))

    @property
    def is_reduction(self) -> bool:
        """Whether values are combined along reduction axes."""
        return self.reducer is not None

    def __str__(self) -> str:
        left = f"{self.output.name}[{', '.join(a.var.name for a in self.axes)}]"
        over = "; ".join(map(str, self.axes))
        if self.reducer is None:
            return f"{left} = {self.body}  for {over}"
        inner = ", ".join(map(str, self.reduce_axes))
        return f"{left} = {self.reducer}({self.body} for {inner})  for {over}"


@dataclass(frozen=True, slots=True)
class View:
    """`output` is `source` with another shape: the same elements in the same row-major order, without a copy."""

    output: Buffer
    source: Buffer
    label: str = ""

    @property
    def inputs(self) -> tuple[Buffer, ...]:
        """The buffer viewed."""
        return (self.source,)

    def __str__(self) -> str:
        return f"{self.output.name} = view({self.source.name})"


Stage = Computation | View


def iteration_space_size(axes: Sequence[Axis]) -> Expr:
    """The number of points of an iteration space."""
    total: Expr = const(1)
    for axis in axes:
        total = total * axis.extent
    return total
