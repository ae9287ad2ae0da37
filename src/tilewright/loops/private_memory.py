"""Private memory: where the buffers of stack scope are, of which every thread has its own.

Those of a kernel are on the stack of each thread where they fit it together. Where they do not, the largest move to the
workspace, and so do all whose size is known only at run time: `lower/expose_workspace.py` makes them parameters, and
every thread works on a *slice* of their memory. What is where follows from sizes alone; schedules do not choose it.
"""

from collections.abc import Mapping

from tilewright.expr.nodes import Buffer, Const, Expr, MemoryScope, Symbol, const
from tilewright.expr.operations import ceildiv
from tilewright.loops.ir import For, Func, LoopKind, walk
from tilewright.machine.alignment import BUFFER_ALIGNMENT
from tilewright.machine.threads import MAX_THREADS

MAX_STACK_BYTES = 256 << 10
"""The limit for the stack buffers of a kernel: threads of OpenMP runtimes have a few MiB of stack, which the kernel
shares with its caller."""

PRIVATE_PADDING = 512
"""Elements after the end of a private buffer that inactive lanes may access: the largest number of lanes."""


class _ThreadCount(Symbol):
    """A class of its own, so that no symbol of a user is this one."""

    __slots__ = ()


THREADS: Symbol = _ThreadCount("threads", 1, MAX_THREADS)
"""The number of threads that a call may use, in the sizes of workspaces."""


def is_private(buffer: Buffer) -> bool:
    """Whether every thread has its own copy of a buffer, in addressable memory."""
    return buffer.scope is MemoryScope.STACK


def workspace_buffers(func: Func) -> tuple[Buffer, ...]:
    """The private buffers of a function that the stack does not hold: those without a literal size, and the largest of
    the others until the rest fits `MAX_STACK_BYTES`."""
    literal = literal_bytes(func)
    left = sum(literal.values())
    moved = {b.name for b in func.allocs if is_private(b) and b.name not in literal}
    for name, size in literal.items():
        if left <= MAX_STACK_BYTES:
            break
        moved.add(name)
        left -= size
    return tuple(b for b in func.allocs if b.name in moved)


def literal_bytes(func: Func) -> Mapping[str, int]:
    """The bytes of the private buffers that a function allocates, largest first; those without a literal size are left
    out."""
    private = (b for b in func.allocs if is_private(b))
    sizes = {b.name: int(b.size.value) * b.dtype.bytes for b in private if isinstance(b.size, Const)}
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))


def slice_bytes(buffer: Buffer) -> Expr:
    """Bytes of a thread's slice of a private buffer in the workspace: its elements and their padding, in whole cache
    lines, so that no two threads write to one."""
    size = (buffer.size + PRIVATE_PADDING) * buffer.dtype.bytes
    return ceildiv(size, BUFFER_ALIGNMENT) * BUFFER_ALIGNMENT


def workspace_of(func: Func, buffer: Buffer, threads: Expr) -> Buffer:
    """What the caller of a function provides for a parameter that is workspace: the buffer itself, or a slice of a
    private one per thread (`float32[threads, elements]`); a single one where the function has no parallel loops.

    Args:
        func: a function whose workspace is exposed.
        buffer: the parameter.
        threads: the largest number of threads.
    """
    if not is_private(buffer):
        return buffer
    is_parallel = any(isinstance(s, For) and s.kind is LoopKind.PARALLEL for s, _ in walk(func.body))
    shape = (threads if is_parallel else const(1), slice_bytes(buffer) // buffer.dtype.bytes)
    return Buffer(buffer.name, shape, buffer.dtype)
