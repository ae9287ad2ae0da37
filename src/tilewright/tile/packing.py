"""Copies of operands in the order in which register tiles read them: panels of lanes, or of rows."""

from collections.abc import Mapping
from math import prod

from tilewright.errors import ScheduleError
from tilewright.expr.nodes import Const
from tilewright.schedule.prefetch import MAX_DISTANCE
from tilewright.schedule.schedule import Schedule
from tilewright.tile.problem import Operand
from tilewright.tile.program import REGISTER, TileProgram, min_panel_width
from tilewright.tile.schedule_helpers import apply_and_get_blocks, buffer_of, loop_extent

PREFETCH_BYTES = 3072
"""Bytes between what is asked for and what is read: about as many as are under way at a time, and not a page, since
lines that lie whole pages apart are kept in the same set of the first cache."""

PASS_BYTES = 256
"""Bytes that a copy reads in a row, of narrow panels from several, before it goes on to the next row."""


def pack_operands(s: Schedule, block: str, program: TileProgram, parallel: bool) -> dict[int, str]:
    """Lets a block read the operands that the program's form names from copies in panels, and answers with the copies;
    those of constants are made when the kernel is compiled, others by nests of their own."""
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
    """Points of an axis in a panel: those of a register tile. What comes from far memory lies in panels of one line,
    where these fill a register tile, which reads several at a time, as a core that follows several streams has more
    lines under way: on one core (AVX-512) 1 x 4096 x 4096 takes 6.6 ms with panels of 64 columns and 5.4 ms with 16,
    8 x 4096 x 4096 7.2 and 5.8. Panels of half a line are no gain but for single rows: on two cores (AVX2)
    1000 x 1000 x 1000 in tiles of 4 x 24 takes 17.2 ms with three panels of 8 columns and 10.9 ms with one of 24.
    """
    form, points = program.sketch, program.sizes[REGISTER][axis]
    line = min_panel_width(form, program.problem.operands[operand].element_bytes)
    abreast = operand in form.prefetched_operands and axis == form.lane and points % line == 0
    return line if abreast else points


def insert_prefetches(s: Schedule, loop: str, program: TileProgram, copies: Mapping[int, str]) -> None:
    """Prefetches the copies of the operands that the form names in a loop of the reduction around register tiles, where
    a tile has several rows for what it reads. With a single one the loads that follow are under way as early as hints,
    which only take their place."""
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
    """The nest that packs an operand: panels in parallel; vectors along what is contiguous in the operand."""
    loops = list(s.loops(copy))
    last = len(operand.shape) - 1
    if dim == last or len(loops) < 3:
        if dim == last:
            loops = _interleave_panels(s, loops, operand)
        s.do("vectorize", loops[-1])
    else:
        # the loops are over panels, the other dimensions in order, and the inside of a panel
        along = loops[-2]
        extent = loop_extent(s, along)
        if not (isinstance(extent, Const) and extent.value <= lanes):
            _, along = s.split(along, lanes)
            loops = list(s.loops(copy))
        s.do("reorder", (*(x for x in loops if x != along), along))
        s.do("vectorize", along)
    if parallel and len(loops) > 1:
        s.do("parallel", loops[0])


def _interleave_panels(s: Schedule, loops: list[str], operand: Operand) -> list[str]:
    """Narrow panels that lie side by side in the operand are filled together: rows are far apart, and what is left of a
    line would be gone before the next panel asks for it. Answers with the loops, outermost first."""
    panels, inside = (loop_extent(s, x) for x in (loops[0], loops[-1]))
    if len(loops) < 3 or not isinstance(panels, Const) or not isinstance(inside, Const):
        return loops
    together = min(PASS_BYTES // (int(inside.value) * operand.element_bytes), int(panels.value))
    if together < 2:
        return loops
    outer, inner = s.split(loops[0], together)
    loops = [outer, *loops[1:-1], inner, loops[-1]]
    s.do("reorder", tuple(loops))
    return loops
