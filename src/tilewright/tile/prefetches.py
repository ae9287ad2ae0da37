"""Software prefetches in the reduction loop around register tiles: of packed copies, of rows of operands that are read
where they are, and for the next tile."""

from collections.abc import Sequence
from math import prod

from tilewright.machine.alignment import CACHE_LINE_BYTES
from tilewright.schedule.prefetch import MAX_DISTANCE
from tilewright.tile.operand import Operand
from tilewright.tile.packing import copy_name, fits_register_tile
from tilewright.tile.problem import Problem
from tilewright.tile.program import L1, REGISTER, Sketch, TileProgram
from tilewright.tile.tree import Prefetch

PREFETCH_BYTES = 3072
"""Distance of software prefetches: about the bytes in flight at a time, and not a whole page, since lines that are
whole pages apart share a set of L1."""

MIN_PREFETCH_ROWS = 4
"""Rows of a register tile from which on constants that L2 holds are prefetched: a hint per line takes the slot of a
load, of which tiles of few rows have none to spare."""

MAX_PREFETCH_PASSES = 32
"""Register tiles that read a panel of a constant that L2 holds, up to which it is prefetched: only the first one finds
it beyond L2, and all pay for the hints."""


def prefetches(program: TileProgram) -> tuple[Prefetch, ...]:
    """The prefetches of a program, those of packed copies first. Lane reductions prefetch rows alone: their packed
    columns are read again for every register tile."""
    if program.problem.axes[program.sketch.lane].is_reduction:
        return _rows_ahead(program)
    return (*_panels_ahead(program), *_rows_ahead(program), *_next_rows(program))


