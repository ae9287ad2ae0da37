"""The plain rule: parallel outside, vectorized inside, register tiles for contractions, epilogues tile by tile.

Nothing is searched and nothing measured; the rule looks at strides and extents only. It always applies, so it is the
last resort of every pipeline.
"""

from dataclasses import replace
from math import prod

from tilewright.expr.buffer import Scope
from tilewright.expr.nodes import Const, Var, loads
from tilewright.loops.ir import Block, IterKind, blocks
from tilewright.loops.stack import MAX_STACK_BYTES
from tilewright.optimize.access import factors, is_literal, load_stride, store_stride
from tilewright.optimize.cases import case_axes
from tilewright.optimize.chunk import ChunkLimits, chunk_of, steps_along
from tilewright.optimize.contraction import contract
from tilewright.optimize.inside import CHUNKS, REDUCING_VECTORS, along_reduction
from tilewright.optimize.interface import Task
from tilewright.optimize.nest import parallelize
from tilewright.optimize.rows import is_chain, rowwise
from tilewright.schedule.trace import Schedule
from tilewright.schedule.tree import find_block, spatial_vars
from tilewright.tile.chunks import last_chunk_apart
from tilewright.tile.steps import Names, buffer_of, loop_extent, new_blocks, split_for_lanes

MAX_UNROLLED_REDUCTION = 36
"""Reductions of at most this many literal steps (pooling and depthwise windows) are written out."""


class Rule:
    """The optimizer `rule`."""

    name = "rule"

    def optimize(self, task: Task) -> Schedule | None:
        """A schedule by the plain rule; never None."""
        s = Schedule(task.func)
        found = blocks(task.func.body)
        if is_chain(task.func):
            return rowwise(task)
        reduction = next((b for b in found if b.init is not None), None)
        if reduction is None:
            elementwise(s, found[-1].name, task)
            return s
        final = next((b for b in found if b is not reduction), None)
        if final is None:
            (copy,) = new_blocks(s, "cache_write", reduction.name)
            final = find_block(s.func, copy)[0]
        if factors(reduction) is not None and contract(s, reduction.name, final.name, task):
            return s
        reduce(s, reduction.name, final.name, task)
        return s


def elementwise(s: Schedule, block: str, task: Task) -> None:
    """Lanes along the axis that most accesses walk contiguously; the other loops fused and parallel."""
    node = find_block(s.func, block)[0]
    loops = s.loops(block)
    if not loops:
        return
    lane = _best_lane(node, task)
    if lane is None:
        parallelize(s, list(loops))
        return
    cases = [k for k in case_axes(node) if k != lane]
    if cases:
        _written_out(s, loops, lane, cases, task)
        return
    across = _across(node, lane, task)
    outer, inner = split_for_lanes(s, loops[lane], task.target.lanes(32))
    order = [x for k, x in enumerate(loops) if k not in (lane, across)]
    if across is None:
        order += [x for x in (outer, inner) if x is not None]
    else:
        # lines that one vector only touches are used up by the next ones while they are near
        line, rows = s.split(loops[across], task.target.lanes(32))
        order += [x for x in (line, outer, rows, inner) if x is not None]
    if len(order) > 1:
        s.do("reorder", tuple(order))
    s.do("vectorize", inner)
    parallelize(s, order[:-1] if across is None else order[:-2])


def _written_out(s: Schedule, loops: tuple[str, ...], lane: int, cases: list[int], task: Task) -> None:
    """All cases of a vector next to each other, so that they share what they have in common."""
    outer, inner = split_for_lanes(s, loops[lane], task.target.lanes(32))
    order = [x for k, x in enumerate(loops) if k != lane and k not in cases]
    order += [] if outer is None else [outer]
    s.do("reorder", (*order, *(loops[k] for k in cases), inner))
    for k in cases:
        s.do("unroll", loops[k])
    s.do("vectorize", inner)
    parallelize(s, order)


def _across(node: Block, lane: int, task: Task) -> int | None:
    """Position of an axis along which a load is contiguous that jumps from lane to lane, as in a transposition."""
    variables = spatial_vars(node)
    width = task.target.lanes(32)
    for x in loads(node.body.value):
        step = load_stride(x, variables[lane])
        if is_literal(step, 0) or is_literal(step, 1):
            continue
        for k, var in enumerate(variables):
            extent = node.iters[k].extent
            long = not isinstance(extent, Const) or extent.value >= width
            if k != lane and long and is_literal(load_stride(x, var), 1):
                return k
    return None


def _best_lane(node: Block, task: Task) -> int | None:
    """Position of the spatial variable whose growth is contiguous in most accesses; the store counts double."""
    scores: list[float] = []
    for var in spatial_vars(node):
        score = 2.0 * is_literal(store_stride(node, var), 1)
        for x in loads(node.body.value):
            step = load_stride(x, var)
            score += 1.0 if is_literal(step, 1) else 0.5 if is_literal(step, 0) else -0.5 if step is None else 0.0
        extent = next(i.extent for i in node.iters if i.var is var)
        if isinstance(extent, Const) and extent.value < task.target.lanes(32):
            score *= float(extent.value) / task.target.lanes(32)
        scores.append(score)
    if not scores:
        return None
    best = max(scores)
    return max(k for k, x in enumerate(scores) if x == best)


