"""One problem at several shapes as a single batch of candidates, so that formulas are evaluated once for all shapes.

A quantity that differs between the shapes is an array with one number per candidate; one that does not is a plain
number. So candidates of a single problem have plain numbers only. Formulas take extents, shapes and strides from
`ShapeFamily`, and everything that does not depend on the shape from any of its problems.
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
"""One number for all candidates, or an array [candidate]."""

FloatPerCandidate = float | npt.NDArray[np.float64]
"""One number for all candidates, or an array [candidate]."""


@dataclass(frozen=True, slots=True)
class BatchedOperand:
    """An access at the shapes of all candidates; it has the attributes of `Operand` that formulas use.

    Attributes:
        operands: the access at every shape.
        shape_indices: which of them each candidate has [candidate].
        shape, dim_sizes, byte_strides: as in `Operand`, per candidate.
    """

    operands: tuple[Operand, ...]
    shape_indices: Integers
    shape: tuple[IntPerCandidate, ...]
    dim_sizes: tuple[IntPerCandidate, ...]
    byte_strides: tuple[tuple[int, IntPerCandidate], ...]

    @staticmethod
    def of(operands: tuple[Operand, ...], shape_indices: Integers) -> "BatchedOperand":
        """The access of candidates, from the access at every shape."""
        shape, dim_sizes = (
            _gather(_uniform_or_table(tuple(x)), shape_indices)
            for x in zip(*((o.shape, o.dim_sizes) for o in operands), strict=True)
        )
        strides = tuple([tuple([abs(s) * o.element_bytes for s in o.strides]) for o in operands])
        per_axis = _gather(_uniform_or_table(strides), shape_indices)
        byte_strides = tuple([(a, x) for a, x in enumerate(per_axis) if not isinstance(x, int) or x])
        return BatchedOperand(operands, shape_indices, shape, dim_sizes, byte_strides)

    @property
    def element_bytes(self) -> int:
        """Size of one element."""
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
        """Per dimension (absolute coefficient, axis) of the axes in its index, by rising coefficients."""
        return self.operands[0].index_terms

    def uses(self, axis: int) -> bool:
        """Whether the index depends on an axis."""
        return axis in self.operands[0].used_axes

    def per_shape(self, function: Callable[[Operand], Sequence[float]]) -> tuple[FloatPerCandidate, ...]:
        """`function` of the access at every shape, per candidate: for quantities that have no array formula."""
        return _gather_floats([function(o) for o in self.operands], self.shape_indices)


OperandView = Operand | BatchedOperand
"""An access as formulas see it."""


@dataclass(frozen=True)
class ShapeFamily:
    """Problems that differ only in their sizes, and the problem of every candidate.

    Attributes:
        problems: one or more.
        shape_indices: the position of each candidate's problem [candidate]; unused for a single problem.
        points: extents [candidate, axis] where they are not those of the problem, as a statement computes what the
            loops around it need; None for the problem's.
    """

    problems: tuple[Problem, ...]
    shape_indices: Integers
    points: Integers | None = None

    @staticmethod
    def of(problem: Problem) -> "ShapeFamily":
        """The family of a single problem."""
        return ShapeFamily((problem,), np.zeros(0, np.int64))

    @staticmethod
    def joint(problems: Sequence[Problem], counts: Sequence[int]) -> "ShapeFamily":
        """The family of so many candidates of each problem, one after the other; the same object may be there again."""
        distinct = {id(p): p for p in problems}
        positions = {key: k for k, key in enumerate(distinct)}
        return ShapeFamily(tuple(distinct.values()), np.repeat([positions[id(p)] for p in problems], counts))

    @property
    def problem(self) -> Problem:
        """The first problem, for everything that does not depend on the shape."""
        return self.problems[0]

    @cached_property
    def sizes(self) -> Integers:
        """Extents [candidate, axis]; a single row for a single problem."""
        if self.points is not None:
            return self.points
        if len(self.problems) == 1:
            return self.problem.extents[None]
        return np.array([p.extents for p in self.problems])[self.shape_indices]

    @cached_property
    def extents(self) -> tuple[IntPerCandidate, ...]:
        """The extent of every axis."""
        if self.points is not None:
            return tuple(self.points.T)
        extents = tuple([tuple([a.extent for a in p.axes]) for p in self.problems])
        return _gather(_uniform_or_table(extents), self.shape_indices)

    @cached_property
    def operands(self) -> tuple[OperandView, ...]:
        """Accesses of every point; for elementwise work the store is the last one."""
        return self._operand_views([p.operands for p in self.problems])

    @cached_property
    def results(self) -> tuple[OperandView, ...]:
        """Accesses of every result."""
        return self._operand_views([p.results for p in self.problems])

    @cached_property
    def accesses(self) -> tuple[OperandView, ...]:
        """All accesses: operands, then results."""
        return (*self.operands, *self.results)

    def per_shape(self, function: Callable[[Problem], Sequence[float]]) -> tuple[FloatPerCandidate, ...]:
        """`function` of every problem, per candidate: for quantities that have no array formula."""
        return self.gather([function(p) for p in self.problems])

    def gather(self, rows: Sequence[Sequence[float]]) -> tuple[FloatPerCandidate, ...]:
        """Numbers of every problem [problem][k], per candidate."""
        return _gather_floats(rows, self.shape_indices)

    def with_points(self, points: Integers) -> "ShapeFamily":
        """The family of one problem with other extents [candidate, axis]."""
        return ShapeFamily(self.problems, self.shape_indices, points)

    def select(self, candidates: npt.NDArray[np.int64]) -> "ShapeFamily":
        """The family of some of the candidates."""
        return self if len(self.problems) == 1 else ShapeFamily(self.problems, self.shape_indices[candidates])

    def concat(self, others: "ShapeFamily") -> "ShapeFamily":
        """The family of these candidates followed by others of the same problems."""
        if len(self.problems) == 1:
            return self
        return ShapeFamily(self.problems, np.concatenate((self.shape_indices, others.shape_indices)))

    def _operand_views(self, rows: Sequence[tuple[Operand, ...]]) -> tuple[OperandView, ...]:
        if len(rows) == 1:
            return rows[0]
        return tuple([BatchedOperand.of(shapes, self.shape_indices) for shapes in zip(*rows, strict=True)])


@lru_cache(maxsize=4096)
def _uniform_or_table(rows: tuple[tuple[int, ...], ...]) -> tuple[IntPerCandidate, ...]:
    """For rows of integers [shape][k], per k the number that all shapes have, or an array [shape]."""
    return tuple([k[0] if len(set(k)) == 1 else np.array(k, np.int64) for k in zip(*rows, strict=True)])


def _gather(table: tuple[IntPerCandidate, ...], shape_indices: Integers) -> tuple[IntPerCandidate, ...]:
    """The result of `_uniform_or_table` per candidate."""
    return tuple([x if isinstance(x, int) else x[shape_indices] for x in table])


def _gather_floats(rows: Sequence[Sequence[float]], shape_indices: Integers) -> tuple[FloatPerCandidate, ...]:
    """For rows of numbers [shape][k], per k the number of every candidate."""
    if len(rows) == 1:
        return tuple(rows[0])
    return tuple(
        [k[0] if len(set(k)) == 1 else np.array(k, np.float64)[shape_indices] for k in zip(*rows, strict=True)]
    )
