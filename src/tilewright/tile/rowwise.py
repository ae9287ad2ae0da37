"""Row-wise programs: fused stages that run one after the other per block of rows, each with a tile program of its own.

    parallel blocks of rows
      stage 1: its register tiles over the block; its results stay on the stack
      ..
      the last stage, with its epilogue

The problem of a stage is that of its block in the kernel, with as many rows as a block of rows has.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

from tilewright.tile.operand import Operand
from tilewright.tile.problem import Problem
from tilewright.tile.program import Sizes, Sketch, TileProgram


@dataclass(frozen=True, slots=True)
class RowwiseStage:
    """Candidates for one stage, for one block of rows.

    Attributes:
        problem: what the stage computes for a block of rows; intermediates are private.
        sketch: lanes and loop order.
        sizes: candidates [candidate, level, axis]; L1 and L2 tiles are register tiles, as a block of rows fits caches.
    """

    problem: Problem
    sketch: Sketch
    sizes: Sizes


@dataclass(frozen=True, slots=True)
class RowBlocking:
    """How the rows of a kernel are split into blocks.

    Attributes:
        outer_rank: number of leading axes, shared by all stages, that enumerate rows.
        rows_per_block: rows of one block.
        block_count: number of blocks.
        is_static: whether the number of rows is known at compile time.
        external_bytes: bytes of the kernel's inputs and outputs, by buffer.
    """

    outer_rank: int
    rows_per_block: int
    block_count: int
    is_static: bool
    external_bytes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class RowwiseProgram:
    """A row blocking and the tile programs of all stages.

    Attributes:
        blocking: how rows are split.
        stages: the program of each stage, in execution order.
    """

    blocking: RowBlocking
    stages: tuple[TileProgram, ...]

    @property
    def problem(self) -> Problem:
        """The problem of the last stage, for one block of rows."""
        return self.stages[-1].problem

    def __str__(self) -> str:
        stages = "; then ".join(f"{p.problem.block}: {p}" for p in self.stages)
        return f"{self.blocking.block_count} groups of {self.blocking.rows_per_block} rows: {stages}"


def row_block_problem(problem: Problem, outer_rank: int, rows_per_block: int, private: frozenset[str]) -> Problem:
    """The problem of a stage for one block of rows.

    Args:
        problem: of the stage's block in the whole kernel.
        outer_rank: number of leading axes that enumerate rows.
        rows_per_block: rows of a block.
        private: intermediates; they hold the rows of one block only.
    """
    rows = {k: rows_per_block if k == outer_rank - 1 else 1 for k in range(outer_rank)}
    axes = tuple(
        replace(a, extent=rows.get(k, a.extent), is_static=a.is_static or k in rows) for k, a in enumerate(problem.axes)
    )

    def restrict(o: Operand) -> Operand:
        if o.buffer not in private:
            return o
        return replace(o, shape=tuple(rows.get(d, n) for d, n in enumerate(o.shape)), private=True)

    operands, results = tuple(map(restrict, problem.operands)), tuple(map(restrict, problem.results))
    return replace(problem, axes=axes, operands=operands, results=results)


def row_blocking(
    problems: Mapping[str, Problem], outer_rank: int, rows_per_block: int, private: frozenset[str]
) -> RowBlocking:
    """The row blocking of a kernel.

    Args:
        problems: of all stages in the whole kernel, by block, in execution order.
        outer_rank, rows_per_block, private: as for `row_block_problem`.
    """
    outer_axes = list(problems.values())[-1].axes[:outer_rank]
    row_count = prod(a.extent for a in outer_axes)
    operands = (o for p in problems.values() for o in (*p.operands, *p.results))
    external_bytes = {o.buffer: o.bytes for o in operands if o.buffer not in private}
    is_static = all(a.is_static for a in outer_axes)
    return RowBlocking(outer_rank, rows_per_block, -(-row_count // rows_per_block), is_static, external_bytes)
