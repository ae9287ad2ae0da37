"""Instances of blocks: one element, or one per lane of the vectorized loop around.

Lanes run together where their elements differ; a block whose lanes accumulate into one element combines them; what is
neither runs lane after lane. Conditions that all lanes share are branches, others masks.
"""

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import replace

from llvmlite import ir

from tilewright.codegen.accumulator import Accumulator, accumulator
from tilewright.codegen.blocks import Resolved, at_start, resolve, rises_from_start
from tilewright.codegen.control import Control
from tilewright.codegen.memory import Active, Address
from tilewright.codegen.reduction import RowReduction
from tilewright.codegen.types import I64, constant, count, splat
from tilewright.codegen.values import Values
from tilewright.codegen.versions import Inner
from tilewright.expr.buffer import Buffer, Scope
from tilewright.expr.nodes import FALSE, TRUE, Expr, Var, both, loads
from tilewright.expr.polynomial import constant_value, polynomial
from tilewright.loops.ir import Block, Stmt, Store
from tilewright.machine import Target


class BlockWriter:
    """Writes blocks at a builder's position.

    Args:
        control: control flow of the function.
        values: expressions of the function.
        target: what the code runs on.
        spare: names of buffers in which lanes without work may hold anything.
    """

    def __init__(self, control: Control, values: Values, target: Target, spare: frozenset[str] = frozenset()) -> None:
        self.control, self.values, self.target, self.spare = control, values, target, spare
        self.builder, self.scope, self.when = control.builder, control.scope, control.when
        self._resolved: dict[str, Resolved] = {}
        self._rows: dict[str, Accumulator] = {}

    def resolved(self, block: Block) -> Resolved:
        """The block over loop variables, worked out once."""
        known = self._resolved.get(block.name)
        if known is None:
            known = self._resolved[block.name] = resolve(block, self.scope.bounds)
        return known

    def block(self, block: Block) -> None:
        """One instance of a block: for one iteration, or for all lanes at once."""
        r = self.resolved(block)
        row = self._rows.get(block.name)
        conditions = [c for c in r.conditions if c not in self.scope.decided]
        uniform = self.condition(c for c in conditions if not self.scope.by_lane(c))
        if uniform is FALSE:
            return
        with self.when(None if uniform is TRUE else self.values.value(uniform)):
            lanes = tuple(c for c in conditions if self.scope.by_lane(c) and not self._holds_in_all_lanes(c))
            if row is not None:
                self._accumulate_row(r, lanes, row)
            elif self.scope.lane is None:
                self.write_element(r, Active())
            elif not self._lanewise(r) or (lanes and not self._native_masks(r, self.scope.lane)):
                self._serialized(r, lanes)
            elif any(self.scope.by_lane(i) for i in r.target.indices):
                self.write_element(r, self._active(lanes))
            else:
                self._uniform_target(r, lanes)

    def _holds_in_all_lanes(self, condition: Expr) -> bool:
        known = self.scope.fold_lanes(condition)
        return known is not None and all(known)

    def condition(self, conditions: Iterable[Expr]) -> Expr:
        """The conjunction of what is not known to hold here."""
        rest: list[Expr] = []
        for c in conditions:
            known = self.scope.fold(c)
            if known == 0:
                return FALSE
            if known is None:
                rest.append(c)
        return both(*rest)

    def lanes_with_work(self, body: Stmt) -> int:
        """How many lanes of the vectorized loop around may have work in a block, as far as constants tell; all of them
        where the body is no single block or accumulates in a vector."""
        lanes = self.scope.lanes
        if not isinstance(body, Block) or self.in_row(body):
            return lanes
        scope = self.scope
        conditions = [c for c in self.resolved(body).conditions if c not in scope.decided and scope.by_lane(c)]
        while lanes and any(scope.fold(c, lanes - 1) == 0 for c in conditions):
            lanes -= 1
        return lanes

    def cheap_masks(self, inner: Inner) -> bool:
        """Whether a block of a nest costs little more under a mask than without."""
        if not self.target.mask_registers:
            return False
        lane = next((v for v in inner.expanded if v in self.scope.vector_variables), None)
        with self.scope.knowing(inner.bounds):
            return self._native_masks(inner.block, lane)

    def slow_store(self, inner: Inner) -> bool:
        """Whether a block stores under masks of AVX2, which take longer than to ask whether they are needed: one takes
        Zen 3 18 cycles. What fits registers is stored whole; targets without masks ask anyway."""
        masks_in_vectors = self.target.has("avx2") and not self.target.mask_registers
        return masks_in_vectors and not self._fits_registers(inner.block.target.buffer)

    def _native_masks(self, r: Resolved, lane: Var | None) -> bool:
        """Whether the target masks all accesses by itself: their types, and elements side by side; of buffers of the
        function's own also others, where all lanes lie inside and none needs a mask."""
        target = self.target
        accesses = [(r.target.buffer, r.target.indices)]
        accesses += [(n.buffer, n.indices) for n in loads(r.target.value)]
        all_widths = target.has("avx512bw") and target.mask_registers
        if not all_widths and (not target.has("avx2") or any(b.dtype.bits < 32 for b, _ in accesses)):
            return False
        return lane is None or all(
            self.values.stride(b, i, lane) in (0, 1) or self.values.inside(b, i) for b, i in accesses
        )

    def _lanewise(self, r: Resolved) -> bool:
        """Whether all lanes may run at once."""
        lane = self.scope.lane
        if lane is None:
            return True
        by_lane = self.scope.by_lane
        reduces = [e for e in r.reduce if by_lane(e)]
        if any(by_lane(i) for i in r.target.indices):
            if reduces:
                return False
            offsets = self.values.address(r.target.buffer, r.target.indices).offsets
            return offsets is None or len(set(offsets)) == len(offsets)
        if r.op is not None:
            return all(rises_from_start(e, (lane,), self.scope.bounds) for e in reduces)
        return r.init is None and not by_lane(r.target.value) and not r.reads_target

    def _active(self, conditions: tuple[Expr, ...]) -> Active:
        lane = self.scope.lane
        if not conditions or lane is None:
            return Active()
        some = all(self.scope.fold(at_start(c, (lane,), self.scope.bounds)) for c in conditions)
        mask = self.values.value(both(*conditions))
        return Active(mask=splat(self.builder, mask, self.scope.lanes), some=some)

    @contextmanager
    def _touching(self, active: Active) -> Generator[None]:
        before, self.values.active = self.values.active, active
        try:
            yield
        finally:
            self.values.active = before

    def write_element(self, r: Resolved, active: Active) -> None:
        """Computes and stores the element of this iteration, or of every active lane."""
        values, dtype = self.values, r.target.buffer.dtype
        address = values.address(r.target.buffer, r.target.indices)
        with self._touching(active):
            if r.op is None:
                self._init_apart(r, active)
                result = values.value(r.target.value)
            else:
                # the operand first: its loads do not depend on what the accumulator holds
                operand = values.value(r.target.value)
                result = values.arith.binary(r.op, dtype, self._accumulator(r, address, active), operand)
            self._put(r.target.buffer, address, result, active)

    def _put(self, buffer: Buffer, address: Address, value: ir.Value, active: Active) -> None:
        """Stores a value; a buffer of our own is written whole, so that it stays in registers under a mask.

        One that registers can't hold is not: what is read back in between would wait for the store before.
        """
        memory = self.values.memory
        whole = self.values.reachable(buffer, address, active)
        if active.mask is not None and whole.mask is None and self._fits_registers(buffer):
            if buffer.name in self.spare:
                memory.store(buffer.dtype, address, splat(self.builder, value, self.scope.lanes), whole)
                return
            old = memory.load(buffer.dtype, address)
            value = self.values.arith.select(active.mask, splat(self.builder, value, self.scope.lanes), old)
            active = whole
        memory.store(buffer.dtype, address, value, active)

    def _fits_registers(self, buffer: Buffer) -> bool:
        """Whether all vector registers together hold a buffer."""
        size = constant_value(polynomial(buffer.size))
        room = self.target.vector_registers * self.target.vector_bits
        return buffer.scope is Scope.REGISTER or (size is not None and size * buffer.dtype.bits <= room)

    def _init_apart(self, r: Resolved, active: Active) -> None:
        """The init of a block whose body is no accumulation: stored under its own condition."""
        if r.init is None or self.scope.fold(r.first) == 0:
            return
        known = self.scope.fold(r.first) is not None
        with self.when(None if known else self.values.value(r.first)):
            self._store(r.init, active)

    def _store(self, store: Store, active: Active) -> None:
        address = self.values.address(store.buffer, store.indices)
        self._put(store.buffer, address, self.values.value(store.value), active)

    def _accumulator(self, r: Resolved, address: Address, active: Active, first: Expr | None = None) -> ir.Value:
        """What is combined with: the element's value, or that of `init` in the first iteration."""
        values, dtype = self.values, r.target.buffer.dtype
        active = values.reachable(r.target.buffer, address, active)
        if r.init is None:
            return values.memory.load(dtype, address, active)
        start = values.value(r.init.value)
        condition = r.first if first is None else first
        known = self.scope.fold(condition)
        if known:
            return start
        old = values.memory.load(dtype, address, active)
        return old if known == 0 else values.arith.select(values.value(condition), start, old)

    def _serialized(self, r: Resolved, conditions: tuple[Expr, ...]) -> None:
        """One lane after the other, where lanes depend on each other or masks would be slow."""
        whole = self._lanewise(r) and bool(conditions)
        if not whole:
            self._lane_loop(r, conditions)
            return
        mask = self.values.value(both(*conditions))
        bits = self.builder.bitcast(mask, ir.IntType(count(mask)))
        everything = self.builder.icmp_unsigned("==", bits, constant(bits.type, -1))
        with self.when(everything):
            if any(self.scope.by_lane(i) for i in r.target.indices):
                self.write_element(r, Active())
            else:
                self._uniform_target(r, ())
        with self.when(self.builder.not_(everything)):
            if r.target.buffer.scope is Scope.MEMORY or not any(self.scope.by_lane(i) for i in r.target.indices):
                self._lane_loop(r, conditions)
            else:
                # indices that are known keep a buffer of the function's own in registers
                self.write_element(r, self._active(conditions))

    def _lane_loop(self, r: Resolved, conditions: tuple[Expr, ...]) -> None:
        lanes = self.scope.lanes
        with self.scope.serialized() as lane:

            def one() -> None:
                with self.when(self.values.value(both(*conditions)) if conditions else None):
                    self.write_element(r, Active())

            self.control.ranged(lane, I64(0), I64(lanes), one, certain=True)

    def _uniform_target(self, r: Resolved, conditions: tuple[Expr, ...]) -> None:
        """All lanes write one element: an accumulation over the lanes, or the same value."""
        active = self._active(conditions)
        present = None if active.mask is None or active.some else self.values.memory.anywhere(active.mask)
        with self.when(present):
            if r.op is None:
                with self._touching(replace(active, some=True)):
                    self._store(r.target, Active())
                return
            with self._touching(replace(active, some=True)):
                operand = self._masked_operand(r, active)
            total = self.values.arith.reduce(r.op, r.target.buffer.dtype, operand)
            self._combine(r, total, (self.scope.lane,) if self.scope.lane is not None else ())

    def _masked_operand(self, r: Resolved, active: Active) -> ir.Value:
        """The vector to be combined; lanes that are not active have the identity."""
        operand = splat(self.builder, self.values.value(r.target.value), self.scope.lanes)
        if active.mask is None:
            return operand
        return self.values.arith.select(active.mask, operand, self.values.value(r.identity))

    def _combine(self, r: Resolved, total: ir.Value, variables: tuple[Var, ...]) -> None:
        """target = target op total; the first iteration is where the variables are 0."""
        dtype = r.target.buffer.dtype
        address = self.values.address(r.target.buffer, r.target.indices)
        first = at_start(r.first, variables, self.scope.bounds)
        old = self._accumulator(r, address, Active(), first)
        result = self.values.arith.binary(r.op or "add", dtype, old, total)
        self.values.memory.store(dtype, address, result)

    def _accumulate_row(self, r: Resolved, conditions: tuple[Expr, ...], row: Accumulator) -> None:
        active = self._active(conditions)
        with self._touching(active):
            row.take(self._masked_operand(r, active))

    # reductions of rows

    def row(self, row: RowReduction, room: Callable[[ir.Type], ir.Value], body: Callable[[], None]) -> None:
        """A reduction whose lanes accumulate in a vector over whole loops, and are combined once after them.

        Args:
            row: the loops and their block.
            room: gives memory of the function's frame.
            body: writes the loops.
        """
        with self.scope.knowing(row.bounds):
            r = self.resolved(row.block)
        outside = both(*row.outside)
        with self.when(None if outside is TRUE else self.values.value(outside)):
            identity = self.values.value(r.identity)
            found = accumulator(self.values.arith, r.op or "add", r.target.buffer.dtype, identity, row.lanes, room)
            self._rows[row.block.name] = found
            body()
            del self._rows[row.block.name]
            self._combine(r, found.total(), row.variables)

    def in_row(self, block: Block) -> bool:
        """Whether the block accumulates in a vector here already."""
        return block.name in self._rows
