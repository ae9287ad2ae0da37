"""Workspace as parameters: buffers of scope memory leave a function's allocations."""

from dataclasses import replace

from tilewright.expr.nodes import MemoryScope
from tilewright.loops.ir import Func


def expose_workspace(func: Func) -> Func:
    """Appends the function's internal buffers of scope memory to its parameters, so that the caller provides them."""
    workspace = tuple(b for b in func.allocs if b.scope is MemoryScope.MEMORY)
    allocs = tuple(b for b in func.allocs if b.scope is not MemoryScope.MEMORY)
    return replace(func, params=(*func.params, *workspace), allocs=allocs) if workspace else func
