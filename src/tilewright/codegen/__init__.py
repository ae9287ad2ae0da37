"""Code generation: scheduled loop IR -> LLVM IR text -> object code.

`emit_kernel` emits one LLVM function per loop-IR function, `emit_segment` the functions that the runtime calls for a
`Segment`. `module` puts both into one LLVM module and compiles it for a `Target`.
"""

from tilewright.codegen.module import assembly, compile_object, emit_llvm
from tilewright.codegen.segment import BufferCopy, KernelCall, Segment

__all__ = [
    "BufferCopy",
    "KernelCall",
    "Segment",
    "assembly",
    "compile_object",
    "emit_llvm",
]
