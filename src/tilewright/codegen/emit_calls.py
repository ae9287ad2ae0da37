"""The calls of a native entry: kernels, routines, copies, branches and loops."""

from collections.abc import Mapping, Sequence

from llvmlite import ir

from tilewright.codegen.emit_control_flow import ControlFlow
from tilewright.codegen.emit_routine import emit_routine
from tilewright.codegen.llvm_types import I1, I8, I64, PTR, VOID, call_intrinsic
from tilewright.codegen.segment import (
    BufferCopy,
    ConditionalCalls,
    KernelCall,
    RepeatedCalls,
    RoutineCall,
    SegmentCall,
    routine_calls,
)
from tilewright.codegen.size_function import SizeFunction
from tilewright.errors import InternalError
from tilewright.expr.nodes import Expr, Var
from tilewright.graph.buffer_location import (
    BufferLocation,
    ConstantLocation,
    InputLocation,
    OutputLocation,
    PointerLocation,
    WorkspaceLocation,
)


class CallEmitter:
    """Emits calls in order.

    Args:
        f: the function that makes them.
        kernels: LLVM functions by name.
        pointers: pointers to locations that are computed already.
        variables: stack slots of the pointers that loops keep, by name.
    """

    def __init__(
        self,
        f: SizeFunction,
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
            case RoutineCall():
                self._emit_routine_call(call)
            case ConditionalCalls():
                self._emit_conditional(call, record)
            case RepeatedCalls():
                self._emit_loop(call, record)

    def _copy(self, destination: ir.Value, source: ir.Value, size: Expr) -> None:
        operands = [destination, source, self.f.value(size), I1(0)]
        call_intrinsic(self.f.builder, "memcpy.p0.p0.i64", VOID, operands)

    def _emit_nested(self, calls: Sequence[SegmentCall], record: ir.Value | None) -> None:
        """Emits calls under a condition: pointers that they compute are not valid behind it."""
        inner = CallEmitter(self.f, self.kernels, dict(self.pointers), self.variables)
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
        threads, team = f.function.args[5], f.function.args[-1]
        team = f.builder.select(is_parallel_profitable(f, call, threads), team, PTR(None))
        f.builder.call(kernel, [*pointers, *(f.value(s) for s in call.symbols), team, *records])

    def _emit_routine_call(self, call: RoutineCall) -> None:
        """Calls a routine; the entry goes on after a failure, since nothing that follows can do harm, and returns the
        first one."""
        f, b = self.f, self.f.builder
        function = emit_routine(b.module, call.code, f.target)
        buffers = [x for a, n in zip(call.args, call.lengths, strict=True) for x in (self._pointer(a), f.value(n))]
        status = b.call(function, [*buffers, *(f.value(s) for s in call.scalars)])
        slot = f.function.args[6]
        before, failed = b.load(slot, typ=I64), b.icmp_signed(">", status, I64(0))
        number = b.select(failed, b.add(status, I64(self._first_failure(call))), status)
        b.store(b.select(b.icmp_signed("==", before, I64(0)), number, before), slot)

    def _first_failure(self, call: RoutineCall) -> int:
        """The number of failures of the calls before."""
        calls = routine_calls(self.f.segment.calls)
        position = next(k for k, c in enumerate(calls) if c is call)
        return sum(len(c.failures) for c in calls[:position])

    def _pointer(self, location: BufferLocation) -> ir.Value:
        """The pointer to a location; all but those that loops change are computed once."""
        if isinstance(location, PointerLocation):
            return self.f.builder.load(self.variables[location.name], align=8, typ=PTR)
        pointer = self.pointers.get(location)
        if pointer is None:
            pointer = self.pointers[location] = _emit_location(self.f, location)
        return pointer


def is_parallel_profitable(f: SizeFunction, call: KernelCall, threads: ir.Value) -> ir.Value:
    """Whether a kernel has enough work for several threads."""
    if call.parallel_grains is None:
        return I1(1)
    return f.builder.icmp_signed(">=", f.value(call.parallel_grains), _required_grains(f, threads))


def _required_grains(f: SizeFunction, threads: ir.Value) -> ir.Value:
    """1 + log2(threads), rounded up: the parallel grains that pay for `threads` threads."""
    leading_zeros = call_intrinsic(f.builder, "ctlz.i64", I64, [f.builder.sub(threads, I64(1)), I1(0)])
    return f.builder.sub(I64(65), leading_zeros)


def _emit_location(f: SizeFunction, location: BufferLocation) -> ir.Value:
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
