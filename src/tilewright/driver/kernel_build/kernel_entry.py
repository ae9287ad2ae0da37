"""The native entry of a single kernel, and a scheduled kernel as text of any level."""

from tilewright.codegen import KernelCall, Segment, assembly, emit_llvm
from tilewright.driver.kernel_build.kernel_signature import KernelSignature
from tilewright.driver.kernel_build.make_segment import make_segment
from tilewright.errors import OptionError
from tilewright.expr.nodes import Expr, const
from tilewright.expr.operations import ceildiv
from tilewright.graph.buffer_location import BufferLocation, InputLocation, OutputLocation, WorkspaceLocation
from tilewright.loops.ir import Func
from tilewright.loops.printer import show
from tilewright.loops.private_memory import THREADS, workspace_of
from tilewright.lower.expose_workspace import expose_workspace
from tilewright.lower.lower_kernel import lower_kernel
from tilewright.machine import Target
from tilewright.machine.alignment import BUFFER_ALIGNMENT
from tilewright.verify.index_overflow import overflow_candidates

ENTRY_PREFIX = "tw"
"""Prefix of the entry's C symbols."""


def kernel_segment(func: Func) -> tuple[Func, Segment]:
    """The function with its internal memory as parameters, and the native entry that calls it.

    Buffers of the workspace lie one after the other and share no memory.
    """
    kernel, signature = expose_workspace(func), KernelSignature(func)
    offset: Expr = const(0)
    workspace: list[BufferLocation] = []
    rooms = [workspace_of(kernel, b, THREADS) for b in kernel.params[len(func.params) :]]
    for b in rooms:
        workspace.append(WorkspaceLocation(offset))
        offset = offset + ceildiv(b.size * b.dtype.bytes, BUFFER_ALIGNMENT) * BUFFER_ALIGNMENT
    locations: dict[str, BufferLocation] = {b.name: InputLocation(k) for k, b in enumerate(signature.inputs)}
    locations |= {b.name: OutputLocation(k) for k, b in enumerate(signature.outputs)}
    call = KernelCall(func.name, (*(locations[p.name] for p in func.params), *workspace), func.symbols)
    bounds = overflow_candidates(func, {})
    buffers = [*func.params, *rooms]
    return kernel, make_segment(ENTRY_PREFIX, func.symbols, [call], offset, signature.outputs, buffers, bounds)


def kernel_llvm(func: Func, target: Target) -> str:
    """The LLVM IR of a function and its entry.

    Raises:
        TargetError: a loop is bound to an axis of a GPU.
    """
    kernel, segment = kernel_segment(func)
    return emit_llvm([kernel], [segment], target)


def kernel_text(func: Func, level: str, target: Target) -> str:
    """A scheduled function as text: "loops", "lowered" (the loops that code is generated from), "llvm" or "assembly".

    Raises:
        OptionError: there is no such level.
    """
    match level:
        case "loops":
            return show(func)
        case "lowered":
            return show(lower_kernel(expose_workspace(func), target).func)
        case "llvm":
            return kernel_llvm(func, target)
        case "assembly":
            return assembly(kernel_llvm(func, target), target)
        case _:
            hint = "use loops, lowered, llvm or assembly"
            raise OptionError(f"there is no level {level!r}", where="inspect", hint=hint)
