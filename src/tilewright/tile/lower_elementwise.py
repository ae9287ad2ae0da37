"""Lowering of tile programs of elementwise work and data movement: every tile loop is a `split`, nothing is staged.

parallel L2 tiles
  L1 tiles
    register tiles: rows outside, lanes innermost; columns that are transposed in registers next to them, unrolled
"""

from tilewright.schedule.schedule import Schedule
from tilewright.tile.columns import MIN_COLUMNS, column_axis
from tilewright.tile.program import REGISTER, TileProgram
from tilewright.tile.schedule_helpers import axis_loops


def lower_elementwise(s: Schedule, program: TileProgram, parallel: bool) -> None:
    """Schedules the one block of untransformed loops; partial tiles are guarded by conditions and masks."""
    problem, sketch = program.problem, program.sketch
    over_l2: dict[int, str] = {}
    over_l1: dict[int, str] = {}
    over_register: dict[int, str] = {}
    points: dict[int, str] = {}
    for axis, axis_loop in enumerate(axis_loops(s, problem.block)):
        register, l1, l2 = (level[axis] for level in program.sizes)
        loop = axis_loop
        if register > 1 or axis == sketch.lane:
            loop, points[axis] = s.split(loop, register)
        if l1 > register:
            loop, over_register[axis] = s.split(loop, l1 // register)
        if l2 > l1:
            loop, over_l1[axis] = s.split(loop, l2 // l1)
        over_l2[axis] = loop
    tile_loops = [x[a] for x in (over_l2, over_l1, over_register) for a in sketch.order if a in x]
    columns = {column_axis(problem, sketch, k) for k in range(len(problem.operands))}
    transposed = [a for a in sketch.order if a in points and a in columns and program.sizes[REGISTER][a] >= MIN_COLUMNS]
    rows = [points[a] for a in sketch.order if a in points and a != sketch.lane and a not in transposed]
    unrolled = [points[a] for a in transposed]
    s.do("reorder", (*tile_loops, *rows, *unrolled, points[sketch.lane]))
    for loop in unrolled:
        s.do("unroll", loop)
    s.do("vectorize", points[sketch.lane])
    for a in sketch.order if parallel else ():
        s.do("parallel", over_l2[a])
