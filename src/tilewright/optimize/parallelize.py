"""Parallelization of a kernel's outer loops."""

from collections.abc import Sequence
from dataclasses import replace

from tilewright.expr.nodes import Const, Expr, const
from tilewright.expr.operations import ceildiv
from tilewright.loops.ir import Func, LoopKind, blocks
from tilewright.tile.tree import Loop

MIN_PARALLEL_ITERATIONS = 64
"""Iterations that keep many threads evenly busy."""

MIN_PARALLEL_POINTS = 8192
"""Iterations of a block below which starting threads costs more than it gains."""


def parallelize(func: Func, loops: Sequence[Loop], extents: Sequence[Expr]) -> list[Loop]:
    """Loops with the outermost ones parallel where there is enough work: as few as balance the load of many threads.

    Args:
        func: the kernel's untransformed loops.
        loops: a perfect nest of loops over different axes, outermost first.
        extents: points of their axes.
    """
    count = count_parallel_loops(func, [ceildiv(n, const(x.step)) for x, n in zip(loops, extents, strict=True)])
    return [replace(x, kind=LoopKind.PARALLEL) if k < count else x for k, x in enumerate(loops)]


def count_parallel_loops(func: Func, iterations: Sequence[Expr]) -> int:
    """How many outer loops are parallel, by their iterations, outermost first; see `parallelize`."""
    points = _max_block_points(func)
    if points is not None and points < MIN_PARALLEL_POINTS:
        return 0
    total = 1
    for k, n in enumerate(iterations):
        # a symbolic loop may have a single iteration
        total *= int(n.value) if isinstance(n, Const) else 1
        if total >= MIN_PARALLEL_ITERATIONS:
            return k + 1
    return len(iterations)


def _max_block_points(func: Func) -> int | None:
    """Iterations of the largest block of the untransformed function; None with symbolic sizes."""
    max_points = 0
    for b in blocks(func.body):
        total = 1
        for i in b.iters:
            if not isinstance(i.extent, Const):
                return None
            total *= int(i.extent.value)
        max_points = max(max_points, total)
    return max_points
