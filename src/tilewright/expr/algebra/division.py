"""Sums, quotients and remainders of int64 expressions, simplified.

For a divisor d > 0 (sizes are positive wherever an index is evaluated):
    (q*d + r) // d = q + r // d          (q*d + r) % d = r % d
    r // d = 0 and r % d = r             when 0 <= r < d is proved
    (g*y + r) // (g*c) = y // c          (g*y + r) % (g*c) = g*(y % c) + r, when 0 <= r < g is proved
    (g*y + k) // (g*c) = (y + k//g) // c (x // a) // c = x // (a*c)
    (x // d)*d + x % d = x               x - x % d = (x // d)*d
    (y*a + z) // (a*d) = (y + z // a) // d, where that is looked for
    (x // d % c)*d + x % d = x % (d*c)
    (d*t + r) // d = t                   for the tile t of an element, see `common_factor.tile_and_offset`
and where n % d == 0 was assumed (`Bounds.multiples`):
    (n*k + r) // d = n*k // d + r // d   (n*k + r) % d = r % d          (n // d)*d = n
All of this is for integers, so it holds where the operands are exact (`intervals.py`); others are left alone.
Digits of one number keep their source: a*119 + b stays as it is in (a*119 + b) % 28, next to (a*119 + b) // 28.
"""

from collections.abc import Iterator
from math import gcd

from tilewright.expr.algebra import polynomial as poly
from tilewright.expr.algebra.bounds import NO_BOUNDS, Bounds
from tilewright.expr.algebra.elimination import divisor_product
from tilewright.expr.algebra.factoring import is_in_range, split_common_factor, tile_and_offset
from tilewright.expr.algebra.intervals import has_no_wrap, is_interpretable, is_positive_divisor
from tilewright.expr.nodes import Binary, Const, Expr, const
from tilewright.expr.traversal import has_loads


def recombine(p: poly.Polynomial, bounds: Bounds = NO_BOUNDS) -> Expr:
    """The expression of `p` after (x // d)*d + x % d -> x and x - (x // d)*d -> x % d."""
    for monomial, k in p.items():
        for atom in monomial:
            if not is_interpretable(atom, bounds):
                continue
            if isinstance(atom, Binary) and atom.op == "floordiv":
                whole = _cancel_exact_quotient(p, monomial, k, atom, bounds) if bounds.multiples else None
                if whole is not None:
                    return recombine(whole, bounds)
                remainder = _fold_to_remainder(p, monomial, k, atom)
                if remainder is not None:
                    return recombine(remainder, bounds)
            if not (isinstance(atom, Binary) and atom.op == "mod"):
                continue
            rest = poly.drop_atom(monomial, atom)
            scale: poly.Polynomial = {rest: k}
            for quotient in _equal_quotients(atom, bounds):
                whole = poly.multiply(poly.multiply(poly.polynomial(quotient), poly.polynomial(atom.b)), scale)
                if whole and all(p.get(m) == c for m, c in whole.items()):
                    return recombine(_replace_remainder(p, monomial, k, whole, poly.polynomial(atom.a), scale), bounds)
            joined = _join_digits(p, monomial, k, atom, bounds)
            if joined is not None:
                return recombine(joined, bounds)
            floor = _fold_to_quotient(p, monomial, k, atom)
            if floor is not None:
                return recombine(floor, bounds)
    return poly.expression(p)


def _equal_quotients(atom: Binary, bounds: Bounds) -> Iterator[Expr]:
    """x // d for x % d: as it is simplified, and as (y*a + z) // (a*d) where x = y + z // a."""
    yield floordiv(atom.a, atom.b, bounds)
    x = poly.polynomial(atom.a)
    for m, c in x.items() if len(x) > 1 else ():
        inner = m[0] if len(m) == 1 and c == 1 else None
        if not (isinstance(inner, Binary) and inner.op == "floordiv" and is_positive_divisor(inner.b, bounds)):
            continue
        rest = poly.multiply(poly.add(x, {m: c}, -1), poly.polynomial(inner.b))
        top, both = poly.expression(poly.add(rest, poly.polynomial(inner.a))), divisor_product(inner.b, atom.b)
        if both is not None and is_interpretable(inner, bounds) and has_no_wrap(top, bounds):
            yield floordiv(top, both, bounds)


