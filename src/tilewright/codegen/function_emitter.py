"""Statements of one LLVM function: loops, blocks and stack buffers.

Serial loops become loops and unrolled ones are expanded. In a vectorized loop every lane-varying expression is a
vector. The body of a parallel loop becomes a function of its own (`outline_parallel`).
"""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

from llvmlite import ir

from tilewright.codegen.emit_block import BlockEmitter
from tilewright.codegen.emit_control_flow import ControlFlow
from tilewright.codegen.emit_expr import ExprEmitter
from tilewright.codegen.emit_scope import EmitScope
from tilewright.codegen.horizontal_reduction import HorizontalReduction, match_horizontal_reduction
from tilewright.codegen.kernel_context import KernelContext
from tilewright.codegen.llvm_types import I1, I8, I64, VOID, as_opaque_pointer, call_intrinsic, memory_type
from tilewright.codegen.outline_parallel import emit_parallel_loop
from tilewright.codegen.register_pressure import has_register_pressure, is_register_accumulation
from tilewright.errors import InternalError
from tilewright.expr.algebra.bounds import interval
from tilewright.expr.algebra.polynomial import constant_value, polynomial
from tilewright.expr.nodes import Binary, Buffer, Const, Expr, MemoryScope, Var
from tilewright.loops.ir import NOTHING, Block, For, If, LoopKind, Seq, Stmt, walk
from tilewright.loops.private_memory import PRIVATE_PADDING
from tilewright.lower.legalize_vectors import shrink_to_active_lanes
from tilewright.machine.alignment import BUFFER_ALIGNMENT


