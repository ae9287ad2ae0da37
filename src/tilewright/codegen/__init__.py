"""Code generation: scheduled loop IR -> LLVM IR text -> object code.

`emit_kernel` emits one LLVM function per loop-IR function, `emit_segment` the functions that the runtime calls for a
`Segment`. `module` puts them into LLVM modules and compiles these for a `Target`.
"""

from tilewright.codegen.module import (
    KernelSymbol,
    assembly,
    compile_object,
    emit_entry_module,
    emit_kernel_module,
    emit_llvm,
)
from tilewright.codegen.segment import BufferCopy, KernelCall, Segment

__all__ = [
    "BufferCopy",
    "KernelCall",
    "KernelSymbol",
    "Segment",
    "assembly",
    "compile_object",
    "emit_entry_module",
    "emit_kernel_module",
    "emit_llvm",
]
