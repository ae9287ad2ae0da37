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

from tilewright.expr.buffer import Scope
from tilewright.expr.nodes import Const, Var, free_vars
from tilewright.loops.ir import Func, IterKind
from tilewright.schedule.trace import Schedule
from tilewright.schedule.tree import find_block
from tilewright.tile.chunks import last_chunk_apart
from tilewright.tile.moving import move
from tilewright.tile.packing import ask_ahead, pack
from tilewright.tile.parts import Part, parts_of
from tilewright.tile.program import L1, REGISTER, TileProgram, check_program
from tilewright.tile.steps import Names, axis_loops, buffer_of, lanes_contiguous, loop_extent, new_blocks, own_loops
from tilewright.tile.strands import strand_tile, strands_of


def lower(program: TileProgram, func: Func, parallel: bool = True, cores: int = 1) -> Schedule:
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
        return _reduction(s, program, parallel, cores)
    move(s, program, parallel)
    return s


@dataclass(frozen=True, slots=True)
class _Tiles:
    """The loops of the consumer: per axis over L2 tiles, L1 tiles, register tiles and inside one; None where there is
    but one iteration."""

    outer: dict[int, str]
    inner: dict[int, str]
    micro: dict[int, str]
    points: dict[int, str]


def _reduction(s: Schedule, program: TileProgram, parallel: bool, cores: int) -> Schedule:
    problem, form = program.problem, program.form
    block, final = problem.block, problem.final
    if final == block:
        (final,) = new_blocks(s, "cache_write", block)
    partial = None
    if form.chunked is not None and program.sizes[L1][form.chunked] < problem.axes[form.chunked].extent:
        position = problem.reduce.index(form.chunked)
        (partial,) = new_blocks(s, "rfactor", block, position, program.sizes[L1][form.chunked])
    if problem.axes[form.lane].reduce:
        partial = strands_of(s, block, program)
    copies = pack(s, partial or block, program, parallel)
    parts, shared = parts_of(s, Part(block, partial, final, program.sizes, copies), program, cores)
    for part in parts:
        _schedule_part(s, part, program, shared, parallel)
    if parallel:
        for loop in shared.values():
            s.do("parallel", loop)
    return s


def _schedule_part(s: Schedule, part: Part, program: TileProgram, shared: Mapping[int, str], parallel: bool) -> None:
    tiles = _consumer_tiles(s, part, program, shared)
    order = program.form.order
    outer = [tiles.outer[a] for a in order if a in tiles.outer]
    inner = [tiles.inner[a] for a in order if a in tiles.inner]
    micro = [tiles.micro[a] for a in order if a in tiles.micro]
    last = _last_axis(s, part, program, tiles)
    points = [tiles.points[a] for a in order if a in tiles.points and a != last]
    points += [tiles.points[last]] if last in tiles.points else []
    s.do("reorder", (*outer, *inner, *micro, *points))
    at = (*outer, *inner)[-1]
    if program.problem.axes[program.form.lane].reduce:
        strand_tile(s, part, program, (*outer, *inner, *micro)[-1])
    elif part.partial is not None:
        _chunked(s, part, program, at)
    elif last != program.form.lane:
        (copy,) = new_blocks(s, "cache_write", part.producer)
        _across(s, part, copy, (*outer, *inner, *micro)[-1], program)
    else:
        s.do("compute_at", part.producer, (*outer, *inner, *micro)[-1])
        _register_tile(s, part.producer, program, part.copies)
    if last == program.form.lane:
        _written_out(s, points, last in tiles.points)
    elif last in tiles.points:
        # written out as well, so many loads of single elements are as fast and keep LLVM busy for a second
        s.do("vectorize", points[-1])
    if parallel and not shared:
        for loop in outer:
            s.do("parallel", loop)


def _written_out(s: Schedule, points: list[str], lanes: bool) -> None:
    """Loops of the epilogue inside a register tile: the innermost one as vectors, the others unrolled while short."""
    for k, loop in enumerate(points):
        extent = loop_extent(s, loop)
        if lanes and k == len(points) - 1:
            s.do("vectorize", loop)
        elif isinstance(extent, Const) and extent.value <= 16:
            s.do("unroll", loop)


