"""Expressions to LLVM values: scalars where all lanes agree, vectors where they differ, and lazy selects.

Inside a vectorized loop an expression that does not depend on the lane stays a scalar until it meets one that does. A
`Select` evaluates the loads of an arm only where its condition holds: per lane by masked loads; for all lanes at once
by reading zeros instead (short arms), or by a branch (long ones).
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager

from llvmlite import ir

from tilewright.codegen import division
from tilewright.codegen.address import ActiveLanes
from tilewright.codegen.arith import Arith
from tilewright.codegen.emit_address import AddressEmitter
from tilewright.codegen.emit_index import IndexEmitter
from tilewright.codegen.emit_memory import MemoryEmitter
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
from tilewright.errors import InternalError
from tilewright.expr.algebra.bounds import interval
from tilewright.expr.dtype import int32, int64
from tilewright.expr.nodes import COMPARISONS, Binary, Buffer, Cast, Const, Expr, Load, Select, Unary, Var
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
        self.builder, self.scope = builder, scope
        self.arith = Arith(builder, target)
        self.memory = MemoryEmitter(self.arith)
        self.indices = IndexEmitter(builder, scope, self.value)
        self.addresses = AddressEmitter(builder, scope, self.indices, pointer)
        self.active = ActiveLanes()

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
                address = self.addresses.address(buffer, indices)
                return self.memory.load(
                    buffer.dtype, address, self.addresses.accessible_lanes(buffer, address, self.active)
                )
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

    # selects

    def prefetch(self, hint: Load) -> None:
        """Prefetches the cache line of an element."""
        self.memory.prefetch(self.addresses.address(hint.buffer, hint.indices).base)

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
        address = self.addresses.address(e.buffer, e.indices)
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
