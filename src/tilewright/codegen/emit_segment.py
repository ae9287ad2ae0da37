"""The C functions of a segment: check sizes, compute shapes and workspace, run the kernels in order.

int64 <name>_check(const int64 *symbols, int64 threads)     0, or 1 + index of the first violated constraint, or
                                                            1 + number of constraints if the sizes are too large
void  <name>_shapes(const int64 *symbols, int64 *out)       all dimensions of all outputs, one after the other
int64 <name>_workspace(const int64 *symbols, int64 threads) bytes, for at most so many threads
int64 <name>_main(const void *const *inputs, void *const *outputs, const void *const *weights, void *workspace,
                  const int64 *symbols, int64 threads)      0, or 1 + index of the failure of a routine, where the
                                                            failures of all routine calls are in one list, or
                                                            `OUT_OF_BOUNDS`

Callers pass `threads` to all of them; where no size depends on it, the first and the third do not take it.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import reduce

from llvmlite import ir

from tilewright.codegen.emit_calls import CallEmitter, is_parallel_profitable
from tilewright.codegen.llvm_types import I1, I64, PTR, VOID, as_opaque_pointer
from tilewright.codegen.overflow_guards import OverflowGuards
from tilewright.codegen.segment import (
    MAX_BUFFER_BYTES,
    MAX_SIZE_VALUE,
    KernelCall,
    Segment,
    all_calls,
    locations_of,
    routine_calls,
    sizes_of,
)
from tilewright.codegen.size_function import SizeFunction
from tilewright.codegen.thread_team import TeamEmitter
from tilewright.codegen.timestamps import TimestampRecorder, limit_threads
from tilewright.errors import InternalError
from tilewright.expr.nodes import Expr
from tilewright.expr.traversal import free_vars
from tilewright.graph.buffer_location import WorkspaceLocation
from tilewright.loops.private_memory import THREADS
from tilewright.machine import Target


def emit_segment(
    teams: TeamEmitter,
    segment: Segment,
    kernels: Mapping[str, ir.Function],
    parallel_kernels: Collection[str],
    target: Target,
) -> None:
    """Adds the functions of a segment to a module that has its kernels.

    Args:
        teams: of the module.
        segment: the segment.
        kernels: LLVM functions by name.
        parallel_kernels: names of those that have parallel loops.
        target: what the code runs on.

    Raises:
        InternalError: a call names an unknown kernel or weight, or has the wrong number of arguments.
    """
    module = teams.module
    _emit_check(module, segment, target)
    _emit_shapes(module, segment, target)
    _emit_workspace(module, segment, target)
    _emit_main(teams, segment, kernels, parallel_kernels, target)


def _size_parameters(segment: Segment) -> list[ir.Type]:
    """Parameters of the functions that compute sizes: the symbols, and the number of threads where one depends on
    it."""
    sizes = [*segment.buffer_bytes, segment.workspace_bytes]
    return [PTR, I64] if any(THREADS in free_vars(e) for e in sizes) else [PTR]


def _bind_size_parameters(f: SizeFunction) -> None:
    symbols, *threads = f.function.args
    f.load_symbols(f.segment.symbols, symbols)
    for value in threads:
        f.bind_threads(value)


def _emit_check(module: ir.Module, segment: Segment, target: Target) -> None:
    f = SizeFunction(module, f"{segment.name}_check", I64, _size_parameters(segment), segment, target)
    _bind_size_parameters(f)
    guards = OverflowGuards(f.builder, f.value)
    # integers wrap, so a size is guarded before anything is computed from it
    too_large = I64(len(segment.constraints) + 1)
    _return_if(f, guards.any_exceeds(guards.int64_arithmetic(segment.constraints), MAX_SIZE_VALUE), too_large)
    for i, constraint in enumerate(segment.constraints):
        test = f.value(constraint)
        if test.type != I1:
            raise InternalError(f"constraint {constraint} of {segment.name!r} is no condition")
        _return_if(f, f.builder.not_(test), I64(i + 1))
    _return_if(f, guards.any_exceeds([*segment.buffer_bytes, segment.workspace_bytes], MAX_BUFFER_BYTES), too_large)
    _return_if(f, guards.any_exceeds(segment.index_bounds, MAX_SIZE_VALUE), too_large)
    _return_if(
        f, guards.any_exceeds(guards.int64_arithmetic(_computed_expressions(segment)), MAX_SIZE_VALUE), too_large
    )
    f.builder.ret(I64(0))


def _return_if(f: SizeFunction, test: ir.Value | None, status: ir.Constant) -> None:
    """Returns a status where the test, if any, holds."""
    if test is None:
        return
    violated, holds = f.builder.append_basic_block("violated"), f.builder.append_basic_block("holds")
    f.builder.cbranch(test, violated, holds)
    f.builder.position_at_end(violated)
    f.builder.ret(status)
    f.builder.position_at_end(holds)


def _computed_expressions(segment: Segment) -> list[Expr]:
    """All expressions that the functions of a segment compute, except constraints."""
    expressions = [
        *segment.buffer_bytes,
        segment.workspace_bytes,
        *(e for shape in segment.output_shapes for e in shape),
    ]
    for call in all_calls(segment.calls):
        expressions += sizes_of(call)
        expressions += [x.offset for x in locations_of(call) if isinstance(x, WorkspaceLocation)]
    return expressions


def _emit_shapes(module: ir.Module, segment: Segment, target: Target) -> None:
    f = SizeFunction(module, f"{segment.name}_shapes", VOID, [PTR, PTR], segment, target)
    f.load_symbols(segment.symbols, f.function.args[0])
    for i, extent in enumerate(e for shape in segment.output_shapes for e in shape):
        f.builder.store(f.value(extent), f.builder.gep(f.function.args[1], [I64(i)], source_etype=I64), align=8)
    f.builder.ret_void()


def _emit_workspace(module: ir.Module, segment: Segment, target: Target) -> None:
    f = SizeFunction(module, f"{segment.name}_workspace", I64, _size_parameters(segment), segment, target)
    _bind_size_parameters(f)
    f.builder.ret(f.value(segment.workspace_bytes))


_MAIN_PARAMETERS = ("inputs", "outputs", "weights", "workspace", "symbols", "threads")


def _emit_main(
    teams: TeamEmitter,
    segment: Segment,
    kernels: Mapping[str, ir.Function],
    parallel_kernels: Collection[str],
    target: Target,
) -> None:
    """The exported function: it starts a thread team where that pays for some kernel, else it runs serially."""
    run_calls = _emit_calls(teams.module, segment, kernels, target)
    f = SizeFunction(teams.module, f"{segment.name}_main", I64, [PTR] * 5 + [I64], segment, target)
    for argument, name in zip(f.function.args, _MAIN_PARAMETERS, strict=True):
        argument.name = name
    b, threads, status = f.builder, f.function.args[5], _status_slots(f)
    if segment.timestamps is not None:
        threads = limit_threads(b, segment.timestamps, threads)
    parallel_calls = [
        call for call in all_calls(segment.calls) if isinstance(call, KernelCall) and call.kernel in parallel_kernels
    ]
    if parallel_calls:
        has_threads = b.icmp_signed(">", threads, I64(1))
        with b.if_then(has_threads):
            f.load_symbols(segment.symbols, f.function.args[4])
            is_profitable = reduce(b.or_, [is_parallel_profitable(f, call, threads) for call in parallel_calls])
            with b.if_then(is_profitable):
                teams.emit_start(b, run_calls, [*f.function.args, *status], threads)
                b.ret(_status_value(b, status))
    b.call(run_calls, [*f.function.args, *status, PTR(None)])
    b.ret(_status_value(b, status))


def _status_slots(f: SizeFunction) -> list[ir.Value]:
    """A stack slot for the first failure of a routine, in entries that call one."""
    if not routine_calls(f.segment.calls):
        return []
    slot = as_opaque_pointer(f.builder.alloca(I64))
    f.builder.store(I64(0), slot)
    return [slot]


def _status_value(b: ir.IRBuilder, status: Sequence[ir.Value]) -> ir.Value:
    return b.load(status[0], typ=I64) if status else I64(0)


def _emit_calls(module: ir.Module, segment: Segment, kernels: Mapping[str, ir.Function], target: Target) -> ir.Function:
    """`void <name>_main.calls(...)`, with the parameters of main, a pointer to the status where there are routines, and
    a team: runs the kernels in order."""
    status = ["status"] if routine_calls(segment.calls) else []
    kinds = [PTR] * 5 + [I64] + [PTR] * len(status) + [PTR]
    f = SizeFunction(module, f"{segment.name}_main.calls", VOID, kinds, segment, target)
    f.function.linkage = "internal"
    for argument, name in zip(f.function.args, (*_MAIN_PARAMETERS, *status, "team"), strict=True):
        argument.name = name
    f.load_symbols(segment.symbols, f.function.args[4])
    f.bind_threads(f.function.args[5])
    emitter = CallEmitter(f, kernels, {}, {})
    recorder = None
    if segment.timestamps is not None:
        symbols = [f.value(s) for s in segment.symbols]
        recorder = TimestampRecorder(f.builder, segment.timestamps, len(segment.calls), f.function.args[1], symbols)
    for k, call in enumerate(segment.calls):
        record = None if recorder is None else recorder.begin(k)
        emitter.emit(call, record)
        if recorder is not None and record is not None:
            recorder.end(record)
    f.builder.ret_void()
    return f.function
