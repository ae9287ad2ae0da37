"""Rewrites of a proof goal p >= 0: quotients relaxed, remainders cancelled, minima split, loop variables eliminated.

Each gives polynomials from whose sign that of the goal follows; `prover.py` decides which rewrite is tried when.
"""

from collections.abc import Sequence
from math import gcd

from tilewright.expr.algebra.bounds import Bounds
from tilewright.expr.algebra.elimination import quotient_of
from tilewright.expr.algebra.expression_order import order_key
from tilewright.expr.algebra.intervals import has_no_wrap, is_interpretable, polynomial_interval
from tilewright.expr.algebra.polynomial import (
    Monomial,
    Polynomial,
    add,
    divide,
    drop_atom,
    multiply,
    polynomial,
)
from tilewright.expr.nodes import Binary, Const, Expr, Var
from tilewright.expr.traversal import free_vars


def split_linear(p: Polynomial, atom: Expr) -> tuple[Polynomial, Polynomial] | None:
    """(c, r) with p = c * atom + r, or None where `p` is not linear in `atom`."""
    c: Polynomial = {}
    constant_part: Polynomial = {}
    for monomial, k in p.items():
        count = sum(1 for a in monomial if a is atom)
        if count == 0:
            constant_part[monomial] = k
        elif count == 1:
            cofactor: Monomial = tuple(a for a in monomial if a is not atom)
            c[cofactor] = c.get(cofactor, 0) + k
        else:
            return None
    return c, constant_part


