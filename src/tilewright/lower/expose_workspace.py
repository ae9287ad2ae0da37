"""Workspace as parameters: the buffers that a function has no memory for leave its allocations."""

from dataclasses import replace

from tilewright.expr.nodes import MemoryScope
from tilewright.loops.ir import Func
from tilewright.loops.private_memory import workspace_buffers


def expose_workspace(func: Func) -> Func:
    """Appends internal buffers to a function's parameters, so that the caller provides them: those of scope memory, and
    private ones that are too large for the stack.

    A parameter in stack scope has a slice per thread (`loops.private_memory.workspace_of`).
    """
    private = frozenset(b.name for b in workspace_buffers(func))
    workspace = tuple(b for b in func.allocs if b.scope is MemoryScope.MEMORY or b.name in private)
    allocs = tuple(b for b in func.allocs if b not in workspace)
    return replace(func, params=(*func.params, *workspace), allocs=allocs) if workspace else func
