"""What is known about variables: inclusive ranges and facts.

What follows from them is proved in `prover.py`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import lru_cache
from math import lcm
from weakref import WeakKeyDictionary

from tilewright.expr.algebra.intervals import Interval, has_no_wrap, intersection, polynomial_interval, value_interval
from tilewright.expr.algebra.polynomial import add, expression, polynomial
from tilewright.expr.dtype import int64
from tilewright.expr.nodes import Binary, CompareOp, Const, Expr, Var, const
from tilewright.expr.traversal import conjuncts, has_loads


class ProofResult(Enum):
    """What the prover found out about an expression >= 0: it holds; quick means do not show it; it is not proved."""

    PROVED = auto()
    NOT_TRIVIAL = auto()
    UNPROVED = auto()


@dataclass(frozen=True, slots=True, eq=False)
class Bounds:
    """Ranges of variables (inclusive, as expressions; later entries are inner) and facts (polynomials >= 0).

    What says the same is one object (see `_bounds`), so that results of pure functions are remembered by it.

    `multiples` and `limits` follow from the facts: what an atom is a multiple of, where `atom % n == 0` was assumed,
    and between which numbers an atom lies that depends on data. `proved` remembers answers of the prover.
    """

    ranges: Mapping[Var, tuple[Expr, Expr]] = field(default_factory=dict[Var, tuple[Expr, Expr]])
    facts: tuple[Expr, ...] = ()
    multiples: Mapping[Expr, int] = field(default_factory=dict["Expr", int], repr=False)
    data_intervals: Mapping[Expr, Interval] = field(default_factory=dict["Expr", Interval], repr=False)
    proof_cache: "WeakKeyDictionary[Expr, ProofResult]" = field(
        default_factory=WeakKeyDictionary["Expr", ProofResult], repr=False
    )

    def with_loop(self, var: Var, extent: Expr) -> "Bounds":
        """Adds 0 <= var < extent."""
        return self.with_range(var, *_loop_range(extent))

    @classmethod
    def from_loops(cls, loops: "Iterable[tuple[Var, Expr]]") -> "Bounds":
        """What is known inside of loops, outermost first, of which each is a variable with its extent."""
        return _interned_bounds(tuple((var, _loop_range(extent)) for var, extent in loops), ())

    def with_range(self, var: Var, lo: Expr, hi: Expr) -> "Bounds":
        """Adds lo <= var <= hi."""
        ranges = {**self.ranges, var: (lo, hi)}
        return _interned_bounds(tuple(ranges.items()), self.facts)

    def assuming(self, condition: Expr) -> "Bounds":
        """Adds the integer comparisons among the conjuncts of a condition; the others are dropped."""
        known = self
        for c in conjuncts(condition):
            new = facts_of(c, known)
            known = _interned_bounds(tuple(known.ranges.items()), known.facts + new) if new else known
        return known

    def where(self, condition: Expr, taken: bool) -> "Bounds":
        """What is known where a condition holds, or where it does not."""
        known = condition if taken else negated_comparison(condition)
        return self if known is None else self.assuming(known)

    def without_facts(self) -> "Bounds":
        """The ranges alone."""
        return _interned_bounds(tuple(self.ranges.items()), ()) if self.facts else self


@lru_cache(maxsize=1 << 12)
def _loop_range(extent: Expr) -> tuple[Expr, Expr]:
    """The range of a variable that counts from 0."""
    return const(0), extent - 1


@lru_cache(maxsize=1 << 13)
def _interned_bounds(ranges: "tuple[tuple[Var, tuple[Expr, Expr]], ...]", facts: tuple[Expr, ...]) -> Bounds:
    """One object for what is equal, as it remembers what was proved: every block of a nest, every step of a schedule
    and every verification ask the same questions."""
    return Bounds(
        dict(ranges), facts, _multiples_from_facts(facts), _data_intervals_from_facts(facts, Bounds(dict(ranges)))
    )


def _multiples_from_facts(facts: tuple[Expr, ...]) -> dict[Expr, int]:
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


def _data_intervals_from_facts(facts: tuple[Expr, ...], ranges: Bounds) -> dict[Expr, Interval]:
    """The atoms that depend on data of which facts say k*atom + r >= 0, r without data, with what that leaves."""
    found: dict[Expr, Interval] = {}
    for f in facts:
        p = polynomial(f) if has_loads(f) else {}
        terms = [(m, k) for m, k in p.items() if any(has_loads(a) for a in m)]
        if len(terms) != 1 or len(terms[0][0]) != 1:
            continue
        (monomial, k) = terms[0]
        most = polynomial_interval({m: c for m, c in p.items() if m is not monomial}, ranges)[1]
        if most is None:
            continue
        limit = (-(most // k), None) if k > 0 else (None, most // -k)
        found[monomial[0]] = intersection(found.get(monomial[0], (None, None)), limit)
    return found


NO_BOUNDS = Bounds()


def facts_of(c: Expr, bounds: Bounds = NO_BOUNDS) -> tuple[Expr, ...]:
    """The expressions that are >= 0 exactly when a comparison of integers holds; none where a side of it may wrap.

    Narrower integers count as what they are in int64.
    """
    if not isinstance(c, Binary) or c.op not in _NEGATED_COMPARISON or not c.a.dtype.is_int:
        return ()
    if c.a.dtype is int64:
        a, b = c.a, c.b
    elif c.a.dtype.bits < 64:
        a, b = c.a.astype(int64), c.b.astype(int64)
    else:
        return ()
    if not (has_no_wrap(a, bounds) and has_no_wrap(b, bounds)):
        return ()
    match c.op:
        case "lt":
            return (difference(b, a, -1),)
        case "le":
            return (difference(b, a),)
        case "gt":
            return (difference(a, b, -1),)
        case "ge":
            return (difference(a, b),)
        case "eq":
            return (difference(a, b), difference(b, a))
        case _:
            return ()


def difference(a: Expr, b: Expr, offset: int = 0) -> Expr:
    """a - b + more as an integer; modulo 2**64 it could be another one where it depends on data."""
    if not (has_loads(a) or has_loads(b)):
        return a - b + offset if offset else a - b
    return expression(add(add(polynomial(a), polynomial(b), -1), {(): offset} if offset else {}))


_NEGATED_COMPARISON: Mapping[str, CompareOp] = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt", "eq": "ne", "ne": "eq"}


def negated_comparison(c: Expr) -> Expr | None:
    """The comparison of integers that holds exactly where `c` does not; None where `c` is none."""
    if isinstance(c, Binary) and c.op in _NEGATED_COMPARISON and c.a.dtype.is_int:
        return Binary(_NEGATED_COMPARISON[c.op], c.a, c.b)
    return None


def interval(e: Expr, bounds: Bounds = NO_BOUNDS) -> Interval:
    """Integers that bound an int64 expression from below and above, None where unbounded."""
    return value_interval(e, bounds)
