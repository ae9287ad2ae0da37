"""The C functions of a segment: check sizes, compute shapes and workspace, run the kernels in order.

int64 <name>_check(const int64 *symbols, int64 threads)     0, or 1 + index of the first violated constraint, or
                                                            1 + number of constraints if the sizes are too large
void  <name>_shapes(const int64 *symbols, int64 *out)       all dimensions of all outputs, one after the other
int64 <name>_workspace(const int64 *symbols, int64 threads) bytes, for at most so many threads
int64 <name>_main(const void *const *inputs, void *const *outputs, const void *const *weights, void *workspace,
                  const int64 *symbols, int64 threads)      0

Callers pass `threads` to all of them; where no size depends on it, the first and the third do not take it.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import reduce

from llvmlite import ir

from tilewright.codegen.emit_control_flow import ControlFlow
from tilewright.codegen.emit_expr import ExprEmitter
from tilewright.codegen.emit_scope import DependencyAnalysis, EmitScope
from tilewright.codegen.llvm_types import I1, I8, I64, PTR, VOID, call_intrinsic
from tilewright.codegen.overflow_guards import OverflowGuards
from tilewright.codegen.segment import (
    MAX_BUFFER_BYTES,
    MAX_SIZE_VALUE,
    BufferCopy,
    ConditionalCalls,
    KernelCall,
    RepeatedCalls,
    Segment,
    SegmentCall,
    all_calls,
    locations_of,
    sizes_of,
)
from tilewright.codegen.thread_team import TeamEmitter
from tilewright.codegen.timestamps import TimestampRecorder, limit_threads
from tilewright.errors import InternalError
from tilewright.expr.nodes import Buffer, Expr, Var
from tilewright.expr.traversal import free_vars
from tilewright.graph.buffer_location import (
    BufferLocation,
    ConstantLocation,
    InputLocation,
    OutputLocation,
    PointerLocation,
    WorkspaceLocation,
)
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


class _SizeFunction:
    """A function over an array of symbols."""

    def __init__(
        self, module: ir.Module, name: str, result: ir.Type, kinds: Sequence[ir.Type], segment: Segment, target: Target
    ) -> None:
        self.segment = segment
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


def _size_parameters(segment: Segment) -> list[ir.Type]:
    """Parameters of the functions that compute sizes: the symbols, and the number of threads where one depends on
    it."""
    sizes = [*segment.buffer_bytes, segment.workspace_bytes]
    return [PTR, I64] if any(THREADS in free_vars(e) for e in sizes) else [PTR]


def _bind_size_parameters(f: _SizeFunction) -> None:
    symbols, *threads = f.function.args
    f.load_symbols(f.segment.symbols, symbols)
    for value in threads:
        f.bind_threads(value)


def _reject_buffer(buffer: Buffer) -> ir.Value:
    raise InternalError(f"a size expression reads buffer {buffer.name!r}")


def _emit_check(module: ir.Module, segment: Segment, target: Target) -> None:
    f = _SizeFunction(module, f"{segment.name}_check", I64, _size_parameters(segment), segment, target)
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


def _return_if(f: _SizeFunction, test: ir.Value | None, status: ir.Constant) -> None:
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
    f = _SizeFunction(module, f"{segment.name}_shapes", VOID, [PTR, PTR], segment, target)
    f.load_symbols(segment.symbols, f.function.args[0])
    for i, extent in enumerate(e for shape in segment.output_shapes for e in shape):
        f.builder.store(f.value(extent), f.builder.gep(f.function.args[1], [I64(i)], source_etype=I64), align=8)
    f.builder.ret_void()


def _emit_workspace(module: ir.Module, segment: Segment, target: Target) -> None:
    f = _SizeFunction(module, f"{segment.name}_workspace", I64, _size_parameters(segment), segment, target)
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
    f = _SizeFunction(teams.module, f"{segment.name}_main", I64, [PTR] * 5 + [I64], segment, target)
    for argument, name in zip(f.function.args, _MAIN_PARAMETERS, strict=True):
        argument.name = name
    b, threads = f.builder, f.function.args[5]
    if segment.timestamps is not None:
        threads = limit_threads(b, segment.timestamps, threads)
    parallel_calls = [
        call for call in all_calls(segment.calls) if isinstance(call, KernelCall) and call.kernel in parallel_kernels
    ]
    if parallel_calls:
        has_threads = b.icmp_signed(">", threads, I64(1))
        with b.if_then(has_threads):
            f.load_symbols(segment.symbols, f.function.args[4])
            is_profitable = reduce(b.or_, [_is_parallel_profitable(f, call, threads) for call in parallel_calls])
            with b.if_then(is_profitable):
                teams.emit_start(b, run_calls, list(f.function.args), threads)
                b.ret(I64(0))
    b.call(run_calls, [*f.function.args, PTR(None)])
    b.ret(I64(0))


def _emit_calls(module: ir.Module, segment: Segment, kernels: Mapping[str, ir.Function], target: Target) -> ir.Function:
    """`void <name>_main.calls(...)`, with the parameters of main and a team: runs the kernels in order."""
    f = _SizeFunction(module, f"{segment.name}_main.calls", VOID, [PTR] * 5 + [I64, PTR], segment, target)
    f.function.linkage = "internal"
    for argument, name in zip(f.function.args, (*_MAIN_PARAMETERS, "team"), strict=True):
        argument.name = name
    f.load_symbols(segment.symbols, f.function.args[4])
    f.bind_threads(f.function.args[5])
    emitter = _CallEmitter(f, kernels, {}, {})
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


class _CallEmitter:
    """Emits calls in order.

    Args:
        f: the function that makes them.
        kernels: LLVM functions by name.
        pointers: pointers to locations that are computed already.
        variables: stack slots of the pointers that loops keep, by name.
    """

    def __init__(
        self,
        f: _SizeFunction,
        kernels: Mapping[str, ir.Function],
        pointers: dict[BufferLocation, ir.Value],
        variables: dict[str, ir.Value],
    ) -> None:
        self.f, self.kernels, self.pointers, self.variables = f, kernels, pointers, variables

    def emit(self, call: SegmentCall, record: ir.Value | None) -> None:
        """Emits a call, which records timestamps where there is a record."""
        match call:
            case BufferCopy(dst, src, size):
                self._copy(self._pointer(dst), self._pointer(src), size)
            case KernelCall():
                self._emit_kernel_call(call, record)
            case ConditionalCalls():
                self._emit_conditional(call, record)
            case RepeatedCalls():
                self._emit_loop(call, record)

    def _copy(self, destination: ir.Value, source: ir.Value, size: Expr) -> None:
        operands = [destination, source, self.f.value(size), I1(0)]
        call_intrinsic(self.f.builder, "memcpy.p0.p0.i64", VOID, operands)

    def _emit_nested(self, calls: Sequence[SegmentCall], record: ir.Value | None) -> None:
        """Emits calls under a condition: pointers that they compute are not valid behind it."""
        inner = _CallEmitter(self.f, self.kernels, dict(self.pointers), self.variables)
        for call in calls:
            inner.emit(call, record)

    def _emit_conditional(self, call: ConditionalCalls, record: ir.Value | None) -> None:
        b = self.f.builder
        condition = b.icmp_unsigned("!=", b.load(self._pointer(call.condition), align=1, typ=I8), I8(0))
        with b.if_else(condition) as (then, otherwise):
            with then, self.f.scope.frame(True):
                self._emit_nested(call.then_calls, record)
            with otherwise, self.f.scope.frame(True):
                self._emit_nested(call.else_calls, record)

    def _emit_loop(self, call: RepeatedCalls, record: ir.Value | None) -> None:
        b = self.f.builder
        number, bases = Var(f"iteration{len(self.f.scope.variables)}"), [self._pointer(s.result) for s in call.stacked]
        b.store(I8(1), self._pointer(call.condition), align=1)
        spares: list[ir.Value] = []
        for c in call.carried:
            first, second = (self._pointer(x) for x in c.memory)
            self._assign(c.name, self._pointer(c.initial))
            self._assign(c.next_name, first)
            spares.append(self._assign(f"{c.name}.spare", second))
        count, iteration = self.f.value(call.count), self._pointer(call.iteration)

        def body() -> None:
            value = self.f.value(number)
            b.store(value, iteration, align=8)
            for s, base in zip(call.stacked, bases, strict=True):
                offset = b.mul(value, self.f.value(s.bytes))
                self._assign(s.name, b.gep(base, [offset], source_etype=I8))
            self._emit_nested(call.calls, record)
            for c, spare in zip(call.carried, spares, strict=True):
                written = b.load(self.variables[c.next_name], align=8, typ=PTR)
                self._assign(c.next_name, b.load(spare, align=8, typ=PTR))
                self._assign(c.name, written)
                b.store(written, spare, align=8)

        ControlFlow(b, self.f.scope).counted_loop(number, I64(0), count, body, nonempty=False)
        for c in call.carried:
            last = b.load(self.variables[c.name], align=8, typ=PTR)
            self._copy(self._pointer(c.result), last, c.bytes)

    def _assign(self, name: str, pointer: ir.Value) -> ir.Value:
        """Sets the variable of a pointer; returns its stack slot."""
        b = self.f.builder
        if name not in self.variables:
            with b.goto_entry_block():
                self.variables[name] = b.alloca(PTR)
        b.store(pointer, self.variables[name], align=8)
        return self.variables[name]

    def _emit_kernel_call(self, call: KernelCall, record: ir.Value | None) -> None:
        f, kernel = self.f, self.kernels.get(call.kernel)
        if kernel is None:
            raise InternalError(f"call of unknown kernel {call.kernel!r}")
        records = [] if record is None else [record]
        count = len(call.args) + len(call.symbols) + 1 + len(records)
        if count != len(kernel.args):
            raise InternalError(f"kernel {call.kernel!r} takes {len(kernel.args)} arguments, got {count}")
        pointers = [self._pointer(a) for a in call.args]
        threads, team = f.function.args[5:7]
        team = f.builder.select(_is_parallel_profitable(f, call, threads), team, PTR(None))
        f.builder.call(kernel, [*pointers, *(f.value(s) for s in call.symbols), team, *records])

    def _pointer(self, location: BufferLocation) -> ir.Value:
        """The pointer to a location; all but those that loops change are computed once."""
        if isinstance(location, PointerLocation):
            return self.f.builder.load(self.variables[location.name], align=8, typ=PTR)
        pointer = self.pointers.get(location)
        if pointer is None:
            pointer = self.pointers[location] = _emit_location(self.f, location)
        return pointer


def _is_parallel_profitable(f: _SizeFunction, call: KernelCall, threads: ir.Value) -> ir.Value:
    """Whether a kernel has enough work for several threads."""
    if call.parallel_grains is None:
        return I1(1)
    return f.builder.icmp_signed(">=", f.value(call.parallel_grains), _required_grains(f, threads))


def _required_grains(f: _SizeFunction, threads: ir.Value) -> ir.Value:
    """1 + log2(threads), rounded up: the parallel grains that pay for `threads` threads."""
    leading_zeros = call_intrinsic(f.builder, "ctlz.i64", I64, [f.builder.sub(threads, I64(1)), I1(0)])
    return f.builder.sub(I64(65), leading_zeros)


def _emit_location(f: _SizeFunction, location: BufferLocation) -> ir.Value:
    inputs, outputs, weights, workspace = f.function.args[:4]
    match location:
        case WorkspaceLocation(offset):
            return f.builder.gep(workspace, [f.value(offset)], source_etype=I8)
        case InputLocation(k, skipped):
            array = inputs
        case OutputLocation(k, skipped):
            array = outputs
        case ConstantLocation(name):
            if name not in f.segment.weights:
                raise InternalError(f"segment {f.segment.name!r} has no weight {name!r}")
            array, k, skipped = weights, f.segment.weights.index(name), 0
        case PointerLocation(name):
            raise InternalError(f"variable {name!r} of segment {f.segment.name!r} has no fixed address")
    start = f.builder.load(f.builder.gep(array, [I64(k)], source_etype=PTR), align=8, typ=PTR)
    return f.builder.gep(start, [I64(skipped)], source_etype=I8) if skipped else start
