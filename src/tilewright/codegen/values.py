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
from tilewright.codegen.indices import Indices, Split, flattened
from tilewright.codegen.memory import PRIVATE_PADDING, Active, Address, Memory
from tilewright.codegen.scope import Scope
from tilewright.codegen.strided import NO_ROOM, Room, stride_of
from tilewright.codegen.types import I1, I32, I64, constant, count, intrinsic, matched, register_type, splat
from tilewright.errors import InternalError
from tilewright.expr import buffer as buffers
from tilewright.expr.bounds import interval
from tilewright.expr.buffer import Buffer
from tilewright.expr.dtype import int32, int64
from tilewright.expr.nodes import (
    COMPARISONS,
    Binary,
    Cast,
    Const,
    Expr,
    Load,
    Select,
    Unary,
    Var,
    both,
    conjuncts,
    walk,
)
from tilewright.expr.polynomial import constant_value, polynomial
from tilewright.machine import Target

_SUMS = ("add", "sub", "mul")
_CHEAP_NODES, _CHEAP_LOADS = 10, 2
_COSTLY = frozenset(("exp", "log", "tanh", "sigmoid", "erf", "pow", "div", "mod", "floordiv", "sin", "cos", "softplus"))


class Values:
    """Emits expressions at a builder's position.

    Args:
        builder: where the instructions go.
        scope: variables and remembered values.
        target: what the code runs on.
        pointer: gives the address of a buffer.
    """

    def __init__(
        self, builder: ir.IRBuilder, scope: Scope, target: Target, pointer: Callable[[Buffer], ir.Value]
    ) -> None:
        self.builder, self.scope, self.pointer = builder, scope, pointer
        self.arith = Arith(builder, target)
        self.memory = Memory(self.arith)
        self.indices = Indices(builder, scope, self.value)
        self.active = Active()
        self._positions: dict[tuple[str, tuple[Expr, ...]], Expr] = {}
        self._insides: dict[tuple[str, Expr], bool] = {}

    def value(self, e: Expr) -> ir.Value:
        """The value of an expression here."""
        found = self.scope.lookup(e)
        if found is None:
            found = self._computed(e)
            self.scope.remember(e, found, self.scope.shareable(e))
        return found

    def _computed(self, e: Expr) -> ir.Value:
        known = self.scope.fold(e)
        if known is not None:
            return constant(register_type(e.dtype), known)
        match e:
            case Const(value, dtype):
                return constant(register_type(dtype), value)
            case Var(name):
                return self._variable(e, name)
            case Binary(op) if e.dtype is int64 and op in _SUMS:
                return self.indices.emit(e)
            case Binary():
                return self._binary(e)
            case Unary(op, a):
                return self.arith.unary(op, a.dtype, self.value(a))
            case Cast(dtype, a):
                return self._cast(e, a)
            case Select():
                return self._select(e)
            case Load(buffer, indices):
                address = self.address(buffer, indices)
                return self.memory.load(buffer.dtype, address, self.reachable(buffer, address, self.active))
            case _:
                raise InternalError(f"cannot generate code for {type(e).__name__}")

    def _variable(self, e: Var, name: str) -> ir.Value:
        if e is self.scope.lane:
            return constant(ir.VectorType(I64, self.scope.lanes), list(range(self.scope.lanes)))
        found = self.scope.values.get(e)
        if found is None:
            raise InternalError(f"variable {name!r} has no value here")
        return found

    def _cast(self, e: Cast, a: Expr) -> ir.Value:
        # an index that fits 32 bits converts to floating point in one instruction
        if a.dtype is int64 and e.dtype.is_float and not self.scope.facts(a).loads:
            low, high = interval(a, self.scope.bounds)
            if low is not None and high is not None and low >= -(1 << 31) and high < 1 << 31:
                value = self.value(a)
                small = I32(value.constant) if isinstance(value, ir.Constant) and not count(value) else (
                    self.builder.trunc(value, ir.VectorType(I32, count(value)) if count(value) else I32))  # fmt: skip
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
                    x, y = matched(self.builder, self.value(a), self.value(b))
                    narrow = _below31(low[1]) and _below31(high[1])
                    return division.of_sizes(self.builder, op, x, y, narrow)
            if op in COMPARISONS and self.scope.by_lane(e) and not self.scope.facts(e).loads:
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
        parts = self.indices.split(a - b)
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
        low = intrinsic(builder, "smax.i64", I64, [limit, I64(-1)])
        near = builder.trunc(intrinsic(builder, "smin.i64", I64, [low, I64(lanes)]), I32)
        numbers = constant(ir.VectorType(I32, lanes), list(range(lanes)))
        edges = splat(builder, near, lanes)
        sign = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}[op]
        x, y = (numbers, edges) if step > 0 else (edges, numbers)
        return builder.icmp_signed(sign, x, y)

    # memory

    def address(self, buffer: Buffer, indices: tuple[Expr, ...]) -> Address:
        """Where an element is; per lane where the indices differ between lanes."""
        position = self.position(buffer, indices)
        first, *others = [self._address(buffer, parts) for parts in self.indices.runs(position)]
        if others:
            return replace(first, offsets=None, runs=(first, *others))
        if first.offsets is None:
            return first
        room = self._room(buffer, indices, position) if stride_of(first.offsets) else NO_ROOM
        return replace(first, inside=self._inside(buffer, position), room=room)

    def _address(self, buffer: Buffer, parts: Split) -> Address:
        base = self.pointer(buffer)
        if parts.uniform is not None:
            base = self.memory.moved(buffer.dtype, base, parts.uniform)
        base = self.memory.moved(buffer.dtype, base, parts.offset)
        if isinstance(parts.lanes, ir.Value):
            return Address(base, vector=parts.lanes)
        return Address(base, offsets=parts.lanes)

    def inside(self, buffer: Buffer, indices: tuple[Expr, ...]) -> bool:
        """Whether an access is known to be one to a private buffer, or to the room behind it, in all lanes."""
        return self._inside(buffer, self.position(buffer, indices))

    def _inside(self, buffer: Buffer, position: Expr) -> bool:
        """Whether a position is an element of a private buffer, or of the room behind it, wherever the loops are: their
        names are their own in a function (`loops/verify.py`), so that a position has one range."""
        found = self._insides.get((buffer.name, position))
        if found is None:
            size = None if buffer.scope is buffers.Scope.MEMORY else constant_value(polynomial(buffer.size))
            low, high = interval(position, self.scope.bounds.without_facts())
            known = None if size is None or low is None or high is None else (low, high - size)
            found = known is not None and known[0] >= 0 and known[1] < PRIVATE_PADDING
            self._insides[buffer.name, position] = found
        return found

    def _room(self, buffer: Buffer, indices: tuple[Expr, ...], position: Expr) -> Room:
        """What may be read around the lanes of an access, wherever the loops are that are not unrolled."""
        size = constant_value(polynomial(buffer.size))
        low, high = self.indices.interval(position)
        *outer, row = indices
        along = row if not any(self.scope.by_lane(i) for i in outer) else position
        behind = PRIVATE_PADDING if buffer.scope is not buffers.Scope.MEMORY else 0
        return Room(
            self.indices.constant(along),
            max(0, low) if low is not None else 0,
            max(0, size + behind - 1 - high) if size is not None and high is not None else 0,
        )

    def prefetch(self, hint: Load) -> None:
        """Asks for the cache line of an element, which will be read soon."""
        self.memory.prefetch(self.address(hint.buffer, hint.indices).base)

    def position(self, buffer: Buffer, indices: tuple[Expr, ...]) -> Expr:
        """The row-major position of an element."""
        found = self._positions.get((buffer.name, indices))
        if found is None:
            found = self._positions[buffer.name, indices] = flattened(buffer, indices, self.scope)
        return found

    def stride(self, buffer: Buffer, indices: tuple[Expr, ...], lane: Var) -> int | None:
        """By how many elements the position moves from lane to lane; None where that is not one number."""
        position, facts = self.position(buffer, indices), self.scope.facts
        if lane not in facts(position).variables:
            return 0
        moving = [t for t in polynomial(position).items() if any(lane in facts(a).variables for a in t[0])]
        if not moving:
            return 0
        return moving[0][1] if len(moving) == 1 and moving[0][0] == (lane,) else None

    def reachable(self, buffer: Buffer, address: Address, active: Active) -> Active:
        """What may be read at an address: all lanes where the buffer is the function's own, with room behind it.

        Plain accesses are what LLVM turns into registers. A buffer that threads share keeps its masks, because writing
        an element back would race.
        """
        if active.mask is None or buffer.scope is buffers.Scope.MEMORY or address.offsets is None:
            return active
        if not (active.some or address.inside):
            return active
        owner = self.pointer(buffer)
        own = isinstance(owner, ir.Instruction) and owner.opname == "alloca"
        near = min(address.offsets) >= 0 and max(address.offsets) < PRIVATE_PADDING
        return replace(active, mask=None) if own and near else active

    # selects

    def _select(self, e: Select) -> ir.Value:
        condition = self.scope.undecided(e.cond)
        known = 0 if self.scope.denied(e.cond) else self.scope.fold(condition)
        if known is None and len(lanes := set(self.scope.fold_lanes(condition) or ())) == 1:
            (known,) = lanes
        if known is not None:
            return self.value(e.a if known else e.b)
        if isinstance(e.a, Load) and _is_zero(e.b) and (apart := self._known_lanes(condition)) is not None:
            with self._under(guard=self.value(apart[0]), mask=apart[1]):
                a, zeroed = self._fresh_load(e.a)
            if zeroed:
                return a
        test = self.value(condition)
        if isinstance(test, ir.Constant) and not count(test):
            return self.value(e.a if test.constant else e.b)
        if count(test):
            return self._select_lanes(e, test)
        if _is_cheap(e.a) and _is_cheap(e.b):
            return self._select_both(e, test)
        return self._branch(e, test)

    def _known_lanes(self, condition: Expr) -> tuple[Expr, ir.Value] | None:
        """A condition as one that all lanes share and a mask that is known now; None where it is not both."""
        parts = conjuncts(condition)
        shared = both(*(c for c in parts if not self.scope.by_lane(c)))
        lanes = both(*(c for c in parts if self.scope.by_lane(c)))
        known = self.scope.fold_lanes(lanes)
        if known is None or self.scope.fold(shared) is not None:
            return None
        return shared, constant(ir.VectorType(I1, len(known)), list(known))

    def _reads(self, e: Expr) -> bool:
        return self.scope.facts(e).loads

    def _select_lanes(self, e: Select, test: ir.Value) -> ir.Value:
        if isinstance(e.a, Load) and _is_zero(e.b):
            with self._under(mask=test):
                a, zeroed = self._fresh_load(e.a)
            return a if zeroed else self.arith.select(test, a, self.value(e.b))
        a = self._arm(e.a, mask=test)
        b = self._arm(e.b, mask=self.builder.not_(test)) if self._reads(e.b) else self.value(e.b)
        return self.arith.select(test, a, b)

    def _select_both(self, e: Select, test: ir.Value) -> ir.Value:
        if isinstance(e.a, Load) and _is_zero(e.b):
            with self._under(guard=test):
                # what a guard keeps from loading is read from zeros
                return self._fresh_load(e.a)[0]
        a = self._arm(e.a, guard=test)
        b = self._arm(e.b, guard=self.builder.not_(test)) if self._reads(e.b) else self.value(e.b)
        return self.arith.select(test, a, b)

    def _fresh_load(self, e: Load) -> tuple[ir.Value, bool]:
        """A load under the present conditions, and whether lanes that the mask excludes are zero."""
        address = self.address(e.buffer, e.indices)
        shared = (
            address.vector is None and not address.runs and (address.offsets is None or len(set(address.offsets)) == 1)
        )
        return self.memory.load(e.buffer.dtype, address, self.active), not shared

    def _arm(self, e: Expr, guard: ir.Value | None = None, mask: ir.Value | None = None) -> ir.Value:
        """The value of an arm whose loads happen only under a condition besides those that hold here."""
        if not self._reads(e):
            return self.value(e)
        with self._under(guard, mask):
            return self.value(e)

    @contextmanager
    def _under(self, guard: ir.Value | None = None, mask: ir.Value | None = None) -> Generator[None]:
        """Loads happen only under a further condition, and are not remembered beyond it."""
        before = self.active
        both = self.builder.and_
        guard = before.guard if guard is None else guard if before.guard is None else both(before.guard, guard)
        some = before.some and mask is None
        mask = before.mask if mask is None else mask if before.mask is None else both(before.mask, mask)
        self.active = Active(guard, mask, some)
        try:
            with self.scope.frame(False):
                yield
        finally:
            self.active = before

    def _branch(self, e: Select, test: ir.Value) -> ir.Value:
        builder, scope = self.builder, self.scope
        lanes = scope.lanes if scope.by_lane(e.a) or scope.by_lane(e.b) else 0
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


def _below31(value: int | None) -> bool:
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
        if isinstance(node, Unary | Binary) and node.op in _COSTLY:
            return False
        if isinstance(node, Load):
            loads += sum(isinstance(n, Load) for n in walk(node))
        else:
            operations += 1
            rest.extend(node.children())
        if operations > _CHEAP_NODES or loads > _CHEAP_LOADS:
            return False
    return True
