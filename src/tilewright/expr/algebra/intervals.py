"""Intervals of int64 expressions, and which of them can't wrap.

int64 arithmetic wraps, while the normal forms of `polynomial.py` and the proofs of `prover.py` are over the integers.
The two agree under these rules:

  * Sums, differences and products may be regrouped and reordered: this is valid modulo 2**64.
  * Every other conclusion from a normal form (quotients, remainders, comparisons, minima, intervals, multiples) needs
    an expression that does not wrap (`has_no_wrap`): the integer that its normal form denotes lies in int64 for all
    values of its atoms. An expression that may wrap is left as written and may have any int64 value.
  * A loaded element may have any value of its type unless ranges and facts restrict it.
  * Expressions without loads are sizes, positions and loop variables. They never wrap, because a program in which one
    of them leaves -2**62..2**62 is rejected, when it is built or when it is called with such sizes.
"""

from collections.abc import Mapping
from typing import Protocol

from tilewright.expr.algebra.polynomial import INT64_MAX, INT64_MIN, Polynomial, polynomial
from tilewright.expr.nodes import Binary, Cast, Const, Expr, Select, Var
from tilewright.expr.traversal import has_loads
from tilewright.kernel_caches import kernel_cache

Interval = tuple[int | None, int | None]

_INT64 = INT64_MIN, INT64_MAX

MAX_INDEX = 1 << 62
"""Largest magnitude of an expression without loads."""


class ProofContext(Protocol):
    """What intervals are derived from; implemented by `bounds.Bounds`, which is built on this module."""

    @property
    def ranges(self) -> Mapping[Var, tuple[Expr, Expr]]:
        """Inclusive ranges of variables."""
        ...

    @property
    def data_intervals(self) -> Mapping[Expr, Interval]:
        """Intervals of data-dependent atoms, from facts."""
        ...

    def where(self, condition: Expr, taken: bool) -> "ProofContext":
        """The context where a condition is true (`taken`) or false."""
        ...


def has_no_wrap(e: Expr, ctx: ProofContext) -> bool:
    """Whether an int64 expression equals the integer that its normal form denotes."""
    return (
        not has_loads(e)
        or _is_single_atom(polynomial(e))
        or _is_within(_INT64, _data_dependent_interval(polynomial(e), ctx))
    )


def is_interpretable(atom: Expr, ctx: ProofContext) -> bool:
    """Whether the definition of an atom holds over the integers: its operands do not wrap, its divisor is positive."""
    if not has_loads(atom):
        return True
    if isinstance(atom, Binary) and atom.op in ("floordiv", "mod") and not is_positive_divisor(atom.b, ctx):
        return False
    return all(has_no_wrap(c, ctx) for c in atom.children() if c.dtype.name == "int64")


def is_positive_divisor(d: Expr, ctx: ProofContext) -> bool:
    """Whether a divisor is known to be positive; it then does not wrap either.

    A size needs only to be known non-negative: nothing is ever divided by a size of zero.
    """
    low = value_interval(d, ctx)[0]
    return low is not None and low >= (1 if has_loads(d) or isinstance(d, Const) else 0)


def value_interval(e: Expr, ctx: ProofContext) -> Interval:
    """Interval of an int64 expression, None where unbounded."""
    p = polynomial(e)
    if not has_loads(e):
        return polynomial_interval(p, ctx)
    return _convert_interval(_data_dependent_interval(p, ctx), _INT64)


def _is_single_atom(p: Polynomial) -> bool:
    return len(p) == 1 and all(c == 1 and len(m) == 1 for m, c in p.items())


def _is_within(type_range: tuple[int, int], i: Interval) -> bool:
    low, high = i
    return low is not None and high is not None and low >= type_range[0] and high <= type_range[1]


def _data_dependent_interval(p: Polynomial, ctx: ProofContext) -> Interval:
    """Interval of a polynomial with loads; its part without loads is at most `MAX_INDEX` in magnitude."""
    sizes = {m: c for m, c in p.items() if not any(has_loads(a) for a in m)}
    low, high = polynomial_interval({m: c for m, c in p.items() if m not in sizes}, ctx)
    size_low, size_high = polynomial_interval(sizes, ctx) if sizes else (0, 0)
    size_low = -MAX_INDEX if size_low is None else max(size_low, -MAX_INDEX)
    size_high = MAX_INDEX if size_high is None else min(size_high, MAX_INDEX)
    return None if low is None else low + size_low, None if high is None else high + size_high


def _multiply(x: Interval, y: Interval) -> Interval:
    """Product of two intervals; 0 times unbounded is 0."""
    (a, b), (c, d) = x, y
    if a is not None and b is not None and c is not None and d is not None:
        if a >= 0 and c >= 0:
            return a * c, b * d
        corners = (a * c, a * d, b * c, b * d)
        return min(corners), max(corners)
    return _multiply_unbounded(x, y)


def _multiply_unbounded(x: Interval, y: Interval) -> Interval:
    infinity = float("inf")
    (a, b), (c, d) = ((-infinity if i is None else i, infinity if j is None else j) for i, j in (x, y))
    corners = [0 if p == 0 or q == 0 else p * q for p in (a, b) for q in (c, d)]
    low, high = min(corners), max(corners)
    return (None if low == -infinity else int(low), None if high == infinity else int(high))


