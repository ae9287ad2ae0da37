"""Primitives that set the kind of a loop: parallel, vectorize, unroll, bind, virtual_thread."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from tilewright.errors import ScheduleError
from tilewright.expr.nodes import Const
from tilewright.expr.traversal import free_vars
from tilewright.loops.ir import GPU_AXES, For, Func, IterKind, LoopKind, blocks
from tilewright.schedule.legality import check_nesting, check_no_races, check_order_free
from tilewright.schedule.rewrite_tree import find_loop, loops_inside, with_stmt_replaced

MAX_UNROLL = 512
"""Iterations of an unrolled loop; more would only bloat the code."""


def parallel(func: Func, loop: str) -> Func:
    """Executes the iterations of a loop on several threads.

    Legality: no two iterations access one element that either writes (register and stack buffers that are only used
    inside the loop belong to an iteration); no block reduces over the loop; no vectorized loop is around
    it. Parallel loops directly inside one another are one range of iterations that threads share.

        for i in serial(N):     ->     for i in parallel(N):
            block B(v = i)                 block B(v = i)

    Known as parallel in Halide and TVM.
    """
    node, enclosing = find_loop(func, loop)
    return _make_concurrent(func, node, enclosing, LoopKind.PARALLEL, f"parallel of loop {loop!r}")


def vectorize(func: Func, loop: str) -> Func:
    """Executes the iterations of a loop in the lanes of vectors. A reduction over the loop is combined across lanes.

    Legality: the extent is a literal; no two iterations access one element that either writes, except by a sum,
    product, maximum or minimum over the loop whose init is elsewhere; no vectorized loop is around or inside, no
    parallel one inside.

        for j in serial(16):    ->     for j in vectorized(16):
            block B(v = j)                 block B(v = j)

    Known as vectorize in Halide and TVM.
    """
    node, enclosing = find_loop(func, loop)
    check_literal_extent(node, "vectorize")
    check_init_outside(node)
    return _make_concurrent(func, node, enclosing, LoopKind.VECTORIZED, f"vectorize of loop {loop!r}")


def unroll(func: Func, loop: str) -> Func:
    """Fully unrolls a loop.

    Legality: the extent is a literal of at most `MAX_UNROLL`.

        for j in serial(4):     ->     for j in unrolled(4):
            block B(v = j)                 block B(v = j)

    Known as unroll in Halide and TVM, unroll_loop in Exo.
    """
    node, _ = find_loop(func, loop)
    check_unrollable(node, "unroll")
    return with_stmt_replaced(func, node, replace(node, kind=LoopKind.UNROLLED))


def bind(func: Func, loop: str, axis: Annotated[LoopKind, GPU_AXES]) -> Func:
    """Executes the iterations of a loop on an axis of a GPU: as the blocks of a grid, or as the threads of a block.

    Args:
        axis: one of block_x, block_y, block_z, thread_x, thread_y, thread_z.

    Legality: as of `parallel`, and the loops on axes fit each other (`verify/gpu_launch.py`): no loop lies inside
    one on the
    same axis; block axes are directly inside one another and outside the thread axes; of one outermost loop on an axis,
    all loops inside that are on one axis have one extent; registers and stack buffers of a thread are used inside its
    loop only; no parallel loop is around or inside. For a CPU, code generation refuses loops on axes.

        for i in serial(N):             for i in block_x(N):
            for j in serial(32):  ->        for j in thread_x(32):
                block B(..)                     block B(..)

    Known as bind in TVM, gpu_blocks and gpu_threads in Halide.
    """
    node, enclosing = find_loop(func, loop)
    place = f"bind of loop {loop!r} to {axis}"
    if axis not in GPU_AXES:
        raise ScheduleError(f"expected an axis ({', '.join(GPU_AXES)}), got {axis}", where=place)
    return _make_concurrent(func, node, enclosing, axis, place)


def virtual_thread(func: Func, loop: str) -> Func:
    """Interleaves the iterations of a loop: each statement inside runs for all of them before the next one does.

    It is as if the loop were moved inwards to every block (or vectorized loop around one) and unrolled there.
    Independent accumulators then hide each other's latencies, while the loops keep the shape of one iteration's work.

    Legality: the extent is a literal of at most `MAX_UNROLL`; the extents of loops inside do not depend on the loop; as
    of `parallel`, but iterations share registers and stack: a buffer that is only used inside is indexed by the loop.

        for v in serial(2):             for v in vthread(2):             as if  for k in serial(K):
            for k in serial(K):   ->        for k in serial(K):                     for v in unrolled(2):
                block B(v, k)                   block B(v, k)                           block B(v, k)

    Known as a binding to vthread in TVM.
    """
    node, enclosing = find_loop(func, loop)
    check_unrollable(node, "virtual_thread")
    place = f"virtual_thread of loop {loop!r}"
    for inner in loops_inside(node.body):
        if node.var in free_vars(inner.extent):
            raise ScheduleError(f"the extent of {inner.var.name!r} depends on it", where=place)
    return _make_concurrent(func, node, enclosing, LoopKind.VTHREAD, place)


def check_unrollable(node: For, primitive: str) -> None:
    """The loop's extent is a literal of at most `MAX_UNROLL`."""
    check_literal_extent(node, primitive)
    if isinstance(node.extent, Const) and node.extent.value > MAX_UNROLL:
        where = f"{primitive} of loop {node.var.name!r}"
        raise ScheduleError(f"{node.extent} iterations are more than {MAX_UNROLL}", where=where)


def check_literal_extent(node: For, primitive: str) -> None:
    """The loop's extent is a literal."""
    if not isinstance(node.extent, Const):
        raise ScheduleError(
            f"the extent {node.extent} is not a literal",
            where=f"{primitive} of loop {node.var.name!r}",
            hint="split the loop first",
        )


def check_init_outside(node: For) -> None:
    """No block that reduces over the loop has its init inside: lanes have no first iteration."""
    for b in blocks(node):
        if b.init is not None and any(i.kind is IterKind.REDUCE and node.var in free_vars(i.binding) for i in b.iters):
            raise ScheduleError(
                f"block {b.name!r} reduces over it and has its init inside",
                where=f"vectorize of loop {node.var.name!r}",
                hint="use decompose_reduction first",
            )


def _make_concurrent(func: Func, node: For, enclosing: Sequence[For], kind: LoopKind, place: str) -> Func:
    concurrent = replace(node, kind=kind)
    check_nesting([*enclosing, concurrent], place)
    for inner in loops_inside(node.body):
        check_nesting([concurrent, inner], place)
    for b in blocks(node):
        check_order_free(b, place)
    result = with_stmt_replaced(func, node, concurrent)
    check_no_races(result, concurrent, place)
    return result
