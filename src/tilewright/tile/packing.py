"""Packs operands into panels of lanes or rows, in the order in which register tiles read them."""

from collections.abc import Mapping
from math import prod

from tilewright.errors import ScheduleError
from tilewright.expr.nodes import Const
from tilewright.schedule.prefetch import MAX_DISTANCE
from tilewright.schedule.schedule import Schedule
from tilewright.tile.operand import Operand
from tilewright.tile.program import REGISTER, TileProgram, min_panel_width
from tilewright.tile.schedule_helpers import apply_and_get_blocks, buffer_of, loop_extent

PREFETCH_BYTES = 3072
"""Distance of software prefetches: about the bytes in flight at a time, and not a whole page, since lines that are
whole pages apart share a set of L1."""

PASS_BYTES = 256
"""Contiguous bytes that a copy reads before it goes on to the next row; narrow panels are interleaved to reach it."""


def pack_operands(s: Schedule, block: str, program: TileProgram, parallel: bool) -> dict[int, str]:
    """Makes a block read the operands that the sketch packs from packed copies; returns the copies' buffers by operand.

    Copies of constants are made at compile time (constant prepacking), others by loop nests of their own.

    Raises:
        ScheduleError: an operand can't be packed along its axis.
    """
    copies: dict[int, str] = {}
    for k, axis in program.sketch.packed:
        operand = program.problem.operands[k]
        dim = operand.dimension(axis)
        if dim is None:
            name = program.problem.axes[axis].name
            raise ScheduleError(f"{operand.buffer!r} can't be packed along {name}", where="tile program")
        (copy,) = apply_and_get_blocks(s, "pack", block, operand.buffer, dim, _panel_width(program, k, axis))
        if not operand.constant:
            _schedule_copy(s, copy, operand, dim, program.sketch.lanes, parallel)
        copies[k] = buffer_of(s, copy)
    return copies


def _panel_width(program: TileProgram, operand: int, axis: int) -> int:
    """Points of an axis in a panel: those of a register tile, or of one cache line.

    Panels of one line are for operands from beyond L2, where whole lines fill a register tile. The tile then reads
    several panels at a time, and a core that tracks several streams keeps more lines in flight: on one core (AVX-512)
    1 x 4096 x 4096 takes 6.6 ms with panels of 64 columns and 5.4 ms with 16, 8 x 4096 x 4096 7.2 and 5.8. Panels of
    half a line pay only for single rows: on two cores (AVX2) 1000 x 1000 x 1000 in tiles of 4 x 24 takes 17.2 ms with
    three panels of 8 columns and 10.9 ms with one of 24.
    """
    sketch, points = program.sketch, program.sizes[REGISTER][axis]
    line = min_panel_width(sketch, program.problem.operands[operand].element_bytes)
    in_lines = operand in sketch.prefetched_operands and axis == sketch.lane and points % line == 0
    return line if in_lines else points


def insert_prefetches(s: Schedule, loop: str, program: TileProgram, copies: Mapping[int, str]) -> None:
    """Prefetches packed copies in a reduction loop around register tiles, for the operands that the sketch names.

    Only tiles with several rows per loaded element prefetch: with a single row the loads that follow are issued as
    early as the hints, which only take their place.
    """
    register = program.sizes[REGISTER]
    for k, axis in program.sketch.packed:
        operand = program.problem.operands[k]
        rows = prod(register[a] for a in program.problem.spatial if not operand.uses(a))
        if k in program.sketch.prefetched_operands and rows > 1:
            step = register[axis] * operand.element_bytes
            for r in program.problem.reduce:
                step *= register[r] if operand.uses(r) else 1
            s.do("prefetch", loop, copies[k], min(MAX_DISTANCE, max(1, PREFETCH_BYTES // step)))


def _schedule_copy(s: Schedule, copy: str, operand: Operand, dim: int, lanes: int, parallel: bool) -> None:
    """Schedules the nest that packs an operand: panels and their rows in parallel, as there may be few panels; vectors
    along the contiguous dimension."""
    loops = list(s.loops(copy))
    last = len(operand.shape) - 1
    if dim == last or len(loops) < 3:
        if dim == last:
            loops = _interleave_panels(s, loops, operand)
        s.do("vectorize", loops[-1])
    else:
        # the loops run over panels, the other dimensions in order, and the points of a panel
        contiguous = loops[-2]
        extent = loop_extent(s, contiguous)
        if not (isinstance(extent, Const) and extent.value <= lanes):
            _, contiguous = s.split(contiguous, lanes)
            loops = list(s.loops(copy))
        s.do("reorder", (*(x for x in loops if x != contiguous), contiguous))
        s.do("vectorize", contiguous)
    if parallel:
        for loop in s.loops(copy)[: min(2, len(loops) - 1)]:
            s.do("parallel", loop)


def _interleave_panels(s: Schedule, loops: list[str], operand: Operand) -> list[str]:
    """Fills narrow panels that are adjacent in the operand together; returns the loops, outermost first.

    Rows are far apart, and the rest of a line would be evicted before the next panel reads it.
    """
    panels, width = (loop_extent(s, x) for x in (loops[0], loops[-1]))
    if len(loops) < 3 or not isinstance(panels, Const) or not isinstance(width, Const):
        return loops
    panels_per_pass = min(PASS_BYTES // (int(width.value) * operand.element_bytes), int(panels.value))
    if panels_per_pass < 2:
        return loops
    outer, inner = s.split(loops[0], panels_per_pass)
    loops = [outer, *loops[1:-1], inner, loops[-1]]
    s.do("reorder", tuple(loops))
    return loops
