"""Packs operands into panels of lanes or rows, in the order in which register tiles read them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from tilewright.errors import ScheduleError
from tilewright.expr.nodes import Buffer, Const
from tilewright.expr.traversal import loads
from tilewright.loops.ir import Block, LoopKind
from tilewright.tile.operand import Operand
from tilewright.tile.problem import Problem
from tilewright.tile.program import REGISTER, TileProgram, min_panel_width
from tilewright.tile.transposed_columns import MIN_COLUMNS, can_transpose
from tilewright.tile.tree import Compute, Loop, Node, Pack, nest

PASS_BYTES = 256
"""Contiguous bytes that a copy reads before it goes on to the next row; narrow panels are interleaved to reach it."""

MAX_LANE_REDUCTION_COLUMNS = 16
"""Results along the axes of an operand that one register tile of a lane reduction holds at most."""


def fits_register_tile(problem: Problem, o: Operand) -> bool:
    """Whether one register tile can hold all results that use an operand."""
    across = [problem.axes[a] for a in problem.spatial if o.uses(a)]
    return all(a.is_static for a in across) and prod(a.extent for a in across) <= MAX_LANE_REDUCTION_COLUMNS


def pack_stages(program: TileProgram, statement: str) -> dict[int, Pack]:
    """The copies of the operands that the sketch packs, by the operand's position.

    Args:
        program: the program.
        statement: the statement that reads them.

    Raises:
        ScheduleError: an operand can't be packed along its axis.
    """
    stages: dict[int, Pack] = {}
    for k, axis in program.sketch.packed:
        operand = program.problem.operands[k]
        dim = operand.dimension(axis)
        if dim is None:
            name = program.problem.axes[axis].name
            raise ScheduleError(f"{operand.buffer!r} can't be packed along {name}", where="tile program")
        stages[k] = Pack(statement, copy_name(program, k), operand.buffer, dim, panel_width(program, k, axis))
    return stages


def copy_name(program: TileProgram, operand: int) -> str:
    """The statement that packs an operand, by the operand's position."""
    return f"{program.problem.operands[operand].buffer}.pack{operand}"


def panel_width(program: TileProgram, operand: int, axis: int) -> int:
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


def pack_nests(program: TileProgram, node: Block, packs: Mapping[int, Pack]) -> tuple[Node, ...]:
    """The loops that fill the copies of operands whose data is not known at compile time; those of constants are filled
    at compile time (constant prepacking).

    Args:
        program: the program.
        node: the block that reads the operands.
        packs: the copies by the operand's position.
    """
    buffers = {x.buffer.name: x.buffer for x in loads(node.body.value)}
    nests: list[Node] = []
    for k, stage in packs.items():
        if not program.problem.operands[k].constant:
            dims = _dims_by_loop(program, k)
            loops = _pack_loops(stage, buffers[stage.operand], program.sketch.lanes, dims)
            # panels and their rows, as there may be few panels
            shared = min(2, len(loops) - 1)
            loops[:shared] = [replace(x, kind=LoopKind.PARALLEL) for x in loops[:shared]]
            nests += nest(loops, Compute(stage.copy))
    return tuple(nests)


def _dims_by_loop(program: TileProgram, operand: int) -> list[int]:
    """The dimensions of an operand in the order of the loops over L2 tiles that they depend on, those of reductions
    last: so each thread fills most of the panels that it will read, as both loops are shared alike."""
    order, index = program.sketch.order, program.problem.operands[operand].index
    return sorted(
        range(len(index)), key=lambda d: min((order.index(a) for a in order if index[d][a]), default=len(order))
    )


def _pack_loops(stage: Pack, operand: Buffer, lanes: int, dims: Sequence[int]) -> list[Loop]:
    """The loops that pack an operand: vectors along the contiguous dimension where panels lie along it; else along
    panels, which are transposed in registers, or where that is not possible along the contiguous dimension again.

    Args:
        stage: the copy.
        operand: what is copied.
        lanes: of a vector.
        dims: the dimensions of the operand, that of the outermost loop first.
    """
    last = operand.rank - 1
    panel, point = f"{stage.copy}.panel", f"{stage.copy}.point"
    names = {d: f"{stage.copy}.{d}" if d != stage.dim else panel for d in dims}
    if stage.dim == last or operand.rank == 1:
        per_pass = _panels_per_pass(stage, operand) if operand.rank > 1 else 1
        loops = [Loop(names[d], per_pass if d == stage.dim else 1, ()) for d in dims]
        loops += [Loop(panel, 1, ())] if per_pass > 1 else []
        return [*loops, Loop(point, 1, (), LoopKind.VECTORIZED)]
    contiguous, extent = names[last], operand.shape[last]
    is_short = isinstance(extent, Const) and extent.value <= lanes
    loops = [Loop(names[d], 1, ()) for d in dims if d != last]
    if _is_transposed_in_registers(stage, operand):
        columns = min(int(extent.value), lanes) if isinstance(extent, Const) else lanes
        tiles = [Loop(contiguous, columns, ()), Loop(point, lanes, ())]
        return [*loops, *tiles, Loop(contiguous, 1, (), LoopKind.UNROLLED), Loop(point, 1, (), LoopKind.VECTORIZED)]
    loops += [] if is_short else [Loop(contiguous, lanes, ())]
    return [*loops, Loop(point, 1, ()), Loop(contiguous, 1, (), LoopKind.VECTORIZED)]


def _is_transposed_in_registers(stage: Pack, operand: Buffer) -> bool:
    """Whether panels along another dimension than the contiguous one are filled by transposing tiles in registers:
    points of a panel are a constant distance apart, and both sides of a tile are long enough."""
    rows = [n.value for n in operand.shape[stage.dim + 1 :] if isinstance(n, Const)]
    is_static = len(rows) == operand.rank - stage.dim - 1
    return is_static and stage.width >= MIN_COLUMNS and can_transpose(int(rows[-1]), operand.dtype.bytes)


def _panels_per_pass(stage: Pack, operand: Buffer) -> int:
    """Narrow panels, adjacent in the operand, that are filled together.

    Rows are far apart, and the rest of a line would be evicted before the next panel reads it.
    """
    extent = operand.shape[stage.dim]
    if not isinstance(extent, Const):
        return 1
    panels = -(-int(extent.value) // stage.width)
    panels_per_pass = min(PASS_BYTES // (stage.width * operand.dtype.bytes), panels)
    return panels_per_pass if panels_per_pass >= 2 else 1
