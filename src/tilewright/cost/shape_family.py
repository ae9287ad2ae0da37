"""Candidates of a problem at several sizes as one batch, so that formulas are evaluated once for all of them.

What differs between the sizes is a column with one number per candidate; what does not stays a plain number, so that
candidates of a single problem have plain numbers only. Formulas ask `ShapeFamily` for extents and for how operands
lie, and any of its problems for all that sizes don't change.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from tilewright.tile.operand import Operand
from tilewright.tile.problem import Problem

Integers = npt.NDArray[np.int64]

IntPerCandidate = int | Integers
"""The same for all candidates, or [candidate]."""

FloatPerCandidate = float | npt.NDArray[np.float64]
"""The same for all candidates, or [candidate]."""


@dataclass(frozen=True, slots=True)
class BatchedOperand:
    """An access of candidates at sizes of their own.

    Attributes:
        operands: the access at every size.
        which: of those each candidate has [candidate].
        shape, room, hops: as in `Operand`, for every candidate.
    """

    operands: tuple[Operand, ...]
    shape_indices: Integers
    shape: tuple[IntPerCandidate, ...]
    dim_sizes: tuple[IntPerCandidate, ...]
    byte_strides: tuple[tuple[int, IntPerCandidate], ...]

    @staticmethod
    def of(operands: tuple[Operand, ...], shape_indices: Integers) -> "BatchedOperand":
        """The access at every size, for candidates."""
        shape, room = (
            _gather(_uniform_or_table(tuple(x)), shape_indices)
            for x in zip(*((o.shape, o.dim_sizes) for o in operands), strict=True)
        )
        steps = _gather(
            _uniform_or_table(tuple([tuple([abs(s) * o.element_bytes for s in o.strides]) for o in operands])),
            shape_indices,
        )
        hops = tuple([(a, x) for a, x in enumerate(steps) if not isinstance(x, int) or x])
        return BatchedOperand(operands, shape_indices, shape, room, hops)

    @property
    def element_bytes(self) -> int:
        """Of one element."""
        return self.operands[0].element_bytes

    @property
    def written(self) -> bool:
        """Whether it is stored to."""
        return self.operands[0].written

    @property
    def index(self) -> tuple[tuple[int, ...], ...]:
        """Per dimension the coefficient of every axis."""
        return self.operands[0].index

    @property
    def index_terms(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Per dimension (step, axis) of the axes that move its index, by rising steps."""
        return self.operands[0].index_terms

    def uses(self, axis: int) -> bool:
        """Whether another element is touched as the axis grows."""
        return axis in self.operands[0].used_axes

    def per_shape(self, function: Callable[[Operand], Sequence[float]]) -> tuple[FloatPerCandidate, ...]:
        """Numbers that follow from sizes in ways that are no formulas."""
        return _gather_floats([function(o) for o in self.operands], self.shape_indices)


OperandView = Operand | BatchedOperand
"""An access as formulas see it."""


@dataclass(frozen=True)
class ShapeFamily:
    """Problems that differ in nothing but their sizes, and of which of them each candidate is.

    Attributes:
        problems: one or more.
        which: positions among them [candidate]; of a single one nobody asks.
    """

    problems: tuple[Problem, ...]
    shape_indices: Integers

    @staticmethod
    def of(problem: Problem) -> "ShapeFamily":
        """A problem by itself."""
        return ShapeFamily((problem,), np.zeros(0, np.int64))

    @property
    def problem(self) -> Problem:
        """One of them, for all that sizes don't change."""
        return self.problems[0]

    @cached_property
    def sizes(self) -> Integers:
        """The extents of axes [candidate, axis]; those of a single problem as one row."""
        if len(self.problems) == 1:
            return self.problem.extents[None]
        return np.array([p.extents for p in self.problems])[self.shape_indices]

    @cached_property
    def extents(self) -> tuple[IntPerCandidate, ...]:
        """Per axis its extent."""
        return _gather(
            _uniform_or_table(tuple([tuple([a.extent for a in p.axes]) for p in self.problems])), self.shape_indices
        )

    @cached_property
    def operands(self) -> tuple[OperandView, ...]:
        """What every point reads; for element-wise work the store is the last one."""
        return self._operand_views([p.operands for p in self.problems])

    @cached_property
    def results(self) -> tuple[OperandView, ...]:
        """What is read and written once per result."""
        return self._operand_views([p.results for p in self.problems])

    @cached_property
    def accesses(self) -> tuple[OperandView, ...]:
        """Everything that is read and written."""
        return (*self.operands, *self.results)

    def per_shape(self, function: Callable[[Problem], Sequence[float]]) -> tuple[FloatPerCandidate, ...]:
        """Numbers that follow from sizes in ways that are no formulas."""
        return _gather_floats([function(p) for p in self.problems], self.shape_indices)

    def select(self, candidates: npt.NDArray[np.int64]) -> "ShapeFamily":
        """That of some candidates."""
        return self if len(self.problems) == 1 else ShapeFamily(self.problems, self.shape_indices[candidates])

    def concat(self, others: "ShapeFamily") -> "ShapeFamily":
        """That of these candidates and those behind them, which are of the same problems."""
        if len(self.problems) == 1:
            return self
        return ShapeFamily(self.problems, np.concatenate((self.shape_indices, others.shape_indices)))

    def _operand_views(self, rows: Sequence[tuple[Operand, ...]]) -> tuple[OperandView, ...]:
        if len(rows) == 1:
            return rows[0]
        return tuple([BatchedOperand.of(same, self.shape_indices) for same in zip(*rows, strict=True)])


@lru_cache(maxsize=4096)
def _uniform_or_table(table: tuple[tuple[int, ...], ...]) -> tuple[IntPerCandidate, ...]:
    """Of rows of integers [size][k], per k the one that all have, or all of them."""
    return tuple([k[0] if len(set(k)) == 1 else np.array(k, np.int64) for k in zip(*table, strict=True)])


def _gather(table: tuple[IntPerCandidate, ...], shape_indices: Integers) -> tuple[IntPerCandidate, ...]:
    """What `_uniform_or_table` found, for candidates."""
    return tuple([x if isinstance(x, int) else x[shape_indices] for x in table])


def _gather_floats(rows: Sequence[Sequence[float]], shape_indices: Integers) -> tuple[FloatPerCandidate, ...]:
    """Rows of numbers [size][k], per k for candidates."""
    if len(rows) == 1:
        return tuple(rows[0])
    return tuple(
        [k[0] if len(set(k)) == 1 else np.array(k, np.float64)[shape_indices] for k in zip(*rows, strict=True)]
    )
