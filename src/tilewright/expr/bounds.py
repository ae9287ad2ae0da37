"""What is known about variables: inclusive ranges and facts; intervals of polynomials over them.

What follows from them is proved in `prover.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from tilewright.expr.nodes import Binary, Cast, Const, Expr, Load, Select, Var, conjuncts
from tilewright.expr.polynomial import Polynomial, polynomial

Interval = tuple[int | None, int | None]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Ranges of variables (inclusive, as expressions; later entries are inner) and facts (polynomials >= 0)."""

    ranges: Mapping[Var, tuple[Expr, Expr]] = field(default_factory=dict[Var, tuple[Expr, Expr]])
    facts: tuple[Expr, ...] = ()
    proved: "WeakKeyDictionary[Expr, bool]" = field(
        default_factory=WeakKeyDictionary["Expr", bool], compare=False, repr=False
    )

    def with_loop(self, var: Var, extent: Expr) -> "Bounds":
        """Adds 0 <= var < extent."""
        return Bounds({**self.ranges, var: (Const(0, extent.dtype), extent - 1)}, self.facts)

    def with_range(self, var: Var, lo: Expr, hi: Expr) -> "Bounds":
        """Adds lo <= var <= hi."""
        return Bounds({**self.ranges, var: (lo, hi)}, self.facts)

    def assuming(self, condition: Expr) -> "Bounds":
        """Adds the integer comparisons among the conjuncts of a condition; the others are dropped."""
        new = tuple(f for c in conjuncts(condition) for f in facts_of(c))
        return Bounds(self.ranges, self.facts + new) if new else self


NOTHING_KNOWN = Bounds()


def facts_of(c: Expr) -> tuple[Expr, ...]:
    """The expressions that are >= 0 exactly when the comparison holds."""
    if not isinstance(c, Binary) or c.a.dtype.name != "int64":
        return ()
    match c.op:
        case "lt":
            return (c.b - c.a - 1,)
        case "le":
            return (c.b - c.a,)
        case "gt":
            return (c.a - c.b - 1,)
        case "ge":
            return (c.a - c.b,)
        case "eq":
            return (c.a - c.b, c.b - c.a)
        case _:
            return ()


def _times(x: Interval, y: Interval) -> Interval:
    """The product of two intervals; 0 times anything is 0."""
    (a, b), (c, d) = x, y
    if a is not None and b is not None and c is not None and d is not None:
        if a >= 0 and c >= 0:
            return a * c, b * d
        ends = (a * c, a * d, b * c, b * d)
        return min(ends), max(ends)
    return _times_unbounded(x, y)


def _times_unbounded(x: Interval, y: Interval) -> Interval:
    infinity = float("inf")
    (a, b), (c, d) = ((-infinity if i is None else i, infinity if j is None else j) for i, j in (x, y))
    ends = [0 if p == 0 or q == 0 else p * q for p in (a, b) for q in (c, d)]
    low, high = min(ends), max(ends)
    return (None if low == -infinity else int(low), None if high == infinity else int(high))


def _scaled(x: Interval, c: int) -> Interval:
    low, high = (x[0], x[1]) if c >= 0 else (x[1], x[0])
    return (None if low is None else low * c), (None if high is None else high * c)


def atom_interval(atom: Expr, bounds: Bounds) -> Interval:
    """Integers that bound one atom of a polynomial, None where unbounded."""
    match atom:
        case Var():
            if atom in bounds.ranges:
                lo, hi = bounds.ranges[atom]
                return interval(lo, bounds)[0], interval(hi, bounds)[1]
            return atom.lo, atom.hi
        case Binary("mod", _, b):
            low, high = interval(b, bounds)
            if low is None or low < 0:
                return None, None
            return 0, None if high is None else high - 1
        case Binary("floordiv", a, b):
            (alo, ahi), (blo, bhi) = interval(a, bounds), interval(b, bounds)
            if blo is None or blo < 0:
                return None, None
            blo = max(blo, 1)
            low = None if alo is None else (alo // blo if alo < 0 else (alo // bhi if bhi is not None else 0))
            high = None if ahi is None else (ahi // blo if ahi >= 0 else (ahi // bhi if bhi is not None else -1))
            return low, high
        case Binary("min", a, b):
            (alo, ahi), (blo, bhi) = interval(a, bounds), interval(b, bounds)
            low = None if alo is None or blo is None else min(alo, blo)
            return low, (bhi if ahi is None else ahi if bhi is None else min(ahi, bhi))
        case Binary("max", a, b):
            (alo, ahi), (blo, bhi) = interval(a, bounds), interval(b, bounds)
            low = blo if alo is None else alo if blo is None else max(alo, blo)
            return low, (None if ahi is None or bhi is None else max(ahi, bhi))
        case Select(_, a, b):
            (alo, ahi), (blo, bhi) = interval(a, bounds), interval(b, bounds)
            low = None if alo is None or blo is None else min(alo, blo)
            return low, (None if ahi is None or bhi is None else max(ahi, bhi))
        case Cast(_, inner) if inner.dtype.kind == "b":
            return 0, 1
        case Cast(_, Load(buffer)) if buffer.dtype.kind == "u":
            return 0, (1 << buffer.dtype.bits) - 1
        case _:
            return None, None


def polynomial_interval(p: Polynomial, bounds: Bounds) -> Interval:
    """Integers that bound a polynomial, None where unbounded: `interval` on the normal form."""
    low: int | None = 0
    high: int | None = 0
    for monomial, c in p.items():
        part: Interval = (1, 1)
        for position, atom in enumerate(monomial):
            ends = atom_interval(atom, bounds)
            part = _times(part, ends) if position else ends
        part = _scaled(part, c)
        low = None if low is None or part[0] is None else low + part[0]
        high = None if high is None or part[1] is None else high + part[1]
    return low, high


def interval(e: Expr, bounds: Bounds = NOTHING_KNOWN) -> Interval:
    """Integers that bound an int64 expression from below and above, None where unbounded."""
    return polynomial_interval(polynomial(e), bounds)
