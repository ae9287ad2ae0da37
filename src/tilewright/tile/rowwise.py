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
from tilewright.tile.program import Sizes, Sketch, TileProgram


@dataclass(frozen=True, slots=True)
class RowwiseStage:
    """One step of a chain, for one group of rows.

    Attributes:
        problem: what it computes for a group; what steps hand on is private.
        form: its lanes and loop order.
        sizes: candidates [candidate, level, axis]; L1 and L2 tiles are register tiles, as a group lies in the caches.
    """

    problem: Problem
    sketch: Sketch
    sizes: Sizes


@dataclass(frozen=True, slots=True)
class RowBlocking:
    """How a chain's rows are cut.

    Attributes:
        rank: leading axes of all blocks that are rows.
        together: rows of one group.
        groups: their number.
        literal: whether the number of rows is known.
        outside: bytes of what the chain reads and writes in memory, by buffer.
    """

    outer_rank: int
    rows_per_block: int
    block_count: int
    is_static: bool
    external_bytes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class RowwiseProgram:
    """One program of a chain.

    Attributes:
        rows: how they are cut.
        steps: the program of each, in the order of execution.
    """

    blocking: RowBlocking
    stages: tuple[TileProgram, ...]

    @property
    def problem(self) -> Problem:
        """The last step's, for one group of rows."""
        return self.stages[-1].problem

    def __str__(self) -> str:
        lines = "; then ".join(f"{p.problem.block}: {p}" for p in self.stages)
        return f"{self.blocking.block_count} groups of {self.blocking.rows_per_block} rows: {lines}"


def row_block_problem(problem: Problem, outer_rank: int, rows_per_block: int, private: frozenset[str]) -> Problem:
    """A step's problem for one group of rows.

    Args:
        problem: of the step's block in the whole kernel.
        rank: leading axes that are rows.
        together: rows of a group.
        private: buffers that the chain hands on; they have the rows of one group only.
    """
    rows = {k: rows_per_block if k == outer_rank - 1 else 1 for k in range(outer_rank)}
    axes = tuple(replace(a, extent=rows.get(k, a.extent), is_static=a.is_static or k in rows)
                 for k, a in enumerate(problem.axes))  # fmt: skip

    def of(o: Operand) -> Operand:
        if o.buffer not in private:
            return o
        return replace(o, shape=tuple(rows.get(d, n) for d, n in enumerate(o.shape)), private=True)

    return replace(problem, axes=axes, operands=tuple(map(of, problem.operands)),
                   results=tuple(map(of, problem.results)))  # fmt: skip


def row_blocking(
    problems: Mapping[str, Problem], outer_rank: int, rows_per_block: int, private: frozenset[str]
) -> RowBlocking:
    """How the rows of a chain are cut.

    Args:
        problems: of all steps in the whole kernel, by block, the last one last.
        rank, together, private: see `row_block_problem`.
    """
    last = list(problems.values())[-1]
    count = prod(a.extent for a in last.axes[:outer_rank])
    touched = (o for p in problems.values() for o in (*p.operands, *p.results))
    outside = {o.buffer: prod(o.shape) * o.element_bytes for o in touched if o.buffer not in private}
    literal = all(a.is_static for a in last.axes[:outer_rank])
    return RowBlocking(outer_rank, rows_per_block, -(-count // rows_per_block), literal, outside)
