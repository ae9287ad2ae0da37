"""What is known about variables: inclusive ranges and facts; intervals and proofs over polynomials.

The prover eliminates one variable after the other, the innermost first, replacing it by the end of its range
that makes the goal hardest. It is sound, not complete: False means "not proved".
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import gcd

from tilewright.expr.nodes import Binary, Cast, Const, Expr, Load, Select, Var, conjuncts
from tilewright.expr.polynomial import Monomial, Polynomial, added, multiplied, polynomial, sort_key

Interval = tuple[int | None, int | None]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Ranges of variables (inclusive, as expressions; later entries are inner) and facts (polynomials >= 0)."""

    ranges: Mapping[Var, tuple[Expr, Expr]] = field(default_factory=dict[Var, tuple[Expr, Expr]])
    facts: tuple[Expr, ...] = ()

    def with_loop(self, var: Var, extent: Expr) -> "Bounds":
        """Adds 0 <= var < extent."""
        return Bounds({**self.ranges, var: (Const(0, extent.dtype), extent - 1)}, self.facts)

    def with_range(self, var: Var, lo: Expr, hi: Expr) -> "Bounds":
        """Adds lo <= var <= hi."""
        return Bounds({**self.ranges, var: (lo, hi)}, self.facts)

    def assuming(self, condition: Expr) -> "Bounds":
        """Adds the integer comparisons among the conjuncts of a condition; the others are dropped."""
        new = tuple(f for c in conjuncts(condition) for f in _as_facts(c))
        return Bounds(self.ranges, self.facts + new) if new else self


NOTHING_KNOWN = Bounds()


def _as_facts(c: Expr) -> tuple[Expr, ...]:
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
    ends: list[float] = []
    for a in (x[0] if x[0] is not None else -float("inf"), x[1] if x[1] is not None else float("inf")):
        for b in (y[0] if y[0] is not None else -float("inf"), y[1] if y[1] is not None else float("inf")):
            ends.append(0 if a == 0 or b == 0 else a * b)
    low, high = min(ends), max(ends)
    return (None if low == -float("inf") else int(low), None if high == float("inf") else int(high))


def _atom_interval(atom: Expr, bounds: Bounds) -> Interval:
    match atom:
        case Var():
            if atom in bounds.ranges:
                lo, hi = bounds.ranges[atom]
                return interval(lo, bounds)[0], interval(hi, bounds)[1]
            return atom.lo, atom.hi
        case Binary("mod", _, b):
            high = interval(b, bounds)[1]
            return 0, None if high is None else high - 1
        case Binary("floordiv", a, b):
            (alo, ahi), (blo, bhi) = interval(a, bounds), interval(b, bounds)
            if blo is None or blo <= 0:
                return (0 if alo is not None and alo >= 0 else None), (ahi if ahi is not None and ahi >= 0 else None)
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


def _polynomial_interval(p: Polynomial, bounds: Bounds) -> Interval:
    low: int | None = 0
    high: int | None = 0
    for monomial, c in p.items():
        part: Interval = (1, 1)
        for atom in monomial:
            part = _times(part, _atom_interval(atom, bounds))
        part = _times(part, (c, c))
        low = None if low is None or part[0] is None else low + part[0]
        high = None if high is None or part[1] is None else high + part[1]
    return low, high


def interval(e: Expr, bounds: Bounds = NOTHING_KNOWN) -> Interval:
    """Integers that bound an int64 expression from below and above, None where unbounded."""
    return _polynomial_interval(polynomial(e), bounds)


def _coefficient(p: Polynomial, atom: Expr) -> tuple[Polynomial, Polynomial] | None:
    """p = c * atom + rest, or None when `p` is not linear in `atom`."""
    c: Polynomial = {}
    rest: Polynomial = {}
    for monomial, k in p.items():
        count = sum(1 for a in monomial if a is atom)
        if count == 0:
            rest[monomial] = k
        elif count == 1:
            without: Monomial = tuple(a for a in monomial if a is not atom)
            c[without] = c.get(without, 0) + k
        else:
            return None
    return c, rest


def _ends(atom: Expr, bounds: Bounds) -> tuple[Polynomial | None, Polynomial | None]:
    """Polynomials that bound an atom from below and above."""
    if isinstance(atom, Var):
        if atom in bounds.ranges:
            lo, hi = bounds.ranges[atom]
            return polynomial(lo), polynomial(hi)
        low = None if atom.lo is None else {(): atom.lo}
        return low, None if atom.hi is None else {(): atom.hi}
    if isinstance(atom, Binary) and atom.op == "mod":
        return {}, added(polynomial(atom.b), {(): 1}, -1)
    low, high = _atom_interval(atom, bounds)
    return (None if low is None else {(): low}), (None if high is None else {(): high})


