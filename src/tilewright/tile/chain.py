"""Programs of chains of blocks that work row by row: one loop over groups of rows, and a tile program per step for what
the step does with one group.

    parallel groups of rows
      step 1: its register tiles over the group; its results stay on the stack
      ..
      the last step, with its epilogue

A step's problem is that of its block with as many rows as a group has.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

from tilewright.tile.problem import Operand, Problem
from tilewright.tile.program import Form, Sizes, TileProgram


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a chain, for one group of rows.

    Attributes:
        problem: what it computes for a group; what steps hand on is private.
        form: its lanes and loop order.
        sizes: candidates [candidate, level, axis]; L1 and L2 tiles are register tiles, as a group lies in the caches.
    """

    problem: Problem
    form: Form
    sizes: Sizes


@dataclass(frozen=True, slots=True)
class Rows:
    """How a chain's rows are cut.

    Attributes:
        rank: leading axes of all blocks that are rows.
        together: rows of one group.
        groups: their number.
        literal: whether the number of rows is known.
        outside: bytes of what the chain reads and writes in memory, by buffer.
    """

    rank: int
    together: int
    groups: int
    literal: bool
    outside: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ChainProgram:
    """One program of a chain.

    Attributes:
        rows: how they are cut.
        steps: the program of each, in the order of execution.
    """

    rows: Rows
    steps: tuple[TileProgram, ...]

    @property
    def problem(self) -> Problem:
        """The last step's, for one group of rows."""
        return self.steps[-1].problem

    def __str__(self) -> str:
        lines = "; then ".join(f"{p.problem.block}: {p}" for p in self.steps)
        return f"{self.rows.groups} groups of {self.rows.together} rows: {lines}"


def of_group(problem: Problem, rank: int, together: int, private: frozenset[str]) -> Problem:
    """A step's problem for one group of rows.

    Args:
        problem: of the step's block in the whole kernel.
        rank: leading axes that are rows.
        together: rows of a group.
        private: buffers that the chain hands on; they have the rows of one group only.
    """
    rows = {k: together if k == rank - 1 else 1 for k in range(rank)}
    axes = tuple(replace(a, extent=rows.get(k, a.extent), literal=a.literal or k in rows)
                 for k, a in enumerate(problem.axes))  # fmt: skip

    def of(o: Operand) -> Operand:
        if o.buffer not in private:
            return o
        return replace(o, shape=tuple(rows.get(d, n) for d, n in enumerate(o.shape)), private=True)

    return replace(problem, axes=axes, operands=tuple(map(of, problem.operands)),
                   results=tuple(map(of, problem.results)))  # fmt: skip


def rows_of(problems: Mapping[str, Problem], rank: int, together: int, private: frozenset[str]) -> Rows:
    """How the rows of a chain are cut.

    Args:
        problems: of all steps in the whole kernel, by block, the last one last.
        rank, together, private: see `of_group`.
    """
    last = list(problems.values())[-1]
    count = prod(a.extent for a in last.axes[:rank])
    touched = (o for p in problems.values() for o in (*p.operands, *p.results))
    outside = {o.buffer: prod(o.shape) * o.bytes for o in touched if o.buffer not in private}
    literal = all(a.literal for a in last.axes[:rank])
    return Rows(rank, together, -(-count // together), literal, outside)
