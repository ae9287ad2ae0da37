"""Parallelization of a kernel's outer loops."""

from collections.abc import Sequence
from dataclasses import replace

from tilewright.expr.nodes import Const, Expr, const
from tilewright.expr.operations import ceildiv
from tilewright.loops.ir import LoopKind
from tilewright.optimize.task import Task
from tilewright.tile.tree import Loop

MIN_PARALLEL_ITERATIONS = 64
"""Iterations that keep many threads evenly busy."""


def parallelize(task: Task, loops: Sequence[Loop], extents: Sequence[Expr]) -> list[Loop]:
    """Loops with the outermost ones parallel, for a kernel that runs on several threads: as few as balance the load of
    many.

    Args:
        task: whose kernel it is.
        loops: a perfect nest of loops over different axes, outermost first.
        extents: points of their axes.
    """
    count = count_parallel_loops(task, [ceildiv(n, const(x.step)) for x, n in zip(loops, extents, strict=True)])
    return [replace(x, kind=LoopKind.PARALLEL) if k < count else x for k, x in enumerate(loops)]


def count_parallel_loops(task: Task, iterations: Sequence[Expr]) -> int:
    """How many outer loops are parallel, by their iterations, outermost first; see `parallelize`."""
    if task.threads == 1:
        return 0
    total = 1
    for k, n in enumerate(iterations):
        # a symbolic loop may have a single iteration
        total *= int(n.value) if isinstance(n, Const) else 1
        if total >= MIN_PARALLEL_ITERATIONS:
            return k + 1
    return len(iterations)
