"""Ranges of variables and facts that hold at a place of a program; the context of every proof (`prover.py`)."""

from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from enum import Enum, auto
from math import lcm
from weakref import WeakKeyDictionary

from tilewright.expr.algebra.intervals import Interval, has_no_wrap, intersection, polynomial_interval, value_interval
from tilewright.expr.algebra.polynomial import add, expression, polynomial
from tilewright.expr.dtype import int64
from tilewright.expr.nodes import Binary, CompareOp, Const, Expr, Var, const
from tilewright.expr.traversal import conjuncts, has_loads
from tilewright.kernel_caches import kernel_cache


class ProofResult(Enum):
    """Outcome for a goal e >= 0: proved by the fast prover; not by it alone; by elimination; not by that either."""

    TRIVIAL = auto()
    NOT_TRIVIAL = auto()
    PROVED = auto()
    UNPROVED = auto()


@dataclass(frozen=True, slots=True, eq=False)
class Bounds:
    """Ranges of variables and facts.

    Equal bounds made by the methods are one object (`_interned_bounds`), so they serve as keys of caches.

    Attributes:
        ranges: inclusive ends by variable, as expressions; outer loops first.
        facts: expressions that are >= 0.
        multiples: from facts `atom % n == 0`: the n of an atom (least common multiple of several).
        data_intervals: from the facts: intervals of data-dependent atoms.
        proves_divisors: whether a proof may ask for the proof that a divisor is positive; see `of_divisors`.
        proof_cache: outcomes of the prover by goal.
    """

    ranges: Mapping[Var, tuple[Expr, Expr]] = field(default_factory=dict[Var, tuple[Expr, Expr]])
    facts: tuple[Expr, ...] = ()
    multiples: Mapping[Expr, int] = field(default_factory=dict["Expr", int], repr=False)
    data_intervals: Mapping[Expr, Interval] = field(default_factory=dict["Expr", Interval], repr=False)
    proves_divisors: bool = True
    proof_cache: MutableMapping[Expr, ProofResult] = field(default_factory=dict["Expr", ProofResult], repr=False)

    def with_loop(self, var: Var, extent: Expr) -> "Bounds":
        """Adds 0 <= var < extent."""
        return self.with_range(var, *_loop_range(extent))

    @classmethod
    def from_loops(cls, loops: "Iterable[tuple[Var, Expr]]") -> "Bounds":
        """Bounds inside a loop nest, given as (variable, extent) pairs, outermost first."""
        return _interned_bounds(tuple((var, _loop_range(extent)) for var, extent in loops), ())

    def with_range(self, var: Var, lo: Expr, hi: Expr) -> "Bounds":
        """Adds lo <= var <= hi."""
        ranges = {**self.ranges, var: (lo, hi)}
        return _interned_bounds(tuple(ranges.items()), self.facts, self.proves_divisors)

    def assuming(self, condition: Expr) -> "Bounds":
        """Adds the integer comparisons among the conjuncts of a condition as facts; other conjuncts are dropped."""
        result = self
        for c in conjuncts(condition):
            facts = facts_of(c, result)
            if facts:
                result = _interned_bounds(tuple(result.ranges.items()), result.facts + facts, result.proves_divisors)
        return result

    def where(self, condition: Expr, taken: bool) -> "Bounds":
        """Bounds where a condition is true (`taken`) or false."""
        assumption = condition if taken else negated_comparison(condition)
        return self if assumption is None else self.assuming(assumption)

    def without_facts(self) -> "Bounds":
        """The same ranges with no facts."""
        return _interned_bounds(tuple(self.ranges.items()), (), self.proves_divisors) if self.facts else self

    def of_divisors(self) -> "Bounds":
        """The same for proofs that divisors are positive, which ask for no other such proof.

        Facts about a quotient make such proofs ask for each other in circles; cut anywhere else, what is proved would
        depend on which of them was asked for first.
        """
        return _interned_bounds(tuple(self.ranges.items()), self.facts, False)


@kernel_cache(maxsize=1 << 12)
def _loop_range(extent: Expr) -> tuple[Expr, Expr]:
    """The range of a loop variable: 0 .. extent - 1."""
    return const(0), extent - 1


@kernel_cache(maxsize=1 << 13)
def _interned_bounds(
    ranges: "tuple[tuple[Var, tuple[Expr, Expr]], ...]", facts: tuple[Expr, ...], proves_divisors: bool = True
) -> Bounds:
    """The one `Bounds` object of these ranges and facts, so that its proof cache is shared.

    Every block of a nest, every step of a schedule and every verification asks the same questions.
    """
    intervals = _data_intervals_from_facts(facts, Bounds(dict(ranges)))
    return Bounds(dict(ranges), facts, _multiples_from_facts(facts), intervals, proves_divisors)


def _multiples_from_facts(facts: tuple[Expr, ...]) -> dict[Expr, int]:
    """The atoms with a fact -(atom % n) >= 0, with the least common multiple of their n."""
    multiples: dict[Expr, int] = {}
    for f in facts:
        p = polynomial(f)
        for m, k in p.items():
            if len(p) == len(m) == 1 and k < 0 and isinstance(m[0], Binary) and m[0].op == "mod":
                dividend, n = m[0].a, m[0].b
                if isinstance(n, Const) and n.value > 0 and polynomial(dividend) == {(dividend,): 1}:
                    multiples[dividend] = lcm(multiples.get(dividend, 1), int(n.value))
    return multiples


def _data_intervals_from_facts(facts: tuple[Expr, ...], ranges: Bounds) -> dict[Expr, Interval]:
    """Intervals of the data-dependent atoms with a fact k*atom + r >= 0 where r is independent of data."""
    intervals: dict[Expr, Interval] = {}
    for f in facts:
        p = polynomial(f) if has_loads(f) else {}
        terms = [(m, k) for m, k in p.items() if any(has_loads(a) for a in m)]
        if len(terms) != 1 or len(terms[0][0]) != 1:
            continue
        (monomial, k) = terms[0]
        rest_max = polynomial_interval({m: c for m, c in p.items() if m is not monomial}, ranges)[1]
        if rest_max is None:
            continue
        half_line = (-(rest_max // k), None) if k > 0 else (None, rest_max // -k)
        intervals[monomial[0]] = intersection(intervals.get(monomial[0], (None, None)), half_line)
    return intervals


# it lives as long as the process, so that goals are not to live because of it
NO_BOUNDS = Bounds(proof_cache=WeakKeyDictionary())


def facts_of(c: Expr, bounds: Bounds = NO_BOUNDS) -> tuple[Expr, ...]:
    """The expressions that are >= 0 exactly when an integer comparison is true; empty where a side of it may wrap.

    Narrower integers are converted to int64 first.
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
    """The expression of the integer a - b + offset; built from normal forms where data could make it wrap."""
    if not (has_loads(a) or has_loads(b)):
        return a - b + offset if offset else a - b
    return expression(add(add(polynomial(a), polynomial(b), -1), {(): offset} if offset else {}))


_NEGATED_COMPARISON: Mapping[str, CompareOp] = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt", "eq": "ne", "ne": "eq"}


def negated_comparison(c: Expr) -> Expr | None:
    """The negation of an integer comparison; None where `c` is something else."""
    if isinstance(c, Binary) and c.op in _NEGATED_COMPARISON and c.a.dtype.is_int:
        return Binary(_NEGATED_COMPARISON[c.op], c.a, c.b)
    return None


def interval(e: Expr, bounds: Bounds = NO_BOUNDS) -> Interval:
    """Smallest and largest value of an int64 expression as far as known, None where unbounded."""
    return value_interval(e, bounds)