def relax_quotient(p: Polynomial, bounds: Bounds) -> Polynomial | None:
    """A lower bound of `p` (up to scaling) without one of its quotients, or None where it has no suitable one.

    A term k*m*(a // d) with m >= 0 is bounded by a - d + 1 <= d*(a // d) <= a. Where d does not divide k, `p` is scaled
    by s = d / gcd(k, d) first: p is an integer, so s*p + s - 1 >= 0 proves p >= 0.
    """
    candidates: list[tuple[Monomial, Binary, int]] = []
    for monomial in p:
        for atom in monomial:
            if not (isinstance(atom, Binary) and atom.op == "floordiv" and isinstance(atom.b, Const)):
                continue
            if not is_interpretable(atom, bounds):
                continue
            d = int(atom.b.value)
            cofactor = drop_atom(monomial, atom)
            sign = polynomial_interval({cofactor: 1}, bounds)[0] if cofactor else 1
            if d > 0 and sign is not None and sign >= 0:
                candidates.append((monomial, atom, d))
    if not candidates:
        return None
    # Nested quotients first: the numerator that replaces one may cancel against the inner quotients.
    monomial, atom, d = min(candidates, key=lambda c: order_key(c[1]))
    k = p[monomial]
    cofactor = drop_atom(monomial, atom)
    factor = d // gcd(k, d)
    scaled = add(multiply(p, {(): factor}), {(): factor - 1} if factor > 1 else {})
    scale: Polynomial = {cofactor: k * factor // d}
    bound = polynomial(atom.a) if k < 0 else add(polynomial(atom.a), {(): d - 1}, -1)
    return add(add(scaled, {monomial: k * factor}, -1), multiply(scale, bound))


def cancel_remainders(p: Polynomial, bounds: Bounds) -> Polynomial:
    """`p` with x % d replaced by y - d*(y // d) where y // d occurs in `p` or in the expansion of another remainder.

    y is x or congruent to it modulo d; the two quotients then cancel.
    """
    atoms = list(dict.fromkeys(a for m in p for a in m if isinstance(a, Binary) and is_interpretable(a, bounds)))
    remainders = {a: quotient_of(a) for a in atoms if a.op == "mod"}
    quotients = [*(a for a in atoms if a.op == "floordiv"), *remainders.values()]
    for monomial, k in p.items():
        for atom in monomial:
            expansion = remainders.get(atom) if isinstance(atom, Binary) else None
            if not isinstance(atom, Binary) or expansion is None:
                continue
            # The quotient's operands may differ from the remainder's ((x // 2) // 4 is x // 8): use the remainder's.
            occurs_twice = quotients.count(expansion) > 1
            match = (atom.a, expansion) if occurs_twice else _congruent_quotient(atom, quotients, bounds)
            if match is not None:
                y, quotient = match
                cofactor = drop_atom(monomial, atom)
                value = add(polynomial(y), multiply({(quotient,): 1}, polynomial(atom.b)), -1)
                return cancel_remainders(add(add(p, {monomial: k}, -1), multiply(value, {cofactor: k})), bounds)
    return p


def _congruent_quotient(remainder: Binary, quotients: Sequence[Expr], bounds: Bounds) -> tuple[Expr, Expr] | None:
    """(y, y // d) among the quotients for the remainder x % d, where y is congruent to x modulo d; else None."""
    for q in quotients:
        if isinstance(q, Binary) and q.b is remainder.b and q.a is not remainder.a:
            d = polynomial(q.b)
            if d and not divide(_reduce_modulo(add(polynomial(q.a), polynomial(remainder.a), -1), d, bounds), d)[1]:
                return q.a, q
    return None


def _reduce_modulo(p: Polynomial, d: Polynomial, bounds: Bounds) -> Polynomial:
    """`p` with every z % m replaced by z where m is a multiple of d: congruent modulo d."""
    for monomial, k in p.items():
        for atom in monomial:
            if not (isinstance(atom, Binary) and atom.op == "mod" and is_interpretable(atom, bounds)):
                continue
            if not divide(polynomial(atom.b), d)[1]:
                whole = multiply(polynomial(atom.a), {drop_atom(monomial, atom): k})
                return _reduce_modulo(add(add(p, {monomial: k}, -1), whole), d, bounds)
    return p


def min_max_cases(p: Polynomial, bounds: Bounds) -> tuple[bool, Polynomial, Polynomial] | None:
    """Case split on one min(a, b) or max(a, b) in `p`: (whether both cases must be >= 0, `p` with a, `p` with b).

    None where `p` has no minimum or maximum with a factor of known sign. Splits that need both cases come first, as
    they are exact; among those, the largest operand.
    """
    cases: list[tuple[bool, int, Polynomial, Polynomial]] = []
    for atom in dict.fromkeys(a for m in p for a in m):
        if not (isinstance(atom, Binary) and atom.op in ("min", "max")):
            continue
        linear = split_linear(p, atom)
        if linear is None:
            continue
        c, rest = linear
        low, high = polynomial_interval(c, bounds)
        is_increasing = low is not None and low >= 0
        needs_both = (atom.op == "min") == is_increasing
        values = [polynomial(x) for x in (atom.a, atom.b) if has_no_wrap(x, bounds)]
        if len(values) >= (2 if needs_both else 1) and (is_increasing or (high is not None and high <= 0)):
            first, second = (add(rest, multiply(c, x)) for x in (values[0], values[-1]))
            cases.append((needs_both, atom.tree_size, first, second))
    if not cases:
        return None
    needs_both, _, first, second = max(cases, key=lambda case: case[:2])
    return needs_both, first, second


def eliminate_innermost(p: Polynomial, bounds: Bounds) -> Polynomial | None:
    """`p` with its innermost loop variable replaced by the end of its range at which `p` is least: exact.

    None where that variable occurs inside an atom (a quotient, a minimum), or the sign of its factor is not known.
    """
    nested_vars = {v for m in p for a in m if not isinstance(a, Var) for v in free_vars(a)}
    linear_vars = {a for m in p for a in m if isinstance(a, Var)}
    for v in reversed(tuple(bounds.ranges)):
        if v in nested_vars:
            return None
        if v not in linear_vars:
            continue
        linear = split_linear(p, v)
        if linear is None:
            return None
        c, constant_part = linear
        low, high = polynomial_interval(c, bounds)
        first, last = bounds.ranges[v]
        if low is not None and low >= 0:
            return add(constant_part, multiply(c, polynomial(first)))
        if high is not None and high <= 0:
            return add(constant_part, multiply(c, polynomial(last)))
        return None
    return None