class FunctionEmitter:
    """Emits the statements of one LLVM function.

    Args:
        kernel: shared by the functions of the kernel.
        function: the function, without blocks yet.
        scope: variables bound at its start.
        pointers: addresses of the buffers from outside.
        team: pointer to the team of parallel loops, null where they run serially; None where they always do.
        record: pointer to the record of timestamps (`timestamps`); None where nothing is recorded.
    """

    def __init__(
        self,
        kernel: KernelContext,
        function: ir.Function,
        scope: EmitScope,
        pointers: dict[str, ir.Value],
        team: ir.Value | None,
        record: ir.Value | None = None,
    ) -> None:
        self.kernel, self.function, self.scope = kernel, function, scope
        self.pointers, self.team, self.record = pointers, team, record
        self.entry = function.append_basic_block("entry")
        body = function.append_basic_block("body")
        self.builder = ir.IRBuilder(body)
        self.exprs = ExprEmitter(self.builder, scope, kernel.target, self.pointer)
        self._body = body
        self.control = ControlFlow(self.builder, scope)
        self.block_emitter = BlockEmitter(self.control, self.exprs, kernel)

    def emit(self, body: Stmt) -> None:
        """The whole function."""
        self.statement(body)
        self.builder.ret_void()
        self._finish_entry()

    def emit_range(self, nest: list[For], begin: ir.Value, end: ir.Value) -> None:
        """The whole function, for iterations `begin` to `end` of a nest of parallel loops."""
        bounds = self.scope.bounds
        for loop in nest:
            bounds = bounds.with_loop(loop.var, loop.extent)
        innermost, single_iteration = nest[-1], [x.var for x in nest if constant_value(polynomial(x.extent)) == 1]
        counted = [loop for loop in nest if loop.var not in single_iteration]
        with self.scope.with_bounds(bounds), ExitStack() as constants:
            for var in single_iteration:
                constants.enter_context(self.scope.with_constant(var, 0))
            if len(counted) == 1:
                self.control.counted_loop(
                    counted[0].var, begin, end, lambda: self._iteration(innermost), nonempty=False
                )
            else:
                loops = [(loop.var, self.exprs.value(loop.extent)) for loop in counted]
                self.control.coalesced_loops(loops, begin, end, lambda: self._iteration(innermost))
        self.builder.ret_void()
        self._finish_entry()

    def _finish_entry(self) -> None:
        """Clears the private buffers whose inactive lanes are read, then begins the body.

        No result depends on these lanes, but what earlier functions left on the stack, such as halves of addresses, is
        a denormal number as a float: arithmetic on it took 20 times as long in a depthwise convolution of 5x5 taps.
        """
        entry = ir.IRBuilder(self.entry)
        for name, buffer in self.exprs.addresses.unmasked_buffers.items():
            if name in self.kernel.dead_lane_buffers:
                continue
            size = _element_count(buffer) * buffer.dtype.bytes
            call_intrinsic(entry, "memset.p0.i64", VOID, [self.pointers[name], I8(0), I64(size), I1(0)])
        entry.branch(self._body)

    def _emit_outlined(
        self, function: ir.Function, scope: EmitScope, pointers: dict[str, ir.Value], nest: list[For]
    ) -> None:
        """The body of a parallel nest in a function of its own, whose last two arguments are the range."""
        outlined = FunctionEmitter(self.kernel, function, scope, pointers, team=None)
        outlined.emit_range(nest, function.args[-2], function.args[-1])

    def pointer(self, buffer: Buffer) -> ir.Value:
        """The address of a buffer; a private one is allocated at its first use."""
        pointer = self.pointers.get(buffer.name)
        if pointer is None:
            if buffer.scope is MemoryScope.MEMORY:
                raise InternalError(f"buffer {buffer.name!r} has no memory", where=f"func {self.kernel.func.name!r}")
            pointer = self.pointers[buffer.name] = self.stack_alloc(_array_type(buffer))
            if buffer.name in self.kernel.memory_resident:
                self.control.prevent_promotion(pointer, ir.IRBuilder(self.entry))
        return pointer

    def stack_alloc(self, kind: ir.Type) -> ir.Value:
        """Memory on the function's stack."""
        slot = ir.IRBuilder(self.entry).alloca(kind)
        slot.align = BUFFER_ALIGNMENT
        return as_opaque_pointer(slot)

    # statements

    def statement(self, s: Stmt) -> None:
        """One statement."""
        match s:
            case Seq(stmts):
                self._sequence(stmts)
            case Block():
                self.block_emitter.emit(s)
            case For():
                self._sequence((s,))
            case If():
                self._branch(s)

    def _sequence(self, stmts: Sequence[Stmt]) -> None:
        """Statements one after the other; those that are one horizontal reduction together."""
        while stmts:
            reduction = self._match_horizontal_reduction(stmts)
            if reduction is None:
                self._statements(stmts[:1])
                stmts = stmts[1:]
            else:
                emit = partial(self._statements, reduction.stmts)
                self.block_emitter.emit_horizontal_reduction(reduction, self.stack_alloc, emit)
                stmts = stmts[len(reduction.stmts) :]

    def _statements(self, stmts: Sequence[Stmt]) -> None:
        for s in stmts:
            if isinstance(s, For):
                self._loop_of_kind(s)
            else:
                self.statement(s)

    def _match_horizontal_reduction(self, stmts: Sequence[Stmt]) -> HorizontalReduction | None:
        """The horizontal reduction that statements begin with, outside of others."""
        first = stmts[0]
        if self.scope.lane is not None or not isinstance(first, For) or first.kind is not LoopKind.SERIAL:
            return None
        reduction = match_horizontal_reduction(stmts, self.scope)
        if reduction is None or any(self.block_emitter.is_accumulating(b.block) for b in reduction.blocks):
            return None
        # the lanes of a single iteration are combined at once
        is_single = len(reduction.stmts) == 1 and constant_value(polynomial(first.extent)) == 1
        return None if is_single else reduction

    def _branch(self, s: If) -> None:
        """Two statements of which a condition selects one; a variable that has one value in the second is a constant
        there."""
        merge = self.builder.append_basic_block("either")
        last = None if s.otherwise == NOTHING else self._only_value_where_false(s.condition)
        if last is None:
            test = self.exprs.value(s.condition)
            bounds = [self.scope.bounds.where(s.condition, holds) for holds in (True, False)]
        else:
            # the variable becomes a constant in the second arm, which says more than its range
            bounds = [self.scope.bounds] * 2
            test = self.builder.icmp_signed("!=", self.scope.variables[last[0]], I64(last[1]))
        then_block, other_block = self.control.branch_on(test)
        self.builder.position_at_end(then_block)
        with self.scope.frame(True), self.scope.with_bounds(bounds[0]):
            self.statement(s.then)
        if s.otherwise != NOTHING:
            self.control.prevent_tail_merging()
        self.builder.branch(merge)
        self.builder.position_at_end(other_block)
        with ExitStack() as arm:
            arm.enter_context(self.scope.frame(True))
            arm.enter_context(self.scope.with_bounds(bounds[1]))
            if last is not None:
                arm.enter_context(self.scope.with_only_value(*last))
            self.statement(s.otherwise)
        self.builder.branch(merge)
        self.builder.position_at_end(merge)

    def _only_value_where_false(self, condition: Expr) -> tuple[Var, int] | None:
        """The variable and its only value where a condition `variable < constant` fails; None for other conditions."""
        match condition:
            case Binary("lt", Var() as var, Const(value)) if var in self.scope.variables:
                return (var, int(value)) if interval(var, self.scope.bounds)[1] == value else None
            case _:
                return None

    def _loop_of_kind(self, loop: For) -> None:
        """One loop, by its kind."""
        size = constant_value(polynomial(loop.extent))
        with self.scope.with_bounds(self.scope.bounds.with_loop(loop.var, loop.extent)):
            if size is not None and size <= 0:
                return
            if size == 1:
                with self.scope.with_constant(loop.var, 0):
                    self._iteration(loop)
            elif loop.kind is LoopKind.UNROLLED and size is not None:
                self._unrolled_loop(loop, size)
            elif loop.kind is LoopKind.VECTORIZED and size is not None and self._is_vectorizable(loop):
                self._vectorized_loop(loop, size)
            elif loop.kind is LoopKind.PARALLEL and (team := self.team) is not None and self.scope.lane is None:
                emit_parallel_loop(self, loop, team, self._emit_outlined)
            else:
                self._counted_loop(loop)

    def _unrolled_loop(self, loop: For, size: int) -> None:
        """An unrolled loop, with compiler barriers between iterations where registers are short."""
        is_inside_vector = self.scope.lane is not None
        nested_blocks = (
            () if is_inside_vector else tuple(self.block_emitter.blocks.inside(loop.body, self.scope.bounds))
        )
        needs_barriers = has_register_pressure(loop, nested_blocks, self.kernel.target)
        with self.exprs.tiles.in_unrolled_loop(loop, size, nested_blocks):
            for i in range(size):
                if needs_barriers and i:
                    self.control.compiler_barrier()
                with self.scope.with_constant(loop.var, i):
                    self._iteration(loop)

    def _vectorized_loop(self, loop: For, size: int) -> None:
        """A vectorized loop, without vectors at its end whose lanes are all inactive."""
        with self.scope.in_vector_loop(loop.var, size):
            active = self.block_emitter.max_active_lanes(loop.body)
        if active == 0:
            return
        if isinstance(loop.body, Block) and active < size:
            shorter = shrink_to_active_lanes(loop, loop.body, active, self.kernel.target)
            if shorter is not loop:
                self.statement(shorter)
                return
        with self.scope.in_vector_loop(loop.var, size):
            self.statement(loop.body)

    def _is_vectorizable(self, loop: For) -> bool:
        """Whether the extents of all inner loops are the same in all lanes."""
        if self.scope.lane is not None:
            return False
        inner_loops = (s for s, _ in walk(loop.body) if isinstance(s, For))
        return all(loop.var not in self.scope.dependencies(s.extent).variables for s in inner_loops)

    def _counted_loop(self, loop: For) -> None:
        """A loop of the generated code; a branch where it has at most one iteration."""
        if is_register_accumulation(loop, self.kernel.memory_resident, self.kernel.target):
            self.control.compiler_barrier()
        low, high = interval(loop.extent, self.scope.bounds)
        stop = self.exprs.value(loop.extent)
        if high == 1:
            is_run = self.builder.icmp_signed(">", stop, I64(0))
            with self.control.if_then(is_run), self.scope.with_constant(loop.var, 0):
                self._iteration(loop)
            return
        nonempty = low is not None and low > 0
        # ended by "<", a loop over `tiles - 1` runs for the maximum of that and 1, too expensive for LLVM to unroll it
        size = polynomial(loop.extent)
        latch = "!=" if constant_value(size) is None and size.get((), 0) < 0 else "<"
        self.control.counted_loop(loop.var, I64(0), stop, lambda: self._iteration(loop), nonempty, latch)

    def _iteration(self, loop: For) -> None:
        """One iteration: prefetches, then the body."""
        for hint in loop.prefetches:
            if not any(self.scope.is_lane_varying(i) for i in hint.indices):  # one prefetch per lane is too many
                self.exprs.prefetch(hint)
        self.statement(loop.body)


def _array_type(buffer: Buffer) -> ir.Type:
    return ir.ArrayType(memory_type(buffer.dtype), _element_count(buffer))


def _element_count(buffer: Buffer) -> int:
    """The elements of a private buffer with its padding."""
    size = constant_value(polynomial(buffer.size))
    if size is None:
        raise InternalError(f"buffer {buffer.name!r} of scope {buffer.scope} needs a constant shape, has {buffer}")
    return size + PRIVATE_PADDING
