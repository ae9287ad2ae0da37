"""Parallel loops: the body becomes a function over a range of iterations, which the threads of a team divide.

    body(buffers..., values..., begin, end)      the iterations
    run(context, begin, end)                     the same for a thread that takes some: reads buffers and values

Parallel loops directly inside one another are one range of iterations, the innermost varying fastest.
Without a team or with one iteration the body is called directly. Parallel loops inside run serially.
"""

from collections import Counter
from typing import TYPE_CHECKING

from llvmlite import ir

from tilewright.codegen import stamps
from tilewright.codegen.team import RUN, unpacked
from tilewright.codegen.types import I32, I64, PTR, VOID, declared, opaque
from tilewright.expr.buffer import Buffer
from tilewright.expr.computation import Axis, points
from tilewright.expr.nodes import Var, free_vars, loads
from tilewright.loops.ir import For, Func, LoopKind, Stmt, blocks, walk

if TYPE_CHECKING:
    from tilewright.codegen.kernel import Writer


def mark_buffer(argument: ir.Argument, buffer: Buffer) -> None:
    """Attributes of a pointer to a buffer: nothing else points there, elements are aligned."""
    argument.add_attribute("noalias")
    argument.attributes.align = buffer.dtype.bytes


def used_buffers(s: Stmt) -> dict[str, Buffer]:
    """The buffers that a statement reads or writes, in the order of their first use."""
    found: dict[str, Buffer] = {}
    for block in blocks(s):
        for store in (block.init, block.body):
            if store is not None:
                for e in (*store.indices, store.value):
                    found.update((load.buffer.name, load.buffer) for load in loads(e))
                found[store.buffer.name] = store.buffer
        found.update((load.buffer.name, load.buffer) for load in loads(block.predicate))
    found.update((hint.buffer.name, hint.buffer) for x, _ in walk(s) if isinstance(x, For) for hint in x.prefetches)
    return found


def shared_buffers(func: Func, loop: For) -> list[Buffer]:
    """The buffers that a parallel loop uses and that live outside it; the others belong to every thread alone."""
    params = {b.name for b in func.params}
    within = _users(loop)
    everywhere = _users(func.body)
    return [b for n, b in used_buffers(loop).items() if n in params or within[n] != everywhere[n]]


def _users(s: Stmt) -> Counter[str]:
    return Counter(name for block in blocks(s) for name in used_buffers(block))


def emit(writer: "Writer", loop: For, team: ir.Value) -> None:
    """Writes a parallel loop at the writer's position, for a team of threads or, where it is null, for one."""
    shared = shared_buffers(writer.kernel.func, loop)
    variables = list(writer.scope.values)
    nest = parallel_nest(loop)
    body = _body(writer, nest, shared, variables)
    b = writer.builder
    captured = [*(writer.pointer(buffer) for buffer in shared), *(writer.scope.values[v] for v in variables)]
    extent = writer.values.value(points([Axis(x.var, x.extent) for x in nest]))
    shared_out = b.and_(b.icmp_unsigned("!=", team, PTR(None)), b.icmp_signed(">", extent, I64(1)))
    many, one, after = (b.append_basic_block(n) for n in ("team", "alone", "joined"))
    b.cbranch(shared_out, many, one)
    b.position_at_end(one)
    b.call(body, [*captured, I64(0), extent])
    b.branch(after)
    b.position_at_end(many)
    noted = [] if writer.record is None else [writer.record]
    captured += noted
    kind = ir.LiteralStructType([v.type for v in captured])
    context = writer.room(kind)
    for i, value in enumerate(captured):
        b.store(value, b.gep(context, [I32(0), I32(i)], source_etype=kind))
    for record in noted:
        stamps.fork(b, record)
    b.call(writer.kernel.teams.stage, [team, opaque(_run(body, kind, bool(noted))), context, extent])
    for record in noted:
        stamps.join(b, record)
    b.branch(after)
    b.position_at_end(after)


def _run(body: ir.Function, kind: ir.LiteralStructType, stamped: bool) -> ir.Function:
    """The function that threads call: the iterations of `body` with the values of a context, behind which stands the
    record for clock readings where these are noted."""
    function = ir.Function(body.module, RUN, body.module.get_unique_name(f"{body.name}.run"))
    function.linkage = "internal"
    function.attributes.add("nounwind")
    context, begin, end = function.args
    b = ir.IRBuilder(function.append_basic_block("entry"))
    values = unpacked(b, context, kind)
    noted = None
    if stamped:
        thread = b.zext(b.call(declared(b.module, "omp_get_thread_num", I32, []), []), I64)
        noted = stamps.share_begins(b, values.pop(), thread)
    b.call(body, [*values, begin, end])
    if noted is not None:
        stamps.share_ends(b, noted)
    b.ret_void()
    return function


def parallel_nest(loop: For) -> list[For]:
    """The loop and the parallel loops directly inside it whose extents are known before it."""
    nest = [loop]
    while isinstance(nest[-1].body, For) and nest[-1].body.kind is LoopKind.PARALLEL:
        inner = nest[-1].body
        if free_vars(inner.extent) & {x.var for x in nest}:
            break
        nest.append(inner)
    return nest


def _body(writer: "Writer", nest: list[For], shared: list[Buffer], variables: list[Var]) -> ir.Function:
    """The function that runs iterations begin..end."""
    from tilewright.codegen.kernel import Writer

    module = writer.kernel.module
    kinds = [PTR] * len(shared) + [I64] * (len(variables) + 2)
    name = module.get_unique_name(f"{writer.kernel.func.name}.{nest[0].var.name}")
    function = ir.Function(module, ir.FunctionType(VOID, kinds), name)
    function.linkage = "internal"
    for attribute in ("nounwind", "noinline"):
        function.attributes.add(attribute)
    pointers: dict[str, ir.Value] = {}
    for argument, buffer in zip(function.args, shared, strict=False):
        argument.name = buffer.name
        mark_buffer(argument, buffer)
        pointers[buffer.name] = argument
    scope = writer.scope.fork()
    for argument, v in zip(function.args[len(shared) :], variables, strict=False):
        argument.name = v.name
        scope.bind(v, argument)
    inner = Writer(writer.kernel, function, scope, pointers, team=None)
    inner.write_range(nest, function.args[-2], function.args[-1])
    return function