def prefetch_distance(bytes_read: int) -> int:
    """Iterations in advance of a prefetch in a loop that reads so many bytes per iteration."""
    return min(MAX_DISTANCE, max(1, PREFETCH_BYTES // bytes_read))


def has_distant_rows(problem: Problem, operand: int, lane: int) -> bool:
    """Whether an operand, by its position, that is read where it is along the lanes has a row per term of the sum, at
    least a line from the next one. A register tile reads little of every row, so that hardware prefetchers ramp up on
    each."""
    o = problem.operands[operand]
    if o.written or o.private or o.conditional or o.constant or len(problem.reduce) != 1:
        return False
    pitch = o.strides[problem.reduce[0]] * o.element_bytes
    return problem.axes[problem.reduce[0]].is_static and o.strides[lane] == 1 and pitch >= CACHE_LINE_BYTES


def has_rows_along_lanes(problem: Problem, operand: int, lane: int) -> bool:
    """Whether a lane reduction reads an operand, by its position, in rows along the lanes, beside one with few columns,
    which register tiles read again and again from L1 or L2. That leaves few loads of rows in flight: tiles of 2 x 8
    results stream 7 GB/s from memory on Zen 4, with prefetches 12. Where nothing else is read, these cost 1.2 of the
    time."""
    o = problem.operands[operand]
    if o.written or o.private or o.conditional or o.constant or tuple(problem.reduce) != (lane,):
        return False
    columns = [x for k, x in enumerate(problem.operands) if k != operand and x.strides[lane] != 0]
    are_few = all(x.buffer != o.buffer and fits_register_tile(problem, x) for x in columns)
    return o.strides[lane] == 1 and o.dimension(lane) is not None and bool(columns) and are_few


def is_read_ahead(problem: Problem, operand: int, lane: int) -> bool:
    """Whether an operand, by its position, that is read where it is from beyond the private caches is prefetched."""
    return has_distant_rows(problem, operand, lane) or has_rows_along_lanes(problem, operand, lane)


def min_prefetch_rows(problem: Problem, lane: int) -> int:
    """Rows per register tile, from which on an operand that is read in place is prefetched: of a lane reduction any."""
    return 1 if problem.axes[lane].is_reduction else MIN_PREFETCH_ROWS


def distant_operands(problem: Problem, sketch: Sketch) -> list[int]:
    """Positions of the operands with distant rows that a sketch does not pack."""
    copied = dict(sketch.packed)
    return [k for k in range(len(problem.operands)) if k not in copied and has_distant_rows(problem, k, sketch.lane)]


def _rows_ahead(program: TileProgram) -> tuple[Prefetch, ...]:
    """Prefetches of operands that the sketch names and that are read where they are, as many bytes ahead as of packed
    copies: of the next terms' rows, most of which are in other pages, or further along the same rows."""
    problem, register, hints = program.problem, program.sizes[REGISTER], list[Prefetch]()
    copied = dict(program.sketch.packed)
    for k in program.sketch.prefetched_operands:
        operand = problem.operands[k]
        rows = prod(register[a] for a in problem.spatial if not operand.uses(a))
        if k not in copied and rows >= min_prefetch_rows(problem, program.sketch.lane):
            step = prod(register[a] for a in range(len(register)) if operand.uses(a)) * operand.element_bytes
            hints.append(Prefetch(operand.buffer, prefetch_distance(step)))
    return tuple(hints)


def _panels_ahead(program: TileProgram) -> tuple[Prefetch, ...]:
    """Software prefetches of packed copies in a reduction loop around register tiles: of the operands that the sketch
    names, and of constants, which within a model come from beyond L2, however small: the other kernels' constants have
    been read since the last call.

    Only tiles with several rows per loaded element prefetch: with a single row the loads that follow are issued as
    early as the hints, which only take their place.
    """
    register, hints = program.sizes[REGISTER], list[Prefetch]()
    for k, axis in program.sketch.packed:
        operand = program.problem.operands[k]
        others = [a for a in program.problem.spatial if not operand.uses(a)]
        rows = prod(register[a] for a in others)
        is_large = k in program.sketch.prefetched_operands
        if (is_large and rows > 1) or (
            operand.constant and rows >= MIN_PREFETCH_ROWS and _passes(program, others) <= MAX_PREFETCH_PASSES
        ):
            step = register[axis] * operand.element_bytes
            for r in program.problem.reduce:
                step *= register[r] if operand.uses(r) else 1
            hints.append(Prefetch(copy_name(program, k), prefetch_distance(step)))
    return tuple(hints)


def _passes(program: TileProgram, axes: Sequence[int]) -> int:
    """Register tiles along axes; one of unknown size counts as one tile."""
    sizes = ((program.problem.axes[a], program.sizes[REGISTER][a]) for a in axes)
    return prod(-(-axis.extent // size) for axis, size in sizes if axis.is_static)


def _next_rows(program: TileProgram) -> tuple[Prefetch, ...]:
    """Prefetches of operands that are read where they are, for the next register tile, while the sum of this one runs.

    A tile reads less than a line of every row of such an operand, and rows are as far apart as the terms of the sum: so
    no hardware prefetcher knows what the next tile reads, the neighbouring elements of as many rows. With 128 rows of
    3,136 elements from beyond L2 and 32 results a 1x1 convolution takes 157 us with the hints, 225 without.
    """
    problem = program.problem
    if len(problem.reduce) != 1:
        return ()
    (axis,) = problem.reduce
    steps = program.sizes[L1][axis] // program.sizes[REGISTER][axis]
    packed = dict(program.sketch.packed)
    if not (problem.axes[axis].is_static and 1 <= steps <= MAX_DISTANCE):
        return ()
    operands = (o for k, o in enumerate(problem.operands) if k not in packed and _has_short_rows(program, o, axis))
    return tuple(Prefetch(o.buffer, steps) for o in operands)


def _has_short_rows(program: TileProgram, operand: Operand, term: int) -> bool:
    """Whether a register tile reads about a line or less of every row of an operand, with a row per term of the sum."""
    if operand.constant or operand.written or operand.private or operand.conditional:
        return False
    problem, register = program.problem, program.sizes[REGISTER]
    rows = [a for a in problem.spatial if operand.strides[a] == 1 and problem.axes[a].is_static]
    if len(rows) != 1 or rows[0] == program.sketch.lane:
        return False
    read = register[rows[0]] * operand.element_bytes
    is_distant = operand.strides[term] * operand.element_bytes >= CACHE_LINE_BYTES
    return is_distant and register[rows[0]] >= MIN_PREFETCH_ROWS and read <= CACHE_LINE_BYTES
