"""Outlining of parallel loops: the body becomes a function over a range of iterations, which the threads of a team
share.

    body(buffers..., values..., begin, end)      the iterations
    run(context, begin, end)                     the same for a thread: loads buffers and values from the context

Perfectly nested parallel loops are coalesced into one range, the innermost varying fastest. Without a team, or with
one iteration, the body is called directly. Parallel loops inside the body run serially.

Private buffers in the workspace (`loops/private_memory.py`) have a slice per thread: `run` passes that of its thread,
and whoever calls the body directly is thread 0 and passes the first one.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

from llvmlite import ir

from tilewright.codegen import timestamps
from tilewright.codegen.emit_expr import ExprEmitter
from tilewright.codegen.emit_scope import EmitScope
from tilewright.codegen.kernel_context import KernelContext
from tilewright.codegen.llvm_types import I8, I32, I64, PTR, VOID, as_opaque_pointer, declare
from tilewright.codegen.thread_team import RUN_TYPE, load_fields
from tilewright.expr.computation import Axis, iteration_space_size
from tilewright.expr.nodes import Buffer, Var
from tilewright.expr.traversal import loads
from tilewright.loops.ir import Block, For, Func, LoopKind, Stmt, blocks, walk
from tilewright.loops.private_memory import is_private, slice_bytes
from tilewright.lower.parallel_nest import parallel_nest


class EnclosingFunction(Protocol):
    """The emitter of the function that contains a parallel loop."""

    @property
    def kernel(self) -> KernelContext:
        """What the functions of the kernel share."""
        ...

    @property
    def builder(self) -> ir.IRBuilder:
        """Positioned where the loop goes."""
        ...

    @property
    def scope(self) -> EmitScope:
        """Variables that are bound around the loop."""
        ...

    @property
    def exprs(self) -> ExprEmitter:
        """Emits expressions at the builder's position."""
        ...

    @property
    def record(self) -> ir.Value | None:
        """Pointer to the record of timestamps; None where nothing is recorded."""
        ...

    def pointer(self, buffer: Buffer) -> ir.Value:
        """The address of a buffer."""
        ...

    def stack_alloc(self, kind: ir.Type) -> ir.Value:
        """Memory on the function's stack."""
        ...


BodyEmitter = Callable[[ir.Function, EmitScope, dict[str, ir.Value], list[For]], None]
"""Emits the outlined body: its function without blocks, its variables, the addresses of buffers from outside, and the
nest of parallel loops whose range of iterations the function's last two arguments are."""


def mark_buffer_argument(argument: ir.Argument, buffer: Buffer) -> None:
    """Attributes of a pointer to a buffer: no other pointer aliases it, and elements are aligned."""
    argument.add_attribute("noalias")
    argument.attributes.align = buffer.dtype.bytes


def used_buffers(s: Stmt) -> dict[str, Buffer]:
    """The buffers that a statement reads, writes or prefetches, in the order of their first use."""
    buffers: dict[str, Buffer] = {}
    for block in blocks(s):
        for store in (block.init, block.body):
            if store is not None:
                for e in (*store.indices, store.value):
                    buffers.update((load.buffer.name, load.buffer) for load in loads(e))
                buffers[store.buffer.name] = store.buffer
        buffers.update((load.buffer.name, load.buffer) for load in loads(block.predicate))
    buffers.update((hint.buffer.name, hint.buffer) for x, _ in walk(s) if isinstance(x, For) for hint in x.prefetches)
    return buffers


def shared_buffers(func: Func, loop: For) -> list[Buffer]:
    """The buffers of a parallel loop that live outside of it; the others are private to every thread."""
    params = {b.name for b in func.params}
    uses_in_loop = _count_users(loop)
    uses_in_func = _count_users(func.body)
    return [b for n, b in used_buffers(loop).items() if n in params or uses_in_loop[n] != uses_in_func[n]]


def slices_in_loop(func: Func, loop: For) -> dict[str, Buffer]:
    """The parameters of which every thread of a parallel loop has a slice of its own: private ones that blocks outside
    of the loop do not use."""
    private = {b.name: b for b in func.params if is_private(b)}
    if not private:
        return {}
    uses_in_loop = _count_users(loop)
    uses_in_func = _count_users(func.body)
    return {n: b for n, b in private.items() if n in uses_in_loop and uses_in_loop[n] == uses_in_func[n]}


def thread_slices(func: Func) -> frozenset[str]:
    """Names of the private parameters that only blocks of one parallel nest use, or only blocks outside of them."""
    private = {b.name for b in func.params if is_private(b)}
    users: dict[str, set[int]] = {name: set() for name in private}
    for s, loops in walk(func.body) if private else ():
        if isinstance(s, Block):
            nest = next((id(x) for x in loops if x.kind is LoopKind.PARALLEL), 0)
            for name in private.intersection(used_buffers(s)):
                users[name].add(nest)
    return frozenset(name for name, nests in users.items() if len(nests) == 1)


