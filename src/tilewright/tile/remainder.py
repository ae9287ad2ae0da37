"""Splits a program's loops into whole register tiles and the remainder of rows."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from math import prod

from tilewright.expr.algebra.prover import can_prove_non_negative
from tilewright.expr.nodes import Const, Expr
from tilewright.schedule.schedule import Schedule
from tilewright.tile.program import L2, REGISTER, TileProgram, remainder_tile_heights
from tilewright.tile.schedule_helpers import apply_and_get_blocks, axis_loops, loop_extent

MAX_REMAINDER_LANES = 128
"""Lanes of widened remainder tiles: enough for any processor, and code that LLVM compiles quickly."""

MIN_TASKS_PER_CORE = 4
"""Tasks per core that keep all cores busy, whichever finish first."""


@dataclass(frozen=True, slots=True)
class LoopPart:
    """The loops over all whole register tiles of the axis with a remainder, or those over the remainder.

    Attributes:
        producer: the block that reduces.
        partial: the block that computes K-blocks or partial sums per lane; None where there is none.
        consumer: the epilogue's block.
        sizes: tile sizes per level and axis.
        copies: buffers of packed operands, by the operand's position.
    """

    producer: str
    partial: str | None
    consumer: str
    sizes: tuple[tuple[int, ...], ...]
    copies: Mapping[int, str]


def split_remainder(
    s: Schedule, main: LoopPart, program: TileProgram, cores: int
) -> tuple[list[LoopPart], dict[int, str]]:
    """Peels the rows beyond the last whole register tile.

    Returns:
        The loops of the whole tiles and those of the remainder, if any; and per axis the loops around both, over L2
        tiles of the other axes, where one L2 tile has all rows.
    """
    for axis in program.problem.spatial:
        rows = main.sizes[REGISTER][axis]
        if axis == program.sketch.lane or rows == 1:
            continue
        loop = axis_loops(s, main.consumer)[axis]
        extent = loop_extent(s, loop)
        remainder = extent % rows
        if isinstance(remainder, Const) and remainder.value == 0:
            continue
        start = extent // rows * rows
        if not (can_prove_non_negative(start) and can_prove_non_negative(extent - start)):
            continue
        shared = _shared_l2_loops(s, main, program, axis, cores)
        other_loops = [x for x in s.loops(main.consumer) if x not in shared.values()]
        order = (*shared.values(), loop, *(x for x in other_loops if x != loop))
        if order != s.loops(main.consumer):
            s.do("reorder", order)
        parts = [main]
        for height in (int(remainder.value),) if isinstance(remainder, Const) else remainder_tile_heights(rows):
            sizes = _with_axis_size(main.sizes, axis, height)
            if not isinstance(remainder, Const) and program.sketch.lane not in shared:
                sizes = _widen_lanes(sizes, program, rows // height)
            part = _peel_remainder(s, parts[-1], loop, start, sizes)
            parts.append(part)
            loop = axis_loops(s, part.consumer)[axis]
            extent = loop_extent(s, loop)
            start = extent // height * height
            if start is extent:
                break
        return parts, shared
    return [main], {}


def _peel_remainder(
    s: Schedule, part: LoopPart, loop: str, start: Expr, sizes: tuple[tuple[int, ...], ...]
) -> LoopPart:
    """The iterations of a part's loop from `start` on, in tiles of other sizes."""
    (consumer,) = apply_and_get_blocks(s, "peel", loop, start)
    producer = s.clone_producer(part.producer, consumer)
    partial = None if part.partial is None else s.clone_producer(part.partial, producer)
    return LoopPart(producer, partial, consumer, sizes, part.copies)


def _with_axis_size(sizes: tuple[tuple[int, ...], ...], axis: int, size: int) -> tuple[tuple[int, ...], ...]:
    """The sizes with that of one axis replaced on all levels."""
    return tuple(tuple(size if k == axis else x for k, x in enumerate(level)) for level in sizes)


def _widen_lanes(sizes: tuple[tuple[int, ...], ...], program: TileProgram, factor: int) -> tuple[tuple[int, ...], ...]:
    """Tiles of fewer rows with up to `factor` times the lanes, as a power of two, so that they have about as many
    accumulators.

    A tile of one vector waits for each of its additions: a window of 5 x 5 with 8 lanes takes as long as with 32.
    Packed lanes keep their panels' width, and a vectorised reduction its partial sums. The sizes remain legal: every
    one is a multiple of the one below. The cost model counts the tiles as if they were not widened.
    """
    problem, lane = program.problem, program.sketch.lane
    wide = sizes[REGISTER][lane] << (factor.bit_length() - 1)
    is_packed = any(axis == lane for _, axis in program.sketch.packed)
    larger = [level[lane] for level in sizes if level[lane] != sizes[REGISTER][lane]]
    is_too_wide = problem.axes[lane].is_static and problem.axes[lane].extent < wide
    if is_packed or is_too_wide or lane in problem.reduce or wide > MAX_REMAINDER_LANES:
        return sizes
    if any(size % wide for size in larger):
        return sizes
    return tuple(tuple(max(x, wide) if k == lane else x for k, x in enumerate(level)) for level in sizes)


def _shared_l2_loops(s: Schedule, main: LoopPart, program: TileProgram, row_axis: int, cores: int) -> dict[int, str]:
    """Splits the loops over L2 tiles that the whole tiles and the remainder share, by axis.

    So data that all rows use, such as panels of weights, comes from beyond L2 once. Where the number of rows is
    symbolic, the loops are shared only if they make enough tasks; axes of symbolic size are shared only where they are
    not tiled.
    """
    axes, l2 = program.problem.axes, main.sizes[L2]
    rows, height = axes[row_axis], main.sizes[REGISTER][row_axis]
    if rows.is_static and l2[row_axis] < rows.extent // height * height:
        return {}
    order = [a for a in program.sketch.order if a != row_axis]
    if not rows.is_static:
        outer = program.sketch.order[: program.sketch.order.index(row_axis)]
        order = list(takewhile(lambda a: axes[a].is_static or l2[a] == 1, outer))
        tasks = prod(-(-axes[a].extent // l2[a]) for a in order if axes[a].is_static)
        if tasks < MIN_TASKS_PER_CORE * cores:
            return {}
    tiled = [a for a in order if (l2[a] < axes[a].extent if axes[a].is_static else l2[a] == 1)]
    loops = axis_loops(s, main.consumer)
    shared: dict[int, str] = {}
    for axis in tiled:
        shared[axis] = loops[axis] if l2[axis] == 1 else s.split(loops[axis], l2[axis])[0]
    return shared
