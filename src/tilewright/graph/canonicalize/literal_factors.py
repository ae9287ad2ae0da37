"""Literal factors: where scores are scaled, and by what.

    (a * 0.35) * (b * 0.35) + m,   a * b / 8 + m,   (a * b + m * 8) * 0.125

are one computation, a * b * 0.125 + m. Products and quotients of literals are exact here, and rounded once. Factors
that were rounded before they were multiplied, as the two roots of a scale, are roundings of something simpler: their
product is rounded to the root of a whole number, or its inverse, where that is as near as the factors' own errors.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

from tilewright.expr.dtype import DType
from tilewright.expr.nodes import Binary, Const, Expr, Load, Select, Unary, const
from tilewright.expr.operations import binary, select, unary
from tilewright.expr.traversal import loads, replace_loads

_UNIT_ROUNDOFF = {32: 2.0**-24, 64: 2.0**-53}
_MAX_WHOLE = 1 << 16


@dataclass(frozen=True, slots=True)
class Factor:
    """A product of literals.

    Attributes:
        value: the product.
        literals: number of literals that it was computed of.
    """

    value: float = 1.0
    literals: int = 0

    def times(self, literal: float) -> "Factor":
        """The product with a literal."""
        return Factor(self.value * literal, self.literals + 1)

    def over(self, literal: float) -> "Factor":
        """The quotient by a literal, which is not 0."""
        return Factor(self.value / literal, self.literals + 1)

    def rounded(self, dtype: DType) -> float:
        """The product as a value of a type."""
        exact = abs(self.value)
        # the squares of others exceed what a root may be of
        may_be_root = _MAX_WHOLE**-0.5 / 2 < exact < 2 * _MAX_WHOLE**0.5
        if may_be_root and (self.literals > 1 or (self.literals == 1 and exact != const(exact, dtype).value)):
            whole = round(exact**2 if exact >= 1 else exact**-2)
            root = sqrt(whole) if exact >= 1 else 1 / sqrt(whole)
            tolerance = (self.literals + 1) * _UNIT_ROUNDOFF.get(dtype.bits, 0.0) * exact
            if 1 <= whole <= _MAX_WHOLE and abs(root - exact) <= tolerance:
                exact = root
        return -exact if self.value < 0 else exact


ONE = Factor()
"""The factor of what is not scaled."""


def literal_factor(e: Expr) -> tuple[Expr, Factor] | None:
    """An expression and the literal that it is multiplied or divided by; None for other expressions."""
    if isinstance(e, Unary) and e.op == "neg":
        return e.a, Factor(-1.0, 0)
    if not isinstance(e, Binary) or not e.dtype.is_float:
        return None
    if e.op == "mul":
        for a, b in ((e.a, e.b), (e.b, e.a)):
            if isinstance(b, Const) and _is_proper(b):
                return a, ONE.times(float(b.value))
    if e.op == "div" and isinstance(e.b, Const) and _is_proper(e.b):
        return e.a, ONE.over(float(e.b.value))
    return None


def _is_proper(c: Const) -> bool:
    return 1e-30 < abs(float(c.value)) < 1e30


def combined(a: Factor, b: Factor) -> Factor:
    """The product of two factors."""
    return Factor(a.value * b.value, a.literals + b.literals)


def scaled(e: Expr, factor: Factor) -> Expr:
    """The product of a value and a factor; literal factors of the value are part of it."""
    while (inner := literal_factor(e)) is not None:
        e, factor = inner[0], combined(factor, inner[1])
    value = factor.rounded(e.dtype)
    if isinstance(e, Const):
        return const(float(e.value) * value, e.dtype)
    return e if value == 1.0 else e * const(value, e.dtype)


def scale_innermost(
    e: Expr, accumulator: Load, factor: Factor, own: Factor, term: Callable[[Expr, Factor], Expr] = scaled
) -> Expr:
    """factor * e, with literal factors moved to the accumulator and to the terms that are added to it.

    Args:
        e: an expression that contains the accumulator once.
        accumulator: a load.
        factor: a literal factor of the expression.
        own: a further one of the accumulator.
        term: the product of an expression without the accumulator and a factor.
    """

    def arm(a: Expr, f: Factor) -> Expr:
        return scale_innermost(a, accumulator, f, own, term) if accumulator in loads(a) else term(a, f)

    if (inner := literal_factor(e)) is not None:
        return scale_innermost(inner[0], accumulator, combined(factor, inner[1]), own, term)
    match e:
        case Load():
            return scaled(e, combined(factor, own))
        case Binary("add" | "sub" as op, a, b):
            return binary(op, arm(a, factor), arm(b, factor))
        case Select(cond, a, b) if accumulator not in loads(cond) and factor.value > 0:
            return select(cond, arm(a, factor), arm(b, factor))
        case Unary(op, a) if accumulator in loads(a):
            return scaled(unary(op, scale_innermost(a, accumulator, ONE, own, term)), factor)
        case _:
            inside = replace_loads(e, lambda x: scaled(x, own) if x is accumulator else x)
            return scaled(inside, factor)
