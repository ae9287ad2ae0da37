"""Loops, blocks and stack buffers of one LLVM function."""

from collections.abc import Iterator
from contextlib import ExitStack

from llvmlite import ir

from tilewright.codegen.address import PRIVATE_PADDING
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
from tilewright.machine.alignment import BUFFER_ALIGNMENT


class FunctionEmitter:
    """Writes the statements of one LLVM function.

    Args:
        kernel: what is shared with the other functions of the kernel.
        function: the function, without blocks yet.
        scope: variables known at its start.
        pointers: addresses of the buffers that come from outside.
        team: pointer to the team that parallel loops use, null where they run serially; None where that is certain.
        record: where parallel loops note clock readings (`stamps`); None where they do not.
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
        self.block_emitter = BlockEmitter(self.control, self.exprs, kernel.target, kernel.dead_lane_buffers)

    def emit(self, body: Stmt) -> None:
        """The whole function."""
        self.statement(body)
        self.builder.ret_void()
        ir.IRBuilder(self.entry).branch(self._body)

    def emit_range(self, nest: list[For], begin: ir.Value, end: ir.Value) -> None:
        """The whole function, for some iterations of a nest of parallel loops."""
        known = self.scope.bounds
        for loop in nest:
            known = known.with_loop(loop.var, loop.extent)
        inside, once = nest[-1], [x.var for x in nest if constant_value(polynomial(x.extent)) == 1]
        moving = [loop for loop in nest if loop.var not in once]
        with self.scope.with_bounds(known), ExitStack() as fixed:
            for var in once:
                fixed.enter_context(self.scope.with_constant(var, 0))
            if len(moving) == 1:
                self.control.counted_loop(
                    moving[0].var, begin, end, lambda: self._emit_peeled(moving, inside), nonempty=False
                )
            else:
                loops = [(loop.var, self.exprs.value(loop.extent)) for loop in moving]
                self.control.coalesced_loops(loops, begin, end, lambda: self._emit_peeled(moving, inside))
        self.builder.ret_void()
        ir.IRBuilder(self.entry).branch(self._body)

    def _emit_outlined(
        self, function: ir.Function, scope: EmitScope, pointers: dict[str, ir.Value], nest: list[For]
    ) -> None:
        """The body of a parallel nest as a function of its own, whose last two arguments are the range."""
        outlined = FunctionEmitter(self.kernel, function, scope, pointers, team=None)
        outlined.emit_range(nest, function.args[-2], function.args[-1])

    def _emit_peeled(self, unpeeled: list[For], innermost: For) -> None:
        """One iteration of a nest of parallel loops. The last iteration of a loop is peeled where only there lanes have
        no work: a branch chooses a copy of the body in which the loop's variable is a constant.

        Args:
            moving: the loops of the nest that are not peeled yet.
            inside: the innermost loop of the nest.
        """
        if not unpeeled:
            self._iteration(innermost)
            return
        loop, *others = unpeeled
        size = constant_value(polynomial(loop.extent))
        full = () if size is None else self._conditions_before_last_iteration(loop, innermost.body)
        if size is None or not full:
            self._emit_peeled(others, innermost)
            return
        index, after = self.scope.variables[loop.var], self.builder.append_basic_block("either")
        at_end, before = self.control.branch_on(self.builder.icmp_signed("==", index, I64(size - 1)))
        self.builder.position_at_end(before)
        with self.scope.frame(True), self.scope.with_outcome(full, True):
            self._emit_peeled(others, innermost)
        self.control.prevent_tail_merging()
        self.builder.branch(after)
        self.builder.position_at_end(at_end)
        del self.scope.variables[loop.var]
        with self.scope.frame(True), self.scope.with_constant(loop.var, size - 1), self.scope.with_outcome(full, None):
            self._emit_peeled(others, innermost)
        self.scope.variables[loop.var] = index
        self.builder.branch(after)
        self.builder.position_at_end(after)

    def pointer(self, buffer: Buffer) -> ir.Value:
        """The address of a buffer; one that does not come from outside gets room at its first use."""
        found = self.pointers.get(buffer.name)
        if found is None:
            if buffer.scope is MemoryScope.MEMORY:
                raise InternalError(f"buffer {buffer.name!r} has no memory", where=f"func {self.kernel.func.name!r}")
            found = self.pointers[buffer.name] = self.stack_alloc(_array_type(buffer))
            if buffer.name in self.kernel.memory_resident:
                self.control.prevent_promotion(found, ir.IRBuilder(self.entry))
        return found

    def stack_alloc(self, kind: ir.Type) -> ir.Value:
        """Memory of the function's frame."""
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
        """One loop; where something inside can be decided before it, one copy for either outcome."""
        choice = self._choose_unswitch(loop)
        if choice is None:
            self._loop_of_kind(loop)
            return
        after = self.builder.append_basic_block("either")
        outcomes = (True, False if choice.exact else None)
        for outcome, block in zip(outcomes, self.control.branch_on(self.exprs.value(choice.test)), strict=True):
            self.builder.position_at_end(block)
            with self.scope.frame(True), self.scope.with_outcome(choice.conditions, outcome):
                self.unswitched_loop(loop)
            if outcome:
                self.control.prevent_tail_merging()
            self.builder.branch(after)
        self.builder.position_at_end(after)

    def _choose_unswitch(self, loop: For) -> Unswitch | None:
        """What to decide before the loop, where that pays."""
        if loop.kind is LoopKind.PARALLEL or self.scope.lane is not None:
            return None
        inside = self._nested_blocks(loop, self.scope.bounds, {})
        if is_worth_unswitching(loop):
            return choose_unswitch(inside, self.scope, self.block_emitter.has_cheap_masks)
        if loop.kind is LoopKind.VECTORIZED:
            return choose_edge_unswitch(
                inside, self.scope, lambda inner: not self.block_emitter.has_slow_masked_store(inner)
            )
        return None

    def _nested_blocks(self, s: Stmt, bounds: Bounds, expanded: dict[Var, int]) -> Iterator[NestedBlock]:
        match s:
            case Seq(stmts):
                for inner in stmts:
                    yield from self._nested_blocks(inner, bounds, expanded)
            case Block():
                with self.scope.with_bounds(bounds):
                    found = self.block_emitter.resolve(s)
                yield NestedBlock(found, expanded, bounds)
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
        """An unrolled loop."""
        inside = self._nested_blocks(loop.body, self.scope.bounds, {}) if self.scope.lane is None else ()
        apart = has_register_pressure(loop, inside, self.scope, self.kernel.target)
        for i in range(size):
            if apart and i:
                self.control.compiler_barrier()
            with self.scope.with_constant(loop.var, i):
                self._iteration(loop)

    def _vectorized_loop(self, loop: For, size: int) -> None:
        """A vectorized loop; vectors at its end that are known to have no work are left out."""
        with self.scope.in_vector_loop(loop.var, size):
            used = self.block_emitter.max_active_lanes(loop.body)
        if used == 0:
            return
        if isinstance(loop.body, Block) and used < size:
            shorter = shrink_to_active_lanes(loop, loop.body, used, self.kernel.target)
            if shorter is not loop:
                self.statement(shorter)
                return
        with self.scope.in_vector_loop(loop.var, size):
            self.statement(loop.body)

    def _is_vectorizable(self, loop: For) -> bool:
        """Whether no loop inside runs differently often in different lanes."""
        if self.scope.lane is not None:
            return False
        inner = (s for s, _ in walk(loop.body) if isinstance(s, For))
        return all(loop.var not in self.scope.dependencies(s.extent).variables for s in inner)

    def _serial_loop(self, loop: For) -> None:
        row = match_horizontal_reduction(loop, self.scope) if self.scope.lane is None else None
        if row is None or self.block_emitter.is_accumulating(row.block):
            self._counted_loop(loop)
        else:
            self.block_emitter.emit_horizontal_reduction(row, self.stack_alloc, lambda: self._counted_loop(loop))

    def _counted_loop(self, loop: For) -> None:
        """`for var in range(extent): body`."""
        if is_register_accumulation(loop, self.kernel.memory_resident, self.kernel.target):
            self.control.compiler_barrier()
        low = interval(loop.extent, self.scope.bounds)[0] or 0
        stop = self.exprs.value(loop.extent)
        full = self._conditions_before_last_iteration(loop, loop.body)
        if not full:
            self.control.counted_loop(loop.var, I64(0), stop, lambda: self._iteration(loop), nonempty=low > 0)
            return
        last = self.builder.sub(stop, I64(1), flags=("nsw",))
        with self.scope.with_outcome(full, True):
            self.control.counted_loop(loop.var, I64(0), last, lambda: self._iteration(loop), nonempty=low > 1)
        size = constant_value(polynomial(loop.extent))
        if size is not None:
            with self.scope.with_constant(loop.var, size - 1), self.scope.with_outcome(full, None):
                self._iteration(loop)
            return
        with self.control.if_then(None if low > 0 else self.builder.icmp_signed(">", stop, I64(0))):
            self.scope.bind(loop.var, last)
            with self.scope.frame(True), self.scope.with_outcome(full, None):
                self._iteration(loop)
            self.scope.variables.pop(loop.var, None)

    def _conditions_before_last_iteration(self, loop: For, body: Stmt) -> tuple[Expr, ...]:
        """Conditions of lanes that hold before the last iteration of a loop, which gets a copy of the body: in a loop
        around lanes alone always, else where the last iteration is known, so that its masks are constants."""
        if self.scope.lane is not None or loop.kind is LoopKind.VECTORIZED:
            return ()
        if not is_around_vector_loop(loop) and constant_value(polynomial(loop.extent)) is None:
            return ()
        inside = self._nested_blocks(body, self.scope.bounds.with_loop(loop.var, loop.extent), {})
        return conditions_before_last_iteration(loop, inside, self.scope)

    def _iteration(self, loop: For) -> None:
        """What one iteration of a loop does: its hints, then its body."""
        for hint in loop.prefetches:
            if not any(self.scope.is_lane_varying(i) for i in hint.indices):  # lanes would ask one by one
                self.exprs.prefetch(hint)
        self.statement(loop.body)


def _array_type(buffer: Buffer) -> ir.Type:
    size = constant_value(polynomial(buffer.size))
    if size is None:
        raise InternalError(f"buffer {buffer.name!r} of scope {buffer.scope} needs a constant shape, has {buffer}")
    return ir.ArrayType(memory_type(buffer.dtype), size + PRIVATE_PADDING)
