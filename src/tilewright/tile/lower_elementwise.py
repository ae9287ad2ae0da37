"""Lowering of tile programs of element-wise work and of movement: every tile loop is a `split`, nothing is staged.

parallel L2 tiles
  L1 tiles
    register tiles: rows outside, lanes innermost
"""

from tilewright.schedule.schedule import Schedule
from tilewright.tile.program import TileProgram
from tilewright.tile.schedule_helpers import axis_loops


def lower_elementwise(s: Schedule, program: TileProgram, parallel: bool) -> None:
    """Schedules the one block of untransformed loops; tiles that are not whole end in conditions and masks."""
    problem, form = program.problem, program.sketch
    outer: dict[int, str] = {}
    inner: dict[int, str] = {}
    micro: dict[int, str] = {}
    points: dict[int, str] = {}
    for axis, whole in enumerate(axis_loops(s, problem.block)):
        register, near, far = (level[axis] for level in program.sizes)
        loop = whole
        if register > 1 or axis == form.lane:
            loop, points[axis] = s.split(loop, register)
        if near > register:
            loop, micro[axis] = s.split(loop, near // register)
        if far > near:
            loop, inner[axis] = s.split(loop, far // near)
        outer[axis] = loop
    shown = [x[a] for x in (outer, inner, micro) for a in form.order if a in x]
    rows = [points[a] for a in form.order if a in points and a != form.lane]
    s.do("reorder", (*shown, *rows, points[form.lane]))
    s.do("vectorize", points[form.lane])
    for a in form.order if parallel else ():
        s.do("parallel", outer[a])
