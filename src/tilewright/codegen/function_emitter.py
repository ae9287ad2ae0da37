"""Statements of one LLVM function: loops, blocks and stack buffers.

Serial loops become loops and unrolled ones are expanded. In a vectorized loop every lane-varying expression is a
vector. The body of a parallel loop becomes a function of its own (`outline_parallel`).
"""

from collections.abc import Iterator
from contextlib import ExitStack

from llvmlite import ir

from tilewright.codegen.emit_block import BlockEmitter
from tilewright.codegen.emit_control_flow import ControlFlow
from tilewright.codegen.emit_expr import ExprEmitter
from tilewright.codegen.emit_scope import EmitScope
from tilewright.codegen.horizontal_reduction import match_horizontal_reduction
from tilewright.codegen.kernel_context import KernelContext
from tilewright.codegen.legalize_vectors import shrink_to_active_lanes
from tilewright.codegen.llvm_types import I64, as_opaque_pointer, memory_type
from tilewright.codegen.outline_parallel import emit_parallel_loop
from tilewright.codegen.peel_last_iteration import conditions_before_last_iteration, is_around_vector_loop
from tilewright.codegen.register_pressure import has_register_pressure, is_register_accumulation
from tilewright.codegen.unswitch import (
    NestedBlock,
    Unswitch,
    choose_edge_unswitch,
    choose_unswitch,
    is_worth_unswitching,
)
from tilewright.errors import InternalError
from tilewright.expr.algebra.bounds import Bounds, interval
from tilewright.expr.algebra.polynomial import constant_value, polynomial
from tilewright.expr.nodes import Buffer, Expr, MemoryScope, Var
from tilewright.loops.ir import Block, For, LoopKind, Seq, Stmt, walk
from tilewright.loops.private_memory import PRIVATE_PADDING
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
        ir.IRBuilder(self.entry).branch(self._body)

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
                    counted[0].var, begin, end, lambda: self._emit_peeled(counted, innermost), nonempty=False
                )
            else:
                loops = [(loop.var, self.exprs.value(loop.extent)) for loop in counted]
                self.control.coalesced_loops(loops, begin, end, lambda: self._emit_peeled(counted, innermost))
        self.builder.ret_void()
        ir.IRBuilder(self.entry).branch(self._body)

    def _emit_outlined(
        self, function: ir.Function, scope: EmitScope, pointers: dict[str, ir.Value], nest: list[For]
    ) -> None:
        """The body of a parallel nest in a function of its own, whose last two arguments are the range."""
        outlined = FunctionEmitter(self.kernel, function, scope, pointers, team=None)
        outlined.emit_range(nest, function.args[-2], function.args[-1])

    def _emit_peeled(self, unpeeled: list[For], innermost: For) -> None:
        """One iteration of a nest of parallel loops.

        The last iteration of a loop is peeled where only there lanes are inactive: a branch selects a copy of the body
        in which the loop's variable is a constant.

        Args:
            unpeeled: loops of the nest that are not peeled yet.
            innermost: the innermost loop of the nest.
        """
        if not unpeeled:
            self._iteration(innermost)
            return
        loop, *inner_loops = unpeeled
        size = constant_value(polynomial(loop.extent))
        conditions = () if size is None else self._conditions_before_last_iteration(loop, innermost.body)
        if size is None or not conditions:
            self._emit_peeled(inner_loops, innermost)
            return
        index, merge = self.scope.variables[loop.var], self.builder.append_basic_block("either")
        last_block, other_block = self.control.branch_on(self.builder.icmp_signed("==", index, I64(size - 1)))
        self.builder.position_at_end(other_block)
        with self.scope.frame(True), self.scope.with_outcome(conditions, True):
            self._emit_peeled(inner_loops, innermost)
        self.control.prevent_tail_merging()
        self.builder.branch(merge)
        self.builder.position_at_end(last_block)
        del self.scope.variables[loop.var]
        with (
            self.scope.frame(True),
            self.scope.with_constant(loop.var, size - 1),
            self.scope.with_outcome(conditions, None),
        ):
            self._emit_peeled(inner_loops, innermost)
        self.scope.variables[loop.var] = index
        self.builder.branch(merge)
        self.builder.position_at_end(merge)

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
                for inner in stmts:
                    self.statement(inner)
            case Block():
                self.block_emitter.emit(s)
            case For():
                self.unswitched_loop(s)

    def unswitched_loop(self, loop: For) -> None:
        """One loop, in two copies behind a branch where it is unswitched."""
        unswitch = self._choose_unswitch(loop)
        if unswitch is None:
            self._loop_of_kind(loop)
            return
        merge = self.builder.append_basic_block("either")
        outcomes = (True, False if unswitch.exact else None)
        for outcome, block in zip(outcomes, self.control.branch_on(self.exprs.value(unswitch.test)), strict=True):
            self.builder.position_at_end(block)
            with self.scope.frame(True), self.scope.with_outcome(unswitch.conditions, outcome):
                self.unswitched_loop(loop)
            if outcome:
                self.control.prevent_tail_merging()
            self.builder.branch(merge)
        self.builder.position_at_end(merge)

    def _choose_unswitch(self, loop: For) -> Unswitch | None:
        """The condition to unswitch the loop on, where that pays."""
        if loop.kind is LoopKind.PARALLEL or self.scope.lane is not None:
            return None
        nested_blocks = self._nested_blocks(loop, self.scope.bounds, {})
        if is_worth_unswitching(loop):
            return choose_unswitch(nested_blocks, self.scope, self.block_emitter.has_cheap_masks)
        if loop.kind is LoopKind.VECTORIZED:
            return choose_edge_unswitch(
                nested_blocks, self.scope, lambda nested: not self.block_emitter.has_slow_masked_store(nested)
            )
        return None

    def _nested_blocks(self, s: Stmt, bounds: Bounds, expanded: dict[Var, int]) -> Iterator[NestedBlock]:
        match s:
            case Seq(stmts):
                for inner in stmts:
                    yield from self._nested_blocks(inner, bounds, expanded)
            case Block():
                with self.scope.with_bounds(bounds):
                    resolved = self.block_emitter.resolve(s)
                yield NestedBlock(resolved, expanded, bounds)
            case For():
                size = constant_value(polynomial(s.extent))
                if s.kind is LoopKind.VECTORIZED:
                    self.scope.vector_variables.add(s.var)
                if size is not None and s.kind in (LoopKind.VECTORIZED, LoopKind.UNROLLED):
                    expanded = {**expanded, s.var: size}
                yield from self._nested_blocks(s.body, bounds.with_loop(s.var, s.extent), expanded)

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
                self._serial_loop(loop)

    def _unrolled_loop(self, loop: For, size: int) -> None:
        """An unrolled loop, with compiler barriers between iterations where registers are short."""
        is_inside_vector = self.scope.lane is not None
        nested_blocks = () if is_inside_vector else tuple(self._nested_blocks(loop.body, self.scope.bounds, {}))
        needs_barriers = has_register_pressure(loop, nested_blocks, self.scope, self.kernel.target)
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

    def _serial_loop(self, loop: For) -> None:
        reduction = match_horizontal_reduction(loop, self.scope) if self.scope.lane is None else None
        if reduction is None or self.block_emitter.is_accumulating(reduction.block):
            self._counted_loop(loop)
        else:
            self.block_emitter.emit_horizontal_reduction(reduction, self.stack_alloc, lambda: self._counted_loop(loop))

    def _counted_loop(self, loop: For) -> None:
        """A loop of the generated code, its last iteration peeled where only there lanes are inactive."""
        if is_register_accumulation(loop, self.kernel.memory_resident, self.kernel.target):
            self.control.compiler_barrier()
        min_extent = interval(loop.extent, self.scope.bounds)[0] or 0
        stop = self.exprs.value(loop.extent)
        conditions = self._conditions_before_last_iteration(loop, loop.body)
        if not conditions:
            self.control.counted_loop(loop.var, I64(0), stop, lambda: self._iteration(loop), nonempty=min_extent > 0)
            return
        last = self.builder.sub(stop, I64(1), flags=("nsw",))
        with self.scope.with_outcome(conditions, True):
            self.control.counted_loop(loop.var, I64(0), last, lambda: self._iteration(loop), nonempty=min_extent > 1)
        size = constant_value(polynomial(loop.extent))
        if size is not None:
            with self.scope.with_constant(loop.var, size - 1), self.scope.with_outcome(conditions, None):
                self._iteration(loop)
            return
        with self.control.if_then(None if min_extent > 0 else self.builder.icmp_signed(">", stop, I64(0))):
            self.scope.bind(loop.var, last)
            with self.scope.frame(True), self.scope.with_outcome(conditions, None):
                self._iteration(loop)
            self.scope.variables.pop(loop.var, None)

    def _conditions_before_last_iteration(self, loop: For, body: Stmt) -> tuple[Expr, ...]:
        """Conditions on lanes and columns that hold before the last iteration of a loop, which is therefore peeled:
        always for a loop around a vectorized one, otherwise where its extent is a constant, so that the masks of the
        peeled iteration are, too."""
        if self.scope.lane is not None or loop.kind is LoopKind.VECTORIZED:
            return ()
        if not is_around_vector_loop(loop) and constant_value(polynomial(loop.extent)) is None:
            return ()
        nested_blocks = self._nested_blocks(body, self.scope.bounds.with_loop(loop.var, loop.extent), {})
        return conditions_before_last_iteration(loop, nested_blocks, self.scope, self.exprs.tiles.column_variables)

    def _iteration(self, loop: For) -> None:
        """One iteration: prefetches, then the body."""
        for hint in loop.prefetches:
            if not any(self.scope.is_lane_varying(i) for i in hint.indices):  # one prefetch per lane is too many
                self.exprs.prefetch(hint)
        self.statement(loop.body)


def _array_type(buffer: Buffer) -> ir.Type:
    size = constant_value(polynomial(buffer.size))
    if size is None:
        raise InternalError(f"buffer {buffer.name!r} of scope {buffer.scope} needs a constant shape, has {buffer}")
    return ir.ArrayType(memory_type(buffer.dtype), size + PRIVATE_PADDING)
