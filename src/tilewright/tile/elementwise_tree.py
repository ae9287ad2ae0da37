"""Trees of elementwise work and data movement; nothing is staged.

parallel L2 tiles
  L1 tiles
    register tiles: rows outside, lanes innermost; columns that are transposed in registers next to them, unrolled
"""

from tilewright.loops.ir import Func, LoopKind
from tilewright.schedule.rewrite_tree import find_block
from tilewright.tile.column_tiles import MIN_COLUMNS, column_axis
from tilewright.tile.program import TileProgram
from tilewright.tile.tree import Compute, Loop, TileTree, nest


def elementwise_tree(program: TileProgram, func: Func, parallel: bool) -> TileTree:
    """The tree of a program; partial tiles are guarded by conditions and masks.

    Args:
        program: a program of a block without a reduction.
        func: its kernel's untransformed loops.
        parallel: whether threads share the tiles.
    """
    sketch, block = program.sketch, program.problem.block
    names = [i.var.name for i in find_block(func, block)[0].iters]
    register, l1, l2 = program.sizes
    kind = LoopKind.PARALLEL if parallel else LoopKind.SERIAL
    loops = [Loop(names[a], l2[a], (), kind) for a in sketch.order]
    loops += [Loop(names[a], l1[a], ()) for a in sketch.order if l2[a] > l1[a]]
    loops += [Loop(names[a], register[a], ()) for a in sketch.order if l1[a] > register[a]]
    columns = {column_axis(program.problem, sketch, k) for k in range(len(program.problem.operands))}
    transposed = [a for a in sketch.order if a in columns and register[a] >= MIN_COLUMNS]
    rows = [a for a in sketch.order if register[a] > 1 and a != sketch.lane and a not in transposed]
    loops += [Loop(names[a], 1, ()) for a in rows]
    loops += [Loop(names[a], 1, (), LoopKind.UNROLLED) for a in transposed]
    loops.append(Loop(names[sketch.lane], 1, (), LoopKind.VECTORIZED))
    return TileTree(nest(loops, Compute(block)))
