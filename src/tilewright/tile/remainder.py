"""Nests of one program: that of all whole register tiles, and that of the rows that are left behind them."""

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
"""Of tiles of few rows: enough for any processor, and code that LLVM compiles soon."""

MIN_TASKS_PER_CORE = 4
"""Tasks per core that keep all busy, whichever are done first."""


@dataclass(frozen=True, slots=True)
class LoopPart:
    """One nest: all whole tiles of the axis with a remainder, or the remainder.

    Attributes:
        producer: the block that reduces.
        partial: the one that computes chunks, where the reduction is cut.
        consumer: the block behind them.
        sizes: tile sizes per level and axis.
        copies: of packed operands.
    """

    producer: str
    partial: str | None
    consumer: str
    sizes: tuple[tuple[int, ...], ...]
    copies: Mapping[int, str]


def split_remainder(
    s: Schedule, main: LoopPart, program: TileProgram, cores: int
) -> tuple[list[LoopPart], dict[int, str]]:
    """The nest of whole register tiles, and that of the rows that are left where their number does not divide; and the
    loops around both, over L2 tiles of the other axes, where one L2 tile has all rows."""
    for axis in program.problem.spatial:
        rows = main.sizes[REGISTER][axis]
        if axis == program.sketch.lane or rows == 1:
            continue
        loop = axis_loops(s, main.consumer)[axis]
        extent = loop_extent(s, loop)
        left = extent % rows
        if isinstance(left, Const) and left.value == 0:
            continue
        cut = extent // rows * rows
        if not (can_prove_non_negative(cut) and can_prove_non_negative(extent - cut)):
            continue
        shared = _shared_l2_loops(s, main, program, axis, cores)
        own = [x for x in s.loops(main.consumer) if x not in shared.values()]
        order = (*shared.values(), loop, *(x for x in own if x != loop))
        if order != s.loops(main.consumer):
            s.do("reorder", order)
        parts = [main]
        for height in (int(left.value),) if isinstance(left, Const) else remainder_tile_heights(rows):
            sizes = _with_axis_size(main.sizes, axis, height)
            if not isinstance(left, Const) and program.sketch.lane not in shared:
                sizes = _widen_lanes(sizes, program, rows // height)
            rest = _peel_remainder(s, parts[-1], loop, cut, sizes)
            parts.append(rest)
            loop = axis_loops(s, rest.consumer)[axis]
            extent = loop_extent(s, loop)
            cut = extent // height * height
            if cut is extent:
                break
        return parts, shared
    return [main], {}


def _peel_remainder(
    s: Schedule, part: LoopPart, loop: str, start: Expr, sizes: tuple[tuple[int, ...], ...]
) -> LoopPart:
    """What is left of a part behind an iteration, in other tiles."""
    (rest,) = apply_and_get_blocks(s, "peel", loop, start)
    clone = s.clone_producer(part.producer, rest)
    partial = None if part.partial is None else s.clone_producer(part.partial, clone)
    return LoopPart(clone, partial, rest, sizes, part.copies)


def _with_axis_size(sizes: tuple[tuple[int, ...], ...], axis: int, size: int) -> tuple[tuple[int, ...], ...]:
    """The sizes with that of one axis replaced on all levels."""
    return tuple(tuple(size if k == axis else x for k, x in enumerate(level)) for level in sizes)


def _widen_lanes(sizes: tuple[tuple[int, ...], ...], program: TileProgram, factor: int) -> tuple[tuple[int, ...], ...]:
    """Tiles of fewer rows with as many times the lanes, as a power of two, so that about as many sums are under way.

    One row of one vector waits for each of its additions: a window of 5 x 5 with 8 lanes takes as long as with 32.
    Packed lanes lie in panels as wide as the tile and stay, as do strands of a sum, which are no results. The sizes are
    those of a program again: multiples of those below. The cost model counts the tiles as if they were as narrow.
    """
    problem, lane = program.problem, program.sketch.lane
    wide = sizes[REGISTER][lane] << (factor.bit_length() - 1)
    packed = any(along == lane for _, along in program.sketch.packed)
    above = [level[lane] for level in sizes if level[lane] != sizes[REGISTER][lane]]
    narrow = problem.axes[lane].is_static and problem.axes[lane].extent < wide
    if packed or narrow or lane in problem.reduce or wide > MAX_REMAINDER_LANES or any(size % wide for size in above):
        return sizes
    return tuple(tuple(max(x, wide) if k == lane else x for k, x in enumerate(level)) for level in sizes)


def _shared_l2_loops(s: Schedule, main: LoopPart, program: TileProgram, row_axis: int, cores: int) -> dict[int, str]:
    """Cuts the loops over L2 tiles that whole tiles of rows and the rows that are left have in common, by axis.

    So what rows have in common, as panels of weights, comes from far memory once for all of them. Where the number of
    rows is not known they are shared out with those tiles only, if these are tasks enough; of axes of unknown size they
    share those that are not tiled.
    """
    problem = program.problem
    whole, height = problem.axes[row_axis], main.sizes[REGISTER][row_axis]
    if whole.is_static and main.sizes[L2][row_axis] < whole.extent // height * height:
        return {}
    axes, near = problem.axes, main.sizes[L2]
    order = [a for a in program.sketch.order if a != row_axis]
    if not whole.is_static:
        order = program.sketch.order[: program.sketch.order.index(row_axis)]
        order = list(takewhile(lambda a: axes[a].is_static or near[a] == 1, order))
        tasks = prod(-(-axes[a].extent // near[a]) for a in order if axes[a].is_static)
        if tasks < MIN_TASKS_PER_CORE * cores:
            return {}
    cut = [a for a in order if (near[a] < axes[a].extent if axes[a].is_static else near[a] == 1)]
    loops = axis_loops(s, main.consumer)
    found: dict[int, str] = {}
    for axis in cut:
        found[axis] = loops[axis] if near[axis] == 1 else s.split(loops[axis], near[axis])[0]
    return found
