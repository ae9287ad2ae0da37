"""Common factors of dividend and divisor up to a remainder: p = g*y + r and d = g*c with 0 <= r < g.

Then p // d = y // c and p % d = g*(y % c) + r. This separates the row of a fused index from its column.
"""

from collections.abc import Iterator
from functools import reduce
from math import gcd

from tilewright.expr.algebra import polynomial as poly
from tilewright.expr.algebra.bounds import Bounds
from tilewright.expr.algebra.prover import is_trivially_non_negative, is_trivially_ordered
from tilewright.expr.nodes import Binary, Const, Expr

MAX_FACTORS = 16
"""Integer factors of a divisor that are tried at most."""


def split_common_factor(p: poly.Polynomial, d: poly.Polynomial, bounds: Bounds) -> tuple[Expr, Expr, Expr, Expr] | None:
    """(y, g, c, r) with p = g*y + r, d = g*c and 0 <= r < g; None where there is no such factor g.

    For a divisor of one term a constant r does not count: `division.py` cancels that factor itself.

    Args:
        p: the dividend.
        d: the divisor, known to be positive.
        bounds: ranges and facts of the variables.
    """
    factorization = _split_by_term(p, d, bounds) if len(d) == 1 else _split_by_sum(p, d, bounds)
    if factorization is None:
        return None
    y, g, c, r = factorization
    return poly.expression(y), poly.expression(g), poly.expression(c), poly.expression(r)


def tile_and_offset(p: poly.Polynomial, d: poly.Polynomial, bounds: Bounds) -> tuple[Expr, Expr] | None:
    """(t, r) with p = d*t + r and 0 <= r < d, where p is a position in a buffer of overlapping tiles; else None.

    Element x is in tile t = min(x // s, last) of d elements at offset x - s*t, so at position d*t + x - s*t. The normal
    form has merged the terms with t.
    """
    for m, c in p.items():
        t = m[0] if len(m) == 1 and c > 0 else None
        if not (isinstance(t, Binary) and (t.op == "min" or _is_tile_index(t, c, d))):
            continue
        r = poly.expression(poly.add(p, poly.multiply(d, {m: 1}), -1))
        if is_in_range(r, poly.expression(d), bounds):
            return t, r
    return None


def _is_tile_index(t: Binary, c: int, d: poly.Polynomial) -> bool:
    """Whether `t` is x // s with d = c + s, the index of an unclamped tile."""
    return t.op == "floordiv" and isinstance(t.b, Const) and poly.constant_value(d) == c + t.b.value


def is_in_range(r: Expr, d: Expr, bounds: Bounds) -> bool:
    """Whether 0 <= r < d is trivially proved."""
    return is_trivially_non_negative(r, bounds) and is_trivially_ordered(r, d, bounds, 1)


_Factorization = tuple[poly.Polynomial, poly.Polynomial, poly.Polynomial, poly.Polynomial]


def _split_by_term(p: poly.Polynomial, d: poly.Polynomial, bounds: Bounds) -> _Factorization | None:
    ((divisor_atoms, size),) = d.items()
    factors = dict.fromkeys((gcd(c, size), poly.common_atoms(m, divisor_atoms)) for m, c in p.items() if m)
    for factor, atoms in sorted(factors, key=lambda f: (len(f[1]), f[0]), reverse=True):
        if (factor, atoms) in ((1, ()), (size, divisor_atoms)):
            continue
        y, r = poly.divide_by_term(p, atoms, factor)
        g: poly.Polynomial = {atoms: factor}
        if any(r) and y and is_in_range(poly.expression(r), poly.expression(g), bounds):
            return y, g, poly.divide_by_term(d, atoms, factor)[0], r
    return None


def _split_by_sum(p: poly.Polynomial, d: poly.Polynomial, bounds: Bounds) -> _Factorization | None:
    """g may be a sum of terms: rows of M + 3 elements in blocks of (M + 3)*4."""
    for g, c in _factorizations(d):
        y, r = poly.divide(p, g)
        if y and is_in_range(poly.expression(r), poly.expression(g), bounds):
            return y, g, c, r
    return None


def _factorizations(d: poly.Polynomial) -> Iterator[tuple[poly.Polynomial, poly.Polynomial]]:
    """(g, c) with d = g*c, where c != 1 divides all terms of d; the largest g first."""
    size = gcd(*d.values())
    atoms = reduce(poly.common_atoms, d)
    numbers = [n for n in range(1, size + 1) if size % n == 0][:MAX_FACTORS] if size <= 1 << 12 else [1, size]
    for common in dict.fromkeys(((), atoms)):
        for n in numbers:
            if n > 1 or common:
                yield poly.divide_by_term(d, common, n)[0], {common: n}