def _scale(x: Interval, c: int) -> Interval:
    low, high = (x[0], x[1]) if c >= 0 else (x[1], x[0])
    return (None if low is None else low * c), (None if high is None else high * c)


def polynomial_interval(p: Polynomial, ctx: ProofContext) -> Interval:
    """Interval of the integer that a polynomial denotes, None where unbounded."""
    low: int | None = 0
    high: int | None = 0
    for monomial, c in p.items():
        term: Interval = (1, 1)
        for position, atom in enumerate(monomial):
            factor = atom_interval(atom, ctx)
            term = _multiply(term, factor) if position else factor
        term = _scale(term, c)
        low = None if low is None or term[0] is None else low + term[0]
        high = None if high is None or term[1] is None else high + term[1]
    return low, high


@kernel_cache(maxsize=1 << 15)
def atom_interval(atom: Expr, ctx: ProofContext) -> Interval:
    """Interval of one atom, None where unbounded; data-dependent atoms are within int64."""
    if not has_loads(atom):
        return _interval_by_node(atom, ctx)
    interval = intersection(_interval_by_node(atom, ctx), _INT64)
    return intersection(interval, ctx.data_intervals[atom]) if atom in ctx.data_intervals else interval


def intersection(x: Interval, y: Interval) -> Interval:
    """Intersection of two intervals."""
    return _max_interval(x, y)[0], _min_interval(x, y)[1]


def _hull(x: Interval, y: Interval) -> Interval:
    return _min_interval(x, y)[0], _max_interval(x, y)[1]


def _min_interval(x: Interval, y: Interval) -> Interval:
    (a, b), (c, d) = x, y
    low = None if a is None or c is None else min(a, c)
    return low, (d if b is None else b if d is None else min(b, d))


def _max_interval(x: Interval, y: Interval) -> Interval:
    (a, b), (c, d) = x, y
    low = c if a is None else a if c is None else max(a, c)
    return low, (None if b is None or d is None else max(b, d))


def _interval_by_node(atom: Expr, ctx: ProofContext) -> Interval:
    match atom:
        case Var():
            if atom in ctx.ranges:
                lo, hi = ctx.ranges[atom]
                return value_interval(lo, ctx)[0], value_interval(hi, ctx)[1]
            return atom.lo, atom.hi
        case Binary("mod", _, b):
            return _remainder_interval(value_interval(b, ctx), has_loads(b))
        case Binary("floordiv", a, b):
            return _quotient_interval(value_interval(a, ctx), value_interval(b, ctx), has_loads(b))
        case Binary("min", a, b):
            return _min_interval(value_interval(a, ctx), value_interval(b, ctx))
        case Binary("max", a, b):
            return _max_interval(value_interval(a, ctx), value_interval(b, ctx))
        case Select(c, a, b):
            true_ctx, false_ctx = (ctx.where(c, True), ctx.where(c, False)) if has_loads(atom) else (ctx, ctx)
            return _hull(value_interval(a, true_ctx), value_interval(b, false_ctx))
        case Cast(_, inner) if inner.dtype.kind == "b":
            return 0, 1
        case Cast(_, inner) if inner.dtype.is_int and has_loads(inner):
            return _convert_interval(_integer_interval(inner, ctx), _INT64)
        case _:
            return None, None


def _remainder_interval(b: Interval, data_dependent: bool) -> Interval:
    """Interval of x % b: x % 0 is 0 for a data-dependent b, and sizes are not 0 where they divide."""
    low, high = b
    if low is None or low < 0:
        return None, None
    return 0, None if high is None else max(high - 1, 0) if data_dependent else high - 1


def _quotient_interval(a: Interval, b: Interval, data_dependent: bool) -> Interval:
    (alo, ahi), (blo, bhi) = a, b
    if blo is None or blo < (1 if data_dependent else 0):
        return None, None
    blo = max(blo, 1)
    low = None if alo is None else (alo // blo if alo < 0 else (alo // bhi if bhi is not None else 0))
    high = None if ahi is None else (ahi // blo if ahi >= 0 else (ahi // bhi if bhi is not None else -1))
    return low, high


def _convert_interval(i: Interval, type_range: tuple[int, int]) -> Interval:
    """Interval after conversion to a type with this range: the whole range where a value may not fit."""
    return i if _is_within(type_range, i) else type_range


def _integer_interval(e: Expr, ctx: ProofContext) -> Interval:
    """Interval of an expression of any integer type."""
    if e.dtype.name == "int64":
        return value_interval(e, ctx)
    type_range = e.dtype.integer_range
    match e:
        case Const(value):
            return int(value), int(value)
        case Binary("mod", _, Const(value)) if value > 0:
            return 0, int(value) - 1
        case Binary("min", a, b):
            return _min_interval(_integer_interval(a, ctx), _integer_interval(b, ctx))
        case Binary("max", a, b):
            return _max_interval(_integer_interval(a, ctx), _integer_interval(b, ctx))
        case Cast(_, a) if a.dtype.kind == "b":
            return 0, 1
        case Cast(_, a) if a.dtype.is_int:
            return _convert_interval(_integer_interval(a, ctx), type_range)
        case _:
            return type_range
