"""The primitive store_at, which shrinks a buffer to what one iteration of a loop accesses."""

from collections.abc import Sequence
from dataclasses import replace

from tilewright.errors import ScheduleError
from tilewright.expr.nodes import Buffer, Expr, MemoryScope
from tilewright.loops.access import accesses
from tilewright.loops.block_context import BlockContext
from tilewright.loops.ir import CONCURRENT, Block, For, Func, blocks, walk
from tilewright.loops.redirect_accesses import redirect_accesses_in
from tilewright.schedule.legality import check_no_races
from tilewright.schedule.region import region
from tilewright.schedule.rewrite_tree import find_alloc, find_loop, with_stmt_replaced
from tilewright.verify import races
from tilewright.verify.prefetch_safety import drop_stale_prefetches


def store_at(func: Func, buffer: str, loop: str) -> Func:
    """Shrinks an internal buffer to what one iteration of a loop accesses, so that iterations reuse its memory.

    Equation: iteration x of the loop accesses the box [start(x), start(x) + size) of B, around all its accesses; B[i]
    becomes B[i - start(x)], and dimensions of size 1 disappear. The shape no longer depends on the size of the loop, so
    that `set_scope` can put the buffer on the stack or into registers.

    Legality: the buffer is internal, and used inside the loop only; no element is accessed in two iterations of the
    loop or of one around it, so that nothing is carried from one to the next; the box starts at a place that is known
    without data and has one size; no loop around the buffer is concurrent yet, or its iterations would share it.

        alloc B: float32[N]                  alloc B: float32[]
        for i in serial(N):            ->    for i in serial(N):
            for k: block P: B[i] = ..            for k: block P: B[] = ..
            block Q: .. B[i] ..                  block Q: .. B[] ..

    Known as store_at in Halide, sink_alloc with resize_dim in Exo; in TVM a pass does it (CompactBufferAllocation).
    """
    old = find_alloc(func, buffer)
    target, outer = find_loop(func, loop)
    place = f"store_at of {buffer!r} in loop {loop!r}"
    check_used_inside(func, old, target, place)
    check_not_shared(old, (*outer, target), place)
    check_not_carried(func, old, (*outer, target), place)
    box = [s.within(n) for s, n in zip(region(func, old, (*outer, target), place), old.shape, strict=True)]
    new = replace(old, shape=tuple(s.size for s in box if not s.is_single))

    def relative(indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return tuple(i - s.start for i, s in zip(indices, box, strict=True) if not s.is_single)

    result = with_stmt_replaced(func, target, redirect_accesses_in(target, old, new, relative))
    result = drop_stale_prefetches(replace(result, allocs=tuple(new if a == old else a for a in func.allocs)))
    check_no_races(result, None, place)
    return result


def check_used_inside(func: Func, buffer: Buffer, target: For, place: str) -> None:
    """Checks that only blocks inside the loop use the buffer."""
    inner_ids = set(map(id, blocks(target)))
    for b in blocks(func.body):
        if id(b) not in inner_ids and any(a.buffer == buffer for a in accesses(b)):
            raise ScheduleError(f"block {b.name!r} uses {buffer.name!r} outside the loop", where=place)


def check_not_shared(buffer: Buffer, loops: Sequence[For], place: str) -> None:
    """Checks that concurrent iterations do not share the shrunk buffer: memory shared by threads keeps its size."""
    for x in loops:
        if x.kind in CONCURRENT and buffer.scope is MemoryScope.MEMORY:
            what = f"loop {x.var.name!r} is {x.kind}; its iterations would share {buffer.name!r}"
            raise ScheduleError(what, where=place, hint="use store_at and set_scope before the loop is made concurrent")


def check_not_carried(func: Func, buffer: Buffer, loops: Sequence[For], place: str) -> None:
    """Checks that every element is accessed in one iteration of each loop."""
    nests = [BlockContext.of(s, enclosing) for s, enclosing in walk(func.body) if isinstance(s, Block)]
    for x in loops:
        if not races.iterations_are_disjoint(x, buffer, nests):
            what = f"elements of {buffer.name!r} are not proved to belong to one iteration of loop {x.var.name!r}"
            raise ScheduleError(what, where=place, hint="they would carry values from one iteration to the next")
