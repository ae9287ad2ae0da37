"""Lowering of tile programs: the tree of a program, then its schedule."""

from dataclasses import replace

from tilewright.loops.ir import Func, LoopKind
from tilewright.schedule.rewrite_tree import find_block
from tilewright.schedule.schedule import Schedule
from tilewright.tile.lower_tree import lower_tree
from tilewright.tile.packing import pack_nests, pack_stages
from tilewright.tile.prefetches import prefetches
from tilewright.tile.program import L1, L2, TileProgram, check_program
from tilewright.tile.reduction_tree import TiledPart, TiledReduction, reduction_tree
from tilewright.tile.remainder import remainder_parts
from tilewright.tile.transposed_columns import MIN_COLUMNS, column_axis
from tilewright.tile.tree import Compute, Loop, TileTree, nest, on_one_thread


def tile_program_tree(program: TileProgram, func: Func, parallel: bool = True, cores: int = 1) -> TileTree:
    """The tree of a program.

    Args:
        program: the program.
        func: its kernel's untransformed loops.
        parallel: whether threads share the tiles.
        cores: maximum number of cores.

    Raises:
        ScheduleError: the program is not legal, or an operand can't be packed along its axis.
    """
    check_program(program)
    if program.problem.reduce:
        tree = reduction_tree(_tiled_reduction(program, func, cores))
    else:
        tree = _elementwise_tree(program, func)
    return tree if parallel else on_one_thread(tree)


def lower_program(program: TileProgram, func: Func, parallel: bool = True, cores: int = 1) -> Schedule:
    """The schedule of a program; arguments as of `tile_program_tree`.

    Raises:
        ScheduleError: the program is not legal, or one of its steps is not legal for these loops.
    """
    return lower_tree(tile_program_tree(program, func, parallel, cores), func)


def _elementwise_tree(program: TileProgram, func: Func) -> TileTree:
    """Elementwise work and data movement: nothing is staged, partial tiles are guarded by conditions and masks.

    parallel L2 tiles
      L1 tiles
        register tiles: rows outside, lanes innermost; columns that are transposed in registers next to them, unrolled
    """
    sketch, block = program.sketch, program.problem.block
    names = [i.var.name for i in find_block(func, block)[0].iters]
    register, l1, l2 = program.sizes
    loops = [Loop(names[a], l2[a], (), LoopKind.PARALLEL) for a in sketch.order]
    loops += [Loop(names[a], l1[a], ()) for a in sketch.order if l2[a] > l1[a]]
    loops += [Loop(names[a], register[a], ()) for a in sketch.order if l1[a] > register[a]]
    columns = {column_axis(program.problem, sketch, k) for k in range(len(program.problem.operands))}
    transposed = [a for a in sketch.order if a in columns and register[a] >= MIN_COLUMNS]
    rows = [a for a in sketch.order if register[a] > 1 and a != sketch.lane and a not in transposed]
    loops += [Loop(names[a], 1, ()) for a in rows]
    loops += [Loop(names[a], 1, (), LoopKind.UNROLLED) for a in transposed]
    loops.append(Loop(names[sketch.lane], 1, (), LoopKind.VECTORIZED))
    return TileTree(nest(loops, Compute(block)))


def _tiled_reduction(program: TileProgram, func: Func, cores: int) -> TiledReduction:
    """How a program tiles its kernel's reduction."""
    problem, sketch = program.problem, program.sketch
    node = find_block(func, problem.block)[0]
    k, lane_reduces = sketch.k_block_axis, problem.axes[sketch.lane].is_reduction
    is_k_blocked = k is not None and not lane_reduces and program.sizes[L1][k] < problem.axes[k].extent
    strides = problem.results[-1].strides
    parts = remainder_parts(program, [i.extent for i in node.iters], cores)
    parallel_loops, hints = 0 if parts.shared else len(sketch.order), prefetches(program)
    tiling = TiledReduction(
        node,
        problem.final if problem.final != problem.block else None,
        sketch.lane,
        sketch.order,
        tuple(TiledPart(sizes, parallel_loops, hints) for sizes in parts.sizes),
        (k, program.sizes[L1][k]) if k is not None and is_k_blocked else None,
        tuple(a for a in problem.spatial if strides[a] == 1) if sketch.transposed_store else (),
        parts.axis,
        tuple(Loop(node.iters[a].var.name, program.sizes[L2][a], (), LoopKind.PARALLEL) for a in parts.shared),
    )
    packs = pack_stages(program, tiling.summed)
    return replace(tiling, packs=tuple(packs.values()), copies=pack_nests(program, node, packs))
