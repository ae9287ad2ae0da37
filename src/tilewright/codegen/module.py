"""LLVM modules: kernels and segments as LLVM IR text, and the text compiled to an object file or to assembly.

A compiled model is several modules, so that equal kernels of different models are equal object files: one per kernel
(`emit_kernel_module`), and one with the segments' entries and the thread team (`emit_entry_module`). One module of all
(`emit_llvm`) is for functions that are run alone, for instrumented models, and for reading.

The text depends on its arguments alone, and so does the object code: the target machine is built from the target's
description, never from the machine that compiles.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import llvmlite.binding as llvm
from llvmlite import ir

from tilewright.codegen.emit_kernel import emit_kernel
from tilewright.codegen.emit_routine import ROUTINE_PREFIX
from tilewright.codegen.emit_segment import emit_segment
from tilewright.codegen.emit_step_tree import emit_step_tree
from tilewright.codegen.emit_variants import emit_variants
from tilewright.codegen.llvm_types import I64, PTR, VOID, declare, keep_loops_scalar
from tilewright.codegen.segment import Segment
from tilewright.codegen.step_tree import StepTree
from tilewright.codegen.thread_team import StageLinkage, TeamEmitter
from tilewright.errors import InternalError
from tilewright.loops.ir import For, LoopKind, walk
from tilewright.lower.kernel_variants import KernelCode, KernelVariants, programs_of
from tilewright.lower.lower_kernel import lower_kernel
from tilewright.machine import Target


def emit_llvm(
    kernels: Sequence[KernelCode], segments: Sequence[Segment], target: Target, tree: StepTree | None = None
) -> str:
    """The LLVM IR text of one module.

    Args:
        kernels: loop-IR functions, or kernels of several, with distinct names; internal to the module where there are
            segments, otherwise exported as `void name(void *params..., int64 symbols..., int64 threads)`.
        segments: native segments that call them; either all of them record timestamps or none.
        target: what the code runs on.
        tree: the steps around the segments.

    Raises:
        InternalError: two kernels have one name, or one cannot be expressed.
        TargetError: a loop is bound to a GPU axis.
    """
    module = ir.Module(name="tilewright")
    module.triple = target.triple
    teams = TeamEmitter(module)
    stamped = any(s.timestamps is not None for s in segments)
    functions: dict[str, ir.Function] = {}
    for kernel in kernels:
        if kernel.name in functions:
            raise InternalError(f"two kernels have the name {kernel.name!r}")
        name = kernel.name if segments else f"{kernel.name}.kernel"
        functions[kernel.name] = _emit_code(teams, kernel, target, name, stamped)
        if not segments:
            _emit_exported_kernel(teams, functions[kernel.name], kernel)
    kernel_functions = list(module.functions)
    shared = frozenset(kernel.name for kernel in kernels if has_parallel_loop(kernel))
    for segment in segments:
        emit_segment(teams, segment, functions, shared, target)
    if tree is not None:
        emit_step_tree(module, tree)
    if any(f.name.startswith(ROUTINE_PREFIX) for f in module.functions):
        # LLVM vectorizes loops of this module; kernels are to be what they are in modules of their own
        for function in kernel_functions:
            keep_loops_scalar(function)
    return str(module)


@dataclass(frozen=True, slots=True)
class KernelSymbol:
    """A kernel of another module, as the entries that call it see it.

    Attributes:
        symbol: of its function, `void symbol(void *params..., int64 symbols..., void *team)`.
        pointers: number of its parameters.
        sizes: number of its symbols.
        is_parallel: whether it has parallel loops.
    """

    symbol: str
    pointers: int
    sizes: int
    is_parallel: bool

    @staticmethod
    def of(kernel: KernelCode, symbol: str) -> "KernelSymbol":
        """The symbol of a kernel."""
        return KernelSymbol(symbol, len(kernel.params), len(kernel.symbols), has_parallel_loop(kernel))


def emit_kernel_module(kernel: KernelCode, symbol: str, target: Target) -> str:
    """The LLVM IR text of a module with one kernel, for `emit_entry_module` of any model that has it.

    Args:
        kernel: the loop-IR function, or several.
        symbol: of the function in object code.
        target: what the code runs on.

    Raises:
        InternalError: the kernel cannot be expressed.
        TargetError: a loop is bound to a GPU axis.
    """
    module = ir.Module(name="tilewright")
    module.triple = target.triple
    teams = TeamEmitter(module, StageLinkage.USED)
    _emit_code(teams, kernel, target, symbol, is_alone=True).linkage = "hidden"
    return str(module)


def emit_entry_module(
    kernels: Mapping[str, KernelSymbol], segments: Sequence[Segment], target: Target, tree: StepTree | None = None
) -> str:
    """The LLVM IR text of a module with the entries of segments, whose kernels are modules of their own.

    Args:
        kernels: the kernels by the names that calls use.
        segments: native segments without timestamps.
        target: what the code runs on.
        tree: the steps around the segments.

    Raises:
        InternalError: two kernels have one symbol, or a call is wrong.
    """
    if len({k.symbol for k in kernels.values()}) < len(kernels):
        raise InternalError("two kernels have one symbol")
    module = ir.Module(name="tilewright")
    module.triple = target.triple
    teams = TeamEmitter(module, StageLinkage.DEFINED)
    functions = {name: _declare_kernel(module, kernel) for name, kernel in kernels.items()}
    parallel = frozenset(name for name, kernel in kernels.items() if kernel.is_parallel)
    for segment in segments:
        emit_segment(teams, segment, functions, parallel, target)
    if tree is not None:
        emit_step_tree(module, tree)
    if parallel:
        teams.define_stage()
    return str(module)


def _emit_code(
    teams: TeamEmitter, kernel: KernelCode, target: Target, name: str, stamped: bool = False, is_alone: bool = False
) -> ir.Function:
    if isinstance(kernel, KernelVariants):
        return emit_variants(teams, kernel, target, name, stamped, is_alone)
    return emit_kernel(teams, lower_kernel(kernel, target), target, name, stamped)


def _declare_kernel(module: ir.Module, kernel: KernelSymbol) -> ir.Function:
    kinds = [*[PTR] * kernel.pointers, *[I64] * kernel.sizes, PTR]
    function = declare(module, kernel.symbol, VOID, kinds)
    function.linkage = "hidden"
    function.attributes.add("nounwind")
    return function


def has_parallel_loop(kernel: KernelCode) -> bool:
    """Whether a program of a kernel has parallel loops."""
    loops = (s for func in programs_of(kernel) for s, _ in walk(func.body))
    return any(isinstance(s, For) and s.kind is LoopKind.PARALLEL for s in loops)


def _emit_exported_kernel(teams: TeamEmitter, kernel: ir.Function, func: KernelCode) -> None:
    """The kernel for callers outside of the module, with the number of threads instead of the team."""
    kinds = [argument.type for argument in kernel.args[:-1]]
    function = ir.Function(teams.module, ir.FunctionType(VOID, [*kinds, I64]), func.name)
    for argument, inner in zip(function.args, kernel.args[:-1], strict=False):
        argument.name = inner.name
    function.args[-1].name = "threads"
    function.attributes.add("nounwind")
    b = ir.IRBuilder(function.append_basic_block("entry"))
    *arguments, threads = function.args
    if has_parallel_loop(func):
        several = b.icmp_signed(">", threads, I64(1))
        with b.if_then(several):
            teams.emit_start(b, kernel, arguments, threads)
            b.ret_void()
    b.call(kernel, [*arguments, PTR(None)])
    b.ret_void()


def compile_object(llvm_ir: str, target: Target) -> bytes:
    """The object file of LLVM IR text.

    Raises:
        InternalError: LLVM rejects the text.
    """
    machine = _target_machine(target)
    return machine.emit_object(optimize_module(llvm_ir, target))


def assembly(llvm_ir: str, target: Target) -> str:
    """The assembly of LLVM IR text.

    Raises:
        InternalError: LLVM rejects the text.
    """
    machine = _target_machine(target)
    return machine.emit_assembly(optimize_module(llvm_ir, target))


def optimize_module(llvm_ir: str, target: Target) -> llvm.ModuleRef:
    """The module after LLVM's target-independent passes.

    Raises:
        InternalError: LLVM rejects the text.
    """
    machine = _target_machine(target)
    try:
        module = llvm.parse_assembly(llvm_ir)
        module.verify()
    except RuntimeError as error:
        raise InternalError(f"LLVM rejects the generated code: {error}") from error
    module.triple = target.triple
    module.data_layout = str(machine.target_data)
    tuning = llvm.create_pipeline_tuning_options(speed_level=2)
    # the schedule has vectorized the loops of kernels; LLVM's vectorizers would undo its choices. So kernels' modules
    # have no vectorization, and `emit_llvm` marks the loops of kernels that share a module with routines
    tuning.loop_vectorization = any(f.name.startswith(ROUTINE_PREFIX) for f in module.functions)
    tuning.slp_vectorization = False
    tuning.loop_interleaving = False
    tuning.loop_unrolling = True
    passes = llvm.create_pass_builder(machine, tuning)
    passes.getModulePassManager().run(module, passes)
    return module


@lru_cache(maxsize=8)
def _target_machine(target: Target) -> llvm.TargetMachine:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    chosen = llvm.Target.from_triple(target.triple)
    return chosen.create_target_machine(
        cpu=target.cpu, features=target.feature_string, opt=3, reloc="pic", codemodel="default"
    )
