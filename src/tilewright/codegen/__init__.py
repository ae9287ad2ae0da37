"""Code generation: scheduled loop IR -> LLVM IR text -> object code.

`kernel` writes one LLVM function per loop-IR function, `entry` the functions that a host program calls
(`plan.Segment`), `module` puts both into one LLVM module and compiles it for a `Target`.
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
