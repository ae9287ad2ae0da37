"""What is known at a point of the code being written: values of variables, bounds, and values computed already.

Remembered values live in frames. A *control* frame belongs to a region of control flow (a function, the body of a
loop, an arm of a branch); everything pure is remembered there. The other frames belong to one instance of a block or of
an unrolled iteration and hold loads and whatever depends on constants that differ between instances.
"""

from collections.abc import Generator, Hashable
from contextlib import contextmanager
from dataclasses import dataclass, field

from llvmlite import ir

from tilewright.expr.bounds import NOTHING_KNOWN, Bounds
from tilewright.expr.nodes import Binary, Cast, Const, Expr, Load, Select, Unary, Var, both, conjuncts, walk
from tilewright.expr.scalar import integer_operation


@dataclass(frozen=True, slots=True)
class Facts:
    """What an expression depends on: its variables, and whether it reads memory."""

    variables: frozenset[Var]
    loads: bool


class FactsOf:
    """`Facts` of expressions, remembered."""

    def __init__(self) -> None:
        self._known: dict[Expr, Facts] = {}

    def __call__(self, e: Expr) -> Facts:
        """The facts of an expression."""
        known = self._known.get(e)
        if known is None:
            for node in walk(e):
                if node not in self._known:
                    self._known[node] = self._of(node)
            known = self._known[e]
        return known

    def _of(self, e: Expr) -> Facts:
        if isinstance(e, Var):
            return Facts(frozenset((e,)), False)
        variables: frozenset[Var] = frozenset()
        loads = isinstance(e, Load)
        for child in e.children():
            facts = self._known[child]
            variables, loads = variables | facts.variables, loads or facts.loads
        return Facts(variables, loads)


@dataclass(slots=True)
class Frame:
    """Values computed in one region."""

    control: bool
    values: dict[Hashable, ir.Value] = field(default_factory=dict[Hashable, ir.Value])


