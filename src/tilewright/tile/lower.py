"""Lowering of tile programs to schedules: every tile loop is a `split`, every staged buffer a primitive.

parallel L2 tiles
  L1 tiles
    partial sums = 0                            # where the reduction is K-blocked
    K-blocks of the reduction
      register tiles: accumulators = 0; points of the K-block: accumulators += ..; partial sums += accumulators
    register tiles: the epilogue
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.expr.nodes import Const, MemoryScope, Var
from tilewright.expr.traversal import free_vars
from tilewright.loops.ir import Func, IterKind
from tilewright.schedule.rewrite_tree import find_block
from tilewright.schedule.schedule import Schedule
from tilewright.tile.k_blocks import peel_last_k_block
from tilewright.tile.lane_reduction import lower_lane_reduction, split_into_lanes
from tilewright.tile.lower_elementwise import lower_elementwise
from tilewright.tile.packing import insert_prefetches, pack_operands
from tilewright.tile.program import L1, REGISTER, TileProgram, check_program
from tilewright.tile.remainder import LoopPart, split_remainder
from tilewright.tile.schedule_helpers import (
    BlockLoops,
    apply_and_get_blocks,
    axis_loops,
    buffer_of,
    loop_extent,
    make_lanes_contiguous,
    spatial_loops,
)

MAX_UNROLLED_EPILOGUE = 16
"""Iterations of an epilogue's loop that are unrolled."""


TRANSPOSED_LANES = 8
"""Lanes of accumulators that an epilogue transposes at a time: half of the longest vector, so that an epilogue with
functions does not keep LLVM busy; 16 take as many shuffles per vector."""


def lower_program(program: TileProgram, func: Func, parallel: bool = True, cores: int = 1) -> Schedule:
    """The schedule of a program.

    Args:
        program: the program.
        func: its kernel's untransformed loops.
        parallel: whether threads share the tiles.
        cores: maximum number of cores.

    Raises:
        ScheduleError: the program is not legal, or one of its steps is not legal for these loops.
    """
    check_program(program)
    s = Schedule(func)
    if program.problem.reduce:
        return _lower_reduction(s, program, parallel, cores)
    lower_elementwise(s, program, parallel)
    return s


@dataclass(frozen=True, slots=True)
class _TileLoops:
    """The consumer's loops per axis: over L2 tiles, L1 tiles, register tiles and the points of one; loops with a single
    iteration are left out."""

    l2: dict[int, str]
    l1: dict[int, str]
    register: dict[int, str]
    points: dict[int, str]


def _lower_reduction(s: Schedule, program: TileProgram, parallel: bool, cores: int) -> Schedule:
    problem, sketch = program.problem, program.sketch
    block, final = problem.block, problem.final
    if final == block:
        (final,) = apply_and_get_blocks(s, "cache_write", block)
    partial, k = None, sketch.k_block_axis
    if k is not None and program.sizes[L1][k] < problem.axes[k].extent:
        (partial,) = apply_and_get_blocks(s, "rfactor", block, problem.reduce.index(k), program.sizes[L1][k])
    if problem.axes[sketch.lane].is_reduction:
        partial = split_into_lanes(s, block, program)
    copies = pack_operands(s, partial or block, program, parallel)
    parts, shared = split_remainder(s, LoopPart(block, partial, final, program.sizes, copies), program, cores)
    for part in parts:
        _schedule_part(s, part, program, shared, parallel)
    if parallel:
        for loop in shared.values():
            s.do("parallel", loop)
    return s


def _schedule_part(
    s: Schedule, nest: LoopPart, program: TileProgram, shared_loops: Mapping[int, str], parallel: bool
) -> None:
    """Schedules the whole register tiles, or the remainder, inside the loops that both share."""
    tiles = _consumer_tiles(s, nest, program, shared_loops)
    order, lane = program.sketch.order, program.sketch.lane
    over_l2 = [tiles.l2[a] for a in order if a in tiles.l2]
    over_l1 = [tiles.l1[a] for a in order if a in tiles.l1]
    over_register = [tiles.register[a] for a in order if a in tiles.register]
    store_axis = _store_axis(program, tiles)
    points = [tiles.points[a] for a in order if a in tiles.points and a not in (store_axis, lane)]
    points += [tiles.points[a] for a in dict.fromkeys((lane, store_axis)) if a in tiles.points]
    s.do("reorder", (*over_l2, *over_l1, *over_register, *points))
    innermost_tile_loop = (*over_l2, *over_l1, *over_register)[-1]
    if program.problem.axes[lane].is_reduction:
        lower_lane_reduction(s, nest, program, innermost_tile_loop)
    elif nest.partial is not None:
        _lower_k_blocked(s, nest, nest.partial, program, (*over_l2, *over_l1)[-1])
    elif store_axis != lane:
        (copy,) = apply_and_get_blocks(s, "cache_write", nest.producer)
        _lower_transposed_store(s, nest, copy, innermost_tile_loop, program)
    else:
        s.do("compute_at", nest.producer, innermost_tile_loop)
        _lower_register_tile(s, nest.producer, program, nest.copies)
    if store_axis == lane:
        _unroll_epilogue(s, points, store_axis in tiles.points)
    elif store_axis in tiles.points:
        _vectorize_across_lanes(s, tiles.points[lane], tiles.points[store_axis])
    if parallel and not shared_loops:
        for loop in over_l2:
            s.do("parallel", loop)


