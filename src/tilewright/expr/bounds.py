"""What is known about variables: inclusive ranges and facts; intervals of polynomials over them.

What follows from them is proved in `prover.py`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import lru_cache
from math import lcm
from weakref import WeakKeyDictionary

from tilewright.expr.nodes import Binary, Cast, CompareOp, Const, Expr, Load, Select, Var, conjuncts, const, loads
from tilewright.expr.polynomial import Polynomial, polynomial

Interval = tuple[int | None, int | None]


class Answer(Enum):
    """What the prover found out about an expression >= 0: it holds; quick means do not show it; it is not proved."""

    PROVED = auto()
    NOT_EVIDENT = auto()
    OPEN = auto()


@dataclass(frozen=True, slots=True, eq=False)
class Bounds:
    """Ranges of variables (inclusive, as expressions; later entries are inner) and facts (polynomials >= 0).

    What says the same is one object (see `_bounds`), so that results of pure functions are remembered by it.

    `multiples` follows from the facts: what an atom is a multiple of, where `atom % n == 0` was assumed. `proved`
    remembers answers of the prover.
    """

    ranges: Mapping[Var, tuple[Expr, Expr]] = field(default_factory=dict[Var, tuple[Expr, Expr]])
    facts: tuple[Expr, ...] = ()
    multiples: Mapping[Expr, int] = field(default_factory=dict["Expr", int], repr=False)
    proved: "WeakKeyDictionary[Expr, Answer]" = field(default_factory=WeakKeyDictionary["Expr", Answer], repr=False)

    def with_loop(self, var: Var, extent: Expr) -> "Bounds":
        """Adds 0 <= var < extent."""
        return self.with_range(var, *_counted(extent))

    @classmethod
    def inside(cls, loops: "Iterable[tuple[Var, Expr]]") -> "Bounds":
        """What is known inside of loops, outermost first, of which each is a variable with its extent."""
        return _bounds(tuple((var, _counted(extent)) for var, extent in loops), ())

    def with_range(self, var: Var, lo: Expr, hi: Expr) -> "Bounds":
        """Adds lo <= var <= hi."""
        ranges = {**self.ranges, var: (lo, hi)}
        return _bounds(tuple(ranges.items()), self.facts)

    def assuming(self, condition: Expr) -> "Bounds":
        """Adds the integer comparisons among the conjuncts of a condition; the others are dropped."""
        new = tuple(f for c in conjuncts(condition) for f in facts_of(c))
        return _bounds(tuple(self.ranges.items()), self.facts + new) if new else self

    def without_facts(self) -> "Bounds":
        """The ranges alone."""
        return _bounds(tuple(self.ranges.items()), ()) if self.facts else self


@lru_cache(maxsize=1 << 12)
def _counted(extent: Expr) -> tuple[Expr, Expr]:
    """The range of a variable that counts from 0."""
    return const(0), extent - 1


@lru_cache(maxsize=1 << 10)
def _bounds(ranges: "tuple[tuple[Var, tuple[Expr, Expr]], ...]", facts: tuple[Expr, ...]) -> Bounds:
    """One object for what is equal, as it remembers what was proved: every block of a nest, every step of a schedule
    and every verification ask the same questions."""
    return Bounds(dict(ranges), facts, _multiples(facts))


def _multiples(facts: tuple[Expr, ...]) -> dict[Expr, int]:
    """The atoms of which a fact says -(atom % n) >= 0, with the least common multiple of all n."""
    found: dict[Expr, int] = {}
    for f in facts:
        p = polynomial(f)
        for m, k in p.items():
            if len(p) == len(m) == 1 and k < 0 and isinstance(m[0], Binary) and m[0].op == "mod":
                whole, n = m[0].a, m[0].b
                if isinstance(n, Const) and n.value > 0 and polynomial(whole) == {(whole,): 1}:
                    found[whole] = lcm(found.get(whole, 1), int(n.value))
    return found


NOTHING_KNOWN = Bounds()


def facts_of(c: Expr) -> tuple[Expr, ...]:
    """The expressions that are >= 0 exactly when the comparison holds; none where sums of loaded values may wrap."""
    if not isinstance(c, Binary) or c.a.dtype.name != "int64" or _may_wrap(c.a) or _may_wrap(c.b):
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


def _may_wrap(e: Expr) -> bool:
    """Whether a side of a comparison is a sum of loaded values, which may be of any size; sizes and loops are not.

    A single term, as a clamped index is, stands for its value, however that came about.
    """
    if not loads(e):
        return False
    terms = polynomial(e)
    return len(terms) > 1 or any(k != 1 or len(m) != 1 for m, k in terms.items())


_OPPOSITE: Mapping[str, CompareOp] = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt", "eq": "ne", "ne": "eq"}


def opposite(c: Expr) -> Expr | None:
    """The comparison of int64 expressions that holds exactly where `c` does not; None where `c` is none."""
    if isinstance(c, Binary) and c.op in _OPPOSITE and c.a.dtype.name == "int64":
        return Binary(_OPPOSITE[c.op], c.a, c.b)
    return None


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
        case Cast(_, Load(buffer)) if buffer.dtype.kind == "u" and buffer.dtype.bits < 64:
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