class Scope:
    """Variables and remembered values, as a stack that follows the code being written.

    Attributes:
        facts: dependencies of expressions.
        fixed: variables that are constants here (unrolled loops).
        values: variables that are scalars at run time.
        depth: position of every variable in the nest; outer ones first.
        lane: the variable of the vectorized loop around, if any, and the number of its lanes.
        bounds: ranges of the loop variables around.
        decided: conditions known to hold here, because the code branched on them.
        left_open: conditions that the code branched on, and that may or may not hold here.
        decisions: how many such branches there are around.
        vector_variables: variables of vectorized loops seen so far.
    """

    def __init__(self, facts: FactsOf) -> None:
        self.facts = facts
        self.fixed: dict[Var, int] = {}
        self.values: dict[Var, ir.Value] = {}
        self.depth: dict[Var, int] = {}
        self.lane: Var | None = None
        self.lanes = 0
        self.bounds: Bounds = NOTHING_KNOWN
        self.frames: list[Frame] = [Frame(True)]
        self.decided: frozenset[Expr] = frozenset()
        self.left_open: frozenset[Expr] = frozenset()
        self.decisions = 0
        self.vector_variables: set[Var] = set()
        self._denied: tuple[frozenset[Expr], ...] = ()

    def fork(self) -> "Scope":
        """The same knowledge without run-time values, for another function."""
        other = Scope(self.facts)
        other.fixed, other.depth, other.bounds = dict(self.fixed), dict(self.depth), self.bounds
        other.decided, other._denied, other.left_open = self.decided, self._denied, self.left_open
        other.decisions = self.decisions
        return other

    def bind(self, var: Var, value: ir.Value) -> None:
        """Gives a variable a scalar value."""
        self.values[var] = value
        self.depth.setdefault(var, len(self.depth))

    @contextmanager
    def frame(self, control: bool) -> Generator[None]:
        """A region of its own."""
        self.frames.append(Frame(control))
        try:
            yield
        finally:
            self.frames.pop()

    @contextmanager
    def fixing(self, var: Var, value: int) -> Generator[None]:
        """One unrolled iteration: the variable is a constant."""
        self.fixed[var] = value
        try:
            with self.frame(False):
                yield
        finally:
            del self.fixed[var]

    @contextmanager
    def vectorizing(self, var: Var, lanes: int) -> Generator[None]:
        """The body of a vectorized loop."""
        self.lane, self.lanes = var, lanes
        self.depth.setdefault(var, len(self.depth))
        try:
            with self.frame(False):  # no control flow: instances of the loop share what they have in common
                yield
        finally:
            self.lane, self.lanes = None, 0

    @contextmanager
    def serialized(self) -> Generator[Var]:
        """Gives up the vectorized loop around for a while: its variable becomes an ordinary one, to be bound."""
        lane, lanes, frames = self.lane, self.lanes, self.frames
        if lane is None:
            raise ValueError("no vectorized loop here")
        depends = self.facts
        kept = [Frame(f.control, {k: v for k, v in f.values.items()
                                  if not (isinstance(k, Expr) and lane in depends(k).variables)
                                  and not isinstance(k, frozenset)}) for f in frames]  # fmt: skip
        self.lane, self.lanes, self.frames = None, 0, [*kept, Frame(True)]
        try:
            yield lane
        finally:
            self.lane, self.lanes, self.frames = lane, lanes, frames
            self.values.pop(lane, None)

    @contextmanager
    def knowing(self, bounds: Bounds) -> Generator[None]:
        """More bounds for a while."""
        before, self.bounds = self.bounds, bounds
        try:
            yield
        finally:
            self.bounds = before

    @contextmanager
    def deciding(self, conditions: tuple[Expr, ...], holds: bool | None) -> Generator[None]:
        """A copy of a nest in which conditions hold (True), do not all hold (False), or stay open (None)."""
        before = self.decided, self._denied, self.left_open
        self.decisions += 1
        if holds:
            self.decided |= frozenset(conditions)
        elif holds is None:
            self.left_open |= frozenset(conditions)
        else:
            self._denied = (*self._denied, frozenset(conditions))
        try:
            yield
        finally:
            self.decided, self._denied, self.left_open = before
            self.decisions -= 1

    def denied(self, condition: Expr) -> bool:
        """Whether it is known here that the condition does not hold."""
        if not self._denied:
            return False
        parts = frozenset(conjuncts(condition))
        return any(d <= parts for d in self._denied)

    def undecided(self, condition: Expr) -> Expr:
        """The condition without the conjuncts that are known to hold here."""
        if not self.decided:
            return condition
        return both(*(c for c in conjuncts(condition) if c not in self.decided))

    def by_lane(self, e: Expr) -> bool:
        """Whether the value differs between lanes."""
        return self.lane is not None and self.lane in self.facts(e).variables

    def lookup(self, key: Hashable) -> ir.Value | None:
        """The value computed already, where it is valid here."""
        for frame in reversed(self.frames):
            found = frame.values.get(key)
            if found is not None:
                return found
        return None

    def remember(self, key: Hashable, value: ir.Value, shareable: bool) -> None:
        """Keeps a value; `shareable` when it is pure and the same in all unrolled instances."""
        for frame in reversed(self.frames):
            if frame.control or not shareable:
                frame.values[key] = value
                return

    def shareable(self, e: Expr) -> bool:
        """Whether the value is pure and the same in all unrolled instances."""
        facts = self.facts(e)
        return not facts.loads and self.fixed.keys().isdisjoint(facts.variables)

    def fold(self, e: Expr, lane: int | None = None) -> int | None:
        """The integer (or truth value) of an expression over constants and, where given, the lane; else None."""
        if isinstance(e, Const):
            return int(e.value) if e.dtype.name in ("int64", "bool") else None
        facts = self.facts(e)
        if facts.loads or e.dtype.name not in ("int64", "bool"):
            return None
        known = self.fixed.keys()
        for v in facts.variables:
            if v not in known and (lane is None or v is not self.lane):
                return None
        return self._folded(e, lane)

    def fold_lanes(self, e: Expr) -> tuple[int, ...] | None:
        """`fold` for every lane of the vectorized loop around; None where that of any lane is not known."""
        if not self.by_lane(e) or self.fold(e, 0) is None:
            return None
        values = tuple(self.fold(e, lane) for lane in range(self.lanes))
        return tuple(v for v in values if v is not None) if None not in values else None

    def _folded(self, e: Expr, lane: int | None) -> int | None:
        match e:
            case Const(value):
                # arithmetic of narrower types wraps around
                return int(value) if e.dtype.name in ("int64", "bool") else None
            case Var():
                return self.fixed.get(e, lane)
            case Unary("not", a) if a.dtype.kind == "b":
                value = self._folded(a, lane)
                return None if value is None else 1 - value
            case Binary(op, a, b):
                x, y = self._folded(a, lane), self._folded(b, lane)
                return None if x is None or y is None else integer_operation(op, x, y)
            case Select(cond, a, b):
                test = self._folded(cond, lane)
                return None if test is None else self._folded(a if test else b, lane)
            case Cast(dtype, a) if dtype.name == "int64" and a.dtype.kind == "b":
                return self._folded(a, lane)
            case _:
                return None