def _quotient_relaxed(p: Polynomial, bounds: Bounds) -> Polynomial | None:
    """A polynomial whose sign decides that of `p`: one term k*m*floor(a/d) gives way to a - d + 1 <= d*floor(a/d) <= a.

    Where d does not divide k, `p` is scaled by s = d / gcd(k, d) first: p is a whole number, so s*p + s - 1 >= 0 proves p >= 0.
    """
    candidates: list[tuple[str, Monomial, Binary, int]] = []
    for monomial in p:
        for atom in monomial:
            if not (isinstance(atom, Binary) and atom.op == "floordiv" and isinstance(atom.b, Const)):
                continue
            d = int(atom.b.value)
            rest = tuple(x for x in monomial if x is not atom)
            sign = _polynomial_interval({rest: 1}, bounds)[0] if rest else 1
            if d > 0 and sign is not None and sign >= 0:
                candidates.append((sort_key(atom), monomial, atom, d))
    if not candidates:
        return None
    # A quotient of quotients goes first: what it gives way to may cancel against the inner ones.
    _, monomial, atom, d = max(candidates, key=lambda c: (len(c[0]), c[0]))
    k = p[monomial]
    rest = tuple(x for x in monomial if x is not atom)
    factor = d // gcd(k, d)
    scaled = added(multiplied(p, {(): factor}), {(): factor - 1} if factor > 1 else {})
    scale: Polynomial = {rest: k * factor // d}
    bound = polynomial(atom.a) if k < 0 else added(polynomial(atom.a), {(): d - 1}, -1)
    return added(added(scaled, {monomial: k * factor}, -1), multiplied(scale, bound))


def _remainders_expanded(p: Polynomial) -> Polynomial:
    """`p` with x % d written as x - d*(x // d) wherever x // d occurs too, so that the two cancel."""
    atoms = {a for m in p for a in m}
    quotients = {(a.a, a.b) for a in atoms if isinstance(a, Binary) and a.op == "floordiv"}
    for monomial, k in p.items():
        for atom in monomial:
            if isinstance(atom, Binary) and atom.op == "mod" and (atom.a, atom.b) in quotients:
                rest = tuple(x for x in monomial if x is not atom)
                quotient: Polynomial = {(Binary("floordiv", atom.a, atom.b),): 1}
                value = added(polynomial(atom.a), multiplied(quotient, polynomial(atom.b)), -1)
                return _remainders_expanded(added(added(p, {monomial: k}, -1), multiplied(value, {rest: k})))
    return p


def _non_negative(p: Polynomial, bounds: Bounds, depth: int) -> bool:
    low = _polynomial_interval(p, bounds)[0]
    if low is not None and low >= 0:
        return True
    if depth == 0:
        return False
    expanded = _remainders_expanded(p)
    if expanded is not p:
        return _non_negative(expanded, bounds, depth - 1)
    relaxed = _quotient_relaxed(p, bounds)
    if relaxed is not None and _non_negative(relaxed, bounds, depth - 1):
        return True
    atoms = {a: None for m in p for a in m}
    # Loop variables first, the innermost before the others, then compound atoms, then symbols.
    position: dict[Expr, int] = {v: i for i, v in enumerate(bounds.ranges)}
    order = sorted(atoms, key=lambda a: position.get(a, -2 if isinstance(a, Var) else -1), reverse=True)
    for atom in order:
        linear = _coefficient(p, atom)
        if linear is None:
            continue
        c, rest = linear
        sign_low, sign_high = _polynomial_interval(c, bounds)
        low_end, high_end = _ends(atom, bounds)
        if sign_low is not None and sign_low >= 0 and low_end is not None:
            return _non_negative(added(rest, multiplied(c, low_end)), bounds, depth - 1)
        if sign_high is not None and sign_high <= 0 and high_end is not None:
            return _non_negative(added(rest, multiplied(c, high_end)), bounds, depth - 1)
    return False


def non_negative(e: Expr, bounds: Bounds = NOTHING_KNOWN) -> bool:
    """Whether an int64 expression is proved to be >= 0."""
    p = polynomial(e)
    if _non_negative(p, bounds, 12):
        return True
    relevant = [f for f in bounds.facts]
    for f in relevant:
        if _non_negative(added(p, polynomial(f), -1), bounds, 12):
            return True
    for i, f in enumerate(relevant):
        for g in relevant[i + 1 :]:
            if _non_negative(added(added(p, polynomial(f), -1), polynomial(g), -1), bounds, 8):
                return True
    return False


def prove(condition: Expr, bounds: Bounds = NOTHING_KNOWN) -> bool:
    """Whether a bool expression is proved to hold; False means "not proved"."""
    match condition:
        case Const(value):
            return bool(value)
        case Binary("and", a, b):
            return prove(a, bounds) and prove(b, bounds)
        case Binary("or", a, b):
            return prove(a, bounds) or prove(b, bounds)
        case Binary("eq", a, b) if a.dtype.name == "int64":
            return non_negative(a - b, bounds) and non_negative(b - a, bounds)
        case Binary("ne", a, b) if a.dtype.name == "int64":
            return non_negative(a - b - 1, bounds) or non_negative(b - a - 1, bounds)
        case _:
            facts = _as_facts(condition)
            return bool(facts) and all(non_negative(f, bounds) for f in facts)
