"""Blocks: one element, or one per lane of the enclosing vectorized loop.

Lanes that write different elements run together; lanes that accumulate into one element are combined; all other blocks
run lane by lane. Uniform conditions become branches, the others masks.
"""

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import replace

from llvmlite import ir

from tilewright.codegen.address import ActiveLanes, Address
from tilewright.codegen.emit_control_flow import ControlFlow
from tilewright.codegen.emit_expr import ExprEmitter
from tilewright.codegen.horizontal_reduction import HorizontalReduction
from tilewright.codegen.kernel_context import KernelContext
from tilewright.codegen.llvm_types import I64, constant, lane_count, splat
from tilewright.codegen.vector_accumulator import VectorAccumulator, make_accumulator
from tilewright.expr.nodes import FALSE, TRUE, Buffer, Expr, MemoryScope, Var
from tilewright.expr.operations import conjunction
from tilewright.loops.ir import Block, Stmt, Store
from tilewright.lower.nested_blocks import ResolvedBlocks
from tilewright.lower.resolve_block import (
    ResolvedBlock,
    at_first_iteration,
    is_minimal_at_first_iteration,
)


class BlockEmitter:
    """Emits blocks at a builder's position.

    Args:
        control: control flow of the function.
        exprs: expressions of the function.
        kernel: that the function belongs to.
    """

    def __init__(self, control: ControlFlow, exprs: ExprEmitter, kernel: KernelContext) -> None:
        self.control, self.exprs, self.target = control, exprs, kernel.target
        self.dead_lane_buffers, self.thread_slices = kernel.dead_lane_buffers, kernel.thread_slices
        self.builder, self.scope, self.if_then = control.builder, control.scope, control.if_then
        self.blocks = ResolvedBlocks()
        self._accumulators: dict[str, VectorAccumulator] = {}

    def resolve(self, block: Block) -> ResolvedBlock:
        """The block over loop variables, cached."""
        return self.blocks(block, self.scope.bounds)

    def emit(self, block: Block) -> None:
        """One instance of a block: of one iteration, or of all lanes at once."""
        r = self.resolve(block)
        if _is_unchanged(r):
            return
        accumulator = self._accumulators.get(block.name)
        conditions = r.conditions
        uniform_condition = self.residual_condition(c for c in conditions if not self.scope.is_lane_varying(c))
        if uniform_condition is FALSE:
            return
        with self.if_then(None if uniform_condition is TRUE else self.exprs.value(uniform_condition)):
            lane_conditions = tuple(
                c for c in conditions if self.scope.is_lane_varying(c) and not self._is_true_in_all_lanes(c)
            )
            if accumulator is not None:
                self._accumulate_lanes(r, lane_conditions, accumulator)
            elif self.scope.lane is None:
                self.emit_element(r, ActiveLanes())
            elif not self._is_lane_parallel(r) or (lane_conditions and not self._has_native_masks(r, self.scope.lane)):
                self._emit_by_lane(r, lane_conditions)
            elif any(self.scope.is_lane_varying(i) for i in r.target.indices):
                self.emit_element(r, self._active_lanes(lane_conditions))
            else:
                self._emit_uniform_target(r, lane_conditions)

    def _is_true_in_all_lanes(self, condition: Expr) -> bool:
        values = self.scope.fold_lanes(condition)
        return values is not None and all(values)

    def residual_condition(self, conditions: Iterable[Expr]) -> Expr:
        """The conjunction of the conditions that are not known to hold here."""
        unknown: list[Expr] = []
        for c in conditions:
            value = self.scope.fold(c)
            if value == 0:
                return FALSE
            if value is None:
                unknown.append(c)
        return conjunction(*unknown)

    def max_active_lanes(self, body: Stmt) -> int:
        """Lanes of the enclosing vectorized loop that may be active in a block, as far as constants decide; all lanes
        where the body is more than a block, or accumulates in a vector."""
        lanes = self.scope.lanes
        if not isinstance(body, Block) or self.is_accumulating(body):
            return lanes
        scope = self.scope
        conditions = [c for c in self.resolve(body).conditions if scope.is_lane_varying(c)]
        while lanes and any(scope.fold(c, lanes - 1) == 0 for c in conditions):
            lanes -= 1
        return lanes

    def _has_native_masks(self, r: ResolvedBlock, lane: Var) -> bool:
        return self.exprs.accesses.has_native_masks(r, lane, self.scope.bounds, self.exprs.tiles.is_transposed)

    def _is_lane_parallel(self, r: ResolvedBlock) -> bool:
        """Whether all lanes may run at once."""
        lane = self.scope.lane
        if lane is None:
            return True
        by_lane = self.scope.is_lane_varying
        reduces = [e for e in r.reduce_bindings if by_lane(e)]
        if any(by_lane(i) for i in r.target.indices):
            if reduces:
                return False
            offsets = self.exprs.addresses.address(r.target.buffer, r.target.indices).offsets
            return offsets is None or len(set(offsets)) == len(offsets)
        if r.op is not None:
            return all(is_minimal_at_first_iteration(e, (lane,), self.scope.bounds) for e in reduces)
        return r.init is None and not by_lane(r.target.value) and not r.reads_target

    def _active_lanes(self, conditions: tuple[Expr, ...]) -> ActiveLanes:
        lane = self.scope.lane
        if not conditions or lane is None:
            return ActiveLanes()
        nonempty = all(self.scope.fold(at_first_iteration(c, (lane,), self.scope.bounds)) for c in conditions)
        mask = self.exprs.value(conjunction(*conditions))
        return ActiveLanes(mask=splat(self.builder, mask, self.scope.lanes), nonempty=nonempty)

    @contextmanager
    def _with_active(self, active: ActiveLanes) -> Generator[None]:
        enclosing, self.exprs.active = self.exprs.active, active
        try:
            yield
        finally:
            self.exprs.active = enclosing

    def emit_element(self, r: ResolvedBlock, active: ActiveLanes) -> None:
        """Computes and stores the element of this iteration, or of every active lane."""
        exprs, dtype = self.exprs, r.target.buffer.dtype
        address = exprs.addresses.address(r.target.buffer, r.target.indices)
        with self._with_active(active):
            if r.op is None:
                self._emit_init(r, active)
                result = exprs.value(r.target.value)
            else:
                # the operand first: its loads do not depend on the accumulator
                operand = exprs.value(r.target.value)
                result = exprs.arith.binary(r.op, dtype, self._accumulator_value(r, address, active), operand)
            self._store_value(r.target.buffer, address, result, active)

    def _store_value(self, buffer: Buffer, address: Address, value: ir.Value, active: ActiveLanes) -> None:
        """Stores a value. A private buffer is stored whole, by a blend with the old vector, so that LLVM promotes it.

        A buffer too large for registers is stored under the mask: loads after the blend would wait for the previous
        store. A slice of the workspace is stored whole, as its tails are loaded soon: a masked store is not forwarded.
        """
        memory = self.exprs.memory
        is_slice = buffer.name in self.thread_slices
        if active.mask is not None and is_slice and self.exprs.addresses.is_within_padding(buffer, address, active):
            old = memory.load(buffer.dtype, address)
            value = self.exprs.arith.select(active.mask, splat(self.builder, value, self.scope.lanes), old)
            memory.store(buffer.dtype, address, value, replace(active, mask=None))
            return
        accessible = self.exprs.addresses.accessible_lanes(buffer, address, active)
        if active.mask is not None and accessible.mask is None and self.exprs.accesses.fits_registers(buffer):
            if buffer.name in self.dead_lane_buffers:
                memory.store(buffer.dtype, address, splat(self.builder, value, self.scope.lanes), accessible)
                return
            old = memory.load(buffer.dtype, address)
            value = self.exprs.arith.select(active.mask, splat(self.builder, value, self.scope.lanes), old)
            active = accessible
        memory.store(buffer.dtype, address, value, active)

    def _emit_init(self, r: ResolvedBlock, active: ActiveLanes) -> None:
        """The init of a block whose body is no accumulation, stored under its own condition."""
        if r.init is None or self.scope.fold(r.is_first) == 0:
            return
        is_constant = self.scope.fold(r.is_first) is not None
        with self.if_then(None if is_constant else self.exprs.value(r.is_first)):
            self._emit_store(r.init, active)

    def _emit_store(self, store: Store, active: ActiveLanes) -> None:
        address = self.exprs.addresses.address(store.buffer, store.indices)
        self._store_value(store.buffer, address, self.exprs.value(store.value), active)

    def _accumulator_value(
        self, r: ResolvedBlock, address: Address, active: ActiveLanes, first: Expr | None = None
    ) -> ir.Value:
        """The value to combine with: the element, or that of `init` in the first iteration."""
        exprs, dtype = self.exprs, r.target.buffer.dtype
        active = exprs.addresses.accessible_lanes(r.target.buffer, address, active)
        if r.init is None:
            return exprs.memory.load(dtype, address, active)
        initial = exprs.value(r.init.value)
        condition = r.is_first if first is None else first
        folded = self.scope.fold(condition)
        if folded:
            return initial
        old = exprs.memory.load(dtype, address, active)
        return old if folded == 0 else exprs.arith.select(exprs.value(condition), initial, old)

    def _emit_by_lane(self, r: ResolvedBlock, conditions: tuple[Expr, ...]) -> None:
        """One lane after the other, where lanes depend on each other or masks would be slow."""
        masked = self._is_lane_parallel(r) and bool(conditions)
        if not masked:
            self._lane_loop(r, conditions)
            return
        mask = self.exprs.value(conjunction(*conditions))
        bits = self.builder.bitcast(mask, ir.IntType(lane_count(mask)))
        all_active = self.builder.icmp_unsigned("==", bits, constant(bits.type, -1))
        with self.if_then(all_active):
            if any(self.scope.is_lane_varying(i) for i in r.target.indices):
                self.emit_element(r, ActiveLanes())
            else:
                self._emit_uniform_target(r, ())
        with self.if_then(self.builder.not_(all_active)):
            if r.target.buffer.scope is MemoryScope.MEMORY or not any(
                self.scope.is_lane_varying(i) for i in r.target.indices
            ):
                self._lane_loop(r, conditions)
            else:
                # constant indices keep a private buffer in registers
                self.emit_element(r, self._active_lanes(conditions))

    def _lane_loop(self, r: ResolvedBlock, conditions: tuple[Expr, ...]) -> None:
        lanes = self.scope.lanes
        with self.scope.lane_by_lane() as lane:

            def emit_lane() -> None:
                with self.if_then(self.exprs.value(conjunction(*conditions)) if conditions else None):
                    self.emit_element(r, ActiveLanes())

            self.control.counted_loop(lane, I64(0), I64(lanes), emit_lane, nonempty=True)

    def _emit_uniform_target(self, r: ResolvedBlock, conditions: tuple[Expr, ...]) -> None:
        """All lanes write one element: a reduction over the lanes, or the same value."""
        active = self._active_lanes(conditions)
        present = None if active.mask is None or active.nonempty else self.exprs.memory.any_lane(active.mask)
        with self.if_then(present):
            if r.op is None:
                with self._with_active(replace(active, nonempty=True)):
                    self._emit_store(r.target, ActiveLanes())
                return
            with self._with_active(replace(active, nonempty=True)):
                operand = self._masked_operand(r, active)
            total = self.exprs.arith.reduce_lanes(r.op, r.target.buffer.dtype, operand)
            self._combine_into_target(r, total, (self.scope.lane,) if self.scope.lane is not None else ())

    def _masked_operand(self, r: ResolvedBlock, active: ActiveLanes) -> ir.Value:
        """The vector to be combined; inactive lanes hold the identity."""
        operand = splat(self.builder, self.exprs.value(r.target.value), self.scope.lanes)
        if active.mask is None:
            return operand
        return self.exprs.arith.select(active.mask, operand, self.exprs.value(r.identity))

    def _combine_into_target(self, r: ResolvedBlock, total: ir.Value, variables: tuple[Var, ...]) -> None:
        """`target = target op total`; the first iteration is where the variables are 0."""
        dtype = r.target.buffer.dtype
        address = self.exprs.addresses.address(r.target.buffer, r.target.indices)
        is_first = at_first_iteration(r.is_first, variables, self.scope.bounds)
        old = self._accumulator_value(r, address, ActiveLanes(), is_first)
        result = self.exprs.arith.binary(r.op or "add", dtype, old, total)
        self.exprs.memory.store(dtype, address, result)

    def _accumulate_lanes(self, r: ResolvedBlock, conditions: tuple[Expr, ...], accumulator: VectorAccumulator) -> None:
        active = self._active_lanes(conditions)
        with self._with_active(active):
            accumulator.accumulate(self._masked_operand(r, active))

    # horizontal reductions

    def emit_horizontal_reduction(
        self, reduction: HorizontalReduction, stack_alloc: Callable[[ir.Type], ir.Value], body: Callable[[], None]
    ) -> None:
        """A reduction that accumulates in a vector over whole loops and combines the lanes once after them.

        Args:
            reduction: the loops and their blocks.
            stack_alloc: allocates on the function's stack.
            body: emits the loops.
        """
        first = reduction.blocks[0]
        with self.scope.with_bounds(first.bounds):
            r = self.resolve(first.block)
        invariant = conjunction(*first.invariant_conditions)
        with self.if_then(None if invariant is TRUE else self.exprs.value(invariant)):
            identity = self.exprs.value(r.identity)
            accumulator = make_accumulator(
                self.exprs.arith, r.op or "add", r.target.buffer.dtype, identity, first.lanes, stack_alloc
            )
            copies = {b.block.name: accumulator for b in reduction.blocks}
            self._accumulators |= copies
            body()
            for name in copies:
                del self._accumulators[name]
            self._combine_into_target(r, accumulator.reduce_lanes(), first.variables)

    def is_accumulating(self, block: Block) -> bool:
        """Whether the block is accumulating in a vector here."""
        return block.name in self._accumulators


def _is_unchanged(r: ResolvedBlock) -> bool:
    """Whether a block combines an element with the identity, as beyond the end of a sum in tiles that do not divide it.

    Emitted, both sides of the branch before it would add something, and LLVM adds what the two have computed after
    it: multiply-adds become products, which wait on the stack.
    """
    return r.op is not None and r.init is None and r.target.value is r.identity
