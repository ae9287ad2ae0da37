"""Expressions to LLVM values: scalars where all lanes agree, vectors where they vary, and lazy selects.

In a vectorized loop an expression stays a scalar until it is combined with a lane-varying one. A `Select` evaluates the
loads of an arm only where its condition holds: per lane by masked loads; for all lanes together by loads from a block
of zeros (cheap arms) or by a branch (expensive ones).
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial

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
    logical_and,
    register_type,
    splat,
    with_lanes,
)
from tilewright.codegen.transposed_tiles import TransposedTiles
from tilewright.errors import InternalError
from tilewright.expr.algebra.bounds import interval
from tilewright.expr.dtype import int32, int64
from tilewright.expr.nodes import COMPARISONS, Binary, Buffer, Cast, Const, Expr, Load, Select, Unary, Var
from tilewright.expr.operations import conjunction
from tilewright.expr.traversal import conjuncts, post_order
from tilewright.lower.lane_access import LaneAccesses
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
        scope: variables and cached values.
        target: what the code runs on.
        pointer: returns the address of a buffer.
    """

    def __init__(
        self, builder: ir.IRBuilder, scope: EmitScope, target: Target, pointer: Callable[[Buffer], ir.Value]
    ) -> None:
        self.builder, self.scope = builder, scope
        self.arith = Arith(builder, target)
        self.memory = MemoryEmitter(self.arith)
        self.indices = IndexEmitter(builder, scope, self.value)
        self.accesses = LaneAccesses(scope.dependencies, target)
        self.addresses = AddressEmitter(builder, scope, self.indices, self.accesses, pointer)
        self.tiles = TransposedTiles(self.arith, scope, self.accesses)
        self.active = ActiveLanes()

    def value(self, e: Expr) -> ir.Value:
        """The value of an expression here."""
        value = self.scope.lookup(e)
        if value is None:
            value = self._emit(e)
            self.scope.cache(e, value, self.scope.is_shareable(e))
        return value

    def _emit(self, e: Expr) -> ir.Value:
        folded = self.scope.fold(e)
        if folded is not None:
            return constant(register_type(e.dtype), folded)
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
                active = self.addresses.accessible_lanes(buffer, address, self.active)
                # rows of lanes that are known to be inactive are not read: what lies there may be slow to compute with
                is_known = isinstance(self.active.mask, ir.Constant)
                column = self.tiles.column(e, address, self.active if is_known else active)
                if column is not None:
                    return self.arith.from_memory(buffer.dtype, column)
                return self.memory.load(buffer.dtype, address, active)
            case _:
                raise InternalError(f"cannot generate code for {type(e).__name__}")

    def _variable(self, e: Var, name: str) -> ir.Value:
        if e is self.scope.lane:
            return constant(ir.VectorType(I64, self.scope.lanes), list(range(self.scope.lanes)))
        value = self.scope.variables.get(e)
        if value is None:
            raise InternalError(f"variable {name!r} has no value here")
        return value

    def _cast(self, e: Cast, a: Expr) -> ir.Value:
        # an index that fits 32 bits is converted to floating point by one instruction
        if a.dtype is int64 and e.dtype.is_float and not self.scope.dependencies(a).reads_memory:
            low, high = interval(a, self.scope.bounds)
            if low is not None and high is not None and low >= -(1 << 31) and high < 1 << 31:
                value = self.value(a)
                if isinstance(value, ir.Constant) and not lane_count(value):
                    narrow: ir.Value = I32(value.constant)
                else:
                    narrow = self.builder.trunc(value, with_lanes(I32, lane_count(value)))
                return self.arith.cast(int32, e.dtype, narrow)
        return self.arith.cast(a.dtype, e.dtype, self.value(a))

    def _binary(self, e: Binary) -> ir.Value:
        op, a, b = e.op, e.a, e.b
        if op in ("and", "or") and e.dtype.kind == "b":
            return self._logic(e)
        if a.dtype is int64:
            if op in ("floordiv", "mod"):
                dividend, divisor = interval(a, self.scope.bounds), interval(b, self.scope.bounds)
                if dividend[0] is not None and dividend[0] >= 0 and divisor[0] is not None and divisor[0] > 0:
                    x, y = broadcast(self.builder, self.value(a), self.value(b))
                    narrow = _fits_31_bits(dividend[1]) and _fits_31_bits(divisor[1])
                    return division.nonnegative_division(self.builder, op, x, y, narrow)
            if op in COMPARISONS and self.scope.is_lane_varying(e) and not self.scope.dependencies(e).reads_memory:
                values = self.scope.fold_lanes(e)
                if values is not None:
                    return constant(ir.VectorType(I1, len(values)), list(values))
                comparison = self._lane_comparison(op, a, b)
                if comparison is not None:
                    return comparison
        return self.arith.binary(op, a.dtype, self.value(a), self.value(b))

    def _logic(self, e: Binary) -> ir.Value:
        """`and` or `or`; an operand that a constant makes redundant is not emitted."""
        neutral = 1 if e.op == "and" else 0
        left_value, right_value = self.scope.fold(e.a), self.scope.fold(e.b)
        if left_value is not None:
            return self.value(e.b) if left_value == neutral else constant(I1, left_value)
        if right_value is not None:
            return self.value(e.a) if right_value == neutral else constant(I1, right_value)
        return self.arith.binary(e.op, e.dtype, self.value(e.a), self.value(e.b))

    def _lane_comparison(self, op: str, a: Expr, b: Expr) -> ir.Value | None:
        """A comparison of indices as one of lane numbers with a scalar, where the lane has the factor 1 or -1; else
        None."""
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
        scalar: ir.Value = I64(parts.offset + start)
        if parts.uniform is not None:
            scalar = builder.add(parts.uniform, scalar, flags=("nsw",))
        limit = scalar if step < 0 else builder.sub(I64(0), scalar, flags=("nsw",))
        clamped = call_intrinsic(builder, "smax.i64", I64, [limit, I64(-1)])
        edge = builder.trunc(call_intrinsic(builder, "smin.i64", I64, [clamped, I64(lanes)]), I32)
        lane_numbers = constant(ir.VectorType(I32, lanes), list(range(lanes)))
        edges = splat(builder, edge, lanes)
        sign = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}[op]
        x, y = (lane_numbers, edges) if step > 0 else (edges, lane_numbers)
        return builder.icmp_signed(sign, x, y)

    def prefetch(self, hint: Load) -> None:
        """Prefetches the cache line of an element."""
        self.memory.prefetch(self.addresses.address(hint.buffer, hint.indices).base)

    # selects

    def _emit_select(self, e: Select) -> ir.Value:
        condition = e.cond
        folded = self.scope.fold(condition)
        if folded is None and len(lanes := set(self.scope.fold_lanes(condition) or ())) == 1:
            (folded,) = lanes
        if folded is not None:
            return self.value(e.a if folded else e.b)
        if isinstance(e.a, Load) and _is_zero(e.b) and (split := self._split_condition(condition)) is not None:
            with self._guarded_loads(guard=self.value(split[0]), mask=split[1]):
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
        """A condition as a uniform one and a constant mask; None where it is not the conjunction of both."""
        parts = conjuncts(condition)
        uniform = conjunction(*(c for c in parts if not self.scope.is_lane_varying(c)))
        by_lane = conjunction(*(c for c in parts if self.scope.is_lane_varying(c)))
        mask = self.scope.fold_lanes(by_lane)
        if mask is None or self.scope.fold(uniform) is not None:
            return None
        return uniform, constant(ir.VectorType(I1, len(mask)), list(mask))

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
                # where the guard fails, the load reads zeros
                return self._load_under_guard(e.a)[0]
        a = self._emit_arm(e.a, guard=test)
        b = self._emit_arm(e.b, guard=self.builder.not_(test)) if self._reads_memory(e.b) else self.value(e.b)
        return self.arith.select(test, a, b)

    def _load_under_guard(self, e: Load) -> tuple[ir.Value, bool]:
        """A load under the present guard and mask, and whether lanes outside the mask are zero."""
        address = self.addresses.address(e.buffer, e.indices)
        column = self.tiles.column(e, address, self.active)
        if column is not None:
            return self.arith.from_memory(e.buffer.dtype, column), True
        is_uniform = (
            address.vector is None
            and not address.subvectors
            and (address.offsets is None or len(set(address.offsets)) == 1)
        )
        return self.memory.load(e.buffer.dtype, address, self.active), not is_uniform

    def _emit_arm(self, e: Expr, guard: ir.Value | None = None, mask: ir.Value | None = None) -> ir.Value:
        """The value of an arm whose loads happen only under a further condition."""
        if not self._reads_memory(e):
            return self.value(e)
        with self._guarded_loads(guard, mask):
            return self.value(e)

    @contextmanager
    def _guarded_loads(self, guard: ir.Value | None = None, mask: ir.Value | None = None) -> Generator[None]:
        """Loads happen only under a further condition, and are not cached beyond it."""
        enclosing = self.active
        both = partial(logical_and, self.builder)
        guard = enclosing.guard if guard is None else guard if enclosing.guard is None else both(enclosing.guard, guard)
        nonempty = enclosing.nonempty and mask is None
        mask = enclosing.mask if mask is None else mask if enclosing.mask is None else both(enclosing.mask, mask)
        self.active = ActiveLanes(guard, mask, nonempty)
        try:
            with self.scope.frame(False):
                yield
        finally:
            self.active = enclosing

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
    """Whether all bits of a constant are zero."""
    return isinstance(e, Const) and str(e.value) in ("0", "0.0", "False")


def _is_cheap(e: Expr) -> bool:
    """Whether evaluating an arm in vain costs less than a branch; index arithmetic is mostly hoisted out of the
    loop."""
    operations = loads = 0
    pending = [e]
    while pending:
        node = pending.pop()
        if isinstance(node, Unary | Binary) and node.op in _EXPENSIVE_OPS:
            return False
        if isinstance(node, Load):
            loads += sum(isinstance(n, Load) for n in post_order(node))
        else:
            operations += 1
            pending.extend(node.children())
        if operations > _MAX_CHEAP_NODES or loads > _MAX_CHEAP_LOADS:
            return False
    return True
