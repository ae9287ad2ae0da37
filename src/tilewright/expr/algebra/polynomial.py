"""Polynomial normal form of int64 expressions.

A polynomial maps monomials to integer coefficients. A monomial is a sorted tuple of atoms, and an atom is any int64
expression other than a sum, difference or product: a variable, a quotient, a remainder, a minimum, a load. Index
expressions that differ only in the order or grouping of their terms have the same normal form.
"""

from tilewright.expr.algebra.expression_order import OrderKey, order_key
from tilewright.expr.dtype import int64
from tilewright.expr.nodes import Binary, Const, Expr

Monomial = tuple[Expr, ...]
Polynomial = dict[Monomial, int]

INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1
"""Smallest and largest int64."""


def constant(value: int) -> Polynomial:
    """The polynomial of an integer."""
    return {(): value} if value else {}


def add(p: Polynomial, q: Polynomial, factor: int = 1) -> Polynomial:
    """p + factor * q."""
    result = dict(p)
    for monomial, c in q.items():
        total = result.get(monomial, 0) + c * factor
        if total:
            result[monomial] = total
        else:
            result.pop(monomial, None)
    return result


def multiply(p: Polynomial, q: Polynomial) -> Polynomial:
    """p * q."""
    result: Polynomial = {}
    for m1, c1 in p.items():
        for m2, c2 in q.items():
            m = m1 + m2 if not m1 or not m2 else tuple(sorted(m1 + m2, key=order_key))
            total = result.get(m, 0) + c1 * c2
            if total:
                result[m] = total
            else:
                result.pop(m, None)
    return result


def wrap_to_int64(p: Polynomial) -> Polynomial:
    """`p` modulo 2**64: every coefficient wrapped to int64."""
    if all(INT64_MIN <= c <= INT64_MAX for c in p.values()):
        return p
    small = {m: (c - INT64_MIN) % (1 << 64) + INT64_MIN for m, c in p.items()}
    return {m: c for m, c in small.items() if c}


def drop_atom(monomial: Monomial, atom: Expr) -> Monomial:
    """The monomial divided by one of its atoms; of a repeated atom one factor is removed."""
    position = next(k for k, x in enumerate(monomial) if x is atom)
    return monomial[:position] + monomial[position + 1 :]


def polynomial(e: Expr) -> Polynomial:
    """The normal form of an int64 expression (not to be changed by the caller)."""
    cached: Polynomial | None = getattr(e, "normal_form", None)
    if cached is not None:
        return cached
    match e:
        case Const(value):
            result = constant(int(value))
        case Binary("add", a, b):
            result = add(polynomial(a), polynomial(b))
        case Binary("sub", a, b):
            result = add(polynomial(a), polynomial(b), -1)
        case Binary("mul", a, b):
            result = multiply(polynomial(a), polynomial(b))
        case _:
            result = {(e,): 1}
    e.normal_form = result
    return result


def _term_key(item: tuple[Monomial, int]) -> tuple[bool, bool, int, list[OrderKey]]:
    monomial, c = item
    # Positive terms first, the constant last, higher degrees first.
    return not monomial, c < 0, -len(monomial), [order_key(a) for a in monomial]


def _monomial_expression(monomial: Monomial) -> Expr:
    result = monomial[0]
    for atom in monomial[1:]:
        result = Binary("mul", result, atom)
    return result


def expression(p: Polynomial) -> Expr:
    """The canonical expression of a polynomial."""
    if not p:
        return Const(0, int64)
    result: Expr | None = None
    for monomial, c in sorted(p.items(), key=_term_key) if len(p) > 1 else p.items():
        magnitude = c if c == INT64_MIN else abs(c)  # INT64_MIN has no negation in int64
        if not monomial:
            term: Expr = Const(magnitude, int64)
        else:
            term = _monomial_expression(monomial)
            if magnitude != 1:
                term = Binary("mul", term, Const(magnitude, int64))
        if result is None:
            if magnitude != c:
                term = (
                    Const(c, int64) if not monomial else Binary("mul", _monomial_expression(monomial), Const(c, int64))
                )
            result = term
        else:
            result = Binary("sub" if magnitude != c else "add", result, term)
    if result is None:  # pragma: no cover - p is not empty
        return Const(0, int64)
    result.normal_form = p
    return result


def constant_value(p: Polynomial) -> int | None:
    """The value of a constant polynomial, else None."""
    if not p:
        return 0
    return p.get((), None) if len(p) == 1 else None


def _divide_monomials(divisor: Monomial, dividend: Monomial) -> Monomial | None:
    """dividend / divisor, or None where it is not a monomial."""
    quotient = list(dividend)
    for atom in divisor:
        for k, candidate in enumerate(quotient):
            if candidate is atom:
                del quotient[k]
                break
        else:
            return None
    return tuple(quotient)


def common_atoms(a: Monomial, b: Monomial) -> Monomial:
    """Common divisor of two monomials."""
    unmatched = list(b)
    common: list[Expr] = []
    for atom in a:
        position = next((k for k, other in enumerate(unmatched) if other is atom), None)
        if position is not None:
            common.append(unmatched.pop(position))
    return tuple(common)


def divide_by_term(p: Polynomial, monomial: Monomial, c: int) -> tuple[Polynomial, Polynomial]:
    """(q, r) with p = q*(c * monomial) + r, where q has the terms that are divisible."""
    quotient: Polynomial = {}
    remainder: Polynomial = {}
    for m, k in p.items():
        cofactor = _divide_monomials(monomial, m)
        if cofactor is not None and k % c == 0:
            quotient[cofactor] = k // c
        else:
            remainder[m] = k
    return quotient, remainder


def divide(p: Polynomial, d: Polynomial) -> tuple[Polynomial, Polynomial]:
    """(q, r) with p = q*d + r, where no term of r is divisible by the leading term of d.

    For a constant divisor the constant term of r is in [0, d).
    """
    lead, lead_c = min(d.items(), key=_term_key)
    if len(d) == 1 and not lead:
        quotient = {m: c // lead_c for m, c in p.items() if c % lead_c == 0 or not m}
        quotient = {m: c for m, c in quotient.items() if c}
        return quotient, add(p, multiply(quotient, d), -1)
    quotient: Polynomial = {}
    remainder = dict(p)
    for _ in range(4 * (len(p) + 1)):
        for m, c in sorted(remainder.items(), key=_term_key):
            cofactor = _divide_monomials(lead, m)
            if cofactor is not None and c % lead_c == 0:
                step: Polynomial = {cofactor: c // lead_c}
                quotient = add(quotient, step)
                remainder = add(remainder, multiply(step, d), -1)
                break
        else:
            break
    return quotient, remainder