def _count_users(s: Stmt) -> Counter[str]:
    return Counter(name for block in blocks(s) for name in used_buffers(block))


def emit_parallel_loop(function: EnclosingFunction, loop: For, team: ir.Value, emit_body: BodyEmitter) -> None:
    """Emits a parallel loop at the position of the enclosing function's builder.

    Args:
        function: the enclosing function.
        loop: the outermost loop of the nest.
        team: the team that shares the iterations; one thread runs them where it is null.
        emit_body: emits the outlined body.
    """
    shared = shared_buffers(function.kernel.func, loop)
    variables = list(function.scope.variables)
    nest = parallel_nest(loop)
    body = _outlined_body(function, nest, shared, variables, emit_body)
    b = function.builder
    captured = [*(function.pointer(buffer) for buffer in shared), *(function.scope.variables[v] for v in variables)]
    extent = function.exprs.value(iteration_space_size([Axis(x.var, x.extent) for x in nest]))
    slices = slices_in_loop(function.kernel.func, loop)
    strides = {k: function.exprs.value(slice_bytes(buffer)) for k, buffer in enumerate(shared) if buffer.name in slices}
    is_shared = b.and_(b.icmp_unsigned("!=", team, PTR(None)), b.icmp_signed(">", extent, I64(1)))
    team_block, serial_block, merge = (b.append_basic_block(n) for n in ("team", "alone", "joined"))
    b.cbranch(is_shared, team_block, serial_block)
    b.position_at_end(serial_block)
    b.call(body, [*captured, I64(0), extent])
    b.branch(merge)
    b.position_at_end(team_block)
    records = [] if function.record is None else [function.record]
    captured += [*strides.values(), *records]
    kind = ir.LiteralStructType([v.type for v in captured])
    context = function.stack_alloc(kind)
    for i, value in enumerate(captured):
        b.store(value, b.gep(context, [I32(0), I32(i)], source_etype=kind))
    for record in records:
        timestamps.record_fork(b, record)
    b.call(
        function.kernel.teams.stage,
        [team, as_opaque_pointer(_thread_function(body, kind, list(strides), bool(records))), context, extent],
    )
    for record in records:
        timestamps.record_join(b, record)
    b.branch(merge)
    b.position_at_end(merge)


def _thread_function(
    body: ir.Function, kind: ir.LiteralStructType, slices: Sequence[int], timestamped: bool
) -> ir.Function:
    """The function that threads call: iterations of `body` with the values of a context.

    Args:
        body: the iterations.
        kind: type of the context: the arguments of `body` without the range, the bytes of a slice per argument in
            `slices`, and last the record of timestamps, where these are recorded.
        slices: positions of the arguments that point to slices, one per thread.
        timestamped: whether timestamps are recorded.
    """
    function = ir.Function(body.module, RUN_TYPE, body.module.get_unique_name(f"{body.name}.run"))
    function.linkage = "internal"
    function.attributes.add("nounwind")
    context, begin, end = function.args
    b = ir.IRBuilder(function.append_basic_block("entry"))
    values = load_fields(b, context, kind)
    work = None
    if timestamped or slices:
        thread = b.zext(b.call(declare(b.module, "omp_get_thread_num", I32, []), []), I64)
        work = timestamps.record_work_begin(b, values.pop(), thread) if timestamped else None
        values, strides = values[: len(values) - len(slices)], values[len(values) - len(slices) :]
        for k, stride in zip(slices, strides, strict=True):
            values[k] = b.gep(values[k], [b.mul(thread, stride)], source_etype=I8)
    b.call(body, [*values, begin, end])
    if work is not None:
        timestamps.record_work_end(b, work)
    b.ret_void()
    return function


def _outlined_body(
    enclosing: EnclosingFunction,
    nest: list[For],
    shared: list[Buffer],
    variables: list[Var],
    emit_body: BodyEmitter,
) -> ir.Function:
    """The function that runs iterations begin..end."""
    module = enclosing.kernel.module
    kinds = [PTR] * len(shared) + [I64] * (len(variables) + 2)
    name = module.get_unique_name(f"{enclosing.kernel.func.name}.{nest[0].var.name}")
    function = ir.Function(module, ir.FunctionType(VOID, kinds), name)
    function.linkage = "internal"
    for attribute in ("nounwind", "noinline"):
        function.attributes.add(attribute)
    pointers: dict[str, ir.Value] = {}
    for argument, buffer in zip(function.args, shared, strict=False):
        argument.name = buffer.name
        mark_buffer_argument(argument, buffer)
        pointers[buffer.name] = argument
    scope = enclosing.scope.fork()
    for argument, v in zip(function.args[len(shared) :], variables, strict=False):
        argument.name = v.name
        scope.bind(v, argument)
    emit_body(function, scope, pointers, nest)
    return function
