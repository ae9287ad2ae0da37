"""Counterexamples of goals p >= 0: points within the bounds at which p is negative, so that no proof is tried.

Most goals that can't be proved fail at an end of the ranges of their variables, so only those corners are evaluated.
"""

from collections.abc import Iterator, Mapping

from tilewright.expr.algebra.bounds import Bounds
from tilewright.expr.algebra.polynomial import Polynomial, polynomial
from tilewright.expr.nodes import Binary, Const, Expr, Var
from tilewright.expr.numpy_semantics import apply_integer
from tilewright.expr.traversal import free_vars, has_loads
from tilewright.kernel_caches import kernel_cache

_LARGE_SYMBOL = 1009
"""Value of a symbol without upper bound at points with large symbols."""

Point = dict[Var, int]


def has_counterexample(p: Polynomial, bounds: Bounds) -> bool:
    """Whether `p` is negative at a sampled point within `bounds`; False means "none found"."""
    if any(has_loads(a) for m in p for a in m):
        return False
    return any(
        (value := _polynomial_value(p, point, large)) is not None and value < 0
        for point, large in _sample_points(bounds)
    )


@kernel_cache(maxsize=1 << 12)
def _sample_points(bounds: Bounds) -> tuple[tuple[Point, bool], ...]:
    """(values of variables, whether symbols are large), where no range is empty and all facts hold."""
    return tuple(_corner_points(bounds))


def _corner_points(bounds: Bounds) -> Iterator[tuple[Point, bool]]:
    for use_last in (False, True):
        for large in (False, True):
            point: Point = {}
            if _assign_range_ends(point, bounds, use_last, large) and all(
                _is_fact_satisfied(f, point, large) for f in bounds.facts
            ):
                yield point, large


def _assign_range_ends(point: Point, bounds: Bounds, use_last: bool, large: bool) -> bool:
    """Assigns the first or last value of its range to every variable; False where a range is empty or not evaluable."""
    for v, (low, high) in bounds.ranges.items():
        if (free_vars(low) | free_vars(high)) & (bounds.ranges.keys() - point.keys()):
            return False  # depends on an inner variable
        first_value, last_value = _value_at(low, point, large), _value_at(high, point, large)
        if first_value is None or last_value is None or first_value > last_value:
            return False
        point[v] = last_value if use_last else first_value
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
    """Value of an expression without loads at a point; None where it has none, e.g. for a divisor of 0 or less."""
    match e:
        case Var():
            assigned = point.get(e)
            return _symbol_value(e, large) if assigned is None else assigned
        case Const(value):
            return int(value)
        case Binary(op, a, b):
            x, y = _value_at(a, point, large), _value_at(b, point, large)
            has_no_quotient = op in ("floordiv", "mod") and (y is None or y <= 0)
            return None if x is None or y is None or has_no_quotient else apply_integer(op, x, y)
        case _:
            return None


def _symbol_value(v: Var, large: bool) -> int:
    low = 1 if v.lo is None else v.lo
    if not large:
        return low if v.hi is None else min(low, v.hi)
    return max(low, _LARGE_SYMBOL) if v.hi is None else v.hi
