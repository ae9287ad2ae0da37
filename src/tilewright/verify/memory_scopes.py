"""Memory scopes: literal shapes of register buffers, register indices, and what a thread of a GPU has no memory for."""

from collections.abc import Iterator, Sequence

from tilewright.expr.nodes import Const, MemoryScope, Symbol
from tilewright.expr.traversal import free_vars
from tilewright.loops.access import accesses
from tilewright.loops.block_context import BlockContext
from tilewright.loops.ir import EXPANDED, GPU_AXES, Func
from tilewright.loops.printer import show_buffer, show_stmt
from tilewright.loops.private_memory import MAX_STACK_BYTES, literal_bytes, workspace_buffers
from tilewright.verify.diagnostics import Diagnostic


def find_memory_scope_errors(func: Func, contexts: Sequence[BlockContext], registers: bool) -> Iterator[Diagnostic]:
    """Register buffers without literal shapes, and register indices that are not literal in the end.

    Args:
        func: the function.
        contexts: its blocks.
        registers: whether register indices are checked.
    """
    for b in func.allocs:
        if b.scope is MemoryScope.REGISTER and not all(isinstance(n, Const) for n in b.shape):
            yield Diagnostic(f"buffer {b.name!r}", f"scope {b.scope} needs a literal shape", show_buffer(b))
    if not registers:
        return
    for context in contexts:
        not_expanded = {loop.var for loop in context.loops if loop.kind not in EXPANDED}
        for a in accesses(context.block):
            if a.buffer.scope is not MemoryScope.REGISTER:
                continue
            for i in a.indices:
                offending = sorted(
                    v.name for v in free_vars(context.over_loops(i)) if v in not_expanded or isinstance(v, Symbol)
                )
                if offending:
                    yield Diagnostic(
                        f"block {context.block.name!r}",
                        f"index {i} of register buffer {a.buffer.name!r} depends on {', '.join(offending)}, "
                        "which is no unrolled, vectorized or vthread loop",
                        show_stmt(context.block),
                    )


def find_stack_overflow(func: Func, contexts: Sequence[BlockContext]) -> Iterator[Diagnostic]:
    """Private buffers of threads on GPU axes that exceed the stack: threads of a CPU have workspace for them."""
    if not any(loop.kind in GPU_AXES for context in contexts for loop in context.loops):
        return
    for b in workspace_buffers(func):
        size = literal_bytes(func).get(b.name)
        taken = f"{size} bytes" if size is not None else "a size that is known only at run time"
        what = f"it takes {taken}; the private buffers of a thread on a GPU axis may take {MAX_STACK_BYTES} together"
        yield Diagnostic(f"buffer {b.name!r}", what, show_buffer(b), hint="compute less of it at a time")