def _cancel_exact_quotient(
    p: poly.Polynomial, monomial: poly.Monomial, k: int, atom: Binary, bounds: Bounds
) -> poly.Polynomial | None:
    """`p` with s*d*(x // d) replaced by s*x, where x is known to be a multiple of d; else None."""
    d = int(atom.b.value) if isinstance(atom.b, Const) else 0
    x = poly.polynomial(atom.a)
    if d <= 1 or k % d or not all(_is_multiple(m, c, d, bounds) for m, c in x.items()):
        return None
    scale: poly.Polynomial = {poly.drop_atom(monomial, atom): k // d}
    return poly.add(poly.add(p, {monomial: k}, -1), poly.multiply(x, scale))


def _fold_to_remainder(p: poly.Polynomial, monomial: poly.Monomial, k: int, atom: Binary) -> poly.Polynomial | None:
    """`p` with s*x - s*d*(x // d) replaced by s*(x % d), where all those terms are in it; else None."""
    d = atom.b.value if isinstance(atom.b, Const) else 0
    if d <= 1 or k % int(d):
        return None
    rest = poly.drop_atom(monomial, atom)
    scale: poly.Polynomial = {rest: -k // int(d)}
    x = poly.multiply(poly.polynomial(atom.a), scale)
    if any(p.get(m) != c for m, c in x.items()):
        return None
    left = poly.add(poly.add(p, {monomial: k}, -1), x, -1)
    return poly.add(left, poly.multiply(poly.polynomial(mod(atom.a, atom.b, NO_BOUNDS)), scale))


def _join_digits(
    p: poly.Polynomial, monomial: poly.Monomial, k: int, atom: Binary, bounds: Bounds
) -> poly.Polynomial | None:
    """`p` with s*(y // d)*d + s*(x % d) replaced by s*y and s*((y // d) % c)*d + s*(x % d) by s*(y % (d*c)), where
    x % d is y % d, perhaps under another name; else None."""
    d = atom.b
    scale: poly.Polynomial = {poly.drop_atom(monomial, atom): k}
    for high in dict.fromkeys(a for m in p for a in m):
        c, q = (high.b, high.a) if isinstance(high, Binary) and high.op == "mod" else (None, high)
        if not (isinstance(q, Binary) and q.op == "floordiv" and q.b is d and is_interpretable(q, bounds)):
            continue
        both = d if c is None else divisor_product(d, c)
        if both is None:
            continue
        whole = poly.multiply(poly.multiply({(high,): 1}, poly.polynomial(d)), scale)
        if all(p.get(m) == n for m, n in whole.items()) and _is_remainder(q.a, atom):
            y = q.a if c is None else mod(q.a, both, NO_BOUNDS)
            return _replace_remainder(p, monomial, k, whole, poly.polynomial(y), scale)
    return None


def _is_remainder(x: Expr, atom: Binary) -> bool:
    """Whether x % d is `atom`, which is y % d: x and y are equal, or differ by a multiple of d."""
    if mod(x, atom.b, NO_BOUNDS) is atom:
        return True
    return mod(x - atom.a, atom.b, NO_BOUNDS) is const(0)


def _fold_to_quotient(p: poly.Polynomial, monomial: poly.Monomial, k: int, atom: Binary) -> poly.Polynomial | None:
    """`p` with s*x - s*(x % d) replaced by s*d*(x // d), where it has at least those terms but x's constant; else None.

    So sizes padded to a multiple of d look alike, whether they came as x + (d - x % d) or as ceil(x / d)*d.
    """
    scale: poly.Polynomial = {poly.drop_atom(monomial, atom): -k}
    x = poly.multiply(poly.polynomial(atom.a), scale)
    if not any(x) or not all(0 < c <= p.get(m, 0) or p.get(m, 0) <= c < 0 for m, c in x.items() if m):
        return None
    left = poly.add(poly.add(p, {monomial: k}, -1), x, -1)
    quotient = poly.polynomial(floordiv(atom.a, atom.b, NO_BOUNDS))
    return poly.add(left, poly.multiply(poly.multiply(quotient, poly.polynomial(atom.b)), scale))


def _replace_remainder(
    p: poly.Polynomial, monomial: poly.Monomial, k: int, whole: poly.Polynomial, x: poly.Polynomial, s: poly.Polynomial
) -> poly.Polynomial:
    """p - s*(x % d) - s*(x // d)*d + s*x."""
    p = poly.add(p, {monomial: k}, -1)
    p = poly.add(p, whole, -1)
    return poly.add(p, poly.multiply(x, s))


def floordiv(a: Expr, b: Expr, bounds: Bounds) -> Expr:
    """The simplified quotient, rounded down."""
    pa, pb = poly.polynomial(a), poly.polynomial(b)
    divisor = poly.constant_value(pb)
    if divisor == 0:
        return Binary("floordiv", a, b)
    if divisor == 1:
        return a
    if not _can_divide(a, b, bounds):
        return Binary("floordiv", a, b)
    if a is b:
        return const(1)
    quotient, rest = poly.divide(pa, pb)
    if (divisor is None and (len(rest) > len(pa) or not quotient)) or (divisor is not None and divisor < 0):
        quotient, rest = {}, pa
    remainder = poly.expression(rest)
    if not has_no_wrap(remainder, bounds):
        quotient, rest, remainder = {}, pa, a
    if not rest or is_in_range(remainder, b, bounds):
        return poly.expression(quotient)
    if divisor is not None and divisor > 0:
        small = _reduce_coefficients(rest, divisor)
        lower = poly.expression(small)
        # as `mod` decides it, so that both are digits of one number
        if small != rest and (not has_loads(a) or has_no_wrap(lower, bounds)) and is_in_range(lower, b, bounds):
            whole = {m: c // divisor for m, c in poly.add(rest, small, -1).items()}
            return poly.expression(poly.add(quotient, whole))
    if divisor is not None and bounds.facts and is_in_range(remainder - b, b, bounds):
        return poly.expression(quotient) + 1  # the constant of the remainder, which lies in [0, d), hides it
    positive = divisor > 0 if divisor is not None else is_positive_divisor(b, bounds)
    coarse = split_common_factor(rest, pb, bounds) if positive else None
    if coarse is not None:
        y, _, d, _ = coarse
        return recombine(poly.add(quotient, poly.polynomial(floordiv(y, d, bounds))))
    tile = tile_and_offset(pa, pb, bounds) if positive else None
    if tile is not None:
        return tile[0]
    if divisor is not None and positive:
        whole = {m: c for m, c in rest.items() if m and _is_multiple(m, c, divisor, bounds)}
        parts = [poly.expression(p) for p in (whole, poly.add(rest, whole, -1))]
        if whole and len(whole) < len(rest) and all(has_no_wrap(p, bounds) for p in parts):
            multiple, left = (floordiv(p, b, bounds) for p in parts)
            return poly.expression(quotient) + (multiple + left)
        inner = _cancel_quotient_factor(rest, divisor, bounds)
    else:
        nested = _flatten_nested_quotient(rest, b, bounds) if positive else None
        inner = Binary("floordiv", remainder, b) if nested is None else nested
    return recombine(poly.add(quotient, poly.polynomial(inner))) if quotient else inner


def _reduce_coefficients(p: poly.Polynomial, divisor: int) -> poly.Polynomial:
    """What differs from `p` by a multiple of the divisor, with coefficients below it."""
    small = {m: c if abs(c) < divisor else c % divisor for m, c in p.items()}
    return {m: c for m, c in small.items() if c}


def _can_divide(a: Expr, b: Expr, bounds: Bounds) -> bool:
    """Whether the rules hold: both are exact, and a divisor that depends on data is positive."""
    return has_no_wrap(a, bounds) and (not has_loads(b) or is_positive_divisor(b, bounds))


def _is_multiple(m: poly.Monomial, c: int, divisor: int, bounds: Bounds) -> bool:
    """Whether c*m is known to be a multiple of a number."""
    for atom in m if bounds.multiples else ():
        c *= bounds.multiples.get(atom, 1)
    return c % divisor == 0


def _cancel_quotient_factor(rest: poly.Polynomial, divisor: int, bounds: Bounds) -> Expr:
    """rest // divisor for a positive constant, after cancelling a common factor and nested quotients."""
    factor = divisor
    for m, c in rest.items():
        if m:
            factor = gcd(factor, c)
    if factor > 1:
        rest = {m: c // factor for m, c in rest.items()}
        rest = {m: c for m, c in rest.items() if c}
        return floordiv(poly.expression(rest), const(divisor // factor), bounds)
    nested = _flatten_nested_quotient(rest, const(divisor), bounds)
    if nested is not None:
        return nested
    return Binary("floordiv", poly.expression(rest), const(divisor))


def _flatten_nested_quotient(p: poly.Polynomial, d: Expr, bounds: Bounds) -> Expr | None:
    """(x // a + k) // d as (x + k*a) // (a*d), where `p` has that form; else None."""
    atom = next((m[0] for m, c in p.items() if len(m) == 1 and c == 1), None)
    if not (isinstance(atom, Binary) and atom.op == "floordiv") or any(m and m != (atom,) for m in p):
        return None
    both = divisor_product(atom.b, d)
    if both is None or not is_positive_divisor(atom.b, bounds):
        return None
    if not p.get((), 0):
        return floordiv(atom.a, both, bounds)
    shifted = poly.add(poly.polynomial(atom.a), poly.multiply(poly.polynomial(atom.b), poly.constant(p.get((), 0))))
    top = poly.expression(shifted)
    return floordiv(top, both, bounds) if has_no_wrap(atom.a, bounds) and has_no_wrap(top, bounds) else None


def mod(a: Expr, b: Expr, bounds: Bounds) -> Expr:
    """The simplified remainder of `floordiv`."""
    pa, pb = poly.polynomial(a), poly.polynomial(b)
    divisor = poly.constant_value(pb)
    if divisor is not None and divisor <= 0:
        return Binary("mod", a, b)
    if divisor == 1:
        return const(0)
    if not _can_divide(a, b, bounds):
        return Binary("mod", a, b)
    if a is b:
        return const(0)
    quotient, rest = poly.divide(pa, pb)
    if divisor is None and (len(rest) > len(pa) or not quotient):
        rest = pa
    if divisor is not None:
        rest = {m: c for m, c in rest.items() if not _is_multiple(m, c, divisor, bounds)}
        # Coefficients count modulo the divisor, but once changed they hide that x // d and x % d are digits of one x.
        small = _reduce_coefficients(rest, divisor)
        if has_loads(a) and not all(has_no_wrap(poly.expression(p), bounds) for p in (rest, small)):
            return Binary("mod", a, b)
        decided = _resolve_remainder(small, b, bounds)
        rest = small if len(rest) == 1 else rest
    else:
        rest = rest if has_no_wrap(poly.expression(rest), bounds) else pa
        decided = _resolve_remainder(rest, b, bounds)
    if decided is not None:
        return decided
    tile = tile_and_offset(pa, pb, bounds) if divisor is not None or is_positive_divisor(b, bounds) else None
    if tile is not None:
        return tile[1]
    if divisor is not None:
        factor = gcd(divisor, *rest.values())
        if factor > 1:
            smaller = poly.expression({m: c // factor for m, c in rest.items()})
            return mod(smaller, const(divisor // factor), bounds) * factor
    remainder = poly.expression(rest)
    if divisor is not None and isinstance(remainder, Binary) and remainder.op == "mod":
        outer = int(remainder.b.value) if isinstance(remainder.b, Const) else 0
        if outer > 0 and outer % divisor == 0:
            return mod(remainder.a, b, bounds)
    return Binary("mod", remainder, b)


def _resolve_remainder(p: poly.Polynomial, d: Expr, bounds: Bounds) -> Expr | None:
    """p % d where p is in 0..d-1, or where its lower digits are split off; else None."""
    remainder = poly.expression(p)
    if not p or is_in_range(remainder, d, bounds):
        return remainder
    if not is_positive_divisor(d, bounds):
        return None
    coarse = split_common_factor(p, poly.polynomial(d), bounds)
    if coarse is None:
        return None
    y, g, high, r = coarse
    return mod(y, high, bounds) * g + r