def _vectorize_across_lanes(s: Schedule, lane_loop: str, store_loop: str) -> None:
    """The epilogue of a transposed store: vectors along the stored axis, for so many lanes of the accumulators at a
    time that code generation transposes them in registers."""
    extent = loop_extent(s, lane_loop)
    columns = lane_loop
    if isinstance(extent, Const) and extent.value > TRANSPOSED_LANES:
        _, columns = s.split(lane_loop, TRANSPOSED_LANES)
    s.do("unroll", columns)
    s.do("vectorize", store_loop)


def _unroll_epilogue(s: Schedule, points: list[str], vectorized: bool) -> None:
    """Loops of the epilogue inside a register tile: the innermost one is vectorised, short others are unrolled."""
    for k, loop in enumerate(points):
        extent = loop_extent(s, loop)
        if vectorized and k == len(points) - 1:
            s.do("vectorize", loop)
        elif isinstance(extent, Const) and extent.value <= MAX_UNROLLED_EPILOGUE:
            s.do("unroll", loop)


def _consumer_tiles(s: Schedule, nest: LoopPart, program: TileProgram, shared_loops: Mapping[int, str]) -> _TileLoops:
    """Splits the consumer's loops. At least one loop is left outside of the register tile."""
    tiles = _TileLoops({}, {}, {}, {})
    loops = axis_loops(s, nest.consumer)
    for axis in program.problem.spatial:
        register, l1, l2 = (level[axis] for level in nest.sizes)
        if axis in shared_loops:
            if l2 > 1:
                _split_l2_tile(s, tiles, axis, _inner_loop(s, nest.consumer, shared_loops[axis]), (register, l1, l2))
            continue
        loop = loops[axis]
        if register > 1:
            loop, tiles.points[axis] = s.split(loop, register)
        if l1 > register:
            loop, tiles.register[axis] = s.split(loop, l1 // register)
        if l2 > l1:
            loop, tiles.l1[axis] = s.split(loop, l2 // l1)
        tiles.l2[axis] = loop
    return tiles


def _split_l2_tile(s: Schedule, tiles: _TileLoops, axis: int, loop: str, sizes: tuple[int, int, int]) -> None:
    """Splits the loop over the points of one L2 tile, without leaving loops of a single iteration."""
    register, l1, l2 = sizes
    if register > 1:
        if register == l2:
            tiles.points[axis] = loop
            return
        loop, tiles.points[axis] = s.split(loop, register)
    if l1 > register:
        if l1 == l2:
            tiles.register[axis] = loop
            return
        loop, tiles.register[axis] = s.split(loop, l1 // register)
    tiles.l1[axis] = loop


def _inner_loop(s: Schedule, block: str, outer: str) -> str:
    """The inner loop of an axis that has been split once, by its outer one."""
    node, enclosing = find_block(s.func, block)
    binding = next(i.binding for i in node.iters if Var(outer) in free_vars(i.binding))
    return next(x.var.name for x in enclosing if x.var in free_vars(binding) and x.var.name != outer)


def _store_axis(program: TileProgram, tiles: _TileLoops) -> int:
    """The axis along which results are stored as vectors: the lane axis, unless the store is transposed."""
    lane = program.sketch.lane
    if not program.sketch.transposed_store:
        return lane
    strides = program.problem.results[-1].strides
    return next((a for a in tiles.points if a != lane and strides[a] == 1), lane)


def _lower_k_blocked(s: Schedule, nest: LoopPart, partial: str, program: TileProgram, at: str) -> None:
    """Partial sums of the L1 tile on the stack; per K-block and register tile, accumulators in registers are added.

    Args:
        s: the schedule.
        nest: the loops of the whole tiles or of the remainder.
        partial: the block that computes the K-blocks.
        program: the program.
        at: the innermost loop around an L1 tile.
    """
    producer, lane, order = nest.producer, program.sketch.lane, program.sketch.order
    s.do("compute_at", producer, at)
    s.do("set_scope", buffer_of(s, producer), MemoryScope.STACK)
    make_lanes_contiguous(s, producer, lane)
    k_loops = BlockLoops.of(s, producer).reduce
    tile_loops: dict[int, str] = {}
    point_loops: dict[int, str] = {}
    for axis, loop in spatial_loops(s, producer).items():
        register, l1 = nest.sizes[REGISTER][axis], nest.sizes[L1][axis]
        if l1 > register and register > 1:
            tile_loops[axis], point_loops[axis] = s.split(loop, register)
        else:
            (tile_loops if l1 > register else point_loops)[axis] = loop
    tiles = [tile_loops[a] for a in order if a in tile_loops]
    points = [point_loops[a] for a in order if a in point_loops and a != lane]
    points += [point_loops[lane]] if lane in point_loops else []
    s.do("reorder", (*k_loops, *tiles, *points))
    init = s.decompose_reduction(producer, k_loops[0])
    s.do("compute_at", partial, (*k_loops, *tiles)[-1])
    _lower_register_tile(s, partial, program, nest.copies)
    for block in (producer, init):
        loops = list(BlockLoops.of(s, block).spatial)
        _unroll_epilogue(s, loops[len(loops) - len(points) :], lane in point_loops)
    if (k := program.sketch.k_block_axis) is not None:
        sizes = program.problem.axes[k].extent, program.sizes[L1][k]
        peel_last_k_block(s, producer, partial, program.problem.reduce.index(k), *sizes)


def _lower_transposed_store(s: Schedule, nest: LoopPart, copy: str, at: str, program: TileProgram) -> None:
    """Accumulators in registers, copied to a tile on the stack that the epilogue reads transposed."""
    s.do("compute_at", copy, at)
    s.do("set_scope", buffer_of(s, copy), MemoryScope.STACK)
    make_lanes_contiguous(s, copy, program.sketch.lane)
    s.do("compute_at", nest.producer, at)
    _lower_register_tile(s, nest.producer, program, nest.copies)
    _vectorize_lanes(s, copy, program)


def _lower_register_tile(s: Schedule, block: str, program: TileProgram, copies: Mapping[int, str]) -> None:
    """Reduction loops outside, their unrolled part and the unrolled rows inside, lanes innermost; accumulators in
    registers."""
    s.do("set_scope", buffer_of(s, block), MemoryScope.REGISTER)
    make_lanes_contiguous(s, block, program.sketch.lane)
    loops = BlockLoops.of(s, block)
    serial, unrolled = _split_reduction(s, block, loops.reduce, program)
    if (*serial, *unrolled, *loops.spatial) != (*loops.spatial, *loops.reduce) or not loops.spatial:
        s.do("reorder", (*serial, *unrolled, *loops.spatial))
    init = s.decompose_reduction(block, (*serial, *unrolled)[0])
    for x in unrolled:
        s.do("unroll", x)
    if serial:
        insert_prefetches(s, serial[-1], program, copies)
    _vectorize_lanes(s, block, program)
    _vectorize_lanes(s, init, program)


def _split_reduction(
    s: Schedule, block: str, loops: tuple[str, ...], program: TileProgram
) -> tuple[list[str], list[str]]:
    """Splits the reduction loops by the register tile: (loops that stay, loops to unroll)."""
    node = find_block(s.func, block)[0]
    positions = [k for k, i in enumerate(node.iters) if i.kind is IterKind.REDUCE]
    axes = dict(zip(positions, program.problem.reduce, strict=True))
    serial: list[str] = []
    unrolled: list[str] = []
    for loop in loops:
        position = next(k for k in positions if Var(loop) in free_vars(node.iters[k].binding))
        size = program.sizes[REGISTER][axes[position]]
        extent = loop_extent(s, loop)
        if size == 1 or not isinstance(extent, Const):
            serial.append(loop)
        elif size == extent.value:
            unrolled.append(loop)
        else:
            outer, inner = s.split(loop, size)
            serial.append(outer)
            unrolled.append(inner)
    return serial, unrolled


def _vectorize_lanes(s: Schedule, block: str, program: TileProgram) -> None:
    """Vectorises the block's own loop over the lane axis, innermost, and unrolls its other spatial loops.

    Loops that select other vectors, but not other elements of everything multiplied by them, go inside the rest. Then
    vectors stay in registers, and an element that multiplies all of them occupies a register only meanwhile. In the
    other order all elements of a step would stay in registers for the next vector.
    """
    operands, lane = program.problem.operands, program.sketch.lane
    node = find_block(s.func, block)[0]
    loops = BlockLoops.of(s, block).spatial
    axes = {x: next(a for a, i in enumerate(node.iters) if Var(x) in free_vars(i.binding)) for x in loops}

    def position(loop: str) -> tuple[bool, bool]:
        a = axes[loop]
        selects_vectors = any(o.uses(lane) and o.uses(a) for o in operands)
        return a == lane, selects_vectors and any(not o.uses(a) for o in operands)

    ordered = tuple(sorted(loops, key=position))
    if ordered != loops:
        s.do("reorder", ordered)
    for x in ordered:
        s.do("vectorize" if axes[x] == lane else "unroll", x)
