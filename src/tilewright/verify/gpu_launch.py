"""GPU launches: loops on GPU axes must form grids of blocks of threads.

An outermost loop on an axis is a *launch*. Its block axes come first, perfectly nested, as blocks of a grid can't
synchronise. Thread axes are inside; a loop on a thread axis ends with a barrier of the block, so there may be several
in sequence and serial loops in between, provided that all loops on one axis have the same extent. A thread's registers
and stack are lost at the end of its loop.
"""

from collections.abc import Iterator, Sequence

from tilewright.expr.nodes import Expr, MemoryScope
from tilewright.loops.access import accesses
from tilewright.loops.block_context import BlockContext
from tilewright.loops.ir import BLOCK_AXES, GPU_AXES, THREAD_AXES, For, Func, LoopKind, walk
from tilewright.loops.printer import show_buffer, show_loop
from tilewright.verify.diagnostics import Diagnostic


def find_launch_errors(func: Func, contexts: Sequence[BlockContext]) -> Iterator[Diagnostic]:
    """What is wrong with the loops on GPU axes; `contexts` are the blocks of the function."""
    loops = [(s, enclosing) for s, enclosing in walk(func.body) if isinstance(s, For)]
    if not any(s.kind in GPU_AXES for s, _ in loops):
        return
    extents: dict[tuple[str, LoopKind], tuple[For, Expr]] = {}
    for s, enclosing in loops:
        where, axes = f"loop {s.var.name!r}", [x for x in enclosing if x.kind in GPU_AXES]
        if axes and s.kind is LoopKind.PARALLEL:
            what = f"a parallel loop can't be inside loop {axes[0].var.name!r} on {axes[0].kind}"
            yield Diagnostic(where, what, show_loop(s))
        if s.kind not in GPU_AXES:
            continue
        yield from (Diagnostic(where, what, show_loop(s)) for what in _nesting_errors(s, enclosing))
        launch = axes[0] if axes else s
        first, extent = extents.setdefault((launch.var.name, s.kind), (s, s.extent))
        if s.extent is not extent:
            what = f"its extent on {s.kind} must be that of loop {first.var.name!r}, {extent}; got {s.extent}"
            yield Diagnostic(where, what, show_loop(s))
    yield from _find_escaping_private_buffers(func, contexts)


def _nesting_errors(loop: For, enclosing: Sequence[For]) -> Iterator[str]:
    """What is wrong with the loops that enclose a loop on a GPU axis."""
    for x in enclosing:
        if x.kind in (LoopKind.PARALLEL, LoopKind.VECTORIZED):
            yield f"{loop.kind} can't be inside {x.kind} loop {x.var.name!r}"
        elif x.kind is loop.kind:
            yield f"it is inside loop {x.var.name!r}, which is on {loop.kind} too"
        elif loop.kind in BLOCK_AXES and x.kind in THREAD_AXES:
            yield f"block axis {loop.kind} can't be inside thread axis {x.kind} (loop {x.var.name!r})"
    if loop.kind in BLOCK_AXES and any(x.kind in BLOCK_AXES for x in enclosing):
        parent = enclosing[-1]
        if parent.kind not in BLOCK_AXES or parent.body is not loop:
            yield "the block axes of a launch must be directly inside one another"


def _find_escaping_private_buffers(func: Func, contexts: Sequence[BlockContext]) -> Iterator[Diagnostic]:
    """Register and stack buffers that are used both inside and outside of a loop on a GPU axis."""
    for b in func.allocs:
        if b.scope not in (MemoryScope.REGISTER, MemoryScope.STACK):
            continue
        users = [c for c in contexts if any(a.buffer == b for a in accesses(c.block))]
        for loop in dict.fromkeys(x for c in users for x in c.loops if x.kind in GPU_AXES):
            outside = [c for c in users if not any(x is loop for x in c.loops)]
            if outside:
                name = outside[0].block.name
                what = f"{b.scope} buffer {b.name!r} of one thread is used outside of it too, in block {name!r}"
                yield Diagnostic(f"loop {loop.var.name!r} on {loop.kind}", what, show_buffer(b))
