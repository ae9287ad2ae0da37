"""Remainders: the rows beyond the last whole register tile, in tiles of their own."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from math import prod

from tilewright.expr.algebra.prover import can_prove_non_negative
from tilewright.expr.nodes import Const, Expr
from tilewright.tile.program import L2, REGISTER, SizeTuples, TileProgram, remainder_tile_heights

MAX_REMAINDER_LANES = 128
"""Lanes of widened remainder tiles: enough for any processor, and code that LLVM compiles quickly."""

MIN_TASKS_PER_CORE = 4
"""Tasks per core that keep all cores busy, whichever finish first."""


@dataclass(frozen=True, slots=True)
class RemainderParts:
    """The parts of the axis with a remainder.

    Attributes:
        axis: its position; None where there is no remainder.
        sizes: tile sizes of the whole tiles, then those of every part of the remainder.
        shared: axes whose loops over L2 tiles enclose all parts, outermost first.
    """

    axis: int | None
    sizes: tuple[SizeTuples, ...]
    shared: tuple[int, ...] = ()


def remainder_parts(program: TileProgram, extents: Sequence[Expr], cores: int) -> RemainderParts:
    """The parts of a program's loops.

    Args:
        program: the program.
        extents: of its axes.
        cores: maximum number of cores.
    """
    register = program.sizes[REGISTER]
    for axis in program.problem.spatial:
        rows, extent = register[axis], extents[axis]
        if axis == program.sketch.lane or rows == 1:
            continue
        remainder = extent % rows
        if isinstance(remainder, Const) and remainder.value == 0:
            continue
        start = extent // rows * rows
        if not (can_prove_non_negative(start) and can_prove_non_negative(extent - start)):
            continue
        shared = _shared_axes(program, axis, cores)
        parts = [program.sizes]
        for height in (int(remainder.value),) if isinstance(remainder, Const) else remainder_tile_heights(rows):
            sizes = _with_axis_size(program.sizes, axis, height)
            if not isinstance(remainder, Const) and program.sketch.lane not in shared:
                sizes = _widen_lanes(sizes, program, rows // height)
            parts.append(sizes)
            extent = extent - start
            start = extent // height * height
            if start is extent:
                break
        return RemainderParts(axis, tuple(parts), shared)
    return RemainderParts(None, (program.sizes,))


def _with_axis_size(sizes: SizeTuples, axis: int, size: int) -> SizeTuples:
    """The sizes with that of one axis replaced on all levels."""
    return tuple(tuple(size if k == axis else x for k, x in enumerate(level)) for level in sizes)


def _widen_lanes(sizes: SizeTuples, program: TileProgram, factor: int) -> SizeTuples:
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


def _shared_axes(program: TileProgram, row_axis: int, cores: int) -> tuple[int, ...]:
    """The axes whose loops over L2 tiles the whole tiles and the remainder share.

    So data that all rows use, such as panels of weights, comes from beyond L2 once. Where the number of rows is
    symbolic, the loops are shared only if they make enough tasks; axes of symbolic size are shared only where they are
    not tiled.
    """
    axes, l2 = program.problem.axes, program.sizes[L2]
    rows, height = axes[row_axis], program.sizes[REGISTER][row_axis]
    if rows.is_static and l2[row_axis] < rows.extent // height * height:
        return ()
    order = [a for a in program.sketch.order if a != row_axis]
    if not rows.is_static:
        outer = program.sketch.order[: program.sketch.order.index(row_axis)]
        order = list(takewhile(lambda a: axes[a].is_static or l2[a] == 1, outer))
        tasks = prod(-(-axes[a].extent // l2[a]) for a in order if axes[a].is_static)
        if tasks < MIN_TASKS_PER_CORE * cores:
            return ()
    return tuple(a for a in order if (l2[a] < axes[a].extent if axes[a].is_static else l2[a] == 1))
