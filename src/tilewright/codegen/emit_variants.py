"""Dispatchers of multi-version kernels: a function that calls the program which the sizes of a call select."""

from llvmlite import ir

from tilewright.codegen.emit_expr import ExprEmitter
from tilewright.codegen.emit_kernel import add_kernel_function, emit_kernel
from tilewright.codegen.emit_scope import DependencyAnalysis, EmitScope
from tilewright.codegen.finished_functions import finish_functions
from tilewright.codegen.llvm_types import I64
from tilewright.codegen.thread_team import TeamEmitter
from tilewright.errors import InternalError
from tilewright.expr.nodes import Buffer
from tilewright.kernel_caches import forget_derived
from tilewright.lower.kernel_variants import KernelVariants
from tilewright.lower.lower_kernel import lower_kernel
from tilewright.machine import Target


def emit_variants(
    teams: TeamEmitter,
    kernel: KernelVariants,
    target: Target,
    name: str,
    timestamped: bool = False,
    is_alone: bool = False,
) -> ir.Function:
    """Adds a kernel of several programs to an LLVM module.

    Args:
        teams, kernel, target, name, timestamped: as of `emit_kernel`.
        is_alone: whether the module is for this kernel only, so that a program can become text before the next one.

    Raises:
        InternalError: a program is malformed.
        TargetError: a loop is bound to a GPU axis.
    """
    programs: list[ir.Function] = []
    for k, func in enumerate(kernel.programs):
        programs.append(emit_kernel(teams, lower_kernel(func, target), target, f"{name}.v{k}", timestamped))
        if is_alone:
            finish_functions(teams.module.functions)
            forget_derived()
    function = add_kernel_function(teams.module, name, len(kernel.params), len(kernel.symbols), timestamped)
    buffers, sizes, others = _named_arguments(function, kernel)
    builder, scope = ir.IRBuilder(function.append_basic_block("entry")), EmitScope(DependencyAnalysis())
    for symbol in kernel.symbols:
        scope.bind(symbol, sizes[symbol.name])
    index = ExprEmitter(builder, scope, target, _reject_buffer).value(kernel.selector)
    blocks = [function.append_basic_block(f"program{k}") for k in range(len(programs))]
    choice = builder.switch(index, blocks[0])
    for k, (program, func, names) in enumerate(zip(programs, kernel.programs, kernel.arguments, strict=True)):
        if k:
            choice.add_case(I64(k), blocks[k])
        builder.position_at_end(blocks[k])
        builder.call(program, [*(buffers[n] for n in names), *(sizes[v.name] for v in func.symbols), *others])
        builder.ret_void()
    return function


def _named_arguments(
    function: ir.Function, kernel: KernelVariants
) -> tuple[dict[str, ir.Value], dict[str, ir.Value], list[ir.Value]]:
    """The arguments of a function: buffers and sizes by name, then the others."""
    arguments: list[ir.Value] = list(function.args)
    buffers = dict(zip((p.name for p in kernel.params), arguments, strict=False))
    sizes = dict(zip((v.name for v in kernel.symbols), arguments[len(buffers) :], strict=False))
    for name, argument in zip((*buffers, *sizes), function.args, strict=False):
        argument.name = name
    return buffers, sizes, arguments[len(buffers) + len(sizes) :]


def _reject_buffer(buffer: Buffer) -> ir.Value:
    raise InternalError(f"the choice of a program reads buffer {buffer.name!r}")