def reduce(s: Schedule, block: str, final: str, task: Task) -> None:
    """A reduction that is no tiled contraction: lanes along a contiguous spatial axis, else along the reduction."""
    node = find_block(s.func, block)[0]
    spatial = spatial_vars(node)
    lane = _reduction_lane(node, task.target.lanes(32))
    outer = s.loops(final)
    if not outer:
        _reduce_to_scalar(s, block, task)
        return
    chunk = chunk_of(node, CHUNKS, REDUCING_VECTORS * task.target.lanes(32) if lane is None else 1)
    partial = None if chunk is None else next(iter(new_blocks(s, "rfactor", block, *chunk)))
    if lane is None:
        s.do("compute_at", block, outer[-1])
        if partial is None:
            _reduction_lanes(s, block, task)
        else:
            _total_of_chunks(s, block, partial, task)
        parallelize(s, list(outer))
        return
    position = spatial.index(lane)
    out, inner = split_for_lanes(s, outer[position], task.target.lanes(32))
    order = [x for k, x in enumerate(outer) if k != position] + [x for x in (out, inner) if x is not None]
    if len(order) > 1:
        s.do("reorder", tuple(order))
    if len(order) == 1:
        # One short axis in all: nothing to compute the reduction at but the function itself.
        s.do("vectorize", inner)
        return
    s.do("compute_at", block, order[-2])
    names = _lanes_of_results(s, block)
    if partial is not None:
        s.do("compute_at", partial, names.reduce[0])
        _lanes_of_results(s, partial)
        if chunk is not None:
            last_chunk_apart(s, block, partial, chunk[0], steps_along(node, chunk[0]), chunk[1])
    else:
        _unroll_window(s, names.reduce)
    s.do("vectorize", inner)
    parallelize(s, order[:-1])


def _lanes_of_results(s: Schedule, block: str) -> Names:
    """A tile of results in registers, its reduction loops outside and its lanes inside."""
    s.do("set_scope", buffer_of(s, block), Scope.REGISTER)
    names = Names.of(s, block)
    if names.reduce and names.spatial:
        s.do("reorder", (*names.reduce, *names.spatial))
    init = s.decompose_reduction(block, names.reduce[0])
    for x in (*names.spatial, *Names.of(s, init).spatial):
        s.do("vectorize", x)
    return names


def _total_of_chunks(s: Schedule, block: str, partial: str, task: Task) -> None:
    """One result: the sums of chunks, each made along lanes, added up."""
    s.do("set_scope", buffer_of(s, block), Scope.STACK)
    names = Names.of(s, block)
    s.do("decompose_reduction", block, names.reduce[0])
    s.do("compute_at", partial, names.reduce[0])
    _reduction_lanes(s, partial, task)


def _reduction_lane(node: Block, lanes: int) -> Var | None:
    """The spatial variable along which lanes suit the store and the loads better than along a reduction; or None."""
    for var in reversed(spatial_vars(node)):
        if not is_literal(store_stride(node, var), 1):
            continue
        steps = [load_stride(x, var) for x in loads(node.body.value) if x.buffer != node.body.buffer]
        if any(is_literal(x, 1) for x in steps) or not _has_long_contiguous_reduction(node, lanes):
            return var
    return None


def _has_long_contiguous_reduction(node: Block, lanes: int) -> bool:
    """Whether a load is contiguous along a reduction that fills vectors; a pooling or depthwise window does not."""
    for i in node.iters:
        short = isinstance(i.extent, Const) and i.extent.value < lanes
        if (
            i.kind is IterKind.REDUCE
            and not short
            and any(
                is_literal(load_stride(x, i.var), 1) for x in loads(node.body.value) if x.buffer != node.body.buffer
            )
        ):
            return True
    return False


def _reduction_lanes(s: Schedule, block: str, task: Task) -> None:
    """Vectorizes the contiguous reduction loop of a block that is computed inside its consumer; scalar accumulator."""
    s.do("set_scope", buffer_of(s, block), Scope.STACK)
    if Names.of(s, block).reduce:
        along_reduction(s, block, task)


def _reduce_to_scalar(s: Schedule, block: str, task: Task) -> None:
    names = Names.of(s, block)
    if names.reduce and not names.spatial:
        beside = REDUCING_VECTORS * task.target.lanes(32)
        node = find_block(s.func, block)[0]
        chunk = chunk_of(node, _on_stack(node, beside), beside, exact=True)
        partial = None if chunk is None else next(iter(new_blocks(s, "rfactor", block, *chunk)))
        s.do("decompose_reduction", block, names.reduce[0] if partial is None else Names.of(s, block).reduce[0])
        if partial is not None:
            # threads share the chunks
            s.do("set_scope", buffer_of(s, partial), Scope.STACK)
            along_reduction(s, partial, task)
            parallelize(s, [s.loops(partial)[0]])
            return
        node = find_block(s.func, block)[0]
        last = node.iters[-1].var
        steps = [load_stride(x, last) for x in loads(node.body.value) if x.buffer != node.body.buffer]
        if any(is_literal(step, 1) for step in steps):
            _, inner = split_for_lanes(s, names.reduce[-1], 4 * task.target.lanes(32))
            s.do("vectorize", inner)


def _on_stack(node: Block, beside: int) -> ChunkLimits:
    """Limits of chunks that are so long that a stack holds the sums of all of them."""
    total = prod(int(i.extent.value) for i in node.iters if isinstance(i.extent, Const))
    shortest = -(-total * node.body.buffer.dtype.bytes // MAX_STACK_BYTES)
    return replace(CHUNKS, least=max(CHUNKS.least, -(-shortest * CHUNKS.slack // beside)))


def _unroll_window(s: Schedule, reduce_loops: tuple[str, ...]) -> None:
    total = 1
    for name in reduce_loops:
        extent = loop_extent(s, name)
        if not isinstance(extent, Const):
            return
        total *= int(extent.value)
    if total <= MAX_UNROLLED_REDUCTION:
        for name in reduce_loops:
            s.do("unroll", name)
