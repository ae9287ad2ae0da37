"""Emission state at a point of the generated code: variables, bounds and cached values.

Cached values (common subexpressions) live in frames. A *control-flow* frame belongs to a region (a function, a loop
body, an arm of a branch) and caches everything pure. The other frames belong to one instance of a block or of an
unrolled iteration and cache loads and whatever depends on constants of the instance.
"""

from collections.abc import Generator, Hashable
from contextlib import contextmanager
from dataclasses import dataclass, field

from llvmlite import ir

from tilewright.codegen.address import Address
from tilewright.expr.algebra.bounds import NO_BOUNDS, Bounds
from tilewright.expr.nodes import Binary, Cast, Const, Expr, Select, Unary, Var
from tilewright.expr.numpy_semantics import apply_integer
from tilewright.lower.dependencies import DependencyAnalysis


@dataclass(slots=True)
class ValueFrame:
    """Values and addresses that were emitted in one region."""

    is_control_flow: bool
    values: dict[Hashable, ir.Value] = field(default_factory=dict[Hashable, ir.Value])
    addresses: dict[Hashable, Address] = field(default_factory=dict[Hashable, Address])


class EmitScope:
    """Variables, bounds and cached values, as a stack that follows the emitted code.

    Attributes:
        dependencies: of expressions.
        constants: variables of unrolled loops, with their value here.
        variables: variables with a run-time value.
        loop_depth: nesting depth of every variable, outer ones first.
        lane: variable of the enclosing vectorized loop, if any.
        lanes: number of its lanes.
        bounds: ranges of the enclosing loops' variables.
    """

    def __init__(self, dependencies: DependencyAnalysis) -> None:
        self.dependencies = dependencies
        self.constants: dict[Var, int] = {}
        self.variables: dict[Var, ir.Value] = {}
        self.loop_depth: dict[Var, int] = {}
        self.lane: Var | None = None
        self.lanes = 0
        self.bounds: Bounds = NO_BOUNDS
        self.frames: list[ValueFrame] = [ValueFrame(True)]

    def fork(self) -> "EmitScope":
        """A scope for another function: the same facts without run-time values and cached ones."""
        other = EmitScope(self.dependencies)
        other.constants, other.loop_depth, other.bounds = dict(self.constants), dict(self.loop_depth), self.bounds
        return other

    def bind(self, var: Var, value: ir.Value) -> None:
        """Gives a variable a run-time value."""
        self.variables[var] = value
        self.loop_depth.setdefault(var, len(self.loop_depth))

    @contextmanager
    def frame(self, is_control_flow: bool) -> Generator[None]:
        """A region with a frame of its own."""
        self.frames.append(ValueFrame(is_control_flow))
        try:
            yield
        finally:
            self.frames.pop()

    @contextmanager
    def with_constant(self, var: Var, value: int) -> Generator[None]:
        """One unrolled iteration: the variable is a constant."""
        self.constants[var] = value
        try:
            with self.frame(False):
                yield
        finally:
            del self.constants[var]

    @contextmanager
    def with_only_value(self, var: Var, value: int) -> Generator[None]:
        """Where a variable with a run-time value has only one: it is a constant."""
        enclosing = self.variables.pop(var)
        try:
            with self.with_constant(var, value):
                yield
        finally:
            self.variables[var] = enclosing

    @contextmanager
    def in_vector_loop(self, var: Var, lanes: int) -> Generator[None]:
        """The body of a vectorized loop."""
        self.lane, self.lanes = var, lanes
        self.loop_depth.setdefault(var, len(self.loop_depth))
        try:
            with self.frame(False):  # no control flow: instances of the loop share common subexpressions
                yield
        finally:
            self.lane, self.lanes = None, 0

    @contextmanager
    def lane_by_lane(self) -> Generator[Var]:
        """Leaves the enclosing vectorized loop for a while: its variable, which is returned, is to be bound to a
        scalar."""
        lane, lanes, frames = self.lane, self.lanes, self.frames
        if lane is None:
            raise ValueError("no vectorized loop here")

        def is_lane_invariant(key: Hashable) -> bool:
            # frozensets and tuples are keys of parts of addresses (`emit_index`), which are dropped altogether
            return not isinstance(key, frozenset | tuple) and not (
                isinstance(key, Expr) and lane in self.dependencies(key).variables
            )

        lane_invariant = [ValueFrame(f.is_control_flow, {k: v for k, v in f.values.items() if is_lane_invariant(k)})
                for f in frames]  # fmt: skip
        self.lane, self.lanes, self.frames = None, 0, [*lane_invariant, ValueFrame(True)]
        try:
            yield lane
        finally:
            self.lane, self.lanes, self.frames = lane, lanes, frames
            self.variables.pop(lane, None)

    @contextmanager
    def with_bounds(self, bounds: Bounds) -> Generator[None]:
        """Other bounds for a while."""
        enclosing, self.bounds = self.bounds, bounds
        try:
            yield
        finally:
            self.bounds = enclosing

    def is_lane_varying(self, e: Expr) -> bool:
        """Whether the value differs between lanes."""
        return self.lane is not None and self.lane in self.dependencies(e).variables

    def lookup(self, key: Hashable) -> ir.Value | None:
        """The cached value; None where there is none that is valid here."""
        for frame in reversed(self.frames):
            value = frame.values.get(key)
            if value is not None:
                return value
        return None

    def cache(self, key: Hashable, value: ir.Value, is_shareable: bool) -> None:
        """Caches a value; `is_shareable` where it is pure and the same in all unrolled instances."""
        for frame in reversed(self.frames):
            if frame.is_control_flow or not is_shareable:
                frame.values[key] = value
                return

    def lookup_address(self, key: Hashable) -> Address | None:
        """The cached address; None where there is none that is valid here."""
        for frame in reversed(self.frames):
            address = frame.addresses.get(key)
            if address is not None:
                return address
        return None

    def cache_address(self, key: Hashable, address: Address) -> None:
        """Caches an address that does not depend on memory; the key holds the unrolled iteration."""
        next(f for f in reversed(self.frames) if f.is_control_flow).addresses[key] = address

    def is_shareable(self, e: Expr) -> bool:
        """Whether the value is pure and the same in all unrolled instances."""
        dependencies = self.dependencies(e)
        return not dependencies.reads_memory and self.constants.keys().isdisjoint(dependencies.variables)

    def fold(self, e: Expr, lane: int | None = None) -> int | None:
        """The constant value of an int64 or bool expression, in a lane where one is given; None where it is not
        constant."""
        if isinstance(e, Const):
            return int(e.value) if e.dtype.name in ("int64", "bool") else None
        dependencies = self.dependencies(e)
        if dependencies.reads_memory or e.dtype.name not in ("int64", "bool"):
            return None
        constants = self.constants.keys()
        for v in dependencies.variables:
            if v not in constants and (lane is None or v is not self.lane):
                return None
        return self._fold(e, lane)

    def fold_lanes(self, e: Expr) -> tuple[int, ...] | None:
        """`fold` for every lane of the enclosing vectorized loop; None where a lane's value is not constant."""
        if not self.is_lane_varying(e) or self.fold(e, 0) is None:
            return None
        values = tuple(self.fold(e, lane) for lane in range(self.lanes))
        return tuple(v for v in values if v is not None) if None not in values else None

    def _fold(self, e: Expr, lane: int | None) -> int | None:
        match e:
            case Const(value):
                # narrower types would wrap
                return int(value) if e.dtype.name in ("int64", "bool") else None
            case Var():
                return self.constants.get(e, lane)
            case Unary("not", a) if a.dtype.kind == "b":
                value = self._fold(a, lane)
                return None if value is None else 1 - value
            case Binary(op, a, b):
                x, y = self._fold(a, lane), self._fold(b, lane)
                return None if x is None or y is None else apply_integer(op, x, y)
            case Select(cond, a, b):
                test = self._fold(cond, lane)
                return None if test is None else self._fold(a if test else b, lane)
            case Cast(dtype, a) if dtype.name == "int64" and a.dtype.kind == "b":
                return self._fold(a, lane)
            case _:
                return None
