"""Stack size: the buffers of a kernel in stack scope, which one frame holds together."""

from collections.abc import Mapping

from tilewright.expr.nodes import Const, MemoryScope
from tilewright.loops.ir import Func

MAX_STACK_BYTES = 256 << 10
"""The limit for the stack buffers of a kernel: threads of OpenMP runtimes have a few MiB of stack, which the kernel
shares with its caller."""

STACK_HINT = "leave it in memory, or compute less of it at a time"
"""The hint for a buffer that is too large for the stack."""


def stack_buffers(func: Func) -> Mapping[str, int]:
    """The sizes of the stack buffers in bytes, largest first; those without a literal size are left out."""
    on_stack = (b for b in func.allocs if b.scope is MemoryScope.STACK)
    sizes = {b.name: int(b.size.value) * b.dtype.bytes for b in on_stack if isinstance(b.size, Const)}
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))


def describe_excess(func: Func) -> str | None:
    """An error message where the stack buffers exceed `MAX_STACK_BYTES`; None where they do not."""
    sizes = stack_buffers(func)
    total = sum(sizes.values())
    if total <= MAX_STACK_BYTES:
        return None
    if len(sizes) == 1:
        return f"it takes {total} bytes, more than the {MAX_STACK_BYTES} that a stack holds"
    shown = ", ".join(f"{name!r} {size}" for name, size in sizes.items())
    return f"the buffers on the stack take {total} bytes together, more than the {MAX_STACK_BYTES} it holds: {shown}"
