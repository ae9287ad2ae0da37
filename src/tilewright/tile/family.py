"""Candidates of a problem at several sizes as one batch, so that formulas are evaluated once for all of them.

What differs between the sizes is a column with one number per candidate; what does not stays a plain number, so that
candidates of a single problem have plain numbers only. Formulas ask `Family` for extents and for how operands lie, and
any of its problems for all that sizes don't change.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from tilewright.tile.problem import Operand, Problem

Integers = npt.NDArray[np.int64]

Number = int | Integers
"""The same for all candidates, or [candidate]."""

Real = float | npt.NDArray[np.float64]
"""The same for all candidates, or [candidate]."""


@dataclass(frozen=True, slots=True)
class Spread:
    """An access of candidates at sizes of their own.

    Attributes:
        operands: the access at every size.
        which: of those each candidate has [candidate].
        shape, room, hops: as in `Operand`, for every candidate.
    """

    operands: tuple[Operand, ...]
    which: Integers
    shape: tuple[Number, ...]
    room: tuple[Number, ...]
    hops: tuple[tuple[int, Number], ...]

    @staticmethod
    def of(operands: tuple[Operand, ...], which: Integers) -> "Spread":
        """The access at every size, for candidates."""
        shape, room = (_of(_varied(tuple(x)), which) for x in zip(*((o.shape, o.room) for o in operands), strict=True))
        steps = _of(_varied(tuple([tuple([abs(s) * o.bytes for s in o.strides]) for o in operands])), which)
        hops = tuple([(a, x) for a, x in enumerate(steps) if not isinstance(x, int) or x])
        return Spread(operands, which, shape, room, hops)

    @property
    def bytes(self) -> int:
        """Of one element."""
        return self.operands[0].bytes

    @property
    def written(self) -> bool:
        """Whether it is stored to."""
        return self.operands[0].written

    @property
    def index(self) -> tuple[tuple[int, ...], ...]:
        """Per dimension the coefficient of every axis."""
        return self.operands[0].index

    @property
    def steps(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Per dimension (step, axis) of the axes that move its index, by rising steps."""
        return self.operands[0].steps

    def uses(self, axis: int) -> bool:
        """Whether another element is touched as the axis grows."""
        return axis in self.operands[0].moving

    def each(self, ask: Callable[[Operand], Sequence[float]]) -> tuple[Real, ...]:
        """Numbers that follow from sizes in ways that are no formulas."""
        return _spread([ask(o) for o in self.operands], self.which)


Placed = Operand | Spread
"""An access as formulas see it."""


@dataclass(frozen=True)
class Family:
    """Problems that differ in nothing but their sizes, and of which of them each candidate is.

    Attributes:
        problems: one or more.
        which: positions among them [candidate]; of a single one nobody asks.
    """

    problems: tuple[Problem, ...]
    which: Integers

    @staticmethod
    def of(problem: Problem) -> "Family":
        """A problem by itself."""
        return Family((problem,), np.zeros(0, np.int64))

    @property
    def problem(self) -> Problem:
        """One of them, for all that sizes don't change."""
        return self.problems[0]

    @cached_property
    def sizes(self) -> Integers:
        """The extents of axes [candidate, axis]; those of a single problem as one row."""
        if len(self.problems) == 1:
            return self.problem.extents[None]
        return np.array([p.extents for p in self.problems])[self.which]

    @cached_property
    def extents(self) -> tuple[Number, ...]:
        """Per axis its extent."""
        return _of(_varied(tuple([tuple([a.extent for a in p.axes]) for p in self.problems])), self.which)

    @cached_property
    def operands(self) -> tuple[Placed, ...]:
        """What every point reads; for element-wise work the store is the last one."""
        return self._placed([p.operands for p in self.problems])

    @cached_property
    def results(self) -> tuple[Placed, ...]:
        """What is read and written once per result."""
        return self._placed([p.results for p in self.problems])

    @cached_property
    def accesses(self) -> tuple[Placed, ...]:
        """Everything that is read and written."""
        return (*self.operands, *self.results)

    def each(self, ask: Callable[[Problem], Sequence[float]]) -> tuple[Real, ...]:
        """Numbers that follow from sizes in ways that are no formulas."""
        return _spread([ask(p) for p in self.problems], self.which)

    def picked(self, some: npt.NDArray[np.int64]) -> "Family":
        """That of some candidates."""
        return self if len(self.problems) == 1 else Family(self.problems, self.which[some])

    def joined(self, others: "Family") -> "Family":
        """That of these candidates and those behind them, which are of the same problems."""
        if len(self.problems) == 1:
            return self
        return Family(self.problems, np.concatenate((self.which, others.which)))

    def _placed(self, rows: Sequence[tuple[Operand, ...]]) -> tuple[Placed, ...]:
        if len(rows) == 1:
            return rows[0]
        return tuple([Spread.of(same, self.which) for same in zip(*rows, strict=True)])


@lru_cache(maxsize=4096)
def _varied(table: tuple[tuple[int, ...], ...]) -> tuple[Number, ...]:
    """Of rows of integers [size][k], per k the one that all have, or all of them."""
    return tuple([k[0] if len(set(k)) == 1 else np.array(k, np.int64) for k in zip(*table, strict=True)])


def _of(numbers: tuple[Number, ...], which: Integers) -> tuple[Number, ...]:
    """What `_varied` found, for candidates."""
    return tuple([x if isinstance(x, int) else x[which] for x in numbers])


def _spread(rows: Sequence[Sequence[float]], which: Integers) -> tuple[Real, ...]:
    """Rows of numbers [size][k], per k for candidates."""
    if len(rows) == 1:
        return tuple(rows[0])
    return tuple([k[0] if len(set(k)) == 1 else np.array(k, np.float64)[which] for k in zip(*rows, strict=True)])
