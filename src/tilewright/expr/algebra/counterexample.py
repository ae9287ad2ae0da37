"""Goals that are refuted by an example: where a polynomial is negative at a point that what is known allows, no proof
of it exists, and none is looked for. Most goals that can't be proved fail at an end of the ranges of their variables.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache

from tilewright.expr.algebra.bounds import Bounds
from tilewright.expr.algebra.polynomial import Polynomial, polynomial
from tilewright.expr.nodes import Binary, Const, Expr, Var
from tilewright.expr.numpy_semantics import apply_integer
from tilewright.expr.traversal import free_vars, has_loads

_LARGE_SYMBOL = 1009
"""A symbol's value where nothing bounds it from above."""

Point = dict[Var, int]


def has_counterexample(p: Polynomial, bounds: Bounds) -> bool:
    """Whether `p` is negative at one of some points within `bounds`; False means "not found"."""
    if any(has_loads(a) for m in p for a in m):
        return False
    return any(
        (value := _polynomial_value(p, point, large)) is not None and value < 0
        for point, large in _sample_points(bounds)
    )


@lru_cache(maxsize=1 << 12)
def _sample_points(bounds: Bounds) -> tuple[tuple[Point, bool], ...]:
    """Values of the variables that have ranges, and whether symbols are large: points at which no range is empty and
    all facts hold."""
    return tuple(_corner_points(bounds))


def _corner_points(bounds: Bounds) -> Iterator[tuple[Point, bool]]:
    for last in (False, True):
        for large in (False, True):
            point: Point = {}
            if _assign_range_ends(point, bounds, last, large) and all(
                _is_fact_satisfied(f, point, large) for f in bounds.facts
            ):
                yield point, large


def _assign_range_ends(point: Point, bounds: Bounds, last: bool, large: bool) -> bool:
    """Gives every variable the first or the last value of its range; False where a range is empty or not a number."""
    for v, (low, high) in bounds.ranges.items():
        if (free_vars(low) | free_vars(high)) & (bounds.ranges.keys() - point.keys()):
            return False  # it depends on what comes later
        least, most = _value_at(low, point, large), _value_at(high, point, large)
        if least is None or most is None or least > most:
            return False
        point[v] = most if last else least
    return True


def _is_fact_satisfied(fact: Expr, point: Mapping[Var, int], large: bool) -> bool:
    value = None if has_loads(fact) else _polynomial_value(polynomial(fact), point, large)
    return value is not None and value >= 0


def _polynomial_value(p: Polynomial, point: Mapping[Var, int], large: bool) -> int | None:
    total = 0
    for monomial, c in p.items():
        for atom in monomial:
            value = _value_at(atom, point, large)
            if value is None:
                return None
            c *= value
        total += c
    return total


def _value_at(e: Expr, point: Mapping[Var, int], large: bool) -> int | None:
    """The integer that an expression without loads is at a point; None where it is none, or divides by nothing."""
    match e:
        case Var():
            found = point.get(e)
            return _symbol_value(e, large) if found is None else found
        case Const(value):
            return int(value)
        case Binary(op, a, b):
            x, y = _value_at(a, point, large), _value_at(b, point, large)
            divides_by_none = op in ("floordiv", "mod") and (y is None or y <= 0)
            return None if x is None or y is None or divides_by_none else apply_integer(op, x, y)
        case _:
            return None


def _symbol_value(v: Var, large: bool) -> int:
    low = 1 if v.lo is None else v.lo
    if not large:
        return low if v.hi is None else min(low, v.hi)
    return max(low, _LARGE_SYMBOL) if v.hi is None else v.hi
