"""A builder of LLVM functions that compute integers from the values of symbolic sizes, as the bytes of a workspace."""

from collections.abc import Sequence

from llvmlite import ir

from tilewright.codegen.emit_expr import ExprEmitter
from tilewright.codegen.emit_scope import DependencyAnalysis, EmitScope
from tilewright.codegen.llvm_types import I64
from tilewright.codegen.segment import Segment
from tilewright.errors import InternalError
from tilewright.expr.nodes import Buffer, Expr, Var
from tilewright.loops.private_memory import THREADS
from tilewright.machine import Target


class SizeFunction:
    """An LLVM function under construction, whose argument is an array with the values of a call's symbols."""

    def __init__(
        self, module: ir.Module, name: str, result: ir.Type, kinds: Sequence[ir.Type], segment: Segment, target: Target
    ) -> None:
        self.segment, self.target = segment, target
        self.function = ir.Function(module, ir.FunctionType(result, list(kinds)), name)
        self.function.attributes.add("nounwind")
        self.builder = ir.IRBuilder(self.function.append_basic_block("entry"))
        self.scope = EmitScope(DependencyAnalysis())
        self.exprs = ExprEmitter(self.builder, self.scope, target, _reject_buffer)

    def load_symbols(self, symbols: Sequence[Var], array: ir.Value) -> None:
        """Binds the symbols to the elements of an array."""
        for i, symbol in enumerate(symbols):
            pointer = self.builder.gep(array, [I64(i)], source_etype=I64)
            value = self.builder.load(pointer, name=symbol.name, align=8, typ=I64)
            self.scope.bind(symbol, value)

    def bind_threads(self, threads: ir.Value) -> None:
        """Binds the number of threads, which the size of the workspace may depend on."""
        self.scope.bind(THREADS, threads)

    def value(self, e: Expr) -> ir.Value:
        """The value of an expression over the symbols."""
        return self.exprs.value(e)


def _reject_buffer(buffer: Buffer) -> ir.Value:
    raise InternalError(f"a size expression reads buffer {buffer.name!r}")
