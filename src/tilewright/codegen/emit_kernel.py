"""One loop-IR function to one LLVM function: loops, blocks, predicates, buffers.

The function takes a pointer per parameter buffer, an i64 per symbol and a pointer to a team of threads. Serial loops
become loops; unrolled ones are expanded; in a vectorized one every expression that depends on its variable is a
vector; the body of a parallel one becomes a function of its own (`parallel`).
"""

from llvmlite import ir

from tilewright.codegen.dead_lanes import dead_lane_buffers
from tilewright.codegen.emit_scope import DependencyAnalysis, EmitScope
from tilewright.codegen.function_emitter import FunctionEmitter
from tilewright.codegen.kernel_context import KernelContext
from tilewright.codegen.legalize_vectors import legalize_vectors
from tilewright.codegen.llvm_types import I64, PTR, VOID
from tilewright.codegen.outline_parallel import mark_buffer_argument
from tilewright.codegen.register_pressure import memory_resident_tiles
from tilewright.codegen.thread_team import TeamEmitter
from tilewright.errors import InternalError
from tilewright.expr.nodes import MemoryScope
from tilewright.loops.ir import Func
from tilewright.machine import Target


def emit_kernel(teams: TeamEmitter, func: Func, target: Target, name: str, timestamped: bool = False) -> ir.Function:
    """Add a loop-IR function to an LLVM module.

    Args:
        teams: of the module, which receives `void name(ptr params..., i64 symbols..., ptr team)` and its helpers; the
            function runs alone where `team` is null.
        func: its buffers of scope memory must be parameters.
        target: what the code runs on.
        name: of the function.
        stamped: the function takes one more pointer, to its record of clock readings (`stamps`).

    Raises:
        InternalError: a buffer of scope memory is allocated inside, or a loop or buffer is not well-formed.
    """
    for buffer in func.allocs:
        if buffer.scope is MemoryScope.MEMORY:
            what = f"buffer {buffer.name!r} of scope memory must be a parameter"
            raise InternalError(what, where=f"func {func.name!r}")
    module = teams.module
    kinds: list[ir.Type] = [*[PTR] * len(func.params), *[I64] * len(func.symbols), PTR, *[PTR] * timestamped]
    function = ir.Function(module, ir.FunctionType(VOID, kinds), name)
    function.linkage = "internal"
    for attribute in ("nounwind", "noinline"):
        function.attributes.add(attribute)
    pointers: dict[str, ir.Value] = {}
    for argument, buffer in zip(function.args, func.params, strict=False):
        argument.name = buffer.name
        mark_buffer_argument(argument, buffer)
        pointers[buffer.name] = argument
    facts = DependencyAnalysis()
    scope = EmitScope(facts)
    for argument, symbol in zip(function.args[len(func.params) :], func.symbols, strict=False):
        argument.name = symbol.name
        scope.bind(symbol, argument)
    team, *record = function.args[len(func.params) + len(func.symbols) :]
    team.name = "team"
    # a mask is the same all over a vectorized loop, of its vectors it is not
    spare = dead_lane_buffers(func)
    func = legalize_vectors(func, target)
    kernel = KernelContext(module, func, target, teams, facts, spare, memory_resident_tiles(func, target))
    writer = FunctionEmitter(kernel, function, scope, pointers, team=team, record=record[0] if timestamped else None)
    writer.emit(func.body)
    return function
