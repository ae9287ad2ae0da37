"""Parallelization of a kernel's outer loops."""

from tilewright.expr.nodes import Const
from tilewright.loops.ir import blocks
from tilewright.schedule.schedule import Schedule
from tilewright.tile.schedule_helpers import loop_extent

MIN_PARALLEL_ITERATIONS = 64
"""Iterations that keep many threads evenly busy."""

MIN_PARALLEL_POINTS = 8192
"""Iterations of a block below which starting threads costs more than it gains."""


def parallelize(s: Schedule, loops: list[str]) -> None:
    """Parallelizes outer loops where there is enough work: as few of them as balance the load of many threads.

    Args:
        s: the schedule.
        loops: a perfect nest of loops, outermost first.
    """
    points = _max_block_points(s)
    if points is not None and points < MIN_PARALLEL_POINTS:
        return
    for k, name in enumerate(loops):
        s.do("parallel", name)
        if _has_enough_iterations(s, loops[: k + 1]):
            return


def _has_enough_iterations(s: Schedule, loops: list[str]) -> bool:
    """Whether the loops have iterations for many threads; a symbolic loop may have a single one."""
    total = 1
    for name in loops:
        extent = loop_extent(s, name)
        total *= int(extent.value) if isinstance(extent, Const) else 1
    return total >= MIN_PARALLEL_ITERATIONS


def _max_block_points(s: Schedule) -> int | None:
    """Iterations of the largest block of the untransformed function; None with symbolic sizes."""
    max_points = 0
    for b in blocks(s.origin.body):
        total = 1
        for i in b.iters:
            if not isinstance(i.extent, Const):
                return None
            total *= int(i.extent.value)
        max_points = max(max_points, total)
    return max_points
