"""Integers between which int64 expressions lie, and where their normal form is their value.

int64 values wrap, the algebra of `polynomial.py` and the proofs of `prover.py` are about integers. What holds between:

  * Sums, differences and products may be regrouped and reordered: modulo 2**64 that changes nothing.
  * Whatever else is concluded from the normal form of an expression (quotients, remainders, comparisons, minima,
    intervals, multiples) needs that the expression is *exact*: the integer that its normal form denotes lies within
    int64 for all values of its atoms, so that it is the value. What is not exact stays as it is written, and lies
    anywhere in int64.
  * A loaded element may be any value of its type, and so may what is made of it, unless ranges and facts say more.
  * Expressions without loads are sizes, positions and loop variables. They are exact by decree: a program for which one
    of them leaves -2**62..2**62 is refused, when it is built or when it is called with sizes that are too large.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Protocol

from tilewright.expr.algebra.polynomial import INT64_MAX, INT64_MIN, Polynomial, polynomial
from tilewright.expr.dtype import DType
from tilewright.expr.nodes import Binary, Cast, Const, Expr, Select, Var
from tilewright.expr.traversal import has_loads

Interval = tuple[int | None, int | None]

_INT64 = INT64_MIN, INT64_MAX

MAX_INDEX = 1 << 62
"""What an expression without loads may be, up or down."""


class ProofContext(Protocol):
    """What is known about variables and about atoms that are loaded; `Bounds` is it."""

    @property
    def ranges(self) -> Mapping[Var, tuple[Expr, Expr]]:
        """Inclusive ranges of variables."""
        ...

    @property
    def data_intervals(self) -> Mapping[Expr, Interval]:
        """What facts say about single atoms that depend on data."""
        ...

    def where(self, condition: Expr, taken: bool) -> "ProofContext":
        """What is known where a condition holds, or where it does not."""
        ...


def has_no_wrap(e: Expr, ctx: ProofContext) -> bool:
    """Whether the integer that the normal form of an int64 expression denotes is its value."""
    return (
        not has_loads(e)
        or _is_single_atom(polynomial(e))
        or _is_within(_INT64, _data_dependent_interval(polynomial(e), ctx))
    )


def is_interpretable(atom: Expr, ctx: ProofContext) -> bool:
    """Whether what an atom means can be said with the normal forms of its operands: they are exact, divisors > 0."""
    if not has_loads(atom):
        return True
    if isinstance(atom, Binary) and atom.op in ("floordiv", "mod") and not is_positive_divisor(atom.b, ctx):
        return False
    return all(has_no_wrap(c, ctx) for c in atom.children() if c.dtype.name == "int64")


def is_positive_divisor(d: Expr, ctx: ProofContext) -> bool:
    """Whether a divisor is known to be positive; it is exact then.

    Sizes need only be known not to be negative, as nothing is divided by a size of zero.
    """
    low = value_interval(d, ctx)[0]
    return low is not None and low >= (1 if has_loads(d) or isinstance(d, Const) else 0)


def value_interval(e: Expr, ctx: ProofContext) -> Interval:
    """Integers that bound an int64 expression from below and above, None where unbounded."""
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
    """Integers that bound a polynomial with data in it; the part without data is no larger than sizes may be."""
    sizes = {m: c for m, c in p.items() if not any(has_loads(a) for a in m)}
    low, high = polynomial_interval({m: c for m, c in p.items() if m not in sizes}, ctx)
    least, most = polynomial_interval(sizes, ctx) if sizes else (0, 0)
    least = -MAX_INDEX if least is None else max(least, -MAX_INDEX)
    most = MAX_INDEX if most is None else min(most, MAX_INDEX)
    return None if low is None else low + least, None if high is None else high + most


def _multiply(x: Interval, y: Interval) -> Interval:
    """The product of two intervals; 0 times anything is 0."""
    (a, b), (c, d) = x, y
    if a is not None and b is not None and c is not None and d is not None:
        if a >= 0 and c >= 0:
            return a * c, b * d
        ends = (a * c, a * d, b * c, b * d)
        return min(ends), max(ends)
    return _multiply_unbounded(x, y)


def _multiply_unbounded(x: Interval, y: Interval) -> Interval:
    infinity = float("inf")
    (a, b), (c, d) = ((-infinity if i is None else i, infinity if j is None else j) for i, j in (x, y))
    ends = [0 if p == 0 or q == 0 else p * q for p in (a, b) for q in (c, d)]
    low, high = min(ends), max(ends)
    return (None if low == -infinity else int(low), None if high == infinity else int(high))


def _scale(x: Interval, c: int) -> Interval:
    low, high = (x[0], x[1]) if c >= 0 else (x[1], x[0])
    return (None if low is None else low * c), (None if high is None else high * c)


def polynomial_interval(p: Polynomial, ctx: ProofContext) -> Interval:
    """Integers that bound the integer that a polynomial denotes, None where unbounded."""
    low: int | None = 0
    high: int | None = 0
    for monomial, c in p.items():
        part: Interval = (1, 1)
        for position, atom in enumerate(monomial):
            ends = atom_interval(atom, ctx)
            part = _multiply(part, ends) if position else ends
        part = _scale(part, c)
        low = None if low is None or part[0] is None else low + part[0]
        high = None if high is None or part[1] is None else high + part[1]
    return low, high


@lru_cache(maxsize=1 << 15)
def atom_interval(atom: Expr, ctx: ProofContext) -> Interval:
    """Integers that bound one atom of a polynomial, None where unbounded; nothing from data is unbounded."""
    if not has_loads(atom):
        return _interval_by_node(atom, ctx)
    found = intersection(_interval_by_node(atom, ctx), _INT64)
    return intersection(found, ctx.data_intervals[atom]) if atom in ctx.data_intervals else found


def intersection(x: Interval, y: Interval) -> Interval:
    """What lies in both."""
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
            taken, other = (ctx.where(c, True), ctx.where(c, False)) if has_loads(atom) else (ctx, ctx)
            return _hull(value_interval(a, taken), value_interval(b, other))
        case Cast(_, inner) if inner.dtype.kind == "b":
            return 0, 1
        case Cast(_, inner) if inner.dtype.is_int and has_loads(inner):
            return _convert_interval(_integer_interval(inner, ctx), _INT64)
        case _:
            return None, None


def _remainder_interval(b: Interval, data_dependent: bool) -> Interval:
    """x % b; by data that may be 0 the remainder is 0, and no size is 0 where something is divided by it."""
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


def _type_range(dtype: DType) -> tuple[int, int]:
    """The values of an integer type."""
    if dtype.kind == "u":
        return 0, (1 << dtype.bits) - 1
    return -(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1


def _convert_interval(i: Interval, type_range: tuple[int, int]) -> Interval:
    """An interval of integers converted to a type of these values: all of them, where some may not fit."""
    return i if _is_within(type_range, i) else type_range


def _integer_interval(e: Expr, ctx: ProofContext) -> Interval:
    """Integers that bound an expression of any integer type."""
    if e.dtype.name == "int64":
        return value_interval(e, ctx)
    whole = _type_range(e.dtype)
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
            return _convert_interval(_integer_interval(a, ctx), whole)
        case _:
            return whole
