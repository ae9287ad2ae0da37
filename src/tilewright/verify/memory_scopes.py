"""Memory scopes: literal shapes of register and stack buffers, register indices, and the size of the stack."""

from collections.abc import Iterator, Sequence

from tilewright.expr.nodes import Const, MemoryScope, Symbol
from tilewright.expr.traversal import free_vars
from tilewright.loops.access import accesses
from tilewright.loops.block_context import BlockContext
from tilewright.loops.ir import EXPANDED, Func
from tilewright.loops.printer import show_buffer, show_stmt
from tilewright.loops.stack_size import STACK_HINT, describe_excess, stack_buffers
from tilewright.verify.diagnostics import Diagnostic


def find_memory_scope_errors(func: Func, contexts: Sequence[BlockContext], registers: bool) -> Iterator[Diagnostic]:
    """Allocations without literal shapes outside of memory, and register indices that are not literal in the end.

    Args:
        func: the function.
        contexts: its blocks.
        registers: whether register indices are checked.
    """
    for b in func.allocs:
        if b.scope is not MemoryScope.MEMORY and not all(isinstance(n, Const) for n in b.shape):
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


def find_stack_overflow(func: Func) -> Iterator[Diagnostic]:
    """Stack buffers that are too large."""
    problem = describe_excess(func)
    if problem is not None:
        names = ", ".join(map(repr, stack_buffers(func)))
        yield Diagnostic(f"buffers {names}" if "," in names else f"buffer {names}", problem, hint=STACK_HINT)
