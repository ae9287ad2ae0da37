"""Emission of one loop-IR function as an LLVM function.

Its parameters are a pointer per parameter buffer, an i64 per symbol and a pointer to a thread team.
"""

from llvmlite import ir

from tilewright.codegen.emit_scope import EmitScope
from tilewright.codegen.function_emitter import FunctionEmitter
from tilewright.codegen.kernel_context import KernelContext
from tilewright.codegen.llvm_types import I64, PTR, VOID
from tilewright.codegen.outline_parallel import mark_buffer_argument, thread_slices
from tilewright.codegen.register_pressure import memory_resident_tiles
from tilewright.codegen.thread_team import TeamEmitter
from tilewright.errors import InternalError
from tilewright.expr.nodes import MemoryScope
from tilewright.loops.private_memory import workspace_buffers
from tilewright.lower.dependencies import DependencyAnalysis
from tilewright.lower.lower_kernel import LoweredKernel
from tilewright.machine import Target


def emit_kernel(
    teams: TeamEmitter, lowered: LoweredKernel, target: Target, name: str, timestamped: bool = False
) -> ir.Function:
    """Adds a loop-IR function to an LLVM module.

    Args:
        teams: of the module, which receives `void name(ptr params..., i64 symbols..., ptr team)` and its helpers; the
            function runs serially where `team` is null.
        lowered: the kernel; its buffers of scope memory, and private ones that exceed the stack, must be parameters.
        target: what the code runs on.
        name: of the function.
        timestamped: whether the function takes one more pointer, to its record of timestamps (`timestamps`).

    Raises:
        InternalError: a buffer that must be a parameter is allocated inside, or a loop or buffer is malformed.
    """
    func = lowered.func
    for buffer in func.allocs:
        if buffer.scope is MemoryScope.MEMORY:
            message = f"buffer {buffer.name!r} of scope memory must be a parameter"
            raise InternalError(message, where=f"func {func.name!r}")
    for buffer in workspace_buffers(func):
        message = f"private buffer {buffer.name!r} must be a parameter: it exceeds the stack"
        raise InternalError(message, where=f"func {func.name!r}")
    module = teams.module
    function = add_kernel_function(module, name, len(func.params), len(func.symbols), timestamped)
    pointers: dict[str, ir.Value] = {}
    for argument, buffer in zip(function.args, func.params, strict=False):
        argument.name = buffer.name
        mark_buffer_argument(argument, buffer)
        pointers[buffer.name] = argument
    dependencies = DependencyAnalysis()
    scope = EmitScope(dependencies)
    for argument, symbol in zip(function.args[len(func.params) :], func.symbols, strict=False):
        argument.name = symbol.name
        scope.bind(symbol, argument)
    team, *record = function.args[len(func.params) + len(func.symbols) :]
    team.name = "team"
    resident, slices = memory_resident_tiles(func, target), thread_slices(func)
    kernel = KernelContext(module, func, target, teams, dependencies, lowered.dead_lane_buffers, resident, slices)
    emitter = FunctionEmitter(kernel, function, scope, pointers, team=team, record=record[0] if timestamped else None)
    emitter.emit(func.body)
    return function


def add_kernel_function(module: ir.Module, name: str, params: int, symbols: int, timestamped: bool) -> ir.Function:
    """An internal function with the parameters of a kernel, without a body.

    Args:
        module: receives it.
        name: its name.
        params, symbols: numbers of them.
        timestamped: as of `emit_kernel`.
    """
    kinds: list[ir.Type] = [*[PTR] * params, *[I64] * symbols, PTR, *[PTR] * timestamped]
    function = ir.Function(module, ir.FunctionType(VOID, kinds), name)
    function.linkage = "internal"
    for attribute in ("nounwind", "noinline"):
        function.attributes.add(attribute)
    return function
