"""Online rescaling: how a sum changes when a running extremum in its terms does.

A sum over k of exp(c*(x_k - m)) * f_k, where m is the running maximum of x_k, changes by the factor exp(c*(old - new))
when m goes from `old` to `new`. A factor that does not depend on k is moved out of the sum.
"""

from collections.abc import Collection
from dataclasses import dataclass

from tilewright.errors import ScheduleError
from tilewright.expr.nodes import Binary, Buffer, Cast, Const, Expr, Load, Select, Unary, Var, const
from tilewright.expr.operations import cast, select, unary
from tilewright.expr.traversal import free_vars, loads


@dataclass(frozen=True, slots=True)
class RunningExtremum:
    """The running maximum or minimum of a term, as the value reads it.

    Attributes:
        load: the element that holds it.
        term: the reduced term, over the value's variables.
        op: `max` or `min`.
        initial: its value before the first term.
    """

    load: Load
    term: Expr
    op: str
    initial: Const


@dataclass(frozen=True, slots=True)
class FactoredValue:
    """A value as core * g_1 / g_2 * ..., where the g do not depend on the reduction variables.

    Attributes:
        core: the remaining factor.
        invariant_factors: the g, with `mul` or `div`.
    """

    core: Expr
    invariant_factors: tuple[tuple[str, Expr], ...]


def split_invariant_factors(value: Expr, reduction_vars: Collection[Var], running: Collection[Buffer]) -> FactoredValue:
    """Splits off the factors of a value that read running results, but do not depend on the reduction variables."""

    def is_invariant(e: Expr) -> bool:
        return not free_vars(e) & set(reduction_vars) and any(x.buffer in running for x in loads(e))

    match value:
        case Binary("mul", a, b):
            for factor, remaining in ((b, a), (a, b)):
                if is_invariant(factor):
                    inner = split_invariant_factors(remaining, reduction_vars, running)
                    return FactoredValue(inner.core, (*inner.invariant_factors, ("mul", factor)))
            left, right = (
                split_invariant_factors(a, reduction_vars, running),
                split_invariant_factors(b, reduction_vars, running),
            )
            return FactoredValue(left.core * right.core, left.invariant_factors + right.invariant_factors)
        case Binary("div", a, b):
            inner = split_invariant_factors(a, reduction_vars, running)
            if is_invariant(b):
                return FactoredValue(inner.core, (*inner.invariant_factors, ("div", b)))
            return FactoredValue(inner.core / b, inner.invariant_factors)
        case _:
            return FactoredValue(value, ())


def rescale_rate(value: Expr, extremum: RunningExtremum, place: str) -> float:
    """The a for which a value changes by the factor exp(a*(new - old)) when the extremum goes from `old` to `new`.

    Raises:
        ScheduleError: there is no such factor, or values of points seen so far may exceed 1 before the end.
    """
    rate = _rescale_rate(value, extremum, place)
    if rate is None:
        what = f"no factor rescales {value} when {extremum.load} changes"
        hint = f"{extremum.load.buffer.name!r} may occur in factors exp(c*(x - m)), or in factors without the reduction"
        raise ScheduleError(what, where=place, hint=hint)
    return rate


def _rescale_rate(value: Expr, extremum: RunningExtremum, place: str) -> float | None:
    """See `rescale_rate`; None where there is no such factor."""
    if extremum.load not in loads(value):
        return 0.0
    match value:
        case Unary("exp", exponent):
            return _exponent_rate(exponent, extremum, place)
        case Unary("neg", a) | Cast(_, a) if value.dtype.is_float and a.dtype.is_float:
            return _rescale_rate(a, extremum, place)
        case Binary("mul", a, b):
            one, other = _rescale_rate(a, extremum, place), _rescale_rate(b, extremum, place)
            return None if one is None or other is None else one + other
        case Binary("div", a, b) if extremum.load not in loads(b):
            return _rescale_rate(a, extremum, place)
        case Binary("add" | "sub", a, b):
            return _common_rate(a, b, extremum, place)
        case Select(cond, a, b) if extremum.load not in loads(cond):
            return _common_rate(a, b, extremum, place)
        case _:
            return None


def _common_rate(a: Expr, b: Expr, extremum: RunningExtremum, place: str) -> float | None:
    """The rate of both values; 0 has every rate."""
    rates = {_rescale_rate(x, extremum, place) for x in (a, b) if not (isinstance(x, Const) and x.value == 0)}
    return rates.pop() if len(rates) == 1 else None


def _exponent_rate(exponent: Expr, extremum: RunningExtremum, place: str) -> float:
    """The coefficient of the extremum in an exponent c*(x - m) that is never positive."""
    parts, term = linear_terms(exponent), linear_terms(extremum.term)
    a = parts.pop(extremum.load, 0.0)
    falls = a < 0 if extremum.op == "max" else a > 0
    if not falls or parts != {x: -a * c for x, c in term.items()}:
        sign = "x - m" if extremum.op == "max" else "m - x"
        what = f"the exponent {exponent} is not c*({sign}) for c > 0 and x = {extremum.term}, of which "
        raise ScheduleError(f"{what}{extremum.load} is the {extremum.op}: it may overflow before the end", where=place)
    return a


def linear_terms(e: Expr) -> dict[Expr, float]:
    """A floating-point sum as coefficients of its terms; literals are terms of their own."""
    match e:
        case Binary("add" | "sub" as op, a, b):
            return _add_scaled(linear_terms(a), linear_terms(b), 1.0 if op == "add" else -1.0)
        case Unary("neg", a):
            return _add_scaled({}, linear_terms(a), -1.0)
        case Binary("mul", a, Const(c)) | Binary("mul", Const(c), a):
            return _add_scaled({}, linear_terms(a), float(c))
        case Binary("div", a, Const(c)) if c:
            return _add_scaled({}, linear_terms(a), 1.0 / float(c))
        case _:
            return {e: 1.0}


def _add_scaled(a: dict[Expr, float], b: dict[Expr, float], scale: float) -> dict[Expr, float]:
    both = {x: a.get(x, 0.0) + scale * b.get(x, 0.0) for x in (*a, *b)}
    return {x: c for x, c in both.items() if c}


def rescale(value: Expr, extremum: RunningExtremum, rate: float, old: Expr) -> Expr:
    """A partial sum after the extremum in it changed from `old` to its present value: value * exp(a*(now - old)).

    Where both are equal the sum stays as it is, so that two infinities do not become NaN. Where `old` is still the
    infinity that it started from, all terms so far were infinite too, and vanish next to a finite one: the sum restarts
    at 0, also from the NaN that infinity minus infinity gave.
    """
    new = extremum.load
    exponent = old - new if rate == -1.0 else new - old if rate == 1.0 else (new - old) * rate
    rescaled = value * cast(value.dtype, unary("exp", exponent))
    if extremum.initial.value in (float("inf"), float("-inf")):
        rescaled = select(old.equals(extremum.initial), const(0, value.dtype), rescaled)
    return select(old.equals(new), value, rescaled)
