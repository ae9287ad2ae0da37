"""Expressions to LLVM values: scalars where all lanes agree, vectors where they differ, and lazy selects.

Inside a vectorized loop an expression that does not depend on the lane stays a scalar until it meets one that does. A
`Select` evaluates the loads of an arm only where its condition holds: per lane by masked loads; for all lanes at once
by reading zeros instead (short arms), or by a branch (long ones).
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace

from llvmlite import ir

from tilewright.codegen import division
from tilewright.codegen.arith import Arith
from tilewright.codegen.emit_index import IndexEmitter, IndexParts, linearize
from tilewright.codegen.emit_memory import PRIVATE_PADDING, ActiveLanes, Address, MemoryEmitter
from tilewright.codegen.emit_scope import EmitScope
from tilewright.codegen.llvm_types import (
    I1,
    I32,
    I64,
    broadcast,
    call_intrinsic,
    constant,
    lane_count,
    register_type,
    splat,
)
from tilewright.codegen.strided_loads import NO_MARGIN, ReadMargin, constant_stride
from tilewright.errors import InternalError
from tilewright.expr.algebra.bounds import interval
from tilewright.expr.algebra.polynomial import constant_value, polynomial
from tilewright.expr.dtype import int32, int64
from tilewright.expr.nodes import COMPARISONS, Binary, Buffer, Cast, Const, Expr, Load, MemoryScope, Select, Unary, Var
from tilewright.expr.operations import conjunction
from tilewright.expr.traversal import conjuncts, post_order
from tilewright.machine import Target

_AFFINE_OPS = ("add", "sub", "mul")
_MAX_CHEAP_NODES, _MAX_CHEAP_LOADS = 10, 2
_EXPENSIVE_OPS = frozenset(
    ("exp", "log", "tanh", "sigmoid", "erf", "pow", "div", "mod", "floordiv", "sin", "cos", "softplus")
)


class ExprEmitter:
    """Emits expressions at a builder's position.

    Args:
        builder: where the instructions go.
        scope: variables and remembered values.
        target: what the code runs on.
        pointer: gives the address of a buffer.
    """

    def __init__(
        self, builder: ir.IRBuilder, scope: EmitScope, target: Target, pointer: Callable[[Buffer], ir.Value]
    ) -> None:
        self.builder, self.scope, self.pointer = builder, scope, pointer
        self.arith = Arith(builder, target)
        self.memory = MemoryEmitter(self.arith)
        self.indices = IndexEmitter(builder, scope, self.value)
        self.active = ActiveLanes()
        self._linear_indices: dict[tuple[str, tuple[Expr, ...]], Expr] = {}
        self._in_bounds: dict[tuple[str, Expr], bool] = {}

    def value(self, e: Expr) -> ir.Value:
        """The value of an expression here."""
        found = self.scope.lookup(e)
        if found is None:
            found = self._emit(e)
            self.scope.cache(e, found, self.scope.is_shareable(e))
        return found

    def _emit(self, e: Expr) -> ir.Value:
        known = self.scope.fold(e)
        if known is not None:
            return constant(register_type(e.dtype), known)
        match e:
            case Const(value, dtype):
                return constant(register_type(dtype), value)
            case Var(name):
                return self._variable(e, name)
            case Binary(op) if e.dtype is int64 and op in _AFFINE_OPS:
                return self.indices.emit(e)
            case Binary():
                return self._binary(e)
            case Unary(op, a):
                return self.arith.unary(op, a.dtype, self.value(a))
            case Cast(dtype, a):
                return self._cast(e, a)
            case Select():
                return self._emit_select(e)
            case Load(buffer, indices):
                address = self.address(buffer, indices)
                return self.memory.load(buffer.dtype, address, self.accessible_lanes(buffer, address, self.active))
            case _:
                raise InternalError(f"cannot generate code for {type(e).__name__}")

    def _variable(self, e: Var, name: str) -> ir.Value:
        if e is self.scope.lane:
            return constant(ir.VectorType(I64, self.scope.lanes), list(range(self.scope.lanes)))
        found = self.scope.variables.get(e)
        if found is None:
            raise InternalError(f"variable {name!r} has no value here")
        return found

    def _cast(self, e: Cast, a: Expr) -> ir.Value:
        # an index that fits 32 bits converts to floating point in one instruction
        if a.dtype is int64 and e.dtype.is_float and not self.scope.dependencies(a).reads_memory:
            low, high = interval(a, self.scope.bounds)
            if low is not None and high is not None and low >= -(1 << 31) and high < 1 << 31:
                value = self.value(a)
                small = I32(value.constant) if isinstance(value, ir.Constant) and not lane_count(value) else (
                    self.builder.trunc(value, ir.VectorType(I32,
                    lane_count(value)) if lane_count(value) else I32))  # fmt: skip
                return self.arith.cast(int32, e.dtype, small)
        return self.arith.cast(a.dtype, e.dtype, self.value(a))

    def _binary(self, e: Binary) -> ir.Value:
        op, a, b = e.op, e.a, e.b
        if op in ("and", "or") and e.dtype.kind == "b":
            return self._logic(e)
        if a.dtype is int64:
            if op in ("floordiv", "mod"):
                low, high = interval(a, self.scope.bounds), interval(b, self.scope.bounds)
                if low[0] is not None and low[0] >= 0 and high[0] is not None and high[0] > 0:
                    x, y = broadcast(self.builder, self.value(a), self.value(b))
                    narrow = _fits_31_bits(low[1]) and _fits_31_bits(high[1])
                    return division.nonnegative_division(self.builder, op, x, y, narrow)
            if op in COMPARISONS and self.scope.is_lane_varying(e) and not self.scope.dependencies(e).reads_memory:
                known = self.scope.fold_lanes(e)
                if known is not None:
                    return constant(ir.VectorType(I1, len(known)), list(known))
                compared = self._lane_comparison(op, a, b)
                if compared is not None:
                    return compared
        return self.arith.binary(op, a.dtype, self.value(a), self.value(b))

    def _logic(self, e: Binary) -> ir.Value:
        """`and`/`or`, without the operand that a known one makes superfluous."""
        neutral = 1 if e.op == "and" else 0
        left, right = self.scope.fold(e.a), self.scope.fold(e.b)
        if left is not None:
            return self.value(e.b) if left == neutral else constant(I1, left)
        if right is not None:
            return self.value(e.a) if right == neutral else constant(I1, right)
        return self.arith.binary(e.op, e.dtype, self.value(e.a), self.value(e.b))

    def _lane_comparison(self, op: str, a: Expr, b: Expr) -> ir.Value | None:
        """A comparison of positions as one of small lane numbers with a scalar, where the lane counts once."""
        parts = self.indices.split_by_lane(a - b)
        lanes = self.scope.lanes
        if not isinstance(parts.lanes, tuple):
            return None
        step = parts.lanes[1] - parts.lanes[0] if lanes > 1 else 1
        start = parts.lanes[0]
        if abs(step) != 1 or any(v != start + step * i for i, v in enumerate(parts.lanes)):
            return None
        # uniform + offset + start + step*lane  op  0
        builder = self.builder
        rest: ir.Value = I64(parts.offset + start)
        if parts.uniform is not None:
            rest = builder.add(parts.uniform, rest, flags=("nsw",))
        limit = rest if step < 0 else builder.sub(I64(0), rest, flags=("nsw",))
        low = call_intrinsic(builder, "smax.i64", I64, [limit, I64(-1)])
        near = builder.trunc(call_intrinsic(builder, "smin.i64", I64, [low, I64(lanes)]), I32)
        numbers = constant(ir.VectorType(I32, lanes), list(range(lanes)))
        edges = splat(builder, near, lanes)
        sign = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}[op]
        x, y = (numbers, edges) if step > 0 else (edges, numbers)
        return builder.icmp_signed(sign, x, y)

    # memory

    def address(self, buffer: Buffer, indices: tuple[Expr, ...]) -> Address:
        """Where an element is; per lane where the indices differ between lanes."""
        position = self.linear_index(buffer, indices)
        first, *others = [self._address(buffer, parts) for parts in self.indices.split_by_subvector(position)]
        if others:
            return replace(first, offsets=None, subvectors=(first, *others))
        if first.offsets is None:
            return first
        room = self._read_margin(buffer, indices, position) if constant_stride(first.offsets) else NO_MARGIN
        return replace(first, in_bounds=self._is_position_in_bounds(buffer, position), margin=room)

    def _address(self, buffer: Buffer, parts: IndexParts) -> Address:
        base = self.pointer(buffer)
        if parts.uniform is not None:
            base = self.memory.offset_pointer(buffer.dtype, base, parts.uniform)
        base = self.memory.offset_pointer(buffer.dtype, base, parts.offset)
        if isinstance(parts.lanes, ir.Value):
            return Address(base, vector=parts.lanes)
        return Address(base, offsets=parts.lanes)

    def is_in_bounds(self, buffer: Buffer, indices: tuple[Expr, ...]) -> bool:
        """Whether an access is known to be one to a private buffer, or to the room behind it, in all lanes."""
        return self._is_position_in_bounds(buffer, self.linear_index(buffer, indices))

    def _is_position_in_bounds(self, buffer: Buffer, position: Expr) -> bool:
        """Whether a position is an element of a private buffer, or of the room behind it, wherever the loops are: their
        names are their own in a function (`verify/well_formed.py`), so that a position has one range."""
        found = self._in_bounds.get((buffer.name, position))
        if found is None:
            size = None if buffer.scope is MemoryScope.MEMORY else constant_value(polynomial(buffer.size))
            low, high = interval(position, self.scope.bounds.without_facts())
            known = None if size is None or low is None or high is None else (low, high - size)
            found = known is not None and known[0] >= 0 and known[1] < PRIVATE_PADDING
            self._in_bounds[buffer.name, position] = found
        return found

    def _read_margin(self, buffer: Buffer, indices: tuple[Expr, ...], position: Expr) -> ReadMargin:
        """What may be read around the lanes of an access, wherever the loops are that are not unrolled."""
        size = constant_value(polynomial(buffer.size))
        low, high = self.indices.interval(position)
        *outer, row = indices
        along = row if not any(self.scope.is_lane_varying(i) for i in outer) else position
        behind = PRIVATE_PADDING if buffer.scope is not MemoryScope.MEMORY else 0
        return ReadMargin(
            self.indices.constant_part(along),
            max(0, low) if low is not None else 0,
            max(0, size + behind - 1 - high) if size is not None and high is not None else 0,
        )

    def prefetch(self, hint: Load) -> None:
        """Asks for the cache line of an element, which will be read soon."""
        self.memory.prefetch(self.address(hint.buffer, hint.indices).base)

    def linear_index(self, buffer: Buffer, indices: tuple[Expr, ...]) -> Expr:
        """The row-major position of an element."""
        found = self._linear_indices.get((buffer.name, indices))
        if found is None:
            found = self._linear_indices[buffer.name, indices] = linearize(buffer, indices, self.scope)
        return found

    def lane_stride(self, buffer: Buffer, indices: tuple[Expr, ...], lane: Var) -> int | None:
        """By how many elements the position moves from lane to lane; None where that is not one number."""
        position, facts = self.linear_index(buffer, indices), self.scope.dependencies
        if lane not in facts(position).variables:
            return 0
        moving = [t for t in polynomial(position).items() if any(lane in facts(a).variables for a in t[0])]
        if not moving:
            return 0
        return moving[0][1] if len(moving) == 1 and moving[0][0] == (lane,) else None

    def accessible_lanes(self, buffer: Buffer, address: Address, active: ActiveLanes) -> ActiveLanes:
        """What may be read at an address: all lanes where the buffer is the function's own, with room behind it.

        Plain accesses are what LLVM turns into registers. A buffer that threads share keeps its masks, because writing
        an element back would race.
        """
        if active.mask is None or buffer.scope is MemoryScope.MEMORY or address.offsets is None:
            return active
        if not (active.nonempty or address.in_bounds):
            return active
        owner = self.pointer(buffer)
        own = isinstance(owner, ir.Instruction) and owner.opname == "alloca"
        near = min(address.offsets) >= 0 and max(address.offsets) < PRIVATE_PADDING
        return replace(active, mask=None) if own and near else active

    # selects

    def _emit_select(self, e: Select) -> ir.Value:
        condition = self.scope.residual(e.cond)
        known = 0 if self.scope.is_false(e.cond) else self.scope.fold(condition)
        if known is None and len(lanes := set(self.scope.fold_lanes(condition) or ())) == 1:
            (known,) = lanes
        if known is not None:
            return self.value(e.a if known else e.b)
        if isinstance(e.a, Load) and _is_zero(e.b) and (apart := self._split_condition(condition)) is not None:
            with self._guarded_loads(guard=self.value(apart[0]), mask=apart[1]):
                a, zeroed = self._load_under_guard(e.a)
            if zeroed:
                return a
        test = self.value(condition)
        if isinstance(test, ir.Constant) and not lane_count(test):
            return self.value(e.a if test.constant else e.b)
        if lane_count(test):
            return self._select_lanes(e, test)
        if _is_cheap(e.a) and _is_cheap(e.b):
            return self._select_both(e, test)
        return self._select_by_branch(e, test)

    def _split_condition(self, condition: Expr) -> tuple[Expr, ir.Value] | None:
        """A condition as one that all lanes share and a mask that is known now; None where it is not both."""
        parts = conjuncts(condition)
        shared = conjunction(*(c for c in parts if not self.scope.is_lane_varying(c)))
        lanes = conjunction(*(c for c in parts if self.scope.is_lane_varying(c)))
        known = self.scope.fold_lanes(lanes)
        if known is None or self.scope.fold(shared) is not None:
            return None
        return shared, constant(ir.VectorType(I1, len(known)), list(known))

    def _reads_memory(self, e: Expr) -> bool:
        return self.scope.dependencies(e).reads_memory

    def _select_lanes(self, e: Select, test: ir.Value) -> ir.Value:
        if isinstance(e.a, Load) and _is_zero(e.b):
            with self._guarded_loads(mask=test):
                a, zeroed = self._load_under_guard(e.a)
            return a if zeroed else self.arith.select(test, a, self.value(e.b))
        a = self._emit_arm(e.a, mask=test)
        b = self._emit_arm(e.b, mask=self.builder.not_(test)) if self._reads_memory(e.b) else self.value(e.b)
        return self.arith.select(test, a, b)

    def _select_both(self, e: Select, test: ir.Value) -> ir.Value:
        if isinstance(e.a, Load) and _is_zero(e.b):
            with self._guarded_loads(guard=test):
                # what a guard keeps from loading is read from zeros
                return self._load_under_guard(e.a)[0]
        a = self._emit_arm(e.a, guard=test)
        b = self._emit_arm(e.b, guard=self.builder.not_(test)) if self._reads_memory(e.b) else self.value(e.b)
        return self.arith.select(test, a, b)

    def _load_under_guard(self, e: Load) -> tuple[ir.Value, bool]:
        """A load under the present conditions, and whether lanes that the mask excludes are zero."""
        address = self.address(e.buffer, e.indices)
        shared = (
            address.vector is None
            and not address.subvectors
            and (address.offsets is None or len(set(address.offsets)) == 1)
        )
        return self.memory.load(e.buffer.dtype, address, self.active), not shared

    def _emit_arm(self, e: Expr, guard: ir.Value | None = None, mask: ir.Value | None = None) -> ir.Value:
        """The value of an arm whose loads happen only under a condition besides those that hold here."""
        if not self._reads_memory(e):
            return self.value(e)
        with self._guarded_loads(guard, mask):
            return self.value(e)

    @contextmanager
    def _guarded_loads(self, guard: ir.Value | None = None, mask: ir.Value | None = None) -> Generator[None]:
        """Loads happen only under a further condition, and are not remembered beyond it."""
        before = self.active
        both = self.builder.and_
        guard = before.guard if guard is None else guard if before.guard is None else both(before.guard, guard)
        some = before.nonempty and mask is None
        mask = before.mask if mask is None else mask if before.mask is None else both(before.mask, mask)
        self.active = ActiveLanes(guard, mask, some)
        try:
            with self.scope.frame(False):
                yield
        finally:
            self.active = before

    def _select_by_branch(self, e: Select, test: ir.Value) -> ir.Value:
        builder, scope = self.builder, self.scope
        lanes = scope.lanes if scope.is_lane_varying(e.a) or scope.is_lane_varying(e.b) else 0
        blocks = [builder.append_basic_block(n) for n in ("then", "else", "merge")]
        builder.cbranch(test, blocks[0], blocks[1])
        arms: list[tuple[ir.Value, ir.Block]] = []
        for arm, block in zip((e.a, e.b), blocks, strict=False):
            builder.position_at_end(block)
            with scope.frame(True):
                value = self.value(arm)
                if lanes:
                    value = splat(builder, value, lanes)
            arms.append((value, builder.block))
            builder.branch(blocks[2])
        builder.position_at_end(blocks[2])
        phi = builder.phi(arms[0][0].type)
        for value, block in arms:
            phi.add_incoming(value, block)
        return phi


def _fits_31_bits(value: int | None) -> bool:
    return value is not None and value < 1 << 31


def _is_zero(e: Expr) -> bool:
    """Whether all bits of a literal are zero."""
    return isinstance(e, Const) and str(e.value) in ("0", "0.0", "False")


def _is_cheap(e: Expr) -> bool:
    """Whether computing an arm in vain costs less than a branch; index arithmetic mostly leaves the loop anyway."""
    operations = loads = 0
    rest = [e]
    while rest:
        node = rest.pop()
        if isinstance(node, Unary | Binary) and node.op in _EXPENSIVE_OPS:
            return False
        if isinstance(node, Load):
            loads += sum(isinstance(n, Load) for n in post_order(node))
        else:
            operations += 1
            rest.extend(node.children())
        if operations > _MAX_CHEAP_NODES or loads > _MAX_CHEAP_LOADS:
            return False
    return True