def _consumer_tiles(s: Schedule, part: Part, program: TileProgram, shared: Mapping[int, str]) -> _Tiles:
    """Cuts the consumer's loops. At least one loop is left outside of a register tile."""
    tiles = _Tiles({}, {}, {}, {})
    loops = axis_loops(s, part.consumer)
    for axis in program.problem.spatial:
        register, near, far = (level[axis] for level in part.sizes)
        if axis in shared:
            if far > 1:
                _cut(s, tiles, axis, _inside(s, part.consumer, shared[axis]), (register, near, far))
            continue
        loop = loops[axis]
        if register > 1:
            loop, tiles.points[axis] = s.split(loop, register)
        if near > register:
            loop, tiles.micro[axis] = s.split(loop, near // register)
        if far > near:
            loop, tiles.inner[axis] = s.split(loop, far // near)
        tiles.outer[axis] = loop
    return tiles


def _cut(s: Schedule, tiles: _Tiles, axis: int, loop: str, sizes: tuple[int, int, int]) -> None:
    """Cuts the loop over one L2 tile; no loop with a single iteration is left."""
    register, near, far = sizes
    if register > 1:
        if register == far:
            tiles.points[axis] = loop
            return
        loop, tiles.points[axis] = s.split(loop, register)
    if near > register:
        if near == far:
            tiles.micro[axis] = loop
            return
        loop, tiles.micro[axis] = s.split(loop, near // register)
    tiles.inner[axis] = loop


def _inside(s: Schedule, block: str, outer: str) -> str:
    """The loop inside a tile of an axis that has been cut once."""
    node, around = find_block(s.func, block)
    binding = next(i.binding for i in node.iters if Var(outer) in free_vars(i.binding))
    return next(x.var.name for x in around if x.var in free_vars(binding) and x.var.name != outer)


def _last_axis(s: Schedule, part: Part, program: TileProgram, tiles: _Tiles) -> int:
    """The axis along which results are stored as vectors: the lanes', unless they are stored across."""
    if not program.form.transposed:
        return program.form.lane
    strides = program.problem.results[-1].strides
    rows = [a for a in tiles.points if a != program.form.lane]
    return next((a for a in rows if strides[a] == 1), program.form.lane)


def _chunked(s: Schedule, part: Part, program: TileProgram, at: str) -> None:
    """The tile's totals on the stack; per chunk and register tile, sums in registers that are added to them."""
    if part.partial is None:
        return
    producer = part.producer
    s.do("compute_at", producer, at)
    s.do("set_scope", buffer_of(s, producer), Scope.STACK)
    lanes_contiguous(s, producer, program.form.lane)
    names = Names.of(s, producer)
    micro: dict[int, str] = {}
    points: dict[int, str] = {}
    for axis, loop in own_loops(s, producer).items():
        register, near = part.sizes[REGISTER][axis], part.sizes[L1][axis]
        if near > register and register > 1:
            micro[axis], points[axis] = s.split(loop, register)
        else:
            (micro if near > register else points)[axis] = loop
    order = program.form.order
    outside = [micro[a] for a in order if a in micro]
    inside = [points[a] for a in order if a in points and a != program.form.lane]
    inside += [points[program.form.lane]] if program.form.lane in points else []
    s.do("reorder", (*names.reduce, *outside, *inside))
    init = s.decompose_reduction(producer, names.reduce[0])
    s.do("compute_at", part.partial, (*names.reduce, *outside)[-1])
    _register_tile(s, part.partial, program, part.copies)
    for block in (producer, init):
        own = list(Names.of(s, block).spatial)
        _written_out(s, own[len(own) - len(inside) :], program.form.lane in points)
    if (cut := program.form.chunked) is not None:
        sizes = program.problem.axes[cut].extent, program.sizes[L1][cut]
        last_chunk_apart(s, producer, part.partial, program.problem.reduce.index(cut), *sizes)


def _across(s: Schedule, part: Part, copy: str, at: str, program: TileProgram) -> None:
    """Accumulators in registers, copied to a tile on the stack that the epilogue reads across."""
    s.do("compute_at", copy, at)
    s.do("set_scope", buffer_of(s, copy), Scope.STACK)
    lanes_contiguous(s, copy, program.form.lane)
    s.do("compute_at", part.producer, at)
    _register_tile(s, part.producer, program, part.copies)
    _lanes_inside(s, copy, program)


def _register_tile(s: Schedule, block: str, program: TileProgram, copies: Mapping[int, str]) -> None:
    """The reduction's loops outside, its unrolled part and rows written out inside, lanes innermost; accumulators in
    registers."""
    s.do("set_scope", buffer_of(s, block), Scope.REGISTER)
    lanes_contiguous(s, block, program.form.lane)
    names = Names.of(s, block)
    outside, unrolled = _unrolled_reduction(s, block, names.reduce, program)
    if (*outside, *unrolled, *names.spatial) != (*names.spatial, *names.reduce) or not names.spatial:
        s.do("reorder", (*outside, *unrolled, *names.spatial))
    init = s.decompose_reduction(block, (*outside, *unrolled)[0])
    for x in unrolled:
        s.do("unroll", x)
    if outside:
        ask_ahead(s, outside[-1], program, copies)
    _lanes_inside(s, block, program)
    _lanes_inside(s, init, program)


def _unrolled_reduction(
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


def _lanes_inside(s: Schedule, block: str, program: TileProgram) -> None:
    """The block's own loop over the lane axis goes inside and becomes vectors; its other spatial loops are unrolled.

    Those that change which vectors are read, but not all that is multiplied by them, go inside of the others: vectors
    stay in registers, and an element that is multiplied by all of them needs one only while it is. Else all elements of
    a step would be kept for the next vector.
    """
    operands, lane = program.problem.operands, program.form.lane
    node = find_block(s.func, block)[0]
    loops = Names.of(s, block).spatial
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
