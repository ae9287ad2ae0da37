"""What a kernel puts on the stack of a thread: all its buffers of that scope together, as a frame holds them all."""

from collections.abc import Mapping

from tilewright.expr.nodes import Const, MemoryScope
from tilewright.loops.ir import Func

MAX_STACK_BYTES = 256 << 10
"""What the buffers of a kernel may take of a stack: threads of OpenMP runtimes have a few MiB in all, and some of that
is the caller's."""

STACK_HINT = "leave it in memory, or compute less of it at a time"
"""What to do about a buffer that is too large for the stack."""


def stack_buffers(func: Func) -> Mapping[str, int]:
    """The buffers on the stack with their sizes in bytes, largest first; those without a literal size are left out."""
    on_stack = (b for b in func.allocs if b.scope is MemoryScope.STACK)
    sizes = {b.name: int(b.size.value) * b.dtype.bytes for b in on_stack if isinstance(b.size, Const)}
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))


def describe_excess(func: Func) -> str | None:
    """What is wrong where the stack buffers are too large, in words; None where they are not."""
    sizes = stack_buffers(func)
    total = sum(sizes.values())
    if total <= MAX_STACK_BYTES:
        return None
    if len(sizes) == 1:
        return f"it takes {total} bytes, more than the {MAX_STACK_BYTES} that a stack holds"
    shown = ", ".join(f"{name!r} {size}" for name, size in sizes.items())
    return f"the buffers on the stack take {total} bytes together, more than the {MAX_STACK_BYTES} it holds: {shown}"
