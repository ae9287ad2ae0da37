"""From tile programs to schedules: every tile loop is a `split`, every staging a primitive; nothing else happens here.

parallel L2 tiles
  L1 tiles
    totals = 0                                  # where the reduction is cut
    chunks of the reduction
      register tiles: sums = 0; points of the chunk: sums += ..; totals += sums
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


def lower_program(program: TileProgram, func: Func, parallel: bool = True, cores: int = 1) -> Schedule:
    """The schedule of a program for its kernel's untransformed loops.

    Args:
        program: for the kernel.
        func: the untransformed loops.
        parallel: whether threads share the tiles.
        cores: how many there may be.

    Raises:
        ScheduleError: the program is none, or a step of it is not legal for these loops.
    """
    check_program(program)
    s = Schedule(func)
    if program.problem.reduce:
        return _lower_reduction(s, program, parallel, cores)
    lower_elementwise(s, program, parallel)
    return s


@dataclass(frozen=True, slots=True)
class _TileLoops:
    """The loops of the consumer: per axis over L2 tiles, L1 tiles, register tiles and inside one; None where there is
    but one iteration."""

    l2: dict[int, str]
    l1: dict[int, str]
    register: dict[int, str]
    points: dict[int, str]


def _lower_reduction(s: Schedule, program: TileProgram, parallel: bool, cores: int) -> Schedule:
    problem, form = program.problem, program.sketch
    block, final = problem.block, problem.final
    if final == block:
        (final,) = apply_and_get_blocks(s, "cache_write", block)
    partial = None
    if form.k_block_axis is not None and program.sizes[L1][form.k_block_axis] < problem.axes[form.k_block_axis].extent:
        position = problem.reduce.index(form.k_block_axis)
        (partial,) = apply_and_get_blocks(s, "rfactor", block, position, program.sizes[L1][form.k_block_axis])
    if problem.axes[form.lane].is_reduction:
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
    tiles = _consumer_tiles(s, nest, program, shared_loops)
    order = program.sketch.order
    outer = [tiles.l2[a] for a in order if a in tiles.l2]
    inner = [tiles.l1[a] for a in order if a in tiles.l1]
    micro = [tiles.register[a] for a in order if a in tiles.register]
    last = _store_axis(s, nest, program, tiles)
    points = [tiles.points[a] for a in order if a in tiles.points and a != last]
    points += [tiles.points[last]] if last in tiles.points else []
    s.do("reorder", (*outer, *inner, *micro, *points))
    at = (*outer, *inner)[-1]
    if program.problem.axes[program.sketch.lane].is_reduction:
        lower_lane_reduction(s, nest, program, (*outer, *inner, *micro)[-1])
    elif nest.partial is not None:
        _lower_k_blocked(s, nest, program, at)
    elif last != program.sketch.lane:
        (copy,) = apply_and_get_blocks(s, "cache_write", nest.producer)
        _lower_transposed_store(s, nest, copy, (*outer, *inner, *micro)[-1], program)
    else:
        s.do("compute_at", nest.producer, (*outer, *inner, *micro)[-1])
        _lower_register_tile(s, nest.producer, program, nest.copies)
    if last == program.sketch.lane:
        _unroll_epilogue(s, points, last in tiles.points)
    elif last in tiles.points:
        # written out as well, so many loads of single elements are as fast and keep LLVM busy for a second
        s.do("vectorize", points[-1])
    if parallel and not shared_loops:
        for loop in outer:
            s.do("parallel", loop)


def _unroll_epilogue(s: Schedule, points: list[str], vectorized: bool) -> None:
    """Loops of the epilogue inside a register tile: the innermost one as vectors, the others unrolled while short."""
    for k, loop in enumerate(points):
        extent = loop_extent(s, loop)
        if vectorized and k == len(points) - 1:
            s.do("vectorize", loop)
        elif isinstance(extent, Const) and extent.value <= 16:
            s.do("unroll", loop)


def _consumer_tiles(s: Schedule, nest: LoopPart, program: TileProgram, shared_loops: Mapping[int, str]) -> _TileLoops:
    """Cuts the consumer's loops. At least one loop is left outside of a register tile."""
    tiles = _TileLoops({}, {}, {}, {})
    loops = axis_loops(s, nest.consumer)
    for axis in program.problem.spatial:
        register, near, far = (level[axis] for level in nest.sizes)
        if axis in shared_loops:
            if far > 1:
                _split_l2_tile(s, tiles, axis, _inner_loop(s, nest.consumer, shared_loops[axis]), (register, near, far))
            continue
        loop = loops[axis]
        if register > 1:
            loop, tiles.points[axis] = s.split(loop, register)
        if near > register:
            loop, tiles.register[axis] = s.split(loop, near // register)
        if far > near:
            loop, tiles.l1[axis] = s.split(loop, far // near)
        tiles.l2[axis] = loop
    return tiles


def _split_l2_tile(s: Schedule, tiles: _TileLoops, axis: int, loop: str, sizes: tuple[int, int, int]) -> None:
    """Cuts the loop over one L2 tile; no loop with a single iteration is left."""
    register, near, far = sizes
    if register > 1:
        if register == far:
            tiles.points[axis] = loop
            return
        loop, tiles.points[axis] = s.split(loop, register)
    if near > register:
        if near == far:
            tiles.register[axis] = loop
            return
        loop, tiles.register[axis] = s.split(loop, near // register)
    tiles.l1[axis] = loop


def _inner_loop(s: Schedule, block: str, outer: str) -> str:
    """The loop inside a tile of an axis that has been cut once."""
    node, around = find_block(s.func, block)
    binding = next(i.binding for i in node.iters if Var(outer) in free_vars(i.binding))
    return next(x.var.name for x in around if x.var in free_vars(binding) and x.var.name != outer)


def _store_axis(s: Schedule, nest: LoopPart, program: TileProgram, tiles: _TileLoops) -> int:
    """The axis along which results are stored as vectors: the lanes', unless they are stored across."""
    if not program.sketch.transposed_store:
        return program.sketch.lane
    strides = program.problem.results[-1].strides
    rows = [a for a in tiles.points if a != program.sketch.lane]
    return next((a for a in rows if strides[a] == 1), program.sketch.lane)


def _lower_k_blocked(s: Schedule, nest: LoopPart, program: TileProgram, at: str) -> None:
    """The tile's totals on the stack; per chunk and register tile, sums in registers that are added to them."""
    if nest.partial is None:
        return
    producer = nest.producer
    s.do("compute_at", producer, at)
    s.do("set_scope", buffer_of(s, producer), MemoryScope.STACK)
    make_lanes_contiguous(s, producer, program.sketch.lane)
    names = BlockLoops.of(s, producer)
    micro: dict[int, str] = {}
    points: dict[int, str] = {}
    for axis, loop in spatial_loops(s, producer).items():
        register, near = nest.sizes[REGISTER][axis], nest.sizes[L1][axis]
        if near > register and register > 1:
            micro[axis], points[axis] = s.split(loop, register)
        else:
            (micro if near > register else points)[axis] = loop
    order = program.sketch.order
    outside = [micro[a] for a in order if a in micro]
    inside = [points[a] for a in order if a in points and a != program.sketch.lane]
    inside += [points[program.sketch.lane]] if program.sketch.lane in points else []
    s.do("reorder", (*names.reduce, *outside, *inside))
    init = s.decompose_reduction(producer, names.reduce[0])
    s.do("compute_at", nest.partial, (*names.reduce, *outside)[-1])
    _lower_register_tile(s, nest.partial, program, nest.copies)
    for block in (producer, init):
        own = list(BlockLoops.of(s, block).spatial)
        _unroll_epilogue(s, own[len(own) - len(inside) :], program.sketch.lane in points)
    if (cut := program.sketch.k_block_axis) is not None:
        sizes = program.problem.axes[cut].extent, program.sizes[L1][cut]
        peel_last_k_block(s, producer, nest.partial, program.problem.reduce.index(cut), *sizes)


def _lower_transposed_store(s: Schedule, nest: LoopPart, copy: str, at: str, program: TileProgram) -> None:
    """Accumulators in registers, copied to a tile on the stack that the epilogue reads across."""
    s.do("compute_at", copy, at)
    s.do("set_scope", buffer_of(s, copy), MemoryScope.STACK)
    make_lanes_contiguous(s, copy, program.sketch.lane)
    s.do("compute_at", nest.producer, at)
    _lower_register_tile(s, nest.producer, program, nest.copies)
    _vectorize_lanes(s, copy, program)


def _lower_register_tile(s: Schedule, block: str, program: TileProgram, copies: Mapping[int, str]) -> None:
    """The reduction's loops outside, its unrolled part and rows written out inside, lanes innermost; accumulators in
    registers."""
    s.do("set_scope", buffer_of(s, block), MemoryScope.REGISTER)
    make_lanes_contiguous(s, block, program.sketch.lane)
    names = BlockLoops.of(s, block)
    outside, unrolled = _split_reduction(s, block, names.reduce, program)
    if (*outside, *unrolled, *names.spatial) != (*names.spatial, *names.reduce) or not names.spatial:
        s.do("reorder", (*outside, *unrolled, *names.spatial))
    init = s.decompose_reduction(block, (*outside, *unrolled)[0])
    for x in unrolled:
        s.do("unroll", x)
    if outside:
        insert_prefetches(s, outside[-1], program, copies)
    _vectorize_lanes(s, block, program)
    _vectorize_lanes(s, init, program)


def _split_reduction(
    s: Schedule, block: str, loops: tuple[str, ...], program: TileProgram
) -> tuple[list[str], list[str]]:
    """The reduction's loops that stay, and those that are written out."""
    node = find_block(s.func, block)[0]
    reduced = [k for k, i in enumerate(node.iters) if i.kind is IterKind.REDUCE]
    axes = dict(zip(reduced, program.problem.reduce, strict=True))
    outside: list[str] = []
    unrolled: list[str] = []
    for loop in loops:
        position = next(k for k in reduced if Var(loop) in free_vars(node.iters[k].binding))
        size = program.sizes[REGISTER][axes[position]]
        extent = loop_extent(s, loop)
        if size == 1 or not isinstance(extent, Const):
            outside.append(loop)
        elif size == extent.value:
            unrolled.append(loop)
        else:
            out, own = s.split(loop, size)
            outside.append(out)
            unrolled.append(own)
    return outside, unrolled


def _vectorize_lanes(s: Schedule, block: str, program: TileProgram) -> None:
    """The block's own loop over the lane axis goes inside and becomes vectors; its other spatial loops are unrolled.

    Those that change which vectors are read, but not all that is multiplied by them, go inside of the others: vectors
    stay in registers, and an element that is multiplied by all of them needs one only while it is. Else all elements of
    a step would be kept for the next vector.
    """
    operands, lane = program.problem.operands, program.sketch.lane
    node = find_block(s.func, block)[0]
    loops = BlockLoops.of(s, block).spatial
    axes = {x: next(a for a, i in enumerate(node.iters) if Var(x) in free_vars(i.binding)) for x in loops}

    def place(loop: str) -> tuple[bool, bool]:
        a = axes[loop]
        moves, stays = any(o.uses(lane) and o.uses(a) for o in operands), any(not o.uses(a) for o in operands)
        return a == lane, moves and stays

    ordered = tuple(sorted(loops, key=place))
    if ordered != loops:
        s.do("reorder", ordered)
    for x in ordered:
        s.do("vectorize" if axes[x] == lane else "unroll", x)
